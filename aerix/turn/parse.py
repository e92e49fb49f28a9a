"""Reading what a model answered: a turn, or a sentence that says what was wrong with it.

Nothing here raises, whatever the text is. A turn whose shape is broken is a ``TurnError``, and is asked again. A call
that cannot be run (an unknown tool, a wrong input) is kept with its error: an error of a tool is a result.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aerix.turn.schema import CALLS, THOUGHT_CHARS, JsonSchema, ToolSpec, check_input, check_value

DEPTH = 32
"""Levels of nesting that a turn may have; a frame to a tool's process takes 64."""
EXAMPLE_ANSWER = "<your answer>"
"""What stands in the example of a final; a small model may copy it, which is no answer."""
RESERVED = frozenset({"web_fetch", "web_search"})
"""Names that no tool has; every call of one is refused."""

ErrorCode = Literal[
    "empty", "not_json", "not_object", "duplicate_key", "too_deep", "no_action", "two_actions", "bad_thought",
    "bad_calls", "bad_call", "bad_final",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. Where ``error`` is there, the call is not run: ``error`` is its result, whole."""

    id: str
    tool: str
    input: dict[str, object]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn: calls or a final, never both, and a thought that may be empty.

    ``final`` is the answer's text; where the final has a schema of its own, ``value`` is its JSON value and ``final``
    that value as JSON. ``notes`` are sentences for the model about what was cut or dropped.
    """

    thought: str
    calls: tuple[Call, ...] = ()
    final: str | None = None
    value: object = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnError:
    """A text that is no turn: a stable code, and a sentence for the model. ``kind`` tells it from a cut turn."""

    code: ErrorCode
    message: str
    kind: Literal["malformed"] = "malformed"


class _Malformed(ValueError):
    """What is wrong, on its way out of the parser."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = TurnError(code, message)


def parse(
    text: str,
    tools: Sequence[ToolSpec],
    final: JsonSchema | None = None,
    *,
    first_call: int = 1,
    max_calls: int = CALLS,
) -> Turn | TurnError:
    """Read a model's answer.

    ``tools`` are the ones that may be called in this turn, ``final`` the schema of its final where that is no string,
    ``first_call`` the number of its first call: calls are numbered over an agent's life (``c1``, ``c2``, …).
    """
    try:
        return _turn(_load(text), tools, final, first_call, max_calls)
    except _Malformed as wrong:
        return wrong.error


def _turn(
    found: Mapping[str, object],
    tools: Sequence[ToolSpec],
    final: JsonSchema | None,
    first: int,
    max_calls: int,
) -> Turn:
    thought = found.get("thought")
    if not isinstance(thought, str | None):
        raise _Malformed("bad_thought", "`thought` must be a string.")
    thought = (thought or "")[:THOUGHT_CHARS]
    if "calls" in found and "final" in found:
        raise _Malformed("two_actions", "A turn has `calls` or `final`, not both.")
    if "calls" in found:
        calls = _list_of_calls(found["calls"])
        kept = tuple(_call(c, f"c{n}", tools) for n, c in enumerate(calls[:max_calls], first))
        return Turn(thought, kept, notes=_dropped(len(calls) - len(kept), max_calls))
    if "final" in found:
        return Turn(thought, final=_final_text(found["final"], final), value=found["final"])
    raise _Malformed("no_action", "The object has neither `calls` nor `final`.")


def _list_of_calls(calls: object) -> list[object]:
    if not isinstance(calls, list) or not calls:
        raise _Malformed("bad_calls", "`calls` must be a list of at least one call.")
    return calls


def _call(call: object, call_id: str, tools: Sequence[ToolSpec]) -> Call:
    name = call.get("tool") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(name, str):
        raise _Malformed("bad_call", 'Each call must be an object {"tool": "<name>", "input": {…}}.')
    value = call.get("input", {})
    return Call(call_id, name, value if isinstance(value, dict) else {}, _call_error(name, value, tools))


def _call_error(name: str, value: object, tools: Sequence[ToolSpec]) -> str | None:
    tool = next((t for t in tools if t.name == name), None)
    if tool is not None:
        wrong = check_input(tool.input, value)
        return wrong and f"error: {wrong}"
    if name in RESERVED:
        return f"refused: {name} is a reserved name; no tool has it."
    names = ", ".join(t.name for t in tools) or "none"
    return f"error: there is no tool `{_shown(name)}` to call here; the tools are: {names}."


def _dropped(dropped: int, max_calls: int) -> tuple[str, ...]:
    if dropped <= 0:
        return ()
    return (f"{dropped} call{'s' * (dropped > 1)} dropped: at most {max_calls} are run in one turn.",)


def _final_text(value: object, schema: JsonSchema | None) -> str:
    if schema is None:
        if value == EXAMPLE_ANSWER:
            raise _Malformed("bad_final", "`final` is the example's text: put your own answer there.")
        if isinstance(value, str) and value.strip():
            return value
        raise _Malformed("bad_final", "`final` must be a string that is not empty.")
    if wrong := check_value(schema, value):
        raise _Malformed("bad_final", f"`final` {wrong}")
    if schema.get("type") == "object" and (wrong := check_input(schema, value)):
        raise _Malformed("bad_final", f"In `final`, {wrong}")
    return json.dumps(value, ensure_ascii=False)


def _load(text: str) -> Mapping[str, object]:
    if not text.strip():
        raise _Malformed("empty", "The answer was empty.")
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as wrong:
        raise _Malformed("not_json", f"It is not JSON: {wrong.msg} at character {wrong.pos + 1}.") from None
    except _Malformed:
        raise
    except ValueError:  # an integer of thousands of digits
        raise _Malformed("not_json", "It is not JSON: a number is too long.") from None
    if not isinstance(found, dict):
        raise _Malformed("not_object", "It is JSON, but not one object.")
    _check_depth(found)
    clean = _whole(found)
    assert isinstance(clean, dict)
    return clean


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Malformed("duplicate_key", f"The key `{_shown(twice)}` stands twice in one object.")
    return found


def _no_number(name: str) -> object:
    raise _Malformed("not_json", f"It is not JSON: {name} is no number.")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _Malformed("not_json", "It is not JSON: a number is too large.")
    return number


def _check_depth(value: object) -> None:
    level: list[object] = [value]
    for _ in range(DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise _too_deep()


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _too_deep() -> _Malformed:
    return _Malformed("too_deep", f"It is nested deeper than {DEPTH} levels.")


def _whole(value: object) -> object:
    """A value without halves of surrogate pairs, which JSON can escape but no file, frame or screen can take."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_whole(name): _whole(inner) for name, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value


def _shown(name: str) -> str:
    """A name as a sentence may quote it: short, and encodable."""
    return str(_whole(name[:40]))
