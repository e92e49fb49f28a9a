"""Undoing: one undo of a session, from its log to the files; for the command and for a session that runs."""

from dataclasses import dataclass, field
from pathlib import Path

from aerix.actors import Ref
from aerix.bounds import JOURNAL
from aerix.session.blobs import Stored
from aerix.session.events import Undo
from aerix.session.history import History, NoTarget, read_history
from aerix.session.index import Place
from aerix.session.log import Write
from aerix.session.objects import Objects, algorithm_of
from aerix.session.project import repository_root
from aerix.session.read import Reading
from aerix.session.restore import keep, restore
from aerix.session.undo import Changes, Lost, Plan, plan
from aerix.session.was import dump

_OUTSIDE = "outside a repository"
_NO_TREE = "git gave no tree of this repository"


@dataclass(frozen=True, slots=True)
class Offer:
    """What an undo would do."""

    to: str
    """Before what it goes back, in words."""
    plan: Plan
    first: int = 0
    """The index of the first mark of the history that it undoes."""
    back: bool = False
    """It takes undos back."""
    not_covered: tuple[str, ...] = ()
    """What no tree has, of what was there."""
    more: int = 0
    """How many names of it there are beyond those."""
    earlier: bool = False
    """Whether there is something before that, which can be undone."""
    limits: str = ""
    """Why only ``write`` and ``edit`` are covered, where that is so."""


@dataclass(slots=True)
class Undoing:
    """Belongs to one thread, and to one session whose log ``log`` holds.

    Raises NoTarget, Lost, GitError, and Refused where the log cannot be written; OSError where it cannot be read.
    """

    place: Place
    cwd: Path
    log: Ref
    _history: History = field(init=False)
    _stored: Stored = field(init=False)
    _root: Path | None = field(init=False)

    def __post_init__(self) -> None:
        self._history = read_history(Reading(self.place.log))
        self._root = repository_root(self.cwd)
        self._stored = Stored(self.place.folder / "trees", self._root)

    def offer(self, to: str | None = None, *, force: bool = False) -> Offer:
        """What is to be done to go back to before ``to`` (``History.target``). Nothing is touched yet.

        Without ``to``, where the last undo left something that can be done, it is that.
        """
        again = self._history.again() if to is None else None
        if again and (rest := self._offer(*again, force=force)).plan.steps:
            return rest
        return self._offer(*self._history.target(to), force=force)

    def _offer(self, first: int, words: str, *, force: bool) -> Offer:
        changes, earlier = Changes(self._history, self._stored), self._history.earlier(first)
        mark = next((mark for mark in self._history.marks[first:] if mark.tree), None)
        if mark is None:
            limits = "" if first == len(self._history.marks) else _NO_TREE if self._root else _OUTSIDE
            steps = plan(changes.since(first), force=force)
            return Offer(words, steps, first, earlier=earlier, limits=limits)
        where = changes.about(mark.about).root
        if where != str(self._root):
            raise Lost(f"the session {self.place.id} worked in {where}; undo it there")
        names, more = self._not_covered(first)
        steps = plan(changes.since(first), force=force)
        return Offer(words, steps, first, not_covered=names, more=more, earlier=earlier)

    def _not_covered(self, first: int) -> tuple[tuple[str, ...], int]:
        """What was not covered at that mark, and what is not at the end."""
        marks = self._history.marks
        told = [mark for mark in marks if mark.not_covered]
        then = [mark for mark in marks[: first + 1] if mark.not_covered][-1:]
        both = [*then, *told[-1:]]
        names = dict.fromkeys(name for mark in both for name in mark.not_covered)
        return tuple(names), max((mark.more for mark in both), default=0)

    def offer_back(self, *, force: bool = False) -> Offer:
        """What is to be done to take back the undos since the last call of an agent."""
        if not self._history.marks:
            raise NoTarget("nothing was undone in this session")
        first = self._history.undone()
        changes = Changes(self._history, self._stored).since(first)
        return Offer("what was undone", plan(changes, force=force), first, back=True)

    def do(self, offer: Offer) -> Plan:
        """Do it: what was done, and what is left. What is there now is kept before anything is touched.

        One that finds nothing to do is logged too, so that the next one goes on from there.
        """
        objects = Objects(self.place.folder / "trees", self._algorithm())
        steps, left = keep(offer.plan.steps, objects)
        if steps or self._history.moves(offer.first):
            record = objects.put("blob", dump([[step.path, step.old, step.new] for step in steps]))
            event = Undo(to=offer.to, record=record, files=len(steps), back=offer.back, first=offer.first)
            self.log.ask(Write((event,)), JOURNAL.value)
            left += restore(steps, self._stored)
        names = {path for path, _ in left}
        return Plan([step for step in steps if step.path not in names], offer.plan.left + left)

    def _algorithm(self) -> str:
        tree = next((mark.tree for mark in self._history.marks if mark.tree), None)
        return algorithm_of(tree) if tree else "sha1"
