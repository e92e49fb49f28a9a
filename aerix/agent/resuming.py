"""Resuming: what stands between the context that a root goes on with and the new prompt; what the user is told of it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aerix.agent.calls import entry_of
from aerix.agent.context import Entry
from aerix.extensions.instructions import Instructions, fit
from aerix.session.events import ROOT, Message
from aerix.session.resumed import LostJob, Resumed
from aerix.tools.messages import ToolResult
from aerix.turn import prompt
from aerix.turn.pieces import EVERY_TOOL

if TYPE_CHECKING:
    from aerix.agent.request import RequestSpec

SHARED = frozenset({"system", "instructions"})
"""Ids of the segments that every agent of a session begins with."""


def shared(resumed: Resumed) -> tuple[Entry, ...]:
    """Those of them that a resumed context begins with; its pieces begin with the same."""
    return tuple(
        Entry(one.id, one.segment.role, one.segment.text, one.label, one.segment.pinned)
        for one in resumed.held
        if one.id in SHARED
    )


def between(spec: "RequestSpec", plans: bool) -> Iterator[Entry]:
    """What the agent is told first: what became of all that was under way, where it works now, what no longer holds."""
    resumed = spec.resumed
    for call in resumed.unanswered:
        yield entry_of(ROOT, call, ToolResult(call.error or prompt.STOPPED_CALL, error=True))
    for job in resumed.jobs:
        yield _end_of(job)
    if resumed.held and resumed.worked and resumed.ended:
        yield _note(resumed, "ended", prompt.ended(resumed.ended, resumed.reason))
    if resumed.held and resumed.cwd != str(spec.cwd):
        yield _note(resumed, "moved", prompt.moved(str(spec.cwd)))
    for word, text, holds in (
        ("planner", EVERY_TOOL, plans),
        ("final", prompt.FREE_FINAL, spec.final is not None),
    ):
        if (
            (last := resumed.last(word))
            and not holds
            and not any(one.id == f"{last}.off" for one in resumed.held)
        ):
            yield Entry(f"{last}.off", "user", text, "note", pinned=True)


def notes(spec: "RequestSpec", found: Instructions) -> tuple[str, ...]:
    """What the user is told when a session of another run goes on; ``found`` are today's instruction files."""
    return tuple(_notes(spec, found)) if spec.start.resumed else ()


def _notes(spec: "RequestSpec", found: Instructions) -> Iterator[str]:
    resumed = spec.resumed
    if resumed.passed_over:
        yield f"the session's log is damaged: {resumed.passed_over}"
    if resumed.ended:
        yield _how(resumed)
    if not resumed.held:
        yield "the session had not begun its work: it begins now"
        return
    if resumed.cwd != str(spec.cwd):
        yield f"the session worked in {resumed.cwd}; it goes on in {spec.cwd}"
    if resumed.model != spec.start.model:
        yield f"the session worked with {resumed.model}; it goes on with {spec.start.model}, which reads it anew"
    if fit(found, resumed.window) != "".join(
        one.segment.text for one in resumed.held if one.id == "instructions"
    ):
        yield "the instruction files have changed; the session goes on with what they said when it began"


def _how(resumed: Resumed) -> str:
    lost = ", ".join(f"{call.tool} {call.id}" for call in resumed.unanswered)
    without = f"; without a result: {lost}" if lost else ""
    match resumed.ended:
        case "interrupted":
            return f"the session was interrupted: Aerix was stopped during its work on {resumed.title!r}{without}"
        case "cancelled":
            return f"the session was interrupted: its work on {resumed.title!r} was cancelled{without}"
    return (
        f"the session's last work, on {resumed.title!r}, ended so: {resumed.ended}: {resumed.reason}{without}"
    )


def _end_of(job: LostJob) -> Entry:
    text = prompt.job_result(job.id, job.how or prompt.STOPPED_JOB, prompt.LOST_OUTPUT)
    message = Message(
        id=job.id, role="user", text=text, tool="job", input={"command": job.command}, error=True
    )
    return Entry(job.id, "user", text, "job", message=message)


def _note(resumed: Resumed, word: str, text: str) -> Entry:
    return Entry(resumed.name(word), "user", text, "note")
