"""The texts of delegation that a model reads, and the schema of a verdict, rendered by code like those of the loop."""

from collections.abc import Sequence
from string import Template

from aerix.turn.prompt import final_text, turns_section
from aerix.turn.schema import CALLS, JsonSchema, ToolSpec

VERDICT: JsonSchema = {
    "type": "object",
    "properties": {"verdict": {"enum": ["pass", "fail"]}, "reason": {"type": "string"}},
    "required": ["verdict", "reason"],
    "additionalProperties": False,
}
"""A verifier's final."""
NO_CHECK = "None was given: choose one that shows that the brief is met."
NO_FILES = "None that it named."
EVERY_TOOL = "[From here on you may call every tool yourself.]"
"""Told to a root that only planned, and does not any more."""
AT_LIMIT = "You may not call `agent`: do all of it yourself."
"""Told to an agent that works as deep as delegation goes."""


def planner_note(tools: Sequence[ToolSpec]) -> str:
    """Told to a root that only plans: what it may call, and what it has to delegate."""
    names = ", ".join(tool.name for tool in tools)
    return (
        f"You plan this task and delegate its pieces. Here you may call only: {names}. Whatever reads files, runs commands or"
        " changes something goes to `agent`. A piece sees nothing of this conversation: its brief must say all that it needs,"
        " its check how to see that it is done. Call `agent` several times in one turn for pieces that do not need each other."
    )


def brief_text(template: str, brief: str, check: str, *, may_delegate: bool) -> str:
    """What an implementer is asked. ``template`` is brief.md."""
    text = Template(template).safe_substitute(brief=brief, check=check or NO_CHECK)
    return text if may_delegate else f"{text}\n\n{AT_LIMIT}"


def verifier_text(
    template: str,
    brief: str,
    check: str,
    summary: str,
    files: Sequence[str],
    tools: Sequence[ToolSpec],
    *,
    held: bool = False,
    max_calls: int = CALLS,
) -> str:
    """What a verifier is asked, and the shape of its verdict. ``template`` is verifier.md. ``held``: the model is held to
    that shape, and is shown no verdict that it could copy.
    """
    named = "\n".join(f"- {file}" for file in files) or NO_FILES
    text = Template(template).safe_substitute(
        brief=brief, check=check or NO_CHECK, summary=summary, files=named
    )
    shape = (
        final_text(VERDICT, tools, held=True) if held else turns_section(tools, VERDICT, max_calls=max_calls)
    )
    return f"{text}\n\n{shape}"


def rejected(reason: str) -> str:
    """Told to an implementer that tries again."""
    return (
        "This piece was tried before, and a verifier rejected it. The files are as that attempt left them. The reason:\n"
        f"{reason}"
    )
