"""Changes: what a request does to the working tree, from a snapshot before its first call to one at its end.

The first snapshot is taken while the model reads the prompt; without a diff, before the first call that may change the
tree (``aerix.agent.undoable``). git runs in an actor of its own, so that nobody waits in it; where there is none, or it
fails, the request goes on without a diff. Nobody leaves a git behind: it is on a leash.
"""

import os
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from aerix.actors import (
    Actor,
    Call,
    Cancelled,
    ChildSpec,
    DeadlineExceeded,
    FindChild,
    Ref,
    Refused,
    StartChild,
)
from aerix.bounds import DIFF

if TYPE_CHECKING:
    from aerix.agent.request import RequestSpec
    from aerix.session.snapshot import Point


_STOP_S = 0.1
"""Seconds for that actor to stop; a git that holds it is killed before."""


class Changes:
    """Belongs to the request's actor, and blocks it in ``wait`` where it says so."""

    def __init__(self, actor: Actor, supervisor: Ref, spec: "RequestSpec") -> None:
        self._actor = actor
        self._supervisor = supervisor
        self._diffed = spec.diff
        self._starting: Call | None = None
        self._before: Call | None = None
        self._late = ""
        theirs, ours = os.pipe()
        self._leash: tuple[int, ...] = (theirs, ours)
        cwd, store = spec.cwd, spec.folder / "trees"

        def build() -> Actor:
            from aerix.session.snapshot import Snapshots

            return Snapshots(cwd, store, os.dup(theirs))

        self.child = ChildSpec("snapshots", build, restart="temporary", grace_s=_STOP_S)
        """How to start the actor that takes snapshots."""
        self.last: Point | None = None
        """The snapshot for undo at the end, once the diff was asked for; None where no call was snapshot."""

    def start(self) -> None:
        """Start that actor, where there is to be a diff. Does not wait."""
        if self._diffed:
            self._starting = self._actor.request(self._supervisor, StartChild(self.child))

    def heard(self, _event: object = None) -> None:
        """Take the first snapshot as soon as that actor is up. Does not wait."""
        starting = self._starting
        if self._before is None and starting is not None and starting.done and starting.error is None:
            self._before = self._take(starting.value)

    def begin(self) -> None:
        """Wait for the first snapshot: no call may change the tree before it. One that would come later is given up."""
        if self._starting is None:
            return
        try:
            self._actor.wait(self._starting, deadline_s=DIFF.value)
            self.heard()
            if self._before is not None:
                self._actor.wait(self._before, deadline_s=DIFF.value)
        except DeadlineExceeded:
            self._late = f"the first snapshot took longer than {DIFF.value:g} s; --no-diff takes none"
            self._let_go()

    def diff(self, limit_s: float) -> tuple[str, list[str], str]:
        """The diff, what it leaves out, and why there is none; outside a repository all three are empty.

        It is the last that is asked: whatever git still does is ended.
        """
        by = monotonic() + limit_s
        try:
            self.last = self._last_point(by)
            if self._starting is None or self._late:
                return "", [], self._late
            return self._diff(self._starting, by)
        except Refused as refused:
            return "", [], str(refused)
        except DeadlineExceeded:
            return "", [], f"git took longer than {limit_s:.1f} s; --no-diff takes none"
        except Cancelled:  # a second one: the end is near
            return "", [], "it was cancelled" if self._diffed else ""
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for end in self._leash:
            os.close(end)
        self._leash = ()

    def _last_point(self, by: float) -> "Point | None":
        """What is there for undo where nothing is to be told, or in time, is nothing."""
        found = self._actor.request(self._supervisor, FindChild(self.child.name))
        with suppress(Refused, DeadlineExceeded):
            snapshots: Ref = self._answer(found, by)
            from aerix.session.snapshot import TakeLastPoint

            point: Point | None = self._answer(self._actor.request(snapshots, TakeLastPoint()), by)
            return point
        return None

    def _diff(self, starting: Call, by: float) -> tuple[str, list[str], str]:
        from aerix.session.snapshot import DiffText, DiffTrees, Tree

        if self._before is None:
            return "", [], "" if starting.error is None else starting.error.message
        old = self._answer(self._before, by)
        if not isinstance(old, Tree):
            return "", [], ""
        snapshots: Ref = starting.result()
        new = self._answer(self._take(snapshots), by)
        if not isinstance(new, Tree):
            return "", [], "the repository is gone"
        found: DiffText = self._answer(self._actor.request(snapshots, DiffTrees(old, new)), by)
        return found.text, list(found.untracked), ""

    def _answer(self, call: Call, by: float) -> Any:
        self._actor.wait(call, deadline_s=max(0.0, by - monotonic()))
        return call.result()

    def _take(self, snapshots: Ref) -> Call:
        from aerix.session.snapshot import TakeSnapshot

        return self._actor.request(snapshots, TakeSnapshot())
