"""The tool runner's process: one loop, one thread, one call at a time.

While a command runs, its pipes and the owner's channel are watched together. While any other tool runs, an alarm
looks at the channel: also a regular expression that would not end in this life is given up when a cancel, a stop or
the call's own deadline comes. Whatever its end is, no process that it started is left.
"""

import os
import selectors
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from aerix.actors import os_linux
from aerix.actors.child import Channel, ChannelClosed, IncomingCall, IncomingCancel
from aerix.actors.log import log
from aerix.actors.mailbox import wait_readable
from aerix.actors.wire import Codec
from aerix.bounds import BASH_PIPES, TOOL_WATCH
from aerix.tools import RUN_BY_RUNNER
from aerix.tools.bash import READ, Command, Pipe, end_everything, reap
from aerix.tools.caps import UNSET, cap, free_file
from aerix.tools.capture import Capture
from aerix.tools.edit import edit
from aerix.tools.glob import glob
from aerix.tools.grep import grep
from aerix.tools.messages import RunTool, ToolResult
from aerix.tools.read import read
from aerix.tools.workspace import Given, Output, ToolError, Workspace, clean
from aerix.tools.write import write

_TOOLS: dict[str, Callable[[Workspace, Given], Output]] = {
    "read": read,
    "write": write,
    "edit": edit,
    "glob": glob,
    "grep": grep,
}
_REST = 32  # reads of a pipe that is full when its command is over
_CHANGING = frozenset({"write", "edit"})


class _Terminated(BaseException):
    """TERM came: the owner is dead, or somebody ends this process."""


class _GivenUp(BaseException):
    """The running tool is not waited for any longer; the text is its result."""


def main(channel: Channel, args: dict[str, Any]) -> None:
    """The body of the child process; ``args``: ``root``, ``cwd``, ``spool`` (folders), ``caps`` (bytes by tool)."""
    channel.codec = Codec((RunTool, ToolResult))
    os_linux.adopt_orphans()
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is ignored here would be ignored by every command
    runner = Runner(channel, args)
    terminated = False
    try:
        channel.ready()
        runner.serve()
    except _Terminated:
        terminated = True
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_everything()
    if terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise _Terminated


class Runner:
    """Runs calls and answers them."""

    def __init__(self, channel: Channel, args: dict[str, Any]) -> None:
        self._channel = channel
        self._workspace = Workspace(Path(args["root"]), Path(args["cwd"]))
        self._spool = Path(args["spool"])
        self._caps: dict[str, int] = args["caps"]
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, self._hear)
        self._waiting: deque[IncomingCall] = deque()
        self._running: int | None = None
        self._cancelled = False
        self._watched_until: float | None = None
        self._held: deque[Pipe] = deque()
        signal.signal(signal.SIGALRM, self._alarm)

    def serve(self) -> None:
        """Take calls until the owner says stop or is gone: ends by raising ChannelClosed."""
        while True:
            while self._waiting:
                self._run(self._waiting.popleft())
            self._step(None)

    def _step(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data()

    def _hear(self) -> None:
        while (incoming := self._channel.receive(0)) is not None:
            match incoming:
                case IncomingCall():
                    self._waiting.append(incoming)
                case IncomingCancel(id=number):
                    self._cancelled = self._cancelled or number == self._running

    # --- a call

    def _run(self, call: IncomingCall) -> None:
        message: RunTool = call.message
        self._running, self._cancelled = call.id, False
        reap()
        try:
            result = self._bash(message) if message.tool == "bash" else self._other(message)
        except ChannelClosed:
            raise
        except ToolError as error:
            result = self._capped(message, f"error: {error}", error=True)
        except Exception as error:  # noqa: BLE001  # a fault of a tool is the call's result; it is told and logged
            log("tool.crashed", level="error", tool=message.tool, error=repr(error))
            result = self._capped(message, f"error: {message.tool} failed: {error!r}", error=True)
        self._running = None
        self._channel.reply(call.id, result)

    def _limit(self, message: RunTool) -> int:
        return max(0, min(self._caps.get(message.tool, UNSET), message.room_bytes))

    def _spool_file(self, message: RunTool) -> Path:
        return free_file(self._spool, message.call)

    def _capped(
        self, message: RunTool, text: str, *, error: bool = False, paths: tuple[Path, ...] = ()
    ) -> ToolResult:
        capped = cap(clean(text), self._limit(message), self._spool_file(message))
        return ToolResult(
            text=capped.text,
            error=error,
            changed=bool(paths) or (error and message.tool in _CHANGING),
            spool=str(capped.spool) if capped.spool else None,
            paths=[self._workspace.shown(path) for path in paths],
        )

    # --- tools that are functions

    def _other(self, message: RunTool) -> ToolResult:
        tool = _TOOLS.get(message.tool)
        if tool is None:
            raise ToolError(
                f"there is no tool {message.tool!r}; there are {', '.join(sorted(RUN_BY_RUNNER))}."
            )
        try:
            with self._watched(message.time_s):
                output = tool(self._workspace, Given(message.input, self._limit(message)))
        except _GivenUp as end:
            return self._capped(message, str(end), error=True)
        return self._capped(message, output.text, paths=output.paths)

    @contextmanager
    def _watched(self, time_s: float) -> Iterator[None]:
        self._watched_until = monotonic() + time_s
        signal.setitimer(signal.ITIMER_REAL, TOOL_WATCH.value, TOOL_WATCH.value)
        try:
            yield
        finally:
            self._watched_until = None
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _alarm(self, _number: int, _frame: FrameType | None) -> None:
        """Runs between two steps of a tool, also inside a regular expression (``re`` looks for signals)."""
        until = self._watched_until
        if until is None:
            return
        self._hear()
        if self._cancelled or monotonic() >= until:
            self._watched_until = None
            raise _GivenUp("[cancelled]" if self._cancelled else "error: it took too long; narrow it down.")

    # --- commands

    def _bash(self, message: RunTool) -> ToolResult:
        text = Given(message.input, 0).text("command")
        if message.input.get("background"):
            raise ToolError(
                "background commands are not built yet; run it in the foreground, or end it with &."
            )
        capture = Capture.begin(self._limit(message), self._spool_file(message))
        command = Command(text, self._workspace.cwd, message.time_s, capture)
        self._drive(command)
        capped = capture.result(command.status())
        return ToolResult(
            text=capped.text,
            error=command.verdict != "ended" or command.exit != 0,
            changed=True,
            exit=command.exit,
            spool=str(capped.spool) if capped.spool else None,
        )

    def _drive(self, command: Command) -> None:
        self._selector.register(
            command.ended, selectors.EVENT_READ, lambda: self._selector.unregister(command.ended)
        )
        open_pipes = command.pipes
        for pipe in open_pipes:
            self._selector.register(pipe.file, selectors.EVENT_READ, partial(self._read, pipe, open_pipes))
        try:
            while not command.advance(cancelled=self._cancelled):
                self._step(command.wait_s())
        finally:
            if command.ended in self._selector.get_map():
                self._selector.unregister(command.ended)
            command.close()
        for pipe in list(open_pipes):
            self._read_rest(pipe, open_pipes)
        for pipe in open_pipes:
            self._hold(pipe)

    def _read(self, pipe: Pipe, among: list[Pipe]) -> None:
        if not pipe.read():
            among.remove(pipe)
            self._close(pipe)

    def _read_rest(self, pipe: Pipe, among: list[Pipe]) -> None:
        """What stands in the pipe when the command is over; a process left running may write without end."""
        for _ in range(_REST):
            if pipe not in among or not wait_readable(pipe.file, 0):
                return
            self._read(pipe, among)

    def _hold(self, pipe: Pipe) -> None:
        """A pipe that a process left running writes to is read on, for nobody: closing it would end the process."""
        self._selector.modify(pipe.file, selectors.EVENT_READ, partial(self._drop, pipe))
        self._held.append(pipe)
        if len(self._held) > BASH_PIPES.count:
            self._close(self._held.popleft())

    def _drop(self, pipe: Pipe) -> None:
        if not os.read(pipe.file.fileno(), READ):
            self._held.remove(pipe)
            self._close(pipe)

    def _close(self, pipe: Pipe) -> None:
        self._selector.unregister(pipe.file)
        pipe.file.close()
