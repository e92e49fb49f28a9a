"""The job runner's process: one loop, one thread, many commands. Whatever its end is, none of them is left."""

import selectors
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerix.actors.child import Channel, IncomingCall, IncomingCancel
from aerix.bounds import JOBS
from aerix.tools.bash import Command, nothing_left, reap
from aerix.tools.capture import Capture
from aerix.tools.drive import Drive
from aerix.tools.jobs import CODEC, AwaitJob, JobEnd, JobStarted, StartJob
from aerix.tools.sandbox import Sandbox
from aerix.tools.workspace import ToolError


def main(channel: Channel, args: dict[str, Any]) -> None:
    """The body of the child process; ``args``: ``cwd`` (a folder), ``sandbox`` (of commands, or None)."""
    channel.codec = CODEC
    sandbox = Sandbox.of(args["sandbox"])
    with nothing_left(sandbox):
        channel.ready()
        _Runner(channel, Path(args["cwd"]), sandbox).serve()


@dataclass(slots=True)
class _Job:
    """A command that runs, or the end that nobody has asked for yet."""

    command: Command
    awaited: int | None = None
    """The call that is answered with its end."""
    cancelled: bool = False
    end: JobEnd | None = None


class _Runner:
    def __init__(self, channel: Channel, cwd: Path, sandbox: Sandbox | None) -> None:
        self._channel = channel
        self._cwd = cwd
        self._sandbox = sandbox
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, self._hear)
        self._commands = Drive(self._selector)
        self._jobs: dict[str, _Job] = {}

    def serve(self) -> None:
        """Start and drive jobs until the owner says stop or is gone: ends by raising ChannelClosed."""
        while True:
            for key, _ in self._selector.select(self._wait_s()):
                key.data()
            for name, job in list(self._jobs.items()):
                self._go_on(name, job)

    def _wait_s(self) -> float | None:
        return min((job.command.wait_s() for job in self._running()), default=None)

    def _running(self) -> list[_Job]:
        return [job for job in self._jobs.values() if job.end is None]

    def _hear(self) -> None:
        while (incoming := self._channel.receive(0)) is not None:
            match incoming:
                case IncomingCall(id=number, message=StartJob() as message):
                    self._start(number, message)
                case IncomingCall(id=number, message=AwaitJob(job=name)):
                    self._await(number, name)
                case IncomingCancel(id=number):
                    self._cancel(number)

    def _start(self, number: int, message: StartJob) -> None:
        if len(running := self._running()) >= JOBS.count:
            why = f"{len(running)} jobs of this request run already; wait for one to end."
            return self._channel.refuse(number, "too_many_jobs", why)
        if not running:
            reap()
        capture = Capture.begin(message.limit, Path(message.spool))
        try:
            command = Command(message.command, self._cwd, message.timeout_s, capture, self._sandbox)
        except ToolError as error:
            return self._channel.refuse(number, "not_started", str(error))
        self._commands.begin(command)
        self._jobs[message.job] = _Job(command)
        return self._channel.reply(number, JobStarted())

    def _await(self, number: int, name: str) -> None:
        if job := self._jobs.get(name):
            job.awaited = number
        else:
            self._channel.refuse(number, "no_job", f"there is no job {name}.")

    def _cancel(self, number: int) -> None:
        for job in self._jobs.values():
            job.cancelled = job.cancelled or job.awaited == number

    def _go_on(self, name: str, job: _Job) -> None:
        if job.end is None and self._commands.is_over(job.command, cancelled=job.cancelled):
            job.end = _end_of(job.command)
        if job.end is not None and job.awaited is not None:
            self._channel.reply(job.awaited, job.end)
            del self._jobs[name]


def _end_of(command: Command) -> JobEnd:
    capped = command.capture.result(command.remarks())
    return JobEnd(capped.text, command.exit, command.verdict, str(capped.spool) if capped.spool else None)
