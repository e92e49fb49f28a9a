"""A session's transcript: what people want to see of its events, one passage after the other. Pure."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from aerix.bounds import CALLS
from aerix.session import events
from aerix.session.replay import Line
from aerix.tools import TOOLS
from aerix.turn.parse import Turn
from aerix.turn.repair import parse_said

Kind = Literal["request", "user", "thought", "call", "result", "answer", "note", "end", "diff"]


@dataclass(frozen=True, slots=True)
class Passage:
    """One thing that happened: what kind of thing, to which agent, a heading, and its text."""

    kind: Kind
    agent: str
    head: str
    text: str = ""


def passages(lines: Iterable[Line]) -> Iterator[Passage]:
    """The passages of a log. The system prompt, the instructions and what only machines need are left out."""
    calls: Counter[str] = Counter()
    for line in lines:
        agent = str(line["agent"])
        for kind, head, text in _of(line, calls):
            yield Passage(kind, agent, head, text)


def local_time(ts: str) -> str:
    """The time of an event, to the minute, where the user is."""
    try:
        return f"{datetime.fromisoformat(ts).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return f"{'unknown':16}"


def _of(line: Line, calls: Counter[str]) -> Iterator[tuple[Kind, str, str]]:
    match line:
        case {"type": events.SessionStart.type}:
            yield (
                "request",
                f"{local_time(line['ts'])} · {line.get('model')} · {line.get('cwd')}",
                "",
            )
        case {"type": events.Segment.type, "label": "prompt" | "brief", "text": str(text)}:
            yield "user", "", text
        case {"type": events.Segment.type, "label": "note", "text": str(text)}:
            yield "note", text, ""
        case {"type": events.Message.type, "role": "assistant", "text": str(text)}:
            yield from _turn(text, line, calls)
        case {"type": events.Message.type, "tool": str(tool), "text": str(text)}:
            yield "result", f"{tool} {line.get('call') or line.get('id')}", text.partition("\n")[2]
        case {"type": events.Plan.type, "text": str(text)}:
            yield "note", "the plan", text
        case {"type": events.SessionEnd.type}:
            yield from _end(line)
        case _:
            if said := _said(line):
                yield "note", said, ""


def _said(line: Line) -> str:
    """An event in a sentence; empty for one that is not worth any."""
    told = {name: str(line.get(name) or "") for name in ("id", "how", "op", "outcome", "reason", "verdict")}
    match line:
        case {"type": events.Compaction.type}:
            return f"compacted: {line.get('before')} → {line.get('after')} tokens"
        case {"type": events.ContextOp.type}:
            return f"context {told['op']}"
        case {"type": events.Job.type, "state": "exited" | "killed"}:
            return f"job {told['id']} {told['how']}"
        case {"type": events.PieceState.type, "state": "ended"}:
            return f"the piece ended: {told['outcome']} {told['reason']}".rstrip()
        case {"type": events.Verdict.type}:
            return f"the verifier: {told['verdict']}: {told['reason']}"
    return ""


def _turn(text: str, line: Line, calls: Counter[str]) -> Iterator[tuple[Kind, str, str]]:
    if line.get("kept") is False:
        yield "note", "a turn was cut, and was asked again", ""
        return
    thinking, agent = line.get("thinking"), str(line["agent"])
    turn, _ = parse_said(
        text,
        thinking if isinstance(thinking, str) else None,
        tuple(TOOLS.values()),
        {},
        first_call=calls[agent] + 1,
        max_calls=CALLS.count,
    )
    if not isinstance(turn, Turn):
        yield "note", "what is no turn", text
        return
    calls[agent] += len(turn.calls)
    if turn.thought:
        yield "thought", "", turn.thought
    for call in turn.calls:
        yield "call", f"{call.tool} {call.id}", _input(call.input)
    if turn.final is not None:
        yield "answer", "", _final(turn.final)


def _input(given: dict[str, object]) -> str:
    """A call's input as it is read best: the one text that most calls have stands alone."""
    if list(given) == ["command"]:
        return str(given["command"])
    return json.dumps(given, ensure_ascii=False, indent=1)


def _final(text: str) -> str:
    """A final that is a text was read as a JSON value, as any schema allows it."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def _end(line: Line) -> Iterator[tuple[Kind, str, str]]:
    reason = f": {line['reason']}" if line.get("reason") else ""
    yield "end", f"{line.get('outcome')}{reason} · turns: {line.get('turns')}", ""
    if isinstance(diff := line.get("diff"), str) and diff:
        yield "diff", "what it changed", diff
