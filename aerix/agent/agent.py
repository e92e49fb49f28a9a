"""The turn loop: ask for a turn, run its calls, append the results, again, until a final, a budget or a failure."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from aerix.actors import (
    Actor,
    Cancel,
    Cancelled,
    ChildSpec,
    DeadlineExceeded,
    Exhausted,
    FindChild,
    Ledger,
    Outcome,
    Ref,
    Refused,
    StartChild,
    on,
)
from aerix.actors import Call as Asked
from aerix.actors.bounds import GRACE
from aerix.agent.budget import Budget
from aerix.agent.context import Context, Entry
from aerix.agent.context_tool import ContextTool
from aerix.agent.ended import Ended, crash
from aerix.agent.jobs import Jobs
from aerix.agent.journal import Journal
from aerix.agent.repeats import Repeats
from aerix.agent.room import Limits, Ratios
from aerix.agent.running import living_child
from aerix.agent.usage import Usage
from aerix.agent.work import Work
from aerix.bounds import CALLS, CANCEL, CYCLES, JOURNAL, SHOWN_ANSWER, STOP_CONTINUES, TURN_RETRIES, TURNS
from aerix.hooks import events as hooks
from aerix.pool.client import PoolContext, Recreated, Starting
from aerix.pool.protocol import Constraint, Done, MemberInfo, Progress, Sampling, Token
from aerix.session.events import AgentEnd, AgentSpawn, Message, Plan, TurnRepaired
from aerix.session.show import OUTPUT_LOST, STORAGE_LOST
from aerix.tools import RUN_BY_RUNNER
from aerix.tools.messages import RunTool, ToolResult
from aerix.turn import prompt
from aerix.turn.parse import Call, Turn, TurnError, parse
from aerix.turn.schema import JsonSchema, ToolSpec, check_input, turn_schema

if TYPE_CHECKING:
    from aerix.agent.delegation import Delegation

NOTE_EVERY_S = 2.0
"""Seconds between two notes about a prompt that is being read."""
_READER_SHARE = 0.1
"""Of the time for a cancel: how long a reader of the output may take."""


@dataclass(frozen=True, slots=True)
class Task:
    """What an agent is to do, and with what."""

    id: str
    kind: str
    segments: tuple[Entry, ...]
    tools: tuple[ToolSpec, ...]
    max_new_tokens: int
    sampling: Sampling
    spool: Path
    """The folder for the whole of results that were cut."""
    ratios: Ratios = field(default_factory=Ratios)
    final: JsonSchema | None = None
    """What its final must be, where that is no text."""
    fork: PoolContext | None = None
    """A context that holds the first of the segments already; the agent takes it over."""


@dataclass(frozen=True, slots=True)
class Places:
    """The actors that an agent works with."""

    log: Ref
    screen: Ref
    pool: Ref
    request: Ref
    """The supervisor of its request, which starts its tool runner."""
    member: MemberInfo
    runner: ChildSpec
    delegation: "Delegation"


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the loop; answered by ``Result`` at its end, whatever that is."""


@dataclass(frozen=True, slots=True)
class Result:
    """How an agent ended: ``text`` is its final, or empty; ``usage`` counts its pieces too."""

    outcome: Outcome
    text: str
    turns: int
    usage: Usage
    value: object = None
    """The final as a JSON value, where it is no text."""
    work: Work = field(default_factory=Work)


class Agent(Actor):
    """One agent's life. It is never restarted: its end is a result that somebody reads.

    What it may do how often is counted in ``ledger``, its request's.
    """

    def __init__(self, task: Task, places: Places, ledger: Ledger) -> None:
        self._task = task
        self._places = places
        self._ledger = ledger
        self._asks = 0
        self._call_count = 0
        self._steered = 0
        self._plan = ""
        self._usage = Usage()
        self._work = Work()
        self._cancelled: str | None = None
        self._repeats = Repeats()

    def setup(self) -> None:
        """Get ready; nothing is asked yet."""
        task, places = self._task, self._places
        self._journal = Journal(self, places.log, places.screen, task.id)
        self._budget = Budget(self._ledger, self._journal, task.id)
        pool = (task.fork or PoolContext(self, places.pool, places.member.name)).owned_by(self)
        limits = Limits.of(places.member.window, task.max_new_tokens, task.ratios)
        self._context = Context(
            pool, self._journal, self._budget, task.id, limits, task.spool, self._repeats.clear, self._fire
        )
        self._own = ContextTool(self._context, task.id)
        self._jobs = Jobs(self, self._journal, task.id, places.delegation)
        schema = turn_schema(task.tools, task.final, max_calls=CALLS.count)
        self._constraint = Constraint(schema=schema) if places.member.json else None

    @on(Cancel)
    def cancel(self, message: Cancel) -> None:
        """Cancelled while nothing waits: ``run`` has not begun, or is over."""
        self._cancelled = message.reason

    @on(Begin)
    def run(self, _message: Begin) -> Result:
        """Run the loop to its end and say how it ended. Raises Refused where that cannot be told to anybody."""
        last, lost = Turn(""), None
        try:
            last = self._loop()
            outcome = Outcome("done")
        except Ended as ended:
            outcome = ended.outcome
        except Cancelled as cancelled:
            self._journal.hurry(CANCEL.value * _READER_SHARE)
            outcome = Outcome("cancelled", cancelled.reason)
        except Refused as refused:
            lost = self._lost(refused)
            outcome = Outcome("failed", f"{refused.message} [{refused.code}]")
        except DeadlineExceeded as late:
            outcome = Outcome("failed", str(late))
        except Exception as error:  # noqa: BLE001  # whoever reads the outcome is told, and the log has the traceback
            outcome = crash("the agent", error)
        self._context.drop()
        turns = self._budget.spent(TURNS)
        jobs = self._jobs.close(self._places.delegation.patience_s)
        self._journal.write(
            *jobs, AgentEnd(agent=self._task.id, outcome=outcome.kind, reason=outcome.reason, turns=turns)
        )
        if lost is not None:
            raise lost
        return Result(outcome, last.final or "", turns, self._usage, last.value, self._work)

    def _lost(self, refused: Refused) -> Refused | None:
        """The refusal itself, where it says that the log or the reader is lost: nothing more is told to that one."""
        if refused.code in STORAGE_LOST:
            self._journal.stop_logging()
        elif refused.code in OUTPUT_LOST:
            self._journal.mute()
        else:
            return None
        return refused

    def _loop(self) -> Turn:
        self._begin()
        while True:
            left = self._budget.take(TURNS)
            if left == 0 and self._budget.limit(TURNS) > 1:
                self._context.note(prompt.LAST_TURN)
            self._take_jobs()
            self._take_steering()
            turn = self._next_turn()
            if turn.final is not None:
                if self._is_over(turn, left):
                    return turn
                continue
            for later, (call, result) in enumerate(self._answers(turn.calls), 1 - len(turn.calls)):
                self._context.add_result(call.id, result, partial(self._entry, call), -later)
            for note in turn.notes:
                self._context.note(note)
            self._end_circle()

    def _is_over(self, turn: Turn, left: int) -> bool:
        """Whether a final ends the agent: not while jobs run, one of which it waits for and goes on with its result; and
        not where the user has said something meanwhile, or a hook has it go on.
        """
        while self._jobs.running and self._jobs.wait_for_one():
            if left:
                return False
            self._take_jobs()
        return not (left and self._take_steering()) and not self._is_sent_on(turn, left)

    def _is_sent_on(self, turn: Turn, left: int) -> bool:
        """Whether a Stop hook has the agent go on, as it may so often."""
        task, text, times = self._task, turn.final or "", self._budget.spent(STOP_CONTINUES)
        root = task.kind == "root"
        stop = (
            hooks.Stop(text, times > 0) if root else hooks.SubagentStop(task.id, task.kind, text, times > 0)
        )
        why = self._fire(stop).block
        if why is None or not left:
            return False
        if times >= self._budget.limit(STOP_CONTINUES):
            self._journal.note(f"stop hook limit: it had the agent go on {times} times")
            return False
        self._budget.spend(STOP_CONTINUES)
        self._context.note(why)
        return True

    def _fire(self, event: hooks.Event) -> hooks.Decision:
        """Fire hooks; what they say to the model joins the context. Ends the agent where they say so."""
        decision = self._places.delegation.spec.extensions.fire(self, event)
        if decision.end is not None:
            raise Ended(Outcome("killed", f"a hook ended the agent: {decision.end}"))
        if decision.context:
            self._context.note(decision.context)
        return decision

    def _take_jobs(self) -> None:
        """The results of jobs that have ended join the context."""
        for job in self._jobs.take():
            self._repeats.clear()
            self._work.note(job.call, replace(job.result, exit=job.event.exit))
            self._context.add_result(job.id, job.result, partial(job.entry, self._task.id))

    def _take_steering(self) -> bool:
        """What the user has said to this agent joins the context; whether there was something."""
        steering = self._places.delegation.places.steering
        if steering is None or self._task.kind != "root":
            return False
        from aerix.steering import TakeSteering

        asked = self.request(steering, TakeSteering())
        self.wait(asked, deadline_s=JOURNAL.value)
        texts = () if asked.error else asked.result().texts  # a user who is gone says nothing more
        self._context.add(*(self._said(text) for text in texts))
        return bool(texts)

    def _said(self, text: str) -> Entry:
        self._steered += 1
        return Entry(f"u{self._steered}", "user", text, "prompt", pinned=True)

    def wait(
        self, *calls: Asked, deadline_s: float, on_piece: Callable[[Asked, Any], None] | None = None
    ) -> Asked:
        """As of every actor; and a cancel reaches the jobs at once, whatever the agent waits for."""
        try:
            return super().wait(*calls, deadline_s=deadline_s, on_piece=on_piece)
        except Cancelled:
            self._jobs.kill()
            raise

    def _begin(self) -> None:
        task, member = self._task, self._places.member
        self._journal.write(
            AgentSpawn(
                agent=task.id,
                kind=task.kind,
                member=member.name,
                window=member.window,
                vocab=member.vocab,
                tools=[tool.name for tool in task.tools],
                max_turns=self._budget.limit(TURNS),
            )
        )
        if self._cancelled is not None:
            raise Cancelled(self._cancelled)
        self._context.open(list(task.segments))

    # --- a turn

    def _next_turn(self) -> Turn:
        """A turn that parses; one that does not, or was cut, is asked again with the reason, within its bound."""
        while True:
            self._asks += 1
            segment_id = f"t{self._asks}"
            done = self._generate()
            turn = self._parse(segment_id, done)
            if isinstance(turn, Turn):
                self._context.add_turn(segment_id, done)
                self._call_count += len(turn.calls)
                return turn
            if done.stop == "length":
                self._context.leave_out(segment_id, done)
                length = len(done.tokens) or done.usage.completion_tokens  # a model on a server has no ids
                problem, kind = f"it was cut off at {length} tokens", "cut"
                text = prompt.cut(length, self._task.tools)
            else:
                self._context.add_turn(segment_id, done)
                problem, kind = turn.message, "error"
                text = prompt.malformed(turn)
            self._take_ask(problem, done)
            self._context.add(Entry(f"{segment_id}.{kind}", "user", text, "note"))

    def _parse(self, segment_id: str, done: Done) -> Turn | TurnError:
        task, first = self._task, self._call_count + 1
        if self._constraint is not None or done.stop == "length":
            return parse(done.text, task.tools, task.final, first_call=first, max_calls=CALLS.count)
        from aerix.turn.repair import parse_said

        turn, shape = parse_said(
            done.text, done.thinking, task.tools, task.final, first_call=first, max_calls=CALLS.count
        )
        if shape is not None:
            self._journal.write(TurnRepaired(agent=task.id, id=segment_id, shape=shape))
        return turn

    def _take_ask(self, problem: str, done: Done) -> None:
        """Ask once more; an agent that has done so too often ends, and what came last is quoted."""
        taken = self._budget.spend(TURN_RETRIES)
        if isinstance(taken, Exhausted):
            shown = done.text.strip()[: SHOWN_ANSWER.count]
            asks = self._budget.limit(TURN_RETRIES) + 1
            reason = f"turn did not parse after {asks} asks: {problem} The answer began: {shown!r}"
            raise Ended(Outcome(taken.outcome.kind, reason))

    def _generate(self) -> Done:
        watch = _Watch(self._journal)
        done = self._context.ask(self._task.sampling, self._constraint, watch.heard)
        self._usage = self._usage.plus(done.usage)
        return done

    # --- its calls

    def _answers(self, calls: tuple[Call, ...]) -> Iterator[tuple[Call, ToolResult]]:
        """Run the calls one after the other: what a result takes is not there for the next one. Pieces come after all
        others, at once, and then the results in the order of their calls.
        """
        pieces = [call for call in calls if call.tool == "agent" and call.error is None]
        if not pieces:
            for call in calls:
                yield call, self._answer(call)
            return
        found = {call.id: self._answer(call) for call in calls if call not in pieces}
        found |= self._delegate(pieces)
        for call in calls:
            yield call, found[call.id]

    def _answer(self, call: Call) -> ToolResult:
        result = None if self._jobs.running else self._repeats.answer(call)
        if result is None:
            result = self._run_hooked(call)
            if not self._jobs.running:  # what a job does may change any result: to look again is no repeat
                self._repeats.note(call, result)
            self._work.note(call, result)
        return result

    def _run_hooked(self, call: Call) -> ToolResult:
        call, refused = self._before(call)
        if refused is not None:
            return refused
        result = self._run_call(call)
        self._after(call, result)
        return result

    def _before(self, call: Call) -> tuple[Call, ToolResult | None]:
        """Let hooks see a call before it runs: as it is then to be run, or its refusal."""
        if call.error is not None:
            return call, None
        decision = self._fire(hooks.PreToolUse(call.tool, call.input, call.id))
        if decision.block is not None:
            return call, ToolResult(f"refused: {decision.block}", error=True)
        if (given := decision.updated_input) is None:
            return call, None
        tool = next((one for one in self._task.tools if one.name == call.tool), None)
        wrong = tool and check_input(tool.input, given)
        return replace(call, input=given, error=f"error: {wrong}" if wrong else None), None

    def _after(self, call: Call, result: ToolResult) -> None:
        """Let hooks see what a call gave; what they object to is told to the model."""
        if call.error is None:
            decision = self._fire(hooks.PostToolUse(call.tool, call.input, result.text, call.id))
            if decision.block:
                self._context.note(decision.block)

    def _delegate(self, calls: list[Call]) -> dict[str, ToolResult]:
        from aerix.agent.pieces import Caller, Pieces

        task, places = self._task, self._places
        caller = Caller(task.id, self, self._journal, places.request, places.delegation, task.spool)
        pieces = Pieces(caller)
        checked = [self._before(call) for call in calls]
        refused = {call.id: result for call, result in checked if result is not None}
        try:
            found = refused | pieces.run(
                [call for call, result in checked if result is None], self._context.result_bytes
            )
        finally:
            self._usage = self._usage.sum(pieces.usage)
        for call, result in checked:
            if result is None:
                self._after(call, found[call.id])
            self._repeats.note(call, found[call.id])
            self._work.note(call, found[call.id])
        return found

    def _end_circle(self) -> None:
        """An agent whose calls come round and round, though it was told, ends."""
        if tools := self._repeats.turn_over():
            why = f"{', '.join(tools)} came round and round with the same results, and nothing changed"
            raise Ended(replace(CYCLES.end(CYCLES.count), reason=f"loop: {why}"))

    def _run_call(self, call: Call) -> ToolResult:
        if call.tool == "skill":
            return self._places.delegation.spec.extensions.skill(call.input)
        if call.error is not None:
            delegation = self._places.delegation
            barred = call.tool == "agent" and not delegation.allowed
            return ToolResult(delegation.refusal if barred else call.error, error=True)
        if call.tool == "bash" and call.input.get("background"):
            return self._jobs.start(call, self._task.spool, self._context.result_bytes)
        if call.tool == "plan":
            return self._run_plan(call)
        if call.tool == "context":
            return self._own.run(call.input)
        assert call.tool in RUN_BY_RUNNER, f"no one runs {call.tool}"
        message = RunTool(call.id, call.tool, call.input, self._context.result_bytes)
        for last in (False, True):
            runner = self._runner()
            try:
                return self._ask_runner(runner, message)
            except Refused as refused:
                # A runner that had ended before the call began is replaced; a call that began is not run twice.
                if refused.code != "gone" or last:
                    return ToolResult(f"error: tool runner died ({refused.message})", error=True)
                runner.join(GRACE.value)
            except DeadlineExceeded:
                return ToolResult(f"error: {call.tool} did not answer in {message.limit_s:g} s", error=True)
        raise AssertionError

    def _ask_runner(self, runner: Ref, message: RunTool) -> ToolResult:
        asked = self._map(runner, message) if message.tool == "repo_map" else self.request(runner, message)
        try:
            self.wait(asked, deadline_s=message.limit_s)
        except DeadlineExceeded:
            asked.cancel()
            raise
        except Cancelled:  # the call ends first: the diff is to show all that it did
            asked.cancel()
            with suppress(DeadlineExceeded):
                self.wait(asked, deadline_s=self._places.delegation.patience_s)
            raise
        result: ToolResult = asked.result()
        return result

    def _map(self, runner: Ref, message: RunTool) -> Asked:
        """The request's map, which the runner of the agent that asks first makes."""
        from aerix.agent.mapped import MapRepo, map_child

        around = self._places.delegation.places.supervisor
        return self.request(living_child(self, around, map_child()), MapRepo(runner, message))

    def _runner(self) -> Ref:
        """The agent's tool runner: started by the first call, restarted by its supervisor."""
        request, spec = self._places.request, self._places.runner
        for message in (FindChild(spec.name), StartChild(spec)):
            call = self.request(request, message)
            self.wait(call, deadline_s=spec.start_timeout_s)
            if call.error is None:
                found: Ref = call.result()
                return found
        raise Ended(Outcome("failed", f"the tool runner does not start: {call.error}"))

    def _run_plan(self, call: Call) -> ToolResult:
        if call.input.get("op") == "read":
            return ToolResult(self._plan or "There is no plan yet.")
        self._plan = str(call.input.get("text", ""))
        self._journal.write(Plan(agent=self._task.id, text=self._plan))
        return ToolResult("The plan is written.")

    def _entry(self, call: Call, result: ToolResult) -> Entry:
        text = prompt.result(call.tool, call.id, result.text)
        message = Message(
            agent=self._task.id,
            id=call.id,
            role="user",
            text=text,
            call=call.id,
            tool=call.tool,
            input=call.input,
            error=result.error,
            spool=result.spool,
        )
        return Entry(call.id, "user", text, "result", message=message)


class _Watch:
    """Tells what a generation is doing: its text as it comes, and a note now and then while the prompt is read."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._noted = monotonic()

    def heard(self, event: Token | Progress | Starting | Recreated) -> None:
        match event:
            case Token():
                if not event.thinking:  # the log gets it with the turn; what is shown is the turn
                    self._journal.stream(event.data)
            case Progress() if monotonic() - self._noted >= NOTE_EVERY_S:
                self._noted = monotonic()
                read = f"reading the prompt: {event.done:,} of {event.total:,} tokens"
                self._journal.note(read if event.total else "waiting for the model")
            case Recreated():
                self._journal.note(f"the model was lost and is asked again ({event.message})")
            case Starting():
                self._journal.note(f"the pool is being started; its output is in {event.log}")
