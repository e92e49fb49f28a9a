"""Pieces: the ``agent`` calls of one turn, run at once: some begin, the others wait, in order of their calls."""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from aerix.actors import (
    Actor,
    Cancelled,
    ChildSpec,
    DeadlineExceeded,
    Outcome,
    Ref,
    Refused,
    StopChild,
    Supervisor,
)
from aerix.actors import Call as Asked
from aerix.agent.delegation import Delegation
from aerix.agent.journal import Journal
from aerix.agent.piece import Piece, PieceResult, PieceSpec, RunPiece
from aerix.agent.running import FOREVER_S, start_child
from aerix.agent.usage import Usage
from aerix.session.events import PieceState
from aerix.session.show import OUTPUT_LOST, STORAGE_LOST
from aerix.tools.agent import piece_result
from aerix.tools.caps import UNSET, free_file
from aerix.tools.messages import ToolResult
from aerix.turn.parse import Call

_NO_DEFINITION = "refused: there are no agent definitions in this version; leave `definition` out and say all of it in the brief."


@dataclass(frozen=True, slots=True)
class Caller:
    """The agent whose calls these are: its actor, which blocks in ``wait``, and what it works with."""

    id: str
    actor: Actor
    journal: Journal
    supervisor: Ref
    """That of its request, under which its pieces' supervisors live."""
    delegation: Delegation
    spool: Path


class Pieces:
    """Runs the ``agent`` calls of one turn."""

    def __init__(self, caller: Caller, room_bytes: int) -> None:
        """A result takes at most ``room_bytes``."""
        self._caller = caller
        self._limit = min(caller.delegation.spec.caps.get("agent", UNSET), room_bytes)
        self._running: dict[Asked, tuple[Call, Ref]] = {}
        self.results: dict[str, ToolResult] = {}
        """By call id, of the pieces that have ended."""
        self.usage = Usage()
        """What the pieces' generations cost together."""

    def run(self, calls: Sequence[Call]) -> None:
        """Run them all to their ends, which ``results`` has then.

        Raises Cancelled, and Refused where the log or the reader is lost; the pieces have then been cancelled too.
        """
        refused = {call.id: ToolResult(_NO_DEFINITION, error=True) for call in calls if _defined(call)}
        self.results |= refused
        try:
            self._run([call for call in calls if call.id not in refused])
        except Cancelled as cancelled:
            self._cancel(cancelled.reason)
            raise
        except BaseException:
            self._cancel("its caller ended")
            raise

    def _run(self, calls: Sequence[Call]) -> None:
        waiting = deque(calls)
        at_once = self._caller.delegation.spec.delegation.parallel
        for call in calls[at_once:]:
            self._caller.journal.write(PieceState(agent=self._id(call), state="waits"))
        while waiting or self._running:
            while waiting and len(self._running) < at_once:
                call = waiting.popleft()
                try:
                    self._begin(call)
                except Refused as refused:  # the others go on
                    self.results[call.id] = self._told(call.id, _failed(refused))
            if not self._running:
                continue
            asked = self._caller.actor.wait(*self._running, deadline_s=FOREVER_S)
            call, _ = self._running[asked]
            self.results[call.id] = self._told(call.id, self._end(call, asked))
            del self._running[asked]

    def _id(self, call: Call) -> str:
        return f"{self._caller.id}.{call.id}"

    def _begin(self, call: Call) -> None:
        actor, delegation, name = self._caller.actor, self._caller.delegation, self._id(call)
        given = {key: str(call.input[key]) for key in ("brief", "check", "member") if call.input.get(key)}
        spec = PieceSpec(name, **given)
        around = ChildSpec(_around(name), Supervisor, restart="temporary", grace_s=None)
        supervisor = start_child(actor, self._caller.supervisor, around)
        child = ChildSpec(f"piece:{name}", lambda: Piece(spec, delegation, supervisor), restart="temporary")
        piece = start_child(actor, supervisor, child)
        self._caller.journal.write(PieceState(agent=name, state="begins"))
        self._running[actor.request(piece, RunPiece())] = call, piece

    def _end(self, call: Call, asked: Asked) -> PieceResult:
        """How a piece ended. Nothing of it is left running."""
        self._caller.actor.wait(self._stop(call), deadline_s=FOREVER_S)
        if asked.error is not None:
            if asked.error.code in STORAGE_LOST | OUTPUT_LOST:
                raise asked.error
            return _failed(asked.error)
        result: PieceResult = asked.result()
        self.usage = self.usage.sum(result.usage)
        if result.outcome.kind == "cancelled":  # not by this caller, which would have been cancelled too
            why = f"a part of Aerix that this piece needs has ended ({result.outcome.reason})"
            return replace(result, outcome=Outcome("killed", why))
        return result

    def _stop(self, call: Call) -> Asked:
        return self._caller.actor.request(self._caller.supervisor, StopChild(_around(self._id(call))))

    def _cancel(self, reason: str) -> None:
        """Let the pieces end, for as long as there is time for it; whatever is left of them is stopped. One that was
        over already keeps its result.
        """
        for _, piece in self._running.values():
            piece.cancel(reason)
        by = monotonic() + self._caller.delegation.patience_s
        for asked, (call, _) in self._running.items():
            with suppress(Cancelled, DeadlineExceeded, Refused):
                self._caller.actor.wait(asked, deadline_s=max(0.0, by - monotonic()))
                result: PieceResult = asked.result()
                if result.outcome.kind != "cancelled":
                    self.results[call.id] = self._told(call.id, result)
        for call, _ in self._running.values():
            self._stop(call)

    def _told(self, name: str, end: PieceResult) -> ToolResult:
        outcome = end.outcome
        told = f"{outcome.kind}: {outcome.reason}" if outcome.reason else outcome.kind
        spool = free_file(self._caller.spool, name)
        capped = piece_result(end.summary, end.files, end.checks, told, self._limit, spool)
        return ToolResult(
            capped.text,
            error=outcome.kind != "done",
            changed=True,
            spool=str(capped.spool) if capped.spool else None,
            paths=list(end.files),
        )


def _around(piece: str) -> str:
    """The name of a piece's supervisor."""
    return f"request:{piece}"


def _failed(why: Refused) -> PieceResult:
    return PieceResult(Outcome("failed", f"{why.message} [{why.code}]"))


def _defined(call: Call) -> bool:
    return bool(call.input.get("definition"))
