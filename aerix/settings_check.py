"""Whether settings are what the schema allows, and what of a folder's settings is taken.

``jsonschema`` takes 70 ms to import, so it is asked only about sources that changed since they were last found good;
the digests of those are kept in the cache folder. What nobody sets is never checked.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aerix import folders, regular
from aerix.bounds import SETTINGS_CHECKED, SETTINGS_FILE, START_NOTES
from aerix.settings_layers import Layer, Problem, SettingsError
from aerix.settings_schema import (
    KEYS,
    REF,
    Key,
    KeyPath,
    Schema,
    allowed,
    dotted,
    find,
    is_table,
    schema,
    tables,
    toml,
)

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError


_DIGEST_CHARS = 64


def check(layers: Sequence[Layer], env: Mapping[str, str]) -> None:
    """Refuse settings that the schema does not allow, with a sentence for each. Raises SettingsError."""
    if not layers:
        return
    published = schema()
    digests = {_digest(published, layer.text): layer for layer in layers}
    memory = folders.cache(env) / "settings-checked"
    good = _remembered(memory)
    new = {digest: layer for digest, layer in digests.items() if digest not in good}
    problems = [problem for layer in new.values() for problem in _problems(published, layer)]
    if problems:
        raise SettingsError(*problems[: START_NOTES.count])
    if new:
        _remember(memory, [*good, *new])


def leaves(layer: Layer) -> Iterator[tuple[Key, KeyPath, object]]:
    """Each setting of a layer that was checked, with its value."""

    def walk(table: Mapping[str, object], at: KeyPath) -> Iterator[tuple[Key, KeyPath, object]]:
        for name, value in table.items():
            path = (*at, name)
            key = find(path)
            if key is not None:
                yield key, path, value
            elif isinstance(value, dict):
                yield from walk(value, path)

    return walk(layer.data, ())


def taken(layer: Layer, below: Mapping[KeyPath, object]) -> tuple[dict[KeyPath, object], list[str]]:
    """What is taken of a layer, and a note for each setting that is not. ``below`` holds the values so far.

    Of a folder that is not trusted only what tightens is taken. A setting whose feature is not built is refused by
    its name, so that nobody relies on what does not hold. Raises SettingsError.
    """
    values: dict[KeyPath, object] = {}
    notes: list[str] = []
    problems: list[Problem] = []
    for key, path, value in leaves(layer):
        refusal = "" if layer.trusted else loosens(layer, key, path, value, below)
        if refusal:
            notes.append(f"{layer.where(path)}: {dotted(path)} is not taken: {refusal}.")
        elif key.missing:
            problems.append(Problem("not_built", _not_built(layer, key, path)))
        elif value != value:  # nan, which every comparison of the schema lets pass
            problems.append(_bad_value(layer, path, key, value))
        elif key.appends and (bad := _bad_rule(value)):
            problems.append(Problem("bad_rule", f"{layer.where(path)}: {dotted(path)}: {bad}."))
        else:
            values[path] = _joined(below.get(path), value) if key.appends else value
    if problems:
        raise SettingsError(*problems[: START_NOTES.count])
    return values, _few(notes, layer)


def loosens(layer: Layer, key: Key, path: KeyPath, value: object, below: Mapping[KeyPath, object]) -> str:
    """Why a folder that is not trusted may not set this, or nothing."""
    if key.tighten == "never":
        return f"{layer.why_not}, and its settings may only tighten until `aerix trust` takes them"
    limit = below.get(path, key.default)
    if key.tighten == "lower" and _is_over(key, value, limit):
        return f"{layer.why_not}, and may only lower it from {toml(limit)}"
    return ""


def _is_over(key: Key, value: object, limit: object) -> bool:
    choices = key.schema.get("enum")
    if isinstance(choices, list):
        return limit in choices and choices.index(value) > choices.index(limit)
    return isinstance(value, int | float) and isinstance(limit, int | float) and value > limit


def _joined(before: object, value: object) -> list[object]:
    return [
        *(before if isinstance(before, list | tuple) else ()),
        *(value if isinstance(value, list) else ()),
    ]


def _bad_rule(rules: object) -> str:
    """What is wrong with the first of these permission rules that is none."""
    from aerix.tools.permissions import BadRule, read_rule

    try:
        for rule in rules if isinstance(rules, list) else ():
            read_rule(rule)
    except BadRule as bad:
        return str(bad)
    return ""


def _not_built(layer: Layer, key: Key, path: KeyPath) -> str:
    return f"{layer.where(path)}: {dotted(path)} cannot be set: {key.missing}. Remove it."


def _few(notes: list[str], layer: Layer) -> list[str]:
    most = START_NOTES.count
    if len(notes) <= most:
        return notes
    return [*notes[:most], f"{layer.source}: {len(notes) - most} more settings are not taken."]


# --- the schema's word ---------------------------------------------------------------------------------------------


def _problems(published: Schema, layer: Layer) -> Iterator[Problem]:
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(published).iter_errors(layer.data):
        yield from _told(error, layer)


def _told(error: "ValidationError", layer: Layer) -> Iterator[Problem]:
    path = tuple(part for part in error.absolute_path if isinstance(part, str))
    if error.validator == "additionalProperties":
        names = error.instance if isinstance(error.instance, dict) else ()
        yield from (_unknown(layer, (*path, name)) for name in names if not _known((*path, name)))
    elif len(path) == 2 and path[0] == "models" and find(path) is None:
        yield _unknown(layer, path)
    else:
        yield _bad_value(layer, path, find(path), error.instance)


def _known(path: KeyPath) -> bool:
    return find(path) is not None or is_table(path)


def _bad_value(layer: Layer, path: KeyPath, key: Key | None, value: object) -> Problem:
    shown = toml(value)
    shown = shown if len(shown) <= 60 else shown[:59] + "…"
    what = allowed(key.schema if key else {})
    return Problem("bad_value", f"{layer.where(path)}: {dotted(path)} must be {what}, not {shown}.")


def _unknown(layer: Layer, path: KeyPath) -> Problem:
    from difflib import get_close_matches

    of_a_model = path[0] == "models" and len(path) > 2
    keys = [key.path for key in KEYS if (REF in key.path) == of_a_model]
    names = {dotted(_of(known, path)): known for known in (*keys, *tables())}
    near = get_close_matches(dotted(path), names, 1)
    hint = f"did you mean {near[0]}?" if near else "`aerix settings schema` shows all there are."
    return Problem("unknown_key", f"{layer.where(path)}: there is no setting {dotted(path)}; {hint}")


def _of(known: KeyPath, path: KeyPath) -> KeyPath:
    """The path of a known setting, with the model reference of another path."""
    return tuple(path[1] if part == REF else part for part in known)


# --- what was found good before ------------------------------------------------------------------------------------


def _digest(published: Schema, text: str) -> str:
    import hashlib

    return hashlib.sha256(f"{published}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()


def _remembered(memory: Path) -> list[str]:
    try:
        found = regular.read(memory, SETTINGS_FILE.count).decode("ascii", "ignore").split()
        return [digest for digest in found if len(digest) == _DIGEST_CHARS]
    except (FileNotFoundError, regular.NotRead):
        return []


def _remember(memory: Path, digests: Iterable[str]) -> None:
    """Keep the newest digests. Where that fails, the same is checked again next time: nobody needs to be told."""
    kept = list(digests)[-SETTINGS_CHECKED.count :]
    new = memory.with_name(f"{memory.name}.{os.getpid()}")
    try:
        folders.private(memory.parent)
        new.write_text("\n".join(kept) + "\n", encoding="ascii")
        new.replace(memory)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
