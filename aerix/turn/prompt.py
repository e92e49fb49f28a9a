"""Every text of the turn loop that a model reads, rendered by code so that no prompt file can change the contract."""

import json
from collections.abc import Mapping, Sequence

from aerix.turn.parse import EXAMPLE_ANSWER, TurnError
from aerix.turn.schema import CALLS, JsonSchema, ToolSpec

_EXAMPLES = {"string": "…", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}


def system_text(head: str, tools: Sequence[ToolSpec], *, held: bool = False, max_calls: int = CALLS) -> str:
    """The text of the system segment: ``head`` (a prompt file), the tools, the turn contract."""
    turns = (turns_in_words if held else turns_section)(tools, max_calls=max_calls)
    return "\n\n".join(part for part in (head.strip(), tools_section(tools), turns) if part)


def tools_section(tools: Sequence[ToolSpec]) -> str:
    """``# Tools``: one line a tool, ``- name(path, offset?): what it does``. Empty without tools."""
    return "\n".join(["# Tools", *map(_tool_line, tools)]) if tools else ""


def turns_section(
    tools: Sequence[ToolSpec], final: JsonSchema | None = None, *, max_calls: int = CALLS
) -> str:
    """``# Turns``: the shape of an answer, with its example."""
    answer = _compact({"thought": "I know enough", "final": _example(final) if final else EXAMPLE_ANSWER})
    if not tools:
        return f"# Turns\nAnswer every turn with one JSON object and nothing else:\n{answer}"
    calls = [{"tool": tools[0].name, "input": _example(tools[0].input)}]
    return "\n".join((
        "# Turns",
        "Answer every turn with one JSON object and nothing else. When you know enough, answer the user:",
        answer,
        f"Before that, call tools, at most {max_calls} a turn, in order; each result comes back under [<tool> <id>]:",
        _compact({"thought": "I look first", "calls": calls}),
    ))  # fmt: skip


def turns_in_words(tools: Sequence[ToolSpec], *, max_calls: int = CALLS) -> str:
    """``# Turns`` for a model that is held to the shape by a constraint: it needs no example, and a small one would copy
    that as its answer.
    """
    keys = "`thought`, then `final` or `calls`" if tools else "`thought`, then `final`"
    lines = [
        "# Turns",
        f"Answer every turn with one JSON object and nothing else: {keys}.",
        "`final` is the text of your answer to the user, in your own words: give it as soon as you know enough.",
    ]
    if tools:
        lines.append(
            f"Before that, `calls` are tool calls, at most {max_calls} a turn, in order, each with its `tool` and its `input`; "
            "each result comes back under [<tool> <id>]."
        )
    return "\n".join(lines)


def final_text(
    schema: JsonSchema, tools: Sequence[ToolSpec], *, held: bool = False, max_calls: int = CALLS
) -> str:
    """``# Turns`` once more, for an agent whose final is a value of the user's schema."""
    turns = "# Turns" if held else turns_section(tools, schema, max_calls=max_calls)
    return f"{turns}\nHere `final` is a JSON value of this schema, not a text about it:\n{_compact(schema)}"


def _tool_line(tool: ToolSpec) -> str:
    fields = _fields(tool.input)
    required = tool.input.get("required")
    optional = set(fields) - set(required if isinstance(required, list) else ())
    names = ", ".join(_field(name, schema, name in optional) for name, schema in fields.items())
    meanings = [
        f"{name}: {schema['description']}" for name, schema in fields.items() if schema.get("description")
    ]
    return f"- {tool.name}({names}): {' '.join([tool.description, *meanings])}"


def _field(name: str, schema: Mapping[str, object], optional: bool) -> str:
    choices = schema.get("enum")
    allowed = f": {'|'.join(map(str, choices))}" if isinstance(choices, list | tuple) else ""
    return f"{name}{'?' if optional else ''}{allowed}"


def _fields(schema: JsonSchema) -> dict[str, Mapping[str, object]]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _example(schema: Mapping[str, object]) -> object:
    """A value of a schema, as an example: of an object the required properties."""
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict):
        return {
            n: _example(properties[n])
            for n in (required if isinstance(required, list) else ())
            if n in properties
        }
    choices = [schema["const"]] if "const" in schema else schema.get("enum") or schema.get("examples")
    if isinstance(choices, list | tuple) and choices:
        return choices[0]
    kind = schema.get("type")
    if kind == "array" and isinstance(items := schema.get("items"), dict):
        return [_example(items)]
    return _EXAMPLES.get(str(kind[0] if isinstance(kind, list) and kind else kind), "…")


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def result(tool: str, call_id: str, text: str) -> str:
    """A call's result as the context gets it."""
    return f"[{tool} {call_id}]\n{text}"


def job_started(job: str, timeout_s: float) -> str:
    """The result of a command that was started in the background."""
    return f"Job {job} runs in the background, for at most {timeout_s:g} s. Its output will come by itself when it exits."


def job_result(job: str, how: str, text: str) -> str:
    """A job's end as the context gets it; ``how`` is ``exited N``, or how else it ended."""
    return f"[job {job} {how}]\n{text}" if text else f"[job {job} {how}]"


def ended(how: str, reason: str) -> str:
    """Told to an agent that goes on after a request that did not end in a final; ``how`` is its outcome, and why."""
    match how:
        case "interrupted":
            what = "Aerix was stopped while you worked on this"
        case "cancelled":
            what = "The user stopped you here"
        case _:
            what = f"Your work on this ended here: {how}: {reason[:_REASON]}"
    return f"[{what}. Files may have changed since: read again what you edit.]"


def moved(cwd: str) -> str:
    """Told to an agent that goes on in another folder."""
    return f"[The working directory is now {cwd}.]"


def malformed(error: TurnError) -> str:
    """Sent after an answer that is no turn."""
    return (
        f"Your last answer is not a turn. {error.message} Answer again with one JSON object, as # Turns says."
    )


def cut(tokens: int, tools: Sequence[ToolSpec] = ()) -> str:
    """Sent after a turn that reached its token limit before its JSON closed, and was taken out."""
    in_parts = any("append" in _fields(t.input) for t in tools)
    write = " Write a long file in parts: its start first, then the rest with append." if in_parts else ""
    return (
        f"Your last answer was cut off at {tokens} tokens and is lost. Answer again in smaller parts.{write}"
    )


def compacted(before: int, after: int) -> str:
    """Sent after a compaction."""
    return f"[compacted: {before} -> {after} tokens; call again for what you still need]"


STOPPED_CALL = (
    "cancelled: Aerix was stopped before its result was there. What it had done by then stays done."
)
"""The result of a call that was under way when its request ended."""
STOPPED_JOB = "killed: Aerix was stopped"
LOST_OUTPUT = "Its output is lost."
"""Of a job whose end came when nobody was there to hear of it."""
FREE_FINAL = "[From here on `final` is a text again.]"
"""Told to an agent whose final had to be a value of the user's schema, and needs not any more."""
_REASON = 200  # characters
LAST_TURN = "This is your last turn. Answer with `final`: what was done, and what is left."
"""Sent before the last turn of an agent's budget."""
