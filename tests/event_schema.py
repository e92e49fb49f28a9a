"""The JSON Schema of the events and their reference, made from the dataclasses of ``aerix.session.events``."""

import ast
import inspect
import re
import types
from dataclasses import fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jsonschema import Draft202012Validator

from aerix.session import events
from aerix.session.events import Event

Schema = dict[str, Any]

_PLAIN: dict[object, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {},
}
_NO_LINES = (events.Reading,)
"""Only shown by interactive sessions: a stream has notes in their place."""
_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any value"}


def kinds() -> list[type[Event]]:
    """The class of each type of event, in the order of the file."""
    found = [one for one in vars(events).values() if isinstance(one, type) and issubclass(one, Event)]
    return [one for one in found if "type" in vars(one) and one not in _NO_LINES]


def schema() -> Schema:
    """The JSON Schema of one line."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An event of aerix: one line of a session's log and of --output-format stream-json",
        "oneOf": [{"$ref": f"#/$defs/{kind.type}"} for kind in kinds()],
        "$defs": {kind.type: of_kind(kind) for kind in kinds()},
    }


def of_kind(kind: type[Event]) -> Schema:
    """The schema of one type. A field that may be None is left out of the line then."""
    hints = hints_of(kind)
    optional = {name for name, hint in hints.items() if may_be_none(hint)}
    known = ["ts", "type", *(name for name in hints if name != "ts")]
    described = {name: {"description": text} for name, text in told(kind).items()}
    return {
        "type": "object",
        "description": sentences(kind.__doc__),
        "properties": {
            name: {"const": kind.type} if name == "type" else of_hint(hints[name]) | described.get(name, {})
            for name in known
        },
        "required": [name for name in known if name not in optional],
        "additionalProperties": False,
    }


def of_hint(hint: object) -> Schema:
    """The schema of a field's type."""
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    origin, args = get_origin(hint), [arg for arg in get_args(hint) if arg is not type(None)]
    if origin in (Union, types.UnionType):
        return of_hint(args[0]) if len(args) == 1 else {"anyOf": [of_hint(arg) for arg in args]}
    if origin is Literal:
        return {"enum": args}
    if origin in (list, tuple):
        return {"type": "array", "items": of_hint(args[0])}
    assert origin is dict, f"{hint} has no schema yet: say in tests/event_schema.py how it is written as JSON"
    return {"type": "object", "additionalProperties": of_hint(args[1])}


def reference() -> str:
    """The events as a page tells them: each type with what it says, and its fields."""
    return "".join(map(section, kinds()))


def section(kind: type[Event]) -> str:
    hints, texts = hints_of(kind), told(kind)
    rows = [
        f"| `{name}` | {words(hint)} | {texts.get(name, '')} |\n"
        for name, hint in hints.items()
        if name not in ("ts", "agent")
    ]
    head = "| field | value | meaning |\n|---|---|---|\n"
    return f"### `{kind.type}`\n\n{sentences(kind.__doc__)}\n\n{head}{''.join(rows)}\n"


def words(hint: object) -> str:
    """A field's type in words, for the cell of a table."""
    if hint in _NAMES:
        return _NAMES[hint]  # type: ignore[index]
    origin, args = get_origin(hint), [arg for arg in get_args(hint) if arg is not type(None)]
    if origin in (Union, types.UnionType):
        return " or ".join(map(words, args)) + (", or absent" if may_be_none(hint) else "")
    if origin is Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if origin is dict:
        return "object" if args[1] is Any else f"object of {words(args[1])}"
    return "list of objects" if get_origin(args[0]) is dict else f"list of {words(args[0])}"


def hints_of(kind: type[Event]) -> dict[str, object]:
    """The type of each field, in order."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def may_be_none(hint: object) -> bool:
    return type(None) in get_args(hint)


def told(kind: type[Event]) -> dict[str, str]:
    """What stands below each field, of the classes above too."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if issubclass(one, Event):
            found |= told_in(one)
    return found


@cache
def told_in(kind: type[Event]) -> dict[str, str]:
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = sentences(ast.literal_eval(text.value))
    return found


def sentences(doc: str | None) -> str:
    """A docstring as one line of a page."""
    return re.sub(r"\s+", " ", (doc or "").replace("``", "`")).strip()


@cache
def validators() -> dict[str, Draft202012Validator]:
    """One validator a type: much faster than trying them all."""
    return {kind.type: Draft202012Validator(of_kind(kind)) for kind in kinds()}


def wrong(line: dict[str, Any]) -> str | None:
    """What is wrong with a line, or None."""
    if line.get("type") not in validators():
        return f"there is no event of the type {line.get('type')}"
    found = next(validators()[line["type"]].iter_errors(line), None)
    return found and f"{line['type']}: {found.message}"
