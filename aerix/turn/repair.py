"""Calls in a foreign shape, for members that are not held to the turn's schema: read as the turn that they mean.

Models were trained on other shapes than ours, and fall back into them. Repaired is only what can be read in one way:
the whole answer is a call, calls or a turn; or it ends with calls in tags; or with the contract's own object. What
merely contains something like a call, as an explanation with an example does, is no call, and is asked again.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aerix.turn.loose import Reader, Unreadable, whole
from aerix.turn.parse import Turn, TurnError, parse
from aerix.turn.schema import CALLS, JsonSchema, ToolSpec

Shape = Literal["tags", "fence", "function", "json", "thinking"]
"""Tags around calls; a fenced block; ``read(path="f")``; JSON with other keys, or not quite JSON; all of it in the thinking."""

_TAG = re.compile(r"^[ \t]*<(/?)(tool_call|function_call)>", re.MULTILINE)
_CLOSING = re.compile(r"</(?:tool_call|function_call)>")
_FENCE = "```"
_NAMED = ("tool", "name", "tool_name")
_INPUTS = ("input", "arguments", "parameters", "args", "tool_input")
_BESIDE = frozenset({"id", "type", "index", "thought"})
_MESSAGE = frozenset({"role", "content", "tool_calls", "thought"})
_CLAUDE = {
    "Read": "read", "Write": "write", "Edit": "edit", "Bash": "bash", "Glob": "glob", "Grep": "grep",
    "Task": "agent", "Agent": "agent", "Skill": "skill",
}  # fmt: skip
"""What Claude Code calls the tools."""
_INPUT_NAMES = {
    "file_path": "path", "old_string": "old", "new_string": "new", "run_in_background": "background",
    "prompt": "brief", "subagent_type": "definition",
}  # fmt: skip
"""What it calls their inputs."""
_MILLISECONDS = 1000


@dataclass(frozen=True, slots=True)
class _Found:
    shape: Shape
    turn: dict[str, object]


def parse_said(
    text: str,
    thinking: str | None,
    tools: Sequence[ToolSpec],
    final: JsonSchema | None = None,
    *,
    first_call: int = 1,
    max_calls: int = CALLS,
) -> tuple[Turn | TurnError, Shape | None]:
    """As ``parse_loosely``; where nothing was said, calls that were only thought count."""
    turn, shape = parse_loosely(text, tools, final, first_call=first_call, max_calls=max_calls)
    if thinking and isinstance(turn, TurnError) and turn.code == "empty":
        thought, _ = parse_loosely(thinking, tools, final, first_call=first_call, max_calls=max_calls)
        if isinstance(thought, Turn) and thought.calls:
            return thought, "thinking"
    return turn, shape


def parse_loosely(
    text: str,
    tools: Sequence[ToolSpec],
    final: JsonSchema | None = None,
    *,
    first_call: int = 1,
    max_calls: int = CALLS,
) -> tuple[Turn | TurnError, Shape | None]:
    """As ``parse``; and what is no turn, or has calls that cannot be run, is repaired where it can be: the shape says how."""

    def read(one: str) -> Turn | TurnError:
        return parse(one, tools, final, first_call=first_call, max_calls=max_calls)

    turn = read(text)
    if _errors(turn) == 0:
        return turn, None
    try:
        found = _found(text, tools)
    except Unreadable:
        found = None
    if found is None or _errors(again := read(json.dumps(found.turn))) >= _errors(turn):
        return turn, None
    return again, found.shape


def _errors(turn: Turn | TurnError) -> float:
    return float("inf") if isinstance(turn, TurnError) else sum(call.error is not None for call in turn.calls)


def _found(text: str, tools: Sequence[ToolSpec]) -> _Found | None:
    if _TAG.search(text):
        return _tagged(text, tools)
    before, body, fenced = _unwrapped(text)
    shape: Shape = "fence" if fenced else "json"
    try:
        value = whole(body)
    except Unreadable:
        if before:
            return None
        return _Found("function", {"calls": _functions(body, tools)})
    turn = _turn(value, tools)
    if turn is None or (before and not _is_own(value)):
        return None
    return _Found(shape, _with_thought(turn, before))


# --- where it stands


def _tagged(text: str, tools: Sequence[ToolSpec]) -> _Found | None:
    """Words, then calls in tags that end the answer."""
    start = _TAG.search(text)
    assert start is not None
    before, rest, calls = text[: start.start()], text[start.start() :], list[object]()
    if _FENCE in before or _CLOSING.search(before):
        return None
    while rest.strip():
        opening = re.match(r"\s*<(tool_call|function_call)>", rest)
        if opening is None:
            return None
        body, closing, rest = rest[opening.end() :].partition(f"</{opening[1]}>")
        call = _call(whole(body), tools) if closing else None
        if call is None:
            return None
        calls.append(call)
    return _Found("tags", _with_thought({"calls": calls}, before.strip()))


def _unwrapped(text: str) -> tuple[str, str, bool]:
    """The words before it, the rest, and whether that stood in a fence, which ends the answer."""
    before, fence, rest = text.partition(_FENCE)
    if fence and (not before or before.endswith("\n")) and rest.rstrip().endswith("\n" + _FENCE):
        body = rest.rstrip().removesuffix(_FENCE).partition("\n")[2]
        if f"\n{_FENCE}" not in f"\n{body}":
            return before.strip(), body, True
    if text.lstrip().startswith(("{", "[")):
        return "", text, False
    before, brace, rest = text.partition("\n{")
    return (before.strip(), brace + rest, False) if brace else ("", text, False)


def _with_thought(turn: dict[str, object], before: str) -> dict[str, object]:
    return turn if turn.get("thought") or not before else {"thought": before, **turn}


# --- what it is


def _is_own(value: object) -> bool:
    return isinstance(value, dict) and ("calls" in value or "final" in value)


def _turn(value: object, tools: Sequence[ToolSpec]) -> dict[str, object] | None:
    """The turn that a value means; None where it is none."""
    if isinstance(value, list):
        calls, thought = _calls(value, tools), None
    elif not isinstance(value, dict):
        return None
    elif _is_own(value):
        return _own(value, tools)
    elif isinstance(made := value.get("tool_calls"), list) and value.keys() <= _MESSAGE:
        calls, thought = _calls(made, tools), value.get("content") or value.get("thought")
    else:
        calls, thought = _calls([value], tools), value.get("thought")
    return {"thought": thought if isinstance(thought, str) else "", "calls": calls} if calls else None


def _own(value: Mapping[str, object], tools: Sequence[ToolSpec]) -> dict[str, object]:
    """The contract's own object: without a half that is empty, and its calls as they should be."""
    turn = {key: value[key] for key in ("thought", "calls", "final") if key in value}
    for empty, other in (("calls", "final"), ("final", "calls")):
        if turn.get(other) and not turn.get(empty):
            turn.pop(empty, None)
    if isinstance(made := turn.get("calls"), list):
        turn["calls"] = [_call(one, tools) or one for one in made]
    return turn


def _calls(made: list[object], tools: Sequence[ToolSpec]) -> list[object] | None:
    """None where one of them is no call."""
    calls = [_call(one, tools) for one in made]
    return None if None in calls else list(calls)


def _call(value: object, tools: Sequence[ToolSpec]) -> dict[str, object] | None:
    """A call in our words: one name of a tool, one input, and nothing else that would mean something."""
    if isinstance(value, dict) and isinstance(inner := value.get("function"), dict):
        return _call(inner, tools) if value.keys() - {"function"} <= _BESIDE else None
    if not isinstance(value, dict):
        return None
    named = [key for key in _NAMED if key in value]
    given = [key for key in _INPUTS if key in value]
    if len(named) != 1 or len(given) != 1 or value.keys() - {*named, *given} - _BESIDE:
        return None
    tool, values = _tool(value[named[0]], tools), _values(value[given[0]])
    return None if tool is None or values is None else {"tool": tool.name, "input": _input(tool, values)}


def _tool(name: object, tools: Sequence[ToolSpec]) -> ToolSpec | None:
    known = {tool.name: tool for tool in tools}
    return (known.get(name) or known.get(_CLAUDE.get(name, ""))) if isinstance(name, str) else None


def _values(given: object) -> dict[str, object] | None:
    """An input; OpenAI's is JSON in a string."""
    value = whole(given) if isinstance(given, str) else given
    return value if isinstance(value, dict) else None


def _input(tool: ToolSpec, given: Mapping[str, object]) -> dict[str, object]:
    """An input with our names of its values. What has no name of ours is left as it is, for the check to refuse."""
    properties = tool.input.get("properties")
    known = properties if isinstance(properties, dict) else {}
    found: dict[str, object] = {}
    for key, value in given.items():
        name = key if key in known else _INPUT_NAMES.get(key, key)
        if key == "timeout" and "timeout_secs" in known and _is_long(value):
            found["timeout_secs"] = -(-value // _MILLISECONDS)  # type: ignore[operator]  # an integer: it was checked
        elif key == "description" and name not in known:
            continue  # told to a user there
        elif name in known and name not in found and (name == key or name not in given):
            found[name] = value
        else:
            found[key] = value
    return found


def _is_long(value: object) -> bool:
    """Whether it can only be milliseconds: as seconds it would be over what a command may have."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= _MILLISECONDS


# --- as functions


def _functions(text: str, tools: Sequence[ToolSpec]) -> list[object]:
    """``read(path="a"); read("b")``, also as a list in brackets. Raises Unreadable for anything else."""
    reader, calls = Reader(text), list[object]()
    listed = reader.sees("[")
    while not reader.over and not (listed and reader.sees("]")):
        tool = _tool(reader.word(), tools)
        if tool is None or not reader.sees("("):
            raise Unreadable
        calls.append({"tool": tool.name, "input": _input(tool, _arguments(reader, tool))})
        for mark in ",;":
            reader.sees(mark)
    if not calls or not reader.over:
        raise Unreadable
    return calls


def _arguments(reader: Reader, tool: ToolSpec) -> dict[str, object]:
    """By name; before those without one, in their order, what must be there; or all of it as one object."""
    required = tool.input.get("required")
    unnamed = list(required) if isinstance(required, list) else []
    found: dict[str, object] = {}
    while not reader.sees(")"):
        name = reader.name_before("=")
        value = reader.value()
        if not name and isinstance(value, dict) and not found and reader.sees(")"):
            return value
        if name:
            unnamed = []  # Python has none behind one with a name
        elif unnamed:
            name = unnamed.pop(0)
        if not name or name in found:
            raise Unreadable
        found[name] = value
        reader.comma_before(")")
    return found
