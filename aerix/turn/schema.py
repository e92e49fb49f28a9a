"""The JSON schema of a turn, and the small check of a tool's input for members that are not held to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

THOUGHT_CHARS = 600
"""Characters of a thought; the rest is cut."""
CALLS = 8
"""Calls kept of one turn; the rest are dropped with a note."""

JsonSchema = dict[str, object]

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose keys are names of the user's."""
_A_TYPE = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it.

    ``input`` is a flat JSON schema object: ``type``, ``properties``, ``required`` and ``additionalProperties`` false.
    The order of its properties is the order in which a model writes them. A default is no part of it: an optional
    input is one that ``required`` does not name.
    """

    name: str
    description: str
    input: JsonSchema


def turn_schema(
    tools: Sequence[ToolSpec], final: JsonSchema | None = None, *, max_calls: int = CALLS
) -> JsonSchema:
    """The schema that a generated turn is held to: a thought, then calls of ``tools`` or a final.

    ``final`` is the schema of the final where it is not a string; what it refers to is within itself. Without tools a
    final is all a turn can be. The order of the properties is the order of generation.
    """
    at = "#/oneOf/1/properties/final" if tools else "#/properties/final"
    ending = _turn("final", {"type": "string", "minLength": 1} if final is None else _placed(final, at))
    if not tools:
        return ending
    calls = {
        "type": "array",
        "minItems": 1,
        "maxItems": max_calls,
        "items": {"oneOf": [_call(t) for t in tools]},
    }
    return {"oneOf": [_turn("calls", calls), ending]}


def _placed(schema: JsonSchema, at: str) -> JsonSchema:
    """A schema that stands at ``at`` inside another one: it is no document of its own there."""
    return {key: _refer(inner, at, key) for key, inner in schema.items() if key not in ("$schema", "$id")}


def _refer(value: object, at: str, key: str = "") -> object:
    """A part of it, its references as they are from outside; what is only compared with has none."""
    if isinstance(value, dict) and key not in ("const", "default"):
        return {name: _refer(inner, at, "" if key in _NAMED else name) for name, inner in value.items()}
    if isinstance(value, list) and key not in ("enum", "examples"):
        return [_refer(inner, at) for inner in value]
    return at + value[1:] if key == "$ref" and isinstance(value, str) and value[:1] == "#" else value


def _turn(key: str, schema: JsonSchema) -> JsonSchema:
    return _object({"thought": {"type": "string", "maxLength": THOUGHT_CHARS}, key: schema})


def _call(tool: ToolSpec) -> JsonSchema:
    return _object({"tool": {"const": tool.name}, "input": tool.input})


def _object(properties: JsonSchema) -> JsonSchema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def check_input(schema: Mapping[str, object], value: object) -> str | None:
    """What is wrong with an object, as a sentence, or None: keys that are missing or unknown, and each value.

    Made for flat schemas; of a nested object or list only the type is checked.
    """
    if not isinstance(value, dict):
        return f"the input must be an object, not {_kind(value)}."
    properties = schema.get("properties")
    known: Mapping[str, object] = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    missing = [k for k in required if k not in value] if isinstance(required, list) else []
    if missing:
        return f"`{missing[0]}` is missing{_allowed(known)}"
    unknown = [k for k in value if k not in known] if schema.get("additionalProperties") is False else []
    if unknown:
        return f"`{_short(unknown[0])}` is not known{_allowed(known)}"
    for name, inner in known.items():
        if name in value and isinstance(inner, dict) and (wrong := check_value(inner, value[name])):
            return f"`{name}` {wrong}"
    return None


def check_value(schema: Mapping[str, object], value: object) -> str | None:
    """What is wrong with one value, as the end of a sentence ("must be …"), or None."""
    if "const" in schema and not _same(value, schema["const"]):
        return f"must be {schema['const']!r}, not {_kind(value)}."
    choices = schema.get("enum")
    if isinstance(choices, list | tuple) and not any(_same(value, c) for c in choices):
        return f"must be one of {', '.join(map(str, choices))}."
    return (
        _wrong_type(schema.get("type"), value) or _out_of_range(schema, value) or _wrong_text(schema, value)
    )


def _wrong_type(wanted: object, value: object) -> str | None:
    names = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(names, list) or any(_is(value, n) for n in names):
        return None
    return f"must be {' or '.join(_A_TYPE.get(n, str(n)) for n in names)}, not {_kind(value)}."


def _is(value: object, name: object) -> bool:
    """Whether a value has a JSON type. In JSON true is no number, in Python it is."""
    if not isinstance(name, str) or name not in _TYPES:
        return True
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _out_of_range(schema: Mapping[str, object], value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    low, high = schema.get("minimum"), schema.get("maximum")
    if isinstance(low, int | float) and value < low:
        return f"must be at least {low}."
    if isinstance(high, int | float) and value > high:
        return f"must be at most {high}."
    return None


def _wrong_text(schema: Mapping[str, object], value: object) -> str | None:
    if not isinstance(value, str):
        return None
    low, high = schema.get("minLength"), schema.get("maxLength")
    if isinstance(low, int) and len(value) < low:
        return "must not be empty." if low == 1 else f"must have at least {low} characters."
    if isinstance(high, int) and len(value) > high:
        return f"must have at most {high} characters."
    return None


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _kind(value: object) -> str:
    return next((_A_TYPE[n] for n in _TYPES if _is(value, n)), "that")


def _allowed(known: Mapping[str, object]) -> str:
    return f"; the keys are {', '.join(known)}." if known else "; there are no keys."


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"
