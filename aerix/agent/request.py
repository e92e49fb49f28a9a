"""One request, end to end: load the model, classify, run the root agent, take the diff, say how it ended.

What only later steps need is imported by them: the time from the start to the first request is a figure that counts.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from aerix.actors import (
    Actor,
    Cancel,
    Cancelled,
    ChildSpec,
    DeadlineExceeded,
    Ledger,
    Outcome,
    Ref,
    Refused,
    Spent,
    on,
)
from aerix.agent.changes import Changes
from aerix.agent.delegation import Rules
from aerix.agent.ended import crash
from aerix.agent.extensions import Extensions, NoExtensions
from aerix.agent.journal import Journal
from aerix.agent.room import Ratios
from aerix.agent.running import run_agent
from aerix.agent.undoable import snapshot_event
from aerix.agent.usage import Usage
from aerix.bounds import CANCEL, DIFF, TURNS
from aerix.exits import BLOCKED, BUDGET, CANCELS, DONE, FAILED, INTERRUPTED, NO_POOL, STDOUT_CLOSED, STORAGE
from aerix.hooks import events as hooks
from aerix.permissions import Permissions
from aerix.pool.client import POOL_UNREACHABLE, PoolContext, Starting, load_member
from aerix.pool.protocol import MemberInfo, Sampling
from aerix.session.events import ROOT, Route, SessionEnd, SessionStart
from aerix.session.resumed import Resumed
from aerix.session.show import OUTPUT_LOST, STORAGE_LOST
from aerix.tools.sandbox import Sandbox
from aerix.turn.schema import JsonSchema

_BLOCKED = "hook_blocked"
_CODES = {"done": DONE, "budget": BUDGET}
_AGENT_SHARE = 0.8
"""Of the time for a cancel: how long the agent may take to end; the rest is for the diff."""
_READER_SHARE = 0.1
"""Of the time for a cancel: how long a reader of the output may take."""


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
    ratios: Ratios = field(default_factory=Ratios)
    route: str | None = None
    """The route that the user named; None has the request classified."""
    final: JsonSchema | None = None
    """What the root's final must be a value of; None: it is a text."""
    decision: str | None = None
    """The model that classifies, as the pool takes it; None: the main one."""
    decision_flags: dict[str, Any] = field(default_factory=dict)
    delegation: Rules = field(default_factory=Rules)
    permissions: Permissions = field(default_factory=Permissions)
    sandbox: Sandbox | None = None
    """What commands run in; None: they run without one."""
    samplings: dict[str, Sampling] = field(default_factory=dict)
    """How the tokens of other models are drawn, by their references; of one that is not here as the main one's."""
    extensions: Extensions = field(default_factory=NoExtensions)
    """What is fired at, and asked for skills."""
    hook_context: str = ""
    """What hooks said for the model when the session began."""
    compact: bool = False
    """Whether the root begins by making the context shorter that it goes on with."""
    resumed: Resumed = field(default_factory=Resumed)
    """What the root goes on with, of the requests of this session before this one."""
    spent: tuple[Spent, ...] = ()
    """What earlier runs of this same request have spent, from their log: a run again gets no new budget."""


@dataclass(frozen=True, slots=True)
class RequestPlaces:
    """The actors around a request; ``supervisor`` starts its agents, its tool runner and its snapshots."""

    log: Ref
    screen: Ref
    pool: Ref
    supervisor: Ref
    steering: Ref | None = None
    """Whoever hears what the user says while the root agent works; see ``aerix.steering``."""
    asker: Ref | None = None
    """Whoever answers what an agent asks the user; see ``aerix.agent.asking``."""
    snapshots: ChildSpec | None = None
    """How to start the actor that takes snapshots; the request says it."""
    consent: Ref | None = None
    """The session's ``aerix.agent.consent.Consent``, which asks whether a call may run."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run the request; answered by the ``SessionEnd`` that was logged."""


class Request(Actor):
    """A request's life, in one handler that reads top to bottom. Cancelling it ends in the outcome ``cancelled``.

    It owns the ledger that its agents spend from: whatever becomes of an agent, what it spent is spent.
    """

    def __init__(self, spec: RequestSpec, places: RequestPlaces) -> None:
        self._spec = spec
        self._places = places
        self._ledger = Ledger({TURNS: spec.max_turns}, spec.spent)
        self._usage = Usage()
        self._turns = 0
        self._pool_starts = False
        self._cancelled: str | None = None
        self._cancel_by: float | None = None

    def setup(self) -> None:
        """Get ready; nothing is asked yet."""
        self._journal = Journal(self, self._places.log, self._places.screen, ROOT)

    @on(Cancel)
    def cancel(self, message: Cancel) -> None:
        """Cancelled while nothing waits: ``run`` has not begun, or is over."""
        self._cancelled = message.reason

    @on(Run)
    def run(self, _message: Run) -> SessionEnd:
        """Run the request to its end; whatever that is, it is logged where it can be, and shown where it can be."""
        changes = Changes(self, self._places.supervisor, self._spec)
        self._places = replace(self._places, snapshots=changes.child)
        text = ""
        try:
            outcome, text = self._work(changes)
            code = _CODES.get(outcome.kind, FAILED)
        except Cancelled as cancelled:
            outcome, code = Outcome("cancelled", cancelled.reason), INTERRUPTED
        except Refused as refused:
            outcome, code = Outcome("failed", f"{refused.message} [{refused.code}]"), self._code_of(refused)
        except DeadlineExceeded as late:
            outcome, code = Outcome("failed", str(late)), FAILED
        except Exception as error:  # noqa: BLE001  # whoever reads the outcome is told, and the log has the traceback
            outcome, code = crash("the request", error), FAILED
        if outcome.kind == "cancelled":
            outcome, code = self._cancelled_end(outcome)
        return self._conclude(outcome, text, code, changes)

    def _work(self, changes: Changes) -> tuple[Outcome, str]:
        self._journal.write(self._spec.start)
        if self._cancelled is not None:
            raise Cancelled(self._cancelled)
        member = self._load()
        self._begin_with_hooks()
        route = self._route(member, changes)
        self._fire(hooks.RouteDecision(route.route, route.scores or {}))
        changes.begin()
        return self._run_root(member, route.route)

    def _begin_with_hooks(self) -> None:
        """What hooks and skills make of the prompt, and add to it. A block of the prompt ends the request."""
        spec = self._spec
        begun = self._fire(hooks.SessionStart("resume" if spec.resumed.held else "startup"))
        prompt = spec.extensions.prompt(spec.prompt)
        asked = self._fire(hooks.UserPromptSubmit(prompt))
        if asked.block is not None:
            raise Refused(_BLOCKED, f"a hook blocked the prompt: {asked.block}")
        text = "\n\n".join(filter(None, (prompt, asked.context)))
        self._spec = replace(spec, prompt=text, hook_context=begun.context)

    def _fire(self, event: hooks.Event) -> hooks.Decision:
        decision = self._spec.extensions.fire(self, event)
        if decision.end is not None:
            raise Refused(_BLOCKED, f"a hook ended the request: {decision.end}")
        return decision

    def _load(self) -> MemberInfo:
        spec = self._spec
        info = load_member(self, self._places.pool, spec.start.model, spec.flags, self._heard)
        if info.settings:
            self._journal.note(f"the model runs with plainer settings: {info.settings}")
        self._journal.note(_self_test(info))
        return info

    def _heard(self, event: object) -> None:
        if isinstance(event, Starting) and not self._pool_starts:
            self._pool_starts = True
            self._journal.note(f"the pool is being started; its output is in {event.log}")

    def _note(self, text: str) -> None:
        """A note that is no reason to fail: what it goes to is asked again, and answers for itself."""
        with suppress(Refused):
            self._journal.note(text)

    def _route(self, member: MemberInfo, changes: Changes) -> Route:
        if self._spec.route is not None:
            forced = Route(route=self._spec.route, forced=True)
            self._journal.write(forced)
            changes.start()
            return forced
        from aerix.agent.route import classify

        context = PoolContext(self, self._places.pool, self._decision(member).name)
        route, usage = classify(context, self._spec.prompt, asked=changes.start, heard=changes.heard)
        if usage is not None:
            self._usage = self._usage.plus(usage)
        self._journal.write(route)
        return route

    def _decision(self, main: MemberInfo) -> MemberInfo:
        """The member that classifies; the first request of a session waits for it to load."""
        spec = self._spec
        if spec.decision is None:
            return main
        return load_member(self, self._places.pool, spec.decision, spec.decision_flags, self._heard)

    def _run_root(self, member: MemberInfo, route: str) -> tuple[Outcome, str]:
        from aerix.agent.root import root_agent

        child, notes = root_agent(self._spec, self._places, member, self._ledger, route)
        for note in notes:
            self._journal.note(note)
        self._journal.flush()  # else what did not go out at once would wait for the agent's end
        self._fire(hooks.AgentSpawn(ROOT, "root"))
        result = run_agent(self, self._places.supervisor, child, self._agent_s)
        self._usage = self._usage.sum(result.usage)
        self._turns = result.turns
        return result.outcome, result.text

    def _agent_s(self) -> float:
        """It is cancelled: seconds that the agent has to say how far it came. The rest is for the diff."""
        self._cancel_by = monotonic() + CANCEL.value
        return CANCEL.value * _AGENT_SHARE

    # --- the end

    def _code_of(self, refused: Refused) -> int:
        """The exit code of a failure; nothing more is told to a log or a reader that was lost."""
        if refused.code in STORAGE_LOST:
            self._journal.stop_logging()
            return STORAGE
        if refused.code in OUTPUT_LOST:
            self._journal.mute()
            return STDOUT_CLOSED if refused.code == "stdout_closed" else FAILED
        if refused.code == _BLOCKED:
            return BLOCKED
        return NO_POOL if refused.code in POOL_UNREACHABLE else FAILED

    def _cancelled_end(self, outcome: Outcome) -> tuple[Outcome, int]:
        """A user's cancel; a stop by anybody else means that a part of this process has failed for good."""
        self._journal.hurry(CANCEL.value * _READER_SHARE)
        if outcome.reason in CANCELS:
            return outcome, CANCELS[outcome.reason]
        return Outcome(
            "killed", f"a part of Aerix that this request needs has ended ({outcome.reason})"
        ), FAILED

    def _conclude(self, outcome: Outcome, text: str, code: int, changes: Changes) -> SessionEnd:
        diff, untracked, problem = changes.diff(self._diff_s(outcome))
        if changes.last is not None:
            with suppress(Cancelled, Refused):  # the end, which comes next, answers for the log
                self._journal.write(snapshot_event(changes.last, ROOT))
        if problem:
            with suppress(Cancelled):  # once more: it is decided how this ended
                self._note(f"there is no diff: {problem}")
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
        return self._end_with_hooks(self._tell(end))

    def _end_with_hooks(self, end: SessionEnd) -> SessionEnd:
        """It is over, whatever they say."""
        with suppress(Cancelled, Refused, DeadlineExceeded):
            self._fire(hooks.SessionEnd("other"))
        return end

    def _diff_s(self, outcome: Outcome) -> float:
        """Seconds for the diff: what is left of a cancel's time."""
        if outcome.kind != "cancelled":
            return DIFF.value
        by = self._cancel_by or monotonic() + CANCEL.value
        return max(0.0, by - monotonic())

    def _tell(self, end: SessionEnd) -> SessionEnd:
        """Log the end and show it. Where one of both fails, the end says so to the other."""
        try:
            self._journal.write(end)
        except Cancelled as late:  # it is decided how this ended; only the reader gets less time now
            self._journal.hurry(CANCEL.value * _READER_SHARE)
            return self._shown_late(end, late.reason)
        except Refused as refused:
            return self._told_badly(end, refused)
        return end

    def _shown_late(self, end: SessionEnd, reason: str) -> SessionEnd:
        try:
            self._journal.flush()
        except Refused:
            return replace(end, exit=CANCELS.get(reason, FAILED))
        return end

    def _told_badly(self, end: SessionEnd, refused: Refused) -> SessionEnd:
        code = self._code_of(refused)
        if refused.code in STORAGE_LOST:
            return self._tell(replace(end, outcome="failed", reason=refused.message, exit=code))
        return end if end.outcome == "cancelled" else replace(end, exit=code)


def _self_test(member: MemberInfo) -> str:
    """What the member's self-test found of the constraint that every turn needs."""
    if member.json:
        return "✓ turns constrained"
    why = member.note or "it takes no JSON schema"
    return f"▲ member {member.name} cannot be constrained: {why}"
