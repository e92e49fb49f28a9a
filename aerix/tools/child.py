"""The tool runner's process: one loop, one thread, one call at a time.

While a command runs, its pipes and the owner's channel are watched together. While any other tool runs, an alarm
looks at the channel: also a regular expression that would not end in this life is given up when a cancel, a stop or
the call's own deadline comes. Whatever its end is, no process that it started is left.
"""

import selectors
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from aerix.actors.child import Channel, ChannelClosed, IncomingCall, IncomingCancel
from aerix.actors.log import log
from aerix.actors.wire import Codec
from aerix.bounds import TOOL_WATCH
from aerix.tools import RUN_BY_RUNNER
from aerix.tools.bash import Command, nothing_left, reap
from aerix.tools.caps import UNSET, cap, free_file
from aerix.tools.capture import Capture
from aerix.tools.drive import Drive
from aerix.tools.edit import edit
from aerix.tools.glob import glob
from aerix.tools.grep import grep
from aerix.tools.messages import RunTool, ToolResult, unframed, with_folders
from aerix.tools.read import read
from aerix.tools.repo_map import repo_map
from aerix.tools.sandbox import Sandbox
from aerix.tools.treestamp import TreeStamp
from aerix.tools.workspace import Given, Output, ToolError, Workspace, clean
from aerix.tools.write import write

_TOOLS: dict[str, Callable[[Workspace, Given], Output]] = {
    "read": read,
    "write": write,
    "edit": edit,
    "glob": glob,
    "grep": grep,
    "repo_map": repo_map,
}
_CHANGING = frozenset({"write", "edit"})


class _GivenUp(BaseException):
    """The running tool is not waited for any longer; the text is its result."""


def main(channel: Channel, args: dict[str, Any]) -> None:
    """The body of the child process; ``args``: ``root``, ``cwd``, ``spool`` (folders), ``caps`` (bytes by tool),
    ``sandbox`` (of commands, or None).
    """
    channel.codec = Codec((RunTool, ToolResult))
    with nothing_left(Sandbox.of(args["sandbox"])):
        runner = Runner(channel, args)
        channel.ready()
        runner.serve()


class Runner:
    """Runs calls and answers them."""

    def __init__(self, channel: Channel, args: dict[str, Any]) -> None:
        self._channel = channel
        self._workspace = Workspace(Path(args["root"]), Path(args["cwd"]))
        self._spool = Path(args["spool"])
        self._caps: dict[str, int] = args["caps"]
        self._sandbox = Sandbox.of(args["sandbox"])
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, self._hear)
        self._waiting: deque[IncomingCall] = deque()
        self._tree = TreeStamp(Path(args["root"]))
        self._running: int | None = None
        self._given_up: int | None = None
        """The latest call that was cancelled, which may not have begun."""
        self._watched_until: float | None = None
        self._commands = Drive(self._selector)
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
                    self._given_up = number

    # --- a call

    @property
    def _cancelled(self) -> bool:
        return self._running is not None and self._running == self._given_up

    def _run(self, call: IncomingCall) -> None:
        message: RunTool = call.message
        self._running = call.id
        reap()
        try:
            result = self._bash(message) if message.tool == "bash" else self._other(message)
        except ChannelClosed:
            raise
        except ToolError as error:
            result = self._capped(message, f"{error.head}: {error}", error=True)
        except Exception as error:  # noqa: BLE001  # a fault of a tool is the call's result; it is told and logged
            log("tool.crashed", level="error", tool=message.tool, error=repr(error))
            result = self._capped(
                message, f"error: {message.tool} failed: {error!r}", error=True, unsure=True
            )
        if result.changed and message.tool in _CHANGING:
            self._tree.forget()
        self._running = None
        self._channel.reply(call.id, result)

    def _limit(self, message: RunTool) -> int:
        return max(0, min(self._caps.get(message.tool, UNSET), message.room_bytes))

    def _spool_file(self, message: RunTool) -> Path:
        return free_file(self._spool, message.call)

    def _capped(
        self,
        message: RunTool,
        text: str,
        *,
        error: bool = False,
        unsure: bool = False,
        paths: tuple[Path, ...] = (),
    ) -> ToolResult:
        """``unsure``: the tool did not end by itself, so one that writes may have written."""
        capped = cap(clean(text), self._limit(message), self._spool_file(message))
        return ToolResult(
            text=capped.text,
            error=error,
            changed=bool(paths) or (unsure and message.tool in _CHANGING),
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
        permitted = message.permitted and unframed(message.permitted)
        permissions = message.permissions and with_folders(message.permissions, unframed)
        self._workspace.guard.begin(message.tool, permissions, permitted, self._workspace.cwd)
        try:
            with self._watched(message.time_s):
                output = tool(self._workspace, Given(message.input, self._limit(message)))
        except _GivenUp as end:
            return self._capped(message, str(end), error=True, unsure=True)
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
        self._tree.look()
        capture = Capture.begin(self._limit(message), self._spool_file(message))
        command = Command(text, self._workspace.cwd, message.time_s, capture, self._sandbox)
        self._drive(command)
        capped, changed = capture.result(command.status()), self._tree.changed()
        return ToolResult(
            text=capped.text,
            error=command.verdict != "ended" or command.exit != 0,
            changed=changed,
            exit=command.exit,
            spool=str(capped.spool) if capped.spool else None,
        )

    def _drive(self, command: Command) -> None:
        over = False
        self._commands.begin(command)
        try:
            while not (over := self._commands.is_over(command, cancelled=self._cancelled)):
                self._step(command.wait_s())
        finally:
            if not over:
                self._commands.forget(command)
