"""History: what a session's log says of how its files were, and when. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aerix.session import events

_TURN = re.compile(r"t(\d+)")


class NoTarget(Exception):
    """There is no such point to go back to: the text is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A snapshot before a call, or after a request's last; or, with ``record`` alone, an undo."""

    request: int
    turn: int
    """The root's turn in which it was taken, or which came last before."""
    call: str | None = None
    tree: str | None = None
    about: str | None = None
    kept: str | None = None
    record: str | None = None
    not_covered: tuple[str, ...] = ()
    more: int = 0


@dataclass(slots=True)
class History:
    """The marks of a log, in order, and the prompts by the number of their request, from 1."""

    marks: list[Mark] = field(default_factory=list)
    prompts: dict[int, str] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    """The turns of the root, each with its request."""

    def target(self, to: str | None) -> tuple[int, str]:
        """The index of the first mark that is to be undone, and what it stands before, in words. Raises NoTarget.

        ``to``: None is before the last prompt that had calls which may change files; ``start`` or ``0`` the session's start; N
        before prompt N; ``tK`` before the calls of turn K.
        """
        if not self.marks:
            raise NoTarget(
                "this session has made no call that may change files; aerix undo --session ID takes another one back"
            )
        if to is None:
            return self._before(max(mark.request for mark in self.marks if mark.record is None))
        if to in ("start", "0"):
            return 0, "the start of the session"
        if to.isdecimal():
            return self._before(int(to))
        if match := _TURN.fullmatch(to):
            return self._turn(int(match[1]))
        raise NoTarget(f"--to takes start, the number of a prompt, or a turn (t3), not {to!r}")

    def undone(self) -> int:
        """The index behind the last mark of an agent: what comes there are undos."""
        return 1 + max(n for n, mark in enumerate(self.marks) if mark.record is None)

    def _before(self, request: int) -> tuple[int, str]:
        if request not in self.prompts:
            last = len(self.prompts)
            raise NoTarget(f"this session has {last} prompt{'s' * (last != 1)}; there is no prompt {request}")
        return self._first(
            lambda mark: mark.request >= request
        ), f"prompt {request} ({self.prompts[request]})"

    def _turn(self, turn: int) -> tuple[int, str]:
        if turn not in self.turns:
            raise NoTarget(
                f"this session has the turns t1 to t{max(self.turns, default=0)}; there is no t{turn}"
            )
        at = (self.turns[turn], turn)
        first = self._first(lambda mark: (mark.request, mark.turn) >= at and mark.record is None)
        return first, f"the calls of turn t{turn}"

    def _first(self, wanted: Callable[[Mark], bool]) -> int:
        return next((n for n, mark in enumerate(self.marks) if wanted(mark)), len(self.marks))


def read_history(lines: Iterable[Mapping[str, Any]]) -> History:
    """What the events of a session say."""
    found, request, turn = History(), 0, 0
    for line in lines:
        match line:
            case {"type": events.SessionStart.type}:
                request, turn = request + 1, 0
                found.prompts[request] = str(line.get("title") or "")
            case {"type": events.Message.type, "role": "assistant", "agent": events.ROOT, "id": str(name)}:
                if match := _TURN.fullmatch(name):
                    turn = int(match[1])
                    found.turns[turn] = request
            case {"type": events.Snapshot.type}:
                found.marks.append(_mark(line, request, turn))
            case {"type": events.Undo.type, "record": str(record)}:
                found.marks.append(Mark(request, turn, record=record))
    return found


def _mark(line: Mapping[str, Any], request: int, turn: int) -> Mark:
    ids = {key: value for key in ("call", "tree", "about", "kept") if isinstance(value := line.get(key), str)}
    names, more = line.get("not_covered"), line.get("more")
    return Mark(
        request,
        turn,
        **ids,
        not_covered=tuple(map(str, names)) if isinstance(names, list) else (),
        more=more if isinstance(more, int) else 0,
    )
