"""Undoable: before each call of an agent that may change files, a snapshot that ``aerix undo`` can go back to."""

from typing import TYPE_CHECKING

from aerix.actors import Actor, DeadlineExceeded, Ref, Refused
from aerix.agent.journal import Journal
from aerix.agent.running import ask_living, living_child
from aerix.bounds import UNDO_NAMED, UNDO_WAIT
from aerix.session.events import Snapshot
from aerix.turn.parse import Call

if TYPE_CHECKING:
    from aerix.agent.request import RequestPlaces
    from aerix.session.snapshot import Point

_CHANGING = frozenset({"write", "edit", "bash"})


class Undoable:
    """Belongs to one agent and blocks it in ``wait``. ``places`` are those of its request's root."""

    def __init__(self, agent: Actor, name: str, journal: Journal, places: "RequestPlaces") -> None:
        self._agent, self._name, self._journal, self._places = agent, name, journal, places
        self._said: set[str] = set()
        self._given_up = False
        self._known: Ref | None = None

    def before(self, call: Call) -> None:
        """Take and log a snapshot, where the call may change files. Where there is none, a note says why, once."""
        if call.tool not in _CHANGING or self._places.snapshots is None or self._given_up:
            return
        try:
            point = ask_living(self._snapshots, lambda snapshots: self._take(call, snapshots))
        except Refused as refused:
            self._note(refused.message)
            return
        except DeadlineExceeded:
            self._given_up = True  # the actor is still at it
            self._note(f"the snapshot took longer than {UNDO_WAIT.value:g} s")
            return
        if point.problem:
            self._note(point.problem)
        if point.tree or point.kept:
            self._journal.tell(snapshot_event(point, self._name, call.id))

    def _snapshots(self) -> Ref:
        if self._known is None or not self._known.alive:
            assert self._places.snapshots is not None
            self._known = living_child(self._agent, self._places.supervisor, self._places.snapshots)
        return self._known

    def _take(self, call: Call, snapshots: Ref) -> "Point":
        from aerix.session.snapshot import TakePoint

        path = call.input.get("path") if call.tool != "bash" else None
        asked = self._agent.request(snapshots, TakePoint(path if isinstance(path, str) else None))
        self._agent.wait(asked, deadline_s=UNDO_WAIT.value)
        point: Point = asked.result()
        return point

    def _note(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            self._journal.note(f"what follows cannot be undone, or not in part: {why}")


def snapshot_event(point: "Point", agent: str, call: str | None = None) -> Snapshot:
    """A snapshot as the log has it."""
    names = point.uncovered
    return Snapshot(
        agent=agent,
        call=call,
        tree=point.tree,
        about=point.about,
        root=point.root,
        kept=point.kept,
        not_covered=None if names is None else names[: UNDO_NAMED.count],
        more=None if names is None else max(0, len(names) - UNDO_NAMED.count) or None,
    )
