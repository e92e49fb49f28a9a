"""The calls of an agent's turns: which of them runs where, what hooks say to it, and what came of it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aerix.actors import Actor, Cancelled, DeadlineExceeded, Outcome, Ref, Refused
from aerix.actors import Call as Asked
from aerix.agent.asking import AskPlan, PlanAnswer
from aerix.agent.consent import Permits
from aerix.agent.context import Context, Entry
from aerix.agent.context_tool import ContextTool
from aerix.agent.ended import Ended
from aerix.agent.jobs import EndedJob, Jobs
from aerix.agent.journal import Journal
from aerix.agent.repeats import Repeats
from aerix.agent.running import FOREVER_S, ask_living, living_child
from aerix.agent.undoable import Undoable
from aerix.agent.usage import Usage
from aerix.agent.work import Work
from aerix.bounds import CYCLES
from aerix.hooks import events as hooks
from aerix.session.events import Message, Plan
from aerix.tools import RUN_BY_RUNNER
from aerix.tools.messages import RunTool, ToolResult, framed, with_folders
from aerix.tools.permissions import Judge
from aerix.turn import prompt
from aerix.turn.parse import Call
from aerix.turn.schema import check_input

if TYPE_CHECKING:
    from aerix.agent.agent import Places, Task


class Calls:
    """Answers the calls of one agent, which blocks in ``wait`` meanwhile."""

    def __init__(
        self,
        agent: Actor,
        task: "Task",
        places: "Places",
        journal: Journal,
        context: Context,
        jobs: Jobs,
        repeats: Repeats,
        fire: Callable[[hooks.Event, Callable[[str], object]], hooks.Decision],
    ) -> None:
        """``fire`` fires hooks, hands on what they say to the model, and ends the agent where they say so."""
        self._agent, self._task, self._places = agent, task, places
        self._journal, self._context, self._jobs = journal, context, jobs
        self._repeats, self._fire = repeats, fire
        self._known_runner: Ref | None = None
        self._said: dict[str, list[str]] = {}
        """By call: what hooks said of its result, which does not stand in the context yet."""
        self._own = ContextTool(context, task.id)
        self._undoable = Undoable(agent, task.id, journal, places.delegation.places)
        request = places.delegation.spec
        judge = Judge(request.permissions, request.cwd)
        self._permits = Permits(agent, journal, task.id, places.delegation.places.consent, judge, request.cwd)
        self._plan = task.resumed.plan
        self._gate = task.kind == "root"
        """Whether the next plan waits for the user."""
        self.usage = Usage()
        """What pieces cost."""
        self.work = Work()

    def answers(self, calls: tuple[Call, ...]) -> Iterator[tuple[Call, ToolResult]]:
        """Run the calls one after the other: what a result takes is not there for the next one. Pieces come after all
        others, at once, and then the results in the order of their calls; those before the first piece need not wait.
        """
        pieces = [call for call in calls if call.tool == "agent" and call.error is None]
        first = calls.index(pieces[0]) if pieces else len(calls)
        for call in calls[:first]:
            yield call, self._answer(call)
        if pieces:
            yield from self._with_pieces(calls[first:], pieces)

    def _with_pieces(self, calls: tuple[Call, ...], pieces: list[Call]) -> Iterator[tuple[Call, ToolResult]]:
        found: dict[str, ToolResult] = {}
        try:
            for call in calls:
                if call not in pieces:
                    found[call.id] = self._answer(call)
            self._delegate(pieces, found)
        except Cancelled:
            self._keep(calls, found)
            raise
        for call in calls:
            yield call, found[call.id]

    def _keep(self, calls: tuple[Call, ...], found: dict[str, ToolResult]) -> None:
        """A cancel ends the agent: what has its result by then keeps it."""
        for call in calls:
            if call.id in found:
                self._context.keep(entry_of(self._task.id, call, found[call.id]))

    def note_job(self, job: EndedJob) -> None:
        """A job has ended, and may have changed anything."""
        self._repeats.clear()
        self.work.note(job.call, replace(job.result, exit=job.event.exit))

    def _answer(self, call: Call) -> ToolResult:
        result = None if self._jobs.running else self._repeats.answer(call)
        if result is None:
            result = self._run_hooked(call)
            if not self._jobs.running:  # what a job does may change any result: to look again is no repeat
                self._repeats.note(call, result)
            self.work.note(call, result)
        return result

    def _run_hooked(self, call: Call) -> ToolResult:
        call, refused = self._before(call)
        if refused is not None:
            return refused
        result = self._run_call(call)
        self._after(call, result)
        return result

    def _before(self, call: Call) -> tuple[Call, ToolResult | None]:
        """Let hooks and permissions see a call before it runs: as it is then to be run, or its refusal."""
        if call.error is not None:
            return call, None
        decision = self._fire(hooks.PreToolUse(call.tool, call.input, call.id), self._context.note)
        if decision.block is not None:
            return call, ToolResult(f"refused: {decision.block}", error=True)
        if (given := decision.updated_input) is not None:
            call = replace(call, input=given)
            tool = next((one for one in self._task.tools if one.name == call.tool), None)
            if wrong := tool and check_input(tool.input, given):
                return call, ToolResult(f"error: {wrong}", error=True)
        return call, self._permits.check(call, decision.ask)

    def _after(self, call: Call, result: ToolResult) -> None:
        """Let hooks see what a call gave; what they say of it, and object to, is told to the model behind it."""
        if call.error is None:
            said = self._said[call.id] = []
            event = hooks.PostToolUse(call.tool, call.input, result.text, call.id)
            decision = self._fire(event, said.append)
            if decision.block:
                said.append(decision.block)

    def said_of(self, call: Call) -> list[str]:
        """What hooks said of a call's result, to stand behind it."""
        return self._said.pop(call.id, [])

    def _delegate(self, calls: list[Call], found: dict[str, ToolResult]) -> None:
        """Run the pieces; ``found`` gets their results, also those that were there before a cancel."""
        from aerix.agent.pieces import Caller, Pieces

        task, places = self._task, self._places
        caller = Caller(task.id, self._agent, self._journal, places.request, places.delegation, task.spool)
        pieces = Pieces(caller, self._context.result_bytes)
        checked = [self._before(call) for call in calls]
        found |= {call.id: result for call, result in checked if result is not None}
        try:
            pieces.run([call for call, result in checked if result is None])
        finally:
            self.usage = self.usage.sum(pieces.usage)
            found |= pieces.results
        for call, result in checked:
            if result is None:
                self._after(call, found[call.id])
            self._repeats.note(call, found[call.id])
            self.work.note(call, found[call.id])

    def end_circle(self) -> None:
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
        self._undoable.before(call)
        if call.tool == "bash" and call.input.get("background"):
            return self._jobs.start(call, self._task.spool, self._context.result_bytes)
        if call.tool == "plan":
            return self._run_plan(call)
        if call.tool == "context":
            return self._own.run(call.input)
        assert call.tool in RUN_BY_RUNNER, f"no one runs {call.tool}"
        permitted = self._permits.permitted
        message = RunTool(
            call.id,
            call.tool,
            call.input,
            self._context.result_bytes,
            permissions=with_folders(self._permits.permissions, framed),
            permitted=permitted and framed(permitted),
        )
        try:
            return ask_living(self._runner, partial(self._ask_runner, message))
        except Refused as refused:
            return ToolResult(f"error: tool runner died ({refused.message})", error=True)
        except DeadlineExceeded:
            return ToolResult(f"error: {call.tool} did not answer in {message.limit_s:g} s", error=True)

    def _ask_runner(self, message: RunTool, runner: Ref) -> ToolResult:
        asked = (
            self._map(runner, message) if message.tool == "repo_map" else self._agent.request(runner, message)
        )
        try:
            self._agent.wait(asked, deadline_s=message.limit_s)
        except DeadlineExceeded:
            asked.cancel()
            raise
        except Cancelled:  # the call ends first: the diff is to show all that it did
            asked.cancel()
            with suppress(DeadlineExceeded):
                self._agent.wait(asked, deadline_s=self._places.delegation.patience_s)
            raise
        result: ToolResult = asked.result()
        return result

    def _map(self, runner: Ref, message: RunTool) -> Asked:
        """The request's map, which the runner of the agent that asks first makes."""
        from aerix.agent.mapped import MapRepo, map_child

        around = self._places.delegation.places.supervisor
        return self._agent.request(living_child(self._agent, around, map_child()), MapRepo(runner, message))

    def _runner(self) -> Ref:
        """The agent's tool runner: started by the first call, restarted by its supervisor."""
        if self._known_runner is not None and self._known_runner.alive:
            return self._known_runner
        try:
            self._known_runner = living_child(self._agent, self._places.request, self._places.runner)
            return self._known_runner
        except Refused as refused:
            raise Ended(Outcome("failed", f"the tool runner does not start: {refused.message}")) from None

    def _run_plan(self, call: Call) -> ToolResult:
        if call.input.get("op") == "read":
            return ToolResult(self._plan or "There is no plan yet.")
        text = str(call.input.get("text", ""))
        self._plan = self._gated_plan(text)
        self._journal.write(Plan(agent=self._task.id, text=self._plan))
        if self._plan == text:
            return ToolResult("The plan is written.")
        return ToolResult(f"The user has changed the plan. It is now:\n{self._plan}")

    def _gated_plan(self, text: str) -> str:
        """The plan to carry out. The root's first one of a request waits for the user, where there is one."""
        asker, gate = self._places.delegation.places.asker, self._gate
        self._gate = False
        if asker is None or not gate:
            return text
        self._journal.flush()  # the user is to see first what led to it
        asked = self._agent.request(asker, AskPlan(self._task.id, text))
        self._agent.wait(asked, deadline_s=FOREVER_S)
        answer: PlanAnswer = asked.result()
        if not answer.accepted:
            raise Ended(Outcome("cancelled", "interrupted"))
        return answer.text


def entry_of(agent: str, call: Call, result: ToolResult) -> Entry:
    """The segment of a call's result."""
    text = prompt.result(call.tool, call.id, result.text)
    message = Message(
        agent=agent,
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
