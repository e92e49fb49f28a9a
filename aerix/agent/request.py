"""One request, end to end: load the model, classify, run the root agent, take the diff, say how it ended."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from aerix.actors import (
    Actor,
    Call,
    Cancelled,
    ChildSpec,
    DeadlineExceeded,
    Outcome,
    Ref,
    Refused,
    StartChild,
    on,
)
from aerix.agent.agent import Agent, Begin, Places, Result, Task
from aerix.agent.context import Entry
from aerix.agent.journal import Journal
from aerix.agent.usage import Usage
from aerix.bounds import CANCEL, DIFF, ROUTE_CHARS, ROUTE_TOKENS
from aerix.exits import BUDGET, DONE, FAILED, INTERRUPTED, NO_POOL, STDOUT_CLOSED, TERMINATED
from aerix.extensions.instructions import Instructions, fit
from aerix.pool.client import POOL_UNREACHABLE, PoolContext, load_member
from aerix.pool.protocol import Constraint, Done, MemberInfo, Sampling
from aerix.pool.protocol import Segment as PoolSegment
from aerix.prompts import load
from aerix.session.events import ROOT, Route, SessionEnd, SessionStart
from aerix.session.show import OUTPUT_LOST, STORAGE_LOST
from aerix.session.snapshot import DiffText, DiffTrees, TakeSnapshot, Tree
from aerix.tools import TOOLS
from aerix.turn import prompt as texts

ROUTES = ("answer", "edit", "investigate", "plan")
DEFAULT_ROUTE = "edit"
_CODES = {"done": DONE, "budget": BUDGET}


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """A request and everything that was decided before it: nothing in here changes while it runs."""

    session: str
    start: SessionStart
    prompt: str
    instructions: Instructions
    model: str
    flags: dict[str, Any]
    max_turns: int
    max_new_tokens: int
    sampling: Sampling
    diff: bool


@dataclass(frozen=True, slots=True)
class RequestPlaces:
    """The actors around a request."""

    log: Ref
    screen: Ref
    pool: Ref
    supervisor: Ref
    runner: ChildSpec
    snapshots: Ref


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
        """Run the request to its end; raises Refused where that end cannot be written or shown."""
        before = self.request(self._places.snapshots, TakeSnapshot()) if self._spec.diff else None
        text, code = "", FAILED
        try:
            self._journal.write(self._spec.start)
            member = self._load()
            self._route(member)
            if before is not None:
                self.wait(before, deadline_s=DIFF.value)  # no call may change the tree before it was taken
            result = self._run_root(member)
            outcome, text = result.outcome, result.text
            code = (
                _cancel_code(outcome.reason)
                if outcome.kind == "cancelled"
                else _CODES.get(outcome.kind, FAILED)
            )
        except Cancelled as cancelled:
            outcome, code = Outcome("cancelled", cancelled.reason), _cancel_code(cancelled.reason)
        except Refused as refused:
            if refused.code in STORAGE_LOST:
                raise
            outcome = Outcome("failed", f"{refused.message} [{refused.code}]")
            code = self._failure_code(refused)
        except DeadlineExceeded as late:
            outcome = Outcome("failed", str(late))
        return self._conclude(outcome, text, code, before)

    def _failure_code(self, refused: Refused) -> int:
        if refused.code in OUTPUT_LOST:
            self._journal.mute()
            return STDOUT_CLOSED if refused.code == "stdout_closed" else FAILED
        return NO_POOL if refused.code in POOL_UNREACHABLE else FAILED

    def _load(self) -> MemberInfo:
        info = load_member(self, self._places.pool, self._spec.model, self._spec.flags, self._tell)
        if info.settings:
            self._journal.note(f"the model runs with plainer settings: {info.settings}")
        return info

    def _tell(self, event: object) -> None:
        log = getattr(event, "log", None)
        if log is not None:
            self._journal.note(f"the pool is being started; its output is in {log}")

    # --- the route

    def _route(self, member: MemberInfo) -> None:
        """Classify the request on a throwaway context that holds only the routing text and the request."""
        context = PoolContext(self, self._places.pool, member.name)
        context.create([
            PoolSegment("system", "system", load("routing"), pinned=True),
            PoolSegment("prompt", "user", self._spec.prompt[: ROUTE_CHARS.count]),
        ])  # fmt: skip
        done = context.generate(ROUTE_TOKENS.count, Sampling(temperature=0.0), Constraint(texts=list(ROUTES)))
        context.drop()
        self._usage = self._usage.plus(done.usage)
        route = _chosen(done)
        self._journal.write(
            Route(
                route=route or DEFAULT_ROUTE,
                default=route is None,
                scores=dict(zip(ROUTES, done.scores, strict=True)) if done.scores else None,
                usage=asdict(done.usage),
            )
        )

    # --- the root agent

    def _run_root(self, member: MemberInfo) -> Result:
        spec, places = self._spec, self._places
        tools = tuple(TOOLS.values())
        entries = [Entry("system", "system", texts.system_text(load("system"), tools), "system", pinned=True)]
        if instructions := fit(spec.instructions, member.window):
            entries.append(Entry("instructions", "user", instructions, "instructions", pinned=True))
        entries.append(Entry("prompt", "user", spec.prompt, "prompt", pinned=True))
        task = Task(ROOT, "root", tuple(entries), tools, spec.max_turns, spec.max_new_tokens, spec.sampling)
        work = Places(places.log, places.screen, places.pool, places.supervisor, member, places.runner)
        child = ChildSpec(ROOT, lambda: Agent(task, work), restart="temporary", grace_s=CANCEL.value)
        started = self.request(places.supervisor, StartChild(child))
        self.wait(started, deadline_s=child.start_timeout_s)
        agent: Ref = started.result()
        asked = self.request(agent, Begin())
        try:
            result: Result = self._await(asked)
        except Cancelled as cancelled:
            agent.cancel(cancelled.reason)
            self.wait(asked, deadline_s=CANCEL.value)
            result = asked.result()
        self._usage = self._usage.sum(result.usage)
        self._turns = result.turns
        return result

    def _await(self, call: Call) -> Result:
        """Wait as long as the agent takes: each of its own steps has a limit."""
        while True:
            try:
                self.wait(call, deadline_s=3600)
            except DeadlineExceeded:
                continue
            result: Result = call.result()
            return result

    # --- the end

    def _conclude(self, outcome: Outcome, text: str, code: int, before: Call | None) -> SessionEnd:
        diff = self._diff(before, quick=outcome.kind == "cancelled")
        end = SessionEnd(
            session=self._spec.session,
            outcome=outcome.kind,
            reason=outcome.reason,
            text=text,
            diff=diff.text,
            untracked=list(diff.untracked),
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

    def _diff(self, before: Call | None, *, quick: bool) -> DiffText:
        """What the request changed: tree to tree. A cancelled request waits only a moment for it."""
        if before is None:
            return DiffText("")
        limit = CANCEL.value / 2 if quick else DIFF.value
        try:
            after = self.request(self._places.snapshots, TakeSnapshot())
            for call in (before, after):
                self.wait(call, deadline_s=limit)
            old, new = before.result(), after.result()
            if not isinstance(old, Tree) or not isinstance(new, Tree):
                return DiffText("")
            asked = self.request(self._places.snapshots, DiffTrees(old, new))
            self.wait(asked, deadline_s=limit)
            found: DiffText = asked.result()
            return found
        except (Refused, DeadlineExceeded) as error:
            self._journal.note(f"there is no diff: {error}")
        except Cancelled:
            pass
        return DiffText("")


def _chosen(done: Done) -> str | None:
    return None if done.choice is None else ROUTES[done.choice]


def _cancel_code(reason: str) -> int:
    return TERMINATED if reason == "terminated" else INTERRUPTED
