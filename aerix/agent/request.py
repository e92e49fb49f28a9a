"""One request, end to end: load the model, classify, run the root agent, take the diff, say how it ended.

What only later steps need is imported by them: the time from the start to the first request is a figure that counts.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aerix.actors import Actor, Call, Cancelled, DeadlineExceeded, Outcome, Ref, Refused, StartChild, on
from aerix.agent.changes import Changes
from aerix.agent.journal import Journal
from aerix.agent.usage import Usage
from aerix.bounds import CANCEL, DIFF
from aerix.exits import BUDGET, DONE, FAILED, INTERRUPTED, NO_POOL, STDOUT_CLOSED, TERMINATED
from aerix.pool.client import POOL_UNREACHABLE, PoolContext, load_member
from aerix.pool.protocol import MemberInfo, Sampling
from aerix.session.events import ROOT, SessionEnd, SessionStart
from aerix.session.show import OUTPUT_LOST, STORAGE_LOST

_FOREVER_S = 7 * 86_400.0  # each step of an agent has its own limit; the whole has none
_CODES = {"done": DONE, "budget": BUDGET}


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """A request and everything that was decided before it: nothing in here changes while it runs."""

    start: SessionStart
    prompt: str
    cwd: Path
    folder: Path
    """The session's own folder, for its spool and its trees."""
    flags: dict[str, Any]
    caps: dict[str, int]
    max_turns: int
    max_new_tokens: int
    sampling: Sampling
    diff: bool


@dataclass(frozen=True, slots=True)
class RequestPlaces:
    """The actors around a request; ``supervisor`` starts its agents, its tool runner and its snapshots."""

    log: Ref
    screen: Ref
    pool: Ref
    supervisor: Ref


@dataclass(frozen=True, slots=True)
class Run:
    """Run the request; answered by the ``SessionEnd`` that was logged."""


class Request(Actor):
    """A request's life, in one handler that reads top to bottom. Cancelling it ends in the outcome ``cancelled``."""

    def __init__(self, spec: RequestSpec, places: RequestPlaces) -> None:
        self._spec = spec
        self._places = places
        self._usage = Usage()
        self._turns = 0

    def setup(self) -> None:
        """Get ready; nothing is asked yet."""
        self._journal = Journal(self, self._places.log, self._places.screen, ROOT)

    @on(Run)
    def run(self, _message: Run) -> SessionEnd:
        """Run the request to its end; raises Refused where that end cannot be written."""
        changes = Changes(self, self._places.supervisor, self._spec)
        text = ""
        try:
            self._journal.write(self._spec.start)
            member = self._load()
            self._classify(member, changes)
            changes.begin()
            outcome, text = self._run_root(member)
            code = _CODES.get(outcome.kind, FAILED)
        except Cancelled as cancelled:
            outcome, code = Outcome("cancelled", cancelled.reason), INTERRUPTED
        except Refused as refused:
            if refused.code in STORAGE_LOST:
                raise
            outcome, code = (
                Outcome("failed", f"{refused.message} [{refused.code}]"),
                self._failure_code(refused),
            )
        except DeadlineExceeded as late:
            outcome, code = Outcome("failed", str(late)), FAILED
        if outcome.kind == "cancelled":
            code = TERMINATED if outcome.reason == "terminated" else INTERRUPTED
        return self._conclude(outcome, text, code, changes)

    def _load(self) -> MemberInfo:
        spec = self._spec
        info = load_member(self, self._places.pool, spec.start.model, spec.flags, self._tell)
        if info.settings:
            self._journal.note(f"the model runs with plainer settings: {info.settings}")
        return info

    def _tell(self, event: object) -> None:
        log = getattr(event, "log", None)
        if log is not None:
            self._journal.note(f"the pool is being started; its output is in {log}")

    def _classify(self, member: MemberInfo, changes: Changes) -> None:
        from aerix.agent.route import classify

        context = PoolContext(self, self._places.pool, member.name)
        route, usage = classify(context, self._spec.prompt, asked=changes.start, heard=changes.heard)
        self._usage = self._usage.plus(usage)
        self._journal.write(route)

    def _run_root(self, member: MemberInfo) -> tuple[Outcome, str]:
        from aerix.agent.agent import Begin, Result
        from aerix.agent.root import root_agent

        child, notes = root_agent(self._spec, self._places, member)
        for note in notes:
            self._journal.note(note)
        started = self.request(self._places.supervisor, StartChild(child))
        self.wait(started, deadline_s=child.start_timeout_s)
        agent: Ref = started.result()
        asked = self.request(agent, Begin())
        try:
            self.wait(asked, deadline_s=_FOREVER_S)
        except Cancelled as cancelled:
            self._cancel_agent(agent, asked, cancelled.reason)
        result: Result = asked.result()
        self._usage = self._usage.sum(result.usage)
        self._turns = result.turns
        return result.outcome, result.text

    def _cancel_agent(self, agent: Ref, asked: Call, reason: str) -> None:
        """Let the agent say how far it came; one that does not in time has not ended the less."""
        agent.cancel(reason)
        try:
            self.wait(asked, deadline_s=CANCEL.value)
        except DeadlineExceeded:
            raise Cancelled(reason) from None

    # --- the end

    def _failure_code(self, refused: Refused) -> int:
        if refused.code in OUTPUT_LOST:
            self._journal.mute()
            return STDOUT_CLOSED if refused.code == "stdout_closed" else FAILED
        return NO_POOL if refused.code in POOL_UNREACHABLE else FAILED

    def _conclude(self, outcome: Outcome, text: str, code: int, changes: Changes) -> SessionEnd:
        limit_s = CANCEL.value / 3 if outcome.kind == "cancelled" else DIFF.value
        diff, untracked, problem = changes.diff(limit_s)
        if problem:
            self._journal.note(f"there is no diff: {problem}")
        end = SessionEnd(
            session=self._spec.start.session,
            outcome=outcome.kind,
            reason=outcome.reason,
            text=text,
            diff=diff,
            untracked=untracked,
            usage=self._usage.plain(),
            turns=self._turns,
            exit=code,
        )
        try:
            self._journal.write(end)
        except Refused as refused:  # it is logged; only nobody was shown it
            if refused.code not in OUTPUT_LOST:
                raise
            return replace(end, exit=self._failure_code(refused))
        return end
