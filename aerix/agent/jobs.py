"""Jobs: an agent's commands in the background, from their start to the result that joins its context.

They run in the request's job runner, which tells of each end: nothing polls. A job that is not awaited any more, since
its agent was cancelled or has ended in whatever way, is ended there with its whole process tree.
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic

from aerix.actors import Actor, Cancelled, ChildSpec, DeadlineExceeded, Ref, Refused
from aerix.actors import Call as Asked
from aerix.agent.context import Entry
from aerix.agent.delegation import Delegation
from aerix.agent.journal import Journal
from aerix.agent.running import ask_living, living_child
from aerix.bounds import JOBS_AT_FINAL, TOOL_GRACE
from aerix.session.events import Job, Message
from aerix.tools.caps import UNSET, free_file
from aerix.tools.jobs import AwaitJob, JobEnd, StartJob
from aerix.tools.messages import RunTool, ToolResult
from aerix.turn import prompt
from aerix.turn.parse import Call

_LOST = frozenset({"gone", "worker_died", "stopping"})


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended: the call that started it, and what the model is told."""

    id: str
    call: Call
    result: ToolResult
    event: Job

    def entry(self, agent: str, result: ToolResult) -> Entry:
        """The segment of its result, in the form that fits."""
        text = prompt.job_result(self.id, self.event.how, result.text)
        message = Message(
            agent=agent,
            id=self.id,
            role="user",
            text=text,
            call=self.call.id,
            tool="job",
            input=self.call.input,
            error=result.error,
            spool=result.spool,
        )
        return Entry(self.id, "user", text, "job", message=message)


@dataclass(frozen=True, slots=True)
class _Running:
    id: str
    call: Call
    asked: Asked
    """Answered at its end."""
    timeout_s: float
    ends_by: float


class Jobs:
    """Belongs to one agent and blocks it in ``wait``."""

    def __init__(
        self, actor: Actor, journal: Journal, agent: str, delegation: Delegation, before: int = 0
    ) -> None:
        """``before``: how many the agent has had."""
        self._actor = actor
        self._journal = journal
        self._agent = agent
        self._delegation = delegation
        self._numbers = count(before + 1)
        self._running: dict[str, _Running] = {}

    @property
    def running(self) -> bool:
        """Whether there is a job whose end was not taken yet."""
        return bool(self._running)

    # --- their start

    def start(self, call: Call, spool: Path, room_bytes: int) -> ToolResult:
        """Start a ``bash`` call's command; the result says which job it is, or why there is none.

        ``spool`` is the folder for an output that is over its cap, or over ``room_bytes``.
        """
        name = f"j{next(self._numbers)}"
        timeout_s = RunTool(call.id, call.tool, call.input, room_bytes).time_s
        limit = min(self._delegation.spec.caps.get("bash", UNSET), room_bytes)
        command = str(call.input["command"])
        message = StartJob(f"{self._agent}/{name}", command, timeout_s, limit, str(free_file(spool, name)))
        try:
            asked = ask_living(self._runner, partial(self._ask_runner, message))
        except Refused as refused:
            why = f"job runner died ({refused.message})" if refused.code in _LOST else refused.message
            return ToolResult(f"error: {why}", error=True)
        except DeadlineExceeded:
            return ToolResult(f"error: the job did not start in {TOOL_GRACE.value:g} s.", error=True)
        self._running[name] = _Running(name, call, asked, timeout_s, monotonic() + timeout_s)
        started = Job(agent=self._agent, id=name, state="started", how="started", command=command)
        self._journal.write(started)
        return ToolResult(prompt.job_started(name, timeout_s), changed=True)

    def _ask_runner(self, message: StartJob, runner: Ref) -> Asked:
        """The call that is answered at the job's end."""
        started = self._actor.request(runner, message)
        asked = self._actor.request(runner, AwaitJob(message.job))
        try:
            self._actor.wait(started, deadline_s=TOOL_GRACE.value)
            started.result()
        except BaseException:
            asked.cancel()
            raise
        return asked

    def _runner(self) -> Ref:
        spec = self._delegation.spec

        def build() -> Actor:
            from aerix.tools.jobs import JobRunner

            return JobRunner(spec.cwd, spec.sandbox)

        child = ChildSpec("jobs", build, restart="transient")
        return living_child(self._actor, self._delegation.places.supervisor, child)

    # --- their ends

    def take(self) -> list[EndedJob]:
        """The jobs that have ended since the last time, logged as such. Does not wait for any."""
        ended = [self._ended(job) for job in list(self._running.values()) if job.asked.done]
        if ended:
            self._journal.write(*(one.event for one in ended))
        return ended

    def wait_for_one(self) -> bool:
        """Wait until a job has ended; false where they all had their time, and the grace for a final."""
        latest = max(job.ends_by for job in self._running.values())
        self._journal.note(f"waiting for {', '.join(self._running)}")
        self._journal.flush()  # else it might go out with what comes after the wait
        try:
            calls = [job.asked for job in self._running.values()]
            self._actor.wait(*calls, deadline_s=max(0.0, latest + JOBS_AT_FINAL.value - monotonic()))
        except DeadlineExceeded:
            return False
        return True

    def kill(self) -> None:
        """Have them ended. Does not wait for it."""
        for job in self._running.values():
            job.asked.cancel()

    def close(self, patience_s: float) -> list[Job]:
        """The agent ends: have those that run ended, wait so long for that, and say what the log is to say."""
        self.kill()
        by = monotonic() + patience_s
        for job in self._running.values():
            with suppress(Cancelled, DeadlineExceeded):
                self._actor.wait(job.asked, deadline_s=max(0.0, by - monotonic()))
        return [self._ended(job).event for job in list(self._running.values())]

    def _ended(self, job: _Running) -> EndedJob:
        del self._running[job.id]
        end, how = _how(job)
        killed = end is None or end.how == "cancelled"
        event = Job(
            agent=self._agent,
            id=job.id,
            state="killed" if killed else "exited",
            how=how,
            exit=None if end is None else end.exit,
        )
        if end is None:
            return EndedJob(job.id, job.call, ToolResult("", error=True, changed=True), event)
        failed = end.how != "ended" or end.exit != 0
        result = ToolResult(end.text, error=failed, changed=True, spool=end.spool)
        return EndedJob(job.id, job.call, result, event)


def _how(job: _Running) -> tuple[JobEnd | None, str]:
    """What its runner said of its end, and how that is called."""
    asked = job.asked
    if not asked.done:
        return None, "killed: agent ended"
    if asked.error is not None:
        lost = asked.error.code in _LOST
        return None, "killed: job runner died" if lost else f"killed: {asked.error.message}"
    end: JobEnd = asked.result()
    match end.how:
        case "cancelled":
            return end, "killed: agent ended"
        case "timeout":
            return end, f"timeout after {job.timeout_s:g}s"
    return end, f"signal {-end.exit}" if end.exit < 0 else f"exited {end.exit}"
