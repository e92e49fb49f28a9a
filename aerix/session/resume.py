"""Resume: what the root agent of a session's next request goes on with, from the log. Pure.

Its context and plan are those at the log's end, by ``replay``: the same segments, a turn with its exact token ids. What
the log's end lacks because Aerix was stopped there is told here: calls without results, and jobs whose end the agent
was never told. Subagents are not resumed: what they did is in their callers' results, or is lost with the call.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from aerix.bounds import CALLS
from aerix.session import events
from aerix.session.read import Reading
from aerix.session.replay import Line, replay
from aerix.session.resumed import LostJob, Resumed
from aerix.tools import TOOLS
from aerix.tools.permissions import is_rule
from aerix.turn.parse import Call, Turn
from aerix.turn.repair import parse_said

_NUMBERED = re.compile(r"([a-z]+)([0-9]{0,9})(?:\..*)?", re.DOTALL)


def resume_from(log: Path) -> Resumed:
    """What a log gives. Raises OSError where it cannot be read."""
    reading = Reading(log)
    return replace(resume(reading), passed_over=reading.said())


def resume(lines: Iterable[Line]) -> Resumed:
    """What a session's events give, in their order."""
    seen = _Seen()
    root = replay(seen.over(lines)).get(events.ROOT)
    held = {} if root is None else root.held
    return Resumed(
        held=tuple(held.values()),
        plan="" if root is None else root.plan,
        numbers=seen.numbers,
        unanswered=tuple(call for call in seen.calls if call.id not in seen.answered),
        jobs=tuple(job for job in seen.jobs.values() if job.id not in seen.told),
        granted=tuple(seen.granted),
        **seen.request,
    )


class _Seen:
    """What goes by on its way to the replay."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.calls: tuple[Call, ...] = ()
        """Of the last turn."""
        self.tools = tuple(TOOLS.values())
        """What it could call: a foreign shape is a call only of such a tool."""
        self.answered: set[str] = set()
        self.jobs: dict[str, LostJob] = {}
        """All that were started, by id."""
        self.told: set[str] = set()
        """Those whose end the agent was told."""
        self.request: dict[str, Any] = {}
        """Of the last request."""
        self.began: dict[str, str] = {}
        """Where it began, and with which model; its root may not have."""
        self.granted: dict[str, None] = {}
        """Permission rules that the user has granted, to whichever agent."""

    def over(self, lines: Iterable[Line]) -> Iterator[Line]:
        """The root's lines, each noted as it is taken."""
        for line in lines:
            if line.get("type") == events.PermissionAsked.type:
                self._grant(line)
            if line.get("agent") == events.ROOT:
                self._note(line)
                yield line

    def _note(self, line: Line) -> None:
        match line:
            case {"type": events.Segment.type | events.Message.type | events.Job.type, "id": str(name)}:
                self._number(name)
        match line:
            case {"type": events.SessionStart.type}:
                self.began = {key: str(line.get(key, "")) for key in ("cwd", "model")}
                title = str(line.get("title", ""))
                self.request |= {"title": title, "ended": "interrupted", "reason": "", "worked": False}
            case {"type": events.SessionEnd.type, "outcome": str(outcome)}:
                self.request["ended"] = "" if outcome == "done" else outcome
                self.request["reason"] = str(line.get("reason", ""))
            case {"type": events.AgentSpawn.type}:
                self._spawn(line)
            case {"type": events.Message.type}:
                self._message(line)
            case {"type": events.Job.type, "id": str(job)}:
                self._job(job, line)

    def _grant(self, line: Line) -> None:
        match line:
            case {"verdict": "session" | "always", "rules": [*rules]}:
                self.granted |= dict.fromkeys(rule for rule in rules if is_rule(rule))

    def _number(self, name: str) -> None:
        if found := _NUMBERED.fullmatch(name):
            word, number = found[1], int(found[2] or 1)
            self.numbers[word] = max(self.numbers.get(word, 0), number)

    def _spawn(self, line: Line) -> None:
        self.request |= {**self.began, "worked": True}
        match line:
            case {"window": int(window)} if line.get("resumed") is not True:
                self.request["window"] = window
                self.calls = ()  # of a context that is no more
        match line:
            case {"tools": [*names]}:
                self.tools = tuple(tool for name, tool in TOOLS.items() if name in names)

    def _message(self, line: Line) -> None:
        match line:
            case {"role": "assistant", "text": str(text)} if line.get("kept") is not False:
                self._turn(text, line.get("thinking"))
            case {"tool": "job", "id": str(job)}:
                self.told.add(job)
            case {"call": str(call)}:
                self.answered.add(call)

    def _turn(self, text: str, thinking: object) -> None:
        """The calls of a turn have ids by their number, whether they were answered or not."""
        turn, _ = parse_said(
            text,
            thinking if isinstance(thinking, str) else None,
            self.tools,
            first_call=self.numbers.get("c", 0) + 1,
            max_calls=CALLS.count,
        )
        self.calls = turn.calls if isinstance(turn, Turn) else ()
        for call in self.calls:
            self._number(call.id)

    def _job(self, job: str, line: Line) -> None:
        how, command = str(line.get("how", "")), str(line.get("command", ""))
        if line.get("state") == "started":
            self.jobs[job] = LostJob(job, command)
        elif job in self.jobs:
            self.jobs[job] = LostJob(job, self.jobs[job].command, how)
