"""Piece: one delegated piece of work: an implementer, then a verifier, tried again where that one rejects it.

It is a request one level deeper: its agents, with their tool runners, live under a supervisor of its own, and what they
spend is counted in a ledger of its own. It is never restarted: its end is a result that its caller reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Literal

from aerix.actors import (
    Actor,
    Cancel,
    Cancelled,
    ChildSpec,
    DeadlineExceeded,
    Exhausted,
    Ledger,
    Outcome,
    Ref,
    Refused,
    StopChild,
    on,
)
from aerix.agent.agent import Agent, Places, Result, Task
from aerix.agent.budget import Budget
from aerix.agent.context import Entry
from aerix.agent.delegation import Delegation
from aerix.agent.ended import crash
from aerix.agent.journal import Journal
from aerix.agent.root import allowed_tools, runner, spool_folder
from aerix.agent.running import FOREVER_S, living_child, run_agent
from aerix.agent.shared import Forked, ForkShared, shared_child
from aerix.agent.usage import Usage
from aerix.bounds import CALLS, CANCEL, PIECE_REASON, PIECE_RETRIES, TURNS
from aerix.hooks import events as hooks
from aerix.prompts import load
from aerix.session.events import PieceState, Verdict
from aerix.session.show import OUTPUT_LOST, STORAGE_LOST
from aerix.tools import TOOLS
from aerix.turn.pieces import VERDICT, brief_text, rejected, verifier_text
from aerix.turn.schema import ToolSpec

_VERIFYING = ("read", "bash", "grep", "glob", "repo_map")
_AGENT_SHARE = 0.9
"""Of the time that its caller gives it to end after a cancel: how long the piece gives its agent."""
_READER_SHARE = 0.05
"""Of the same: how long a reader of the output may take."""


@dataclass(frozen=True, slots=True)
class PieceSpec:
    """What is to be done: the input of an ``agent`` call. ``id`` is its caller's id and the call's."""

    id: str
    brief: str
    check: str = ""
    member: str | None = None


@dataclass(frozen=True, slots=True)
class RunPiece:
    """Run it; answered by ``PieceResult`` at its end, whatever that is."""


@dataclass(frozen=True, slots=True)
class PieceResult:
    """How a piece ended. ``summary`` is its last implementer's final, ``checks`` are the last verifier's commands."""

    outcome: Outcome
    summary: str = ""
    files: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)


class Piece(Actor):
    """A piece's life. ``delegation`` is its caller's, ``supervisor`` its own."""

    def __init__(self, spec: PieceSpec, delegation: Delegation, supervisor: Ref) -> None:
        self._spec = spec
        self._delegation = delegation
        self._supervisor = supervisor
        request = delegation.spec
        rules = request.delegation
        self._ledger = Ledger({TURNS: rules.turns, PIECE_RETRIES: rules.retries}, request.spent)
        self._attempts = 0
        self._summary = ""
        self._files: dict[str, None] = {}
        self._checks: tuple[str, ...] = ()
        self._usage = Usage()
        self._cancelled: str | None = None

    def setup(self) -> None:
        """Get ready; nothing is asked yet."""
        places = self._delegation.places
        self._journal = Journal(self, places.log, places.screen, self._spec.id)
        self._budget = Budget(self._ledger, self._journal, self._spec.id)

    @on(Cancel)
    def cancel(self, message: Cancel) -> None:
        """Cancelled while nothing waits: ``run`` has not begun, or is over."""
        self._cancelled = message.reason

    @on(RunPiece)
    def run(self, _message: RunPiece) -> PieceResult:
        """Run it to its end and say how it ended. Raises Refused where that cannot be told to anybody."""
        try:
            outcome = self._work()
        except Cancelled as cancelled:
            self._journal.hurry(self._delegation.patience_s * _READER_SHARE)
            outcome = Outcome("cancelled", cancelled.reason)
        except Refused as refused:
            if refused.code in STORAGE_LOST | OUTPUT_LOST:
                raise
            why = f"{refused.message} [{refused.code}]"
            outcome = Outcome("refused" if refused.code == "no_member" else "failed", why)
        except DeadlineExceeded as late:
            outcome = Outcome("failed", str(late))
        except Exception as error:  # noqa: BLE001  # whoever reads the outcome is told, and the log has the traceback
            outcome = crash("the piece", error)
        self._journal.write(
            PieceState(
                agent=self._spec.id,
                state="ended",
                outcome=outcome.kind,
                reason=outcome.reason,
                attempts=self._attempts,
            )
        )
        return PieceResult(outcome, self._summary, tuple(self._files), self._checks, self._usage)

    def _work(self) -> Outcome:
        if self._cancelled is not None:
            raise Cancelled(self._cancelled)
        reason = ""
        for attempt in count(1):
            self._attempts = attempt
            forked = self._fork()
            done = self._implement(forked, reason)
            if done.outcome.kind != "done":
                return done.outcome
            passed, reason = self._verify(forked)
            if passed:
                return Outcome("done")
            taken = self._budget.spend(PIECE_RETRIES)
            if isinstance(taken, Exhausted):
                end = taken.outcome
                return Outcome(end.kind, f"{end.reason} after {attempt} attempts: {reason}")
        raise AssertionError

    def _fork(self) -> Forked:
        """A fork of the segments that all agents share, on the member that was asked for."""
        child = shared_child(self._delegation, self._spec.member)
        shared = living_child(self, self._delegation.places.supervisor, child)
        call = self.request(shared, ForkShared())
        self.wait(call, deadline_s=FOREVER_S)
        forked: Forked = call.result()
        return forked

    # --- its agents

    def _implement(self, forked: Forked, reason: str) -> Result:
        below = self._delegation.below(forked.member)
        brief, check = self._spec.brief, self._spec.check
        text = brief_text(load("brief"), brief, check, may_delegate=below.allowed)
        entries = [*forked.entries, Entry("brief", "user", text, "brief", pinned=True)]
        if reason:
            entries.append(Entry("rejected", "user", rejected(reason), "brief", pinned=True))
        again = f".r{self._attempts - 1}" if reason else ""
        task = self._task(f"{self._spec.id}{again}", "implementer", entries, allowed_tools(below))
        result = self._run(replace(task, fork=forked.context), below)
        self._summary = result.text or self._summary
        self._files |= dict.fromkeys(result.work.files)
        return result

    def _verify(self, forked: Forked) -> tuple[bool, str]:
        """Whether a verifier passes what the implementer did, and its reason."""
        tools, spec = _verifying(), self._spec
        text = verifier_text(
            load("verifier"),
            spec.brief,
            spec.check,
            self._summary,
            tuple(self._files),
            tools,
            held=forked.member.json,
            max_calls=CALLS.count,
        )
        entries = [entry for entry in forked.entries if entry.role == "system"]
        entries.append(Entry("brief", "user", text, "brief", pinned=True))
        task = self._task(f"{spec.id}.v{self._attempts}", "verifier", entries, tools)
        result = self._run(replace(task, final=VERDICT), self._delegation.below(forked.member))
        self._checks = result.work.commands
        passed, reason = _verdict(result)
        verdict: Literal["pass", "fail"] = "pass" if passed else "fail"
        self._journal.write(Verdict(agent=task.id, verdict=verdict, reason=reason))
        self._fire(hooks.Verify(task.id, verdict, reason))
        return passed, reason

    def _task(self, agent: str, kind: str, entries: Sequence[Entry], tools: tuple[ToolSpec, ...]) -> Task:
        spec = self._delegation.spec
        return Task(
            agent,
            kind,
            tuple(entries),
            tools,
            spec.max_new_tokens,
            spec.sampling,
            spool_folder(spec, agent),
            spec.ratios,
        )

    def _with_hooks(self, task: Task) -> Task:
        """The agent is about to begin; what hooks say for it stands at the end of its first segments."""
        self._fire(hooks.AgentSpawn(task.id, task.kind))
        text = self._fire(hooks.SubagentStart(task.id, task.kind)).context
        added = (
            (Entry("hooks", "user", f"# Hook context\n{text}", "instructions", pinned=True),) if text else ()
        )
        return replace(task, segments=task.segments + added)

    def _fire(self, event: hooks.Event) -> hooks.Decision:
        decision = self._delegation.spec.extensions.fire(self, event)
        if decision.end is not None:
            raise Refused("hook_blocked", f"a hook ended the piece: {decision.end}")
        return decision

    def _run(self, task: Task, delegation: Delegation) -> Result:
        """Run an agent to its end. It and its tool runner are gone when the next one begins."""
        request, around = self._delegation.spec, self._delegation.places
        tools = runner(request, task.id)
        drawn = request.samplings.get(delegation.member.name.partition(" ")[0], request.sampling)
        places = Places(
            around.log, around.screen, around.pool, self._supervisor, delegation.member, tools, delegation
        )
        task = self._with_hooks(task)
        child = ChildSpec(
            task.id,
            lambda: Agent(replace(task, sampling=drawn), places, self._ledger),
            "temporary",
            CANCEL.value,
        )
        patience_s = self._delegation.patience_s * _AGENT_SHARE
        result = run_agent(self, self._supervisor, child, lambda: patience_s)
        self._usage = self._usage.sum(result.usage)
        if result.outcome.kind == "cancelled":
            raise Cancelled(result.outcome.reason)
        for name in (child.name, tools.name):
            self.wait(self.request(self._supervisor, StopChild(name)), deadline_s=FOREVER_S)
        return result


@cache
def _verifying() -> tuple[ToolSpec, ...]:
    return tuple(TOOLS[name] for name in _VERIFYING if name in TOOLS)


def _verdict(result: Result) -> tuple[bool, str]:
    """A verifier's verdict; one that ended without any is a ``fail``."""
    end = result.outcome
    if end.kind != "done" or not isinstance(result.value, dict):
        return False, f"the verifier ended without a verdict ({end.kind}: {end.reason})"
    reason = str(result.value["reason"])[: PIECE_REASON.count]
    return result.value["verdict"] == "pass", reason or "the verifier gave no reason"
