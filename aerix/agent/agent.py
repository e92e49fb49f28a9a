"""The turn loop: ask for a turn, run its calls, append the results, again, until a final, a budget or a failure."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    on,
)
from aerix.actors import Call as Asked
from aerix.agent.budget import Budget
from aerix.agent.calls import Calls, entry_of
from aerix.agent.context import Context, Entry
from aerix.agent.ended import Ended, crash
from aerix.agent.jobs import Jobs
from aerix.agent.journal import Journal
from aerix.agent.repeats import Repeats
from aerix.agent.room import Limits, Ratios
from aerix.agent.usage import Usage
from aerix.agent.work import Work
from aerix.bounds import CALLS, CANCEL, JOURNAL, SHOWN_ANSWER, STOP_CONTINUES, TURN_RETRIES, TURNS
from aerix.hooks import events as hooks
from aerix.pool.client import PoolContext, Recreated, Starting
from aerix.pool.protocol import Constraint, Done, MemberInfo, Progress, Sampling, Token
from aerix.session.events import AgentEnd, AgentSpawn, Job, TurnRepaired
from aerix.session.resumed import Resumed
from aerix.session.show import OUTPUT_LOST, STORAGE_LOST
from aerix.turn import prompt
from aerix.turn.parse import Turn, TurnError, parse
from aerix.turn.schema import JsonSchema, ToolSpec, turn_schema

if TYPE_CHECKING:
    from aerix.agent.delegation import Delegation

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
    check: Callable[[object], str | None] | None = None
    """What is wrong with a final, as the end of a sentence; where ``final`` says more than the turn's parser knows."""
    compact: bool = False
    """Whether it begins by making its context shorter."""
    resumed: Resumed = field(default_factory=Resumed)
    """What it goes on with; ``segments`` stand behind that."""
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
        numbers = task.resumed.numbers
        self._asks = numbers.get("t", 0)
        self._call_count = numbers.get("c", 0)
        self._steered = numbers.get("u", 0)
        self._usage = Usage()
        self._cancelled: str | None = None

    def setup(self) -> None:
        """Get ready; nothing is asked yet."""
        task, places = self._task, self._places
        self._journal = Journal(self, places.log, places.screen, task.id)
        self._budget = Budget(self._ledger, self._journal, task.id)
        pool = (task.fork or PoolContext(self, places.pool, places.member.name)).owned_by(self)
        limits = Limits.of(places.member.window, task.max_new_tokens, task.ratios)
        repeats = Repeats()
        self._context = Context(
            pool,
            self._journal,
            self._budget,
            task.id,
            limits,
            task.spool,
            repeats.clear,
            self._fire,
            task.resumed.numbers.get("n", 0),
        )
        self._jobs = Jobs(self, self._journal, task.id, places.delegation, task.resumed.numbers.get("j", 0))
        self._calls = Calls(self, task, places, self._journal, self._context, self._jobs, repeats, self._fire)
        schema = turn_schema(task.tools, task.final, max_calls=CALLS.count)
        self._constraint = Constraint(schema=json.dumps(schema)) if places.member.json else None

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
        usage = self._usage.sum(self._calls.usage)
        return Result(outcome, last.final or "", turns, usage, last.value, self._calls.work)

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
                    self._context.settle()
                    return turn
                continue
            for later, (call, result) in enumerate(self._calls.answers(turn.calls), 1 - len(turn.calls)):
                entry = partial(entry_of, self._task.id, call)
                self._context.add_result(call.id, result, entry, -later, last=not later)
                for text in self._calls.said_of(call):
                    self._context.note(text)
            for note in turn.notes:
                self._context.note(note)
            self._calls.end_circle()

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

    def _fire(self, event: hooks.Event, tell: Callable[[str], object] | None = None) -> hooks.Decision:
        """Fire hooks; what they say to the model joins the context, or is handed to ``tell``. Ends the agent where they
        say so.
        """
        decision = self._places.delegation.spec.extensions.fire(self, event)
        if decision.end is not None:
            raise Ended(Outcome("killed", f"a hook ended the agent: {decision.end}"))
        if decision.context:
            (tell or self._context.note)(decision.context)
        return decision

    def _take_jobs(self) -> None:
        """The results of jobs that have ended join the context."""
        for job in self._jobs.take():
            self._calls.note_job(job)
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
        joined = [self._context.say(self._said(text)) for text in texts]
        return any(joined)

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
                resumed=bool(task.resumed.held),
            ),
            *self._lost_jobs(),
        )
        if self._cancelled is not None:
            raise Cancelled(self._cancelled)
        self._context.open(list(task.segments), task.resumed.held)
        if task.compact:
            self._context.compact()

    def _lost_jobs(self) -> list[Job]:
        """The ends of jobs that a request before this one has left without."""
        return [
            Job(agent=self._task.id, id=job.id, state="killed", how=prompt.STOPPED_JOB)
            for job in self._task.resumed.jobs
            if not job.how
        ]

    # --- a turn

    def _next_turn(self) -> Turn:
        """A turn that parses; one that does not, or was cut, is asked again with the reason, within its bound."""
        while True:
            self._asks += 1
            segment_id = f"t{self._asks}"
            done = self._generate()
            turn = self._checked(self._parse(segment_id, done))
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
        final = {} if task.check else task.final
        if self._constraint is not None or done.stop == "length":
            return parse(done.text, task.tools, final, first_call=first, max_calls=CALLS.count)
        from aerix.turn.repair import parse_said

        turn, shape = parse_said(
            done.text, done.thinking, task.tools, final, first_call=first, max_calls=CALLS.count
        )
        if shape is not None:
            self._journal.write(TurnRepaired(agent=task.id, id=segment_id, shape=shape))
        return turn

    def _checked(self, turn: Turn | TurnError) -> Turn | TurnError:
        """The turn, unless its final is not what the user wants."""
        check = self._task.check
        if check is None or isinstance(turn, TurnError) or turn.final is None:
            return turn
        wrong = check(turn.value)
        return turn if wrong is None else TurnError("bad_final", f"`final` {wrong}")

    def _take_ask(self, problem: str, done: Done) -> None:
        """Ask once more; an agent that has done so too often ends, and what came last is quoted."""
        taken = self._budget.spend(TURN_RETRIES)
        if isinstance(taken, Exhausted):
            shown = done.text.strip()[: SHOWN_ANSWER.count]
            asks = self._budget.limit(TURN_RETRIES) + 1
            reason = f"turn did not parse after {asks} asks: {problem.removesuffix('.')}. The answer began: {shown!r}"
            raise Ended(Outcome(taken.outcome.kind, reason))

    def _generate(self) -> Done:
        watch = _Watch(self._journal)
        done = self._context.ask(self._task.sampling, self._constraint, watch.heard)
        self._usage = self._usage.plus(done.usage)
        return done


class _Watch:
    """Tells what a generation is doing: its text as it comes, and how far the prompt is read."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def heard(self, event: Token | Progress | Starting | Recreated) -> None:
        match event:
            case Token():
                if not event.thinking:  # the log gets it with the turn; what is shown is the turn
                    self._journal.stream(event.data, len(event.tokens))
            case Progress():
                self._journal.reading(event.done, event.total)
            case Recreated():
                self._journal.note(f"the model was lost and is asked again ({event.message})")
                if not event.kept:
                    self._journal.reading(0, 0, anew=True)
            case Starting():
                self._journal.note(f"the pool is being started; its output is in {event.log}")
