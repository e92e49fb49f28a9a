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
    first: int = 0
    """Of an undo: the index of the first mark that it undid."""
    to: str = ""
    """Of an undo: before what it went back, in words."""
    not_covered: tuple[str, ...] = ()
    more: int = 0


@dataclass(slots=True)
class History:
    """The marks of a log, in order, and the prompts by the number of their request, from 1."""

    marks: list[Mark] = field(default_factory=list)
    prompts: dict[int, str] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    """The turns of the root, each with its request."""
    _heads: list[int] = field(default_factory=lambda: [-1])
    """Before each mark, and at the end: the last call's mark whose work was in the files then; -1 where none was."""

    def add(self, mark: Mark) -> None:
        """The next mark. Behind an undo the files are as they were before its first."""
        self._heads.append(len(self.marks) if mark.record is None else self._heads[mark.first])
        self.marks.append(mark)

    def target(self, to: str | None) -> tuple[int, str]:
        """The index of the first mark that is to be undone, and what it stands before, in words. Raises NoTarget.

        ``to``: None is before the last prompt that had calls which may change files, and that is not undone; ``start`` or
        ``0`` the session's start; N before prompt N; ``tK`` before the calls of turn K.
        """
        if not self.marks:
            raise NoTarget(
                "this session has made no call that may change files; aerix undo --session ID takes another one back"
            )
        if to is None:
            return self._last()
        if to in ("start", "0"):
            return 0, "the start of the session"
        if to.isdecimal():
            return self._before(int(to))
        if match := _TURN.fullmatch(to):
            return self._turn(int(match[1]))
        raise NoTarget(f"--to takes start, the number of a prompt, or a turn (t3), not {to!r}")

    def undone(self) -> int:
        """The index behind the last mark of an agent: what comes there are undos."""
        return 1 + max((n for n, mark in enumerate(self.marks) if mark.record is None), default=-1)

    def again(self) -> tuple[int, str] | None:
        """Where the last thing is an undo, its target: it may have been killed, or have left something.

        One that was tried twice is gone past, as long as there is something before it: what stops it may be there for good.
        """
        *before, last = self.marks[-2:] or [Mark(0, 0)]
        if last.record is None or last.first >= self.undone():
            return None
        twice = any(mark.record and mark.first == last.first for mark in before)
        return None if twice and self._heads[-1] >= 0 else (last.first, last.to)

    def earlier(self, first: int) -> bool:
        """Whether before that mark there is work in the files that can be undone."""
        return self._heads[first] >= 0

    def moves(self, first: int) -> bool:
        """Whether going back to before that mark changes what the next undo begins with."""
        return self._heads[first] != self._heads[-1]

    def begun(self, last: int) -> int:
        """The first mark of a prompt, of those whose work was in the files at its mark ``last``."""
        while (before := self._heads[last]) >= 0 and self.marks[before].request == self.marks[last].request:
            last = before
        return last

    def _last(self) -> tuple[int, str]:
        if (last := self._heads[-1]) < 0:
            raise NoTarget(
                "nothing is left to undo in this session; aerix undo --redo takes back what was undone"
            )
        return self.begun(last), self._prompt(self.marks[last].request)

    def _before(self, request: int) -> tuple[int, str]:
        if request not in self.prompts:
            last = len(self.prompts)
            raise NoTarget(f"this session has {last} prompt{'s' * (last != 1)}; there is no prompt {request}")
        return self._first(lambda mark: mark.request >= request), self._prompt(request)

    def _prompt(self, request: int) -> str:
        return f"prompt {request} ({self.prompts.get(request, '')})"

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
                found.add(_mark(line, request, turn))
            case {"type": events.Undo.type, "record": str(record)}:
                first, to = _first_undone(line, found), str(line.get("to") or "")
                found.add(Mark(request, turn, record=record, first=first, to=to))
    return found


def _first_undone(line: Mapping[str, Any], before: History) -> int:
    """Older logs do not tell: their undos count as undos of the last prompt."""
    first, undone = line.get("first"), before.undone()
    if isinstance(first, int) and 0 <= first <= len(before.marks):
        return first
    return undone if line.get("back") or not undone else before.begun(undone - 1)


def _mark(line: Mapping[str, Any], request: int, turn: int) -> Mark:
    call, tree, about, kept = (
        value if isinstance(value := line.get(key), str) else None
        for key in ("call", "tree", "about", "kept")
    )
    names, more = line.get("not_covered"), line.get("more")
    return Mark(
        request,
        turn,
        call,
        tree,
        about,
        kept,
        not_covered=tuple(map(str, names)) if isinstance(names, list) else (),
        more=more if isinstance(more, int) else 0,
    )
