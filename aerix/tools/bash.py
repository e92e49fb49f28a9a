"""bash: one shell command, from its start to the end of its whole process tree.

A ``Command`` is driven by the runner's loop, which reads its pipes and calls ``advance``. The shell leads a session of
its own: it has no terminal to ask on, and its group can be ended. What leaves that session is found by a mark in its
environment. What a command that ended by itself leaves running is not ended before the runner.
"""

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import IO, Any, Literal

from aerix.actors import os_linux
from aerix.actors.bounds import SWEEPS
from aerix.actors.mailbox import wait_readable
from aerix.bounds import BASH_CANCEL, BASH_DRAIN, BASH_TERM
from aerix.tools.capture import Capture, Stream
from aerix.tools.sandbox import Sandbox
from aerix.tools.workspace import ToolError, sentence

_MARK = "AERIX_COMMAND"
READ = 65_536
_LOOK_S = 0.02  # between two looks whether what got TERM is gone: nothing tells of grandchildren
_NUMBERS = count(1)
_EXITING = 0x4  # the kernel's PF_EXITING

Verdict = Literal["ended", "timeout", "cancelled"]


@cache
def _shell() -> str:
    return shutil.which("bash") or shutil.which("sh") or "/bin/sh"


@dataclass(frozen=True, slots=True)
class Pipe:
    """A pipe of a command, and where what comes out of it goes."""

    file: IO[bytes]
    stream: Stream

    def read(self) -> bool:
        """Take what there is; false at its end."""
        data = os.read(self.file.fileno(), READ)
        self.stream.add(data)
        return bool(data)


class Command:
    """A command that runs. Whoever drives it reads ``pipes`` and drops the ones that ended, and calls ``advance``."""

    def __init__(
        self, command: str, cwd: Path, timeout_s: float, capture: Capture, sandbox: Sandbox | None = None
    ) -> None:
        """Start it, in the sandbox where there is one. Raises ToolError where that fails."""
        self._mark = f"{_MARK}={os.getpid()}.{next(_NUMBERS)}"
        self._timeout_s = timeout_s
        self.capture = capture
        self._sandbox = sandbox
        name, _, value = self._mark.partition("=")
        try:
            self._process = self._started([_shell(), "-c", command], cwd, {**os.environ, name: value})
        except (OSError, ValueError) as error:
            raise _not_started(error) from None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.pipes = [Pipe(self._process.stdout, capture.out), Pipe(self._process.stderr, capture.err)]
        self.ended = os_linux.pidfd_open(self._process.pid)
        """Readable when the shell has ended."""
        self.verdict: Verdict = "ended"
        self.left: list[int] = []
        """The processes that it left running."""
        self._next = monotonic() + timeout_s
        self._kill_at: float | None = None
        self._over = False

    def _started(self, words: list[str], cwd: Path, env: dict[str, str]) -> "subprocess.Popen[bytes]":
        options: dict[str, Any] = {
            "cwd": cwd,
            "env": env,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "start_new_session": True,
        }
        return (
            subprocess.Popen(words, **options)
            if self._sandbox is None
            else self._sandbox.start(words, **options)
        )

    # --- its life

    def wait_s(self) -> float:
        """Seconds until ``advance`` has something to do, if nothing happens."""
        return max(0.0, self._next - monotonic())

    def advance(self, *, cancelled: bool) -> bool:
        """Go on: pass deadlines, signal, look for the end. True when it is over and everything was cleaned up."""
        now = monotonic()
        if self._kill_at is None and cancelled:
            self._end("cancelled", now + BASH_CANCEL.value)
        elif self._kill_at is not None and cancelled:
            self._kill_at = min(self._kill_at, now + BASH_CANCEL.value)
        elif self._kill_at is None and not self._over and now >= self._next:
            self._end("timeout", now + BASH_TERM.value)
        if self._kill_at is not None:
            return self._is_ended_by_force(now)
        return self._is_ended_by_itself(now)

    def _end(self, verdict: Verdict, kill_at: float) -> None:
        self.verdict, self._kill_at = verdict, kill_at
        group = self._process.pid
        escaped = [pid for pid in self._living() if (state := _state(pid)) and state.group != group]
        for sig in (signal.SIGTERM, signal.SIGCONT):
            os_linux.signal_group(group, sig)
            for pid in escaped:
                _signal(pid, sig)

    def _is_ended_by_force(self, now: float) -> bool:
        assert self._kill_at is not None
        if now < self._kill_at and self._living():
            self._next = min(self._kill_at, now + _LOOK_S)
            return False
        self._kill_all()
        self._process.wait()
        return True

    def _is_ended_by_itself(self, now: float) -> bool:
        """Its pipes end with it, unless it left somebody behind who holds them: for those there is a short grace."""
        if not self._over and wait_readable(self.ended, 0):
            self._over, self._next = True, now + BASH_DRAIN.value
        if not self._over or (self.pipes and now < self._next):
            return False
        self._process.wait()
        self.left = [pid for pid in self._living() if (state := _state(pid)) and not state.exiting]
        return True

    def close(self) -> None:
        """Forget the descriptor that tells of the shell's end; call it when the command is over, or given up."""
        os.close(self.ended)
        if self._sandbox is not None:
            self._sandbox.sweep()

    # --- its processes

    def _living(self) -> list[int]:
        """The processes that still run and are its own: of the shell's session, or with the mark."""
        own = (self._process.pid, self._mark.encode())
        return [pid for pid in os_linux.descendants(os.getpid()) if _is_of(pid, *own)]

    def _kill_all(self) -> None:
        os_linux.signal_group(self._process.pid, signal.SIGKILL)
        for _ in range(SWEEPS.count):
            living = self._living()
            if not living:
                return
            for pid in living:
                _signal(pid, signal.SIGKILL)

    # --- its result

    @property
    def exit(self) -> int:
        """The shell's exit status, or minus the signal's number."""
        return int(self._process.returncode)

    def status(self) -> str:
        """The last line of the result, and before it what else there is to say."""
        return "\n".join(filter(None, (self.remarks(), self._how())))

    def remarks(self) -> str:
        """Lines that say how many processes still run, and what the sandbox stopped; empty where there is nothing."""
        return "\n".join(filter(None, (self._left_running(), self._stopped())))

    def _left_running(self) -> str:
        count = len(self.left)
        return f"[{count} process{'es' * (count > 1)} still running]" if count else ""

    def _stopped(self) -> str:
        if self._sandbox is None or self.exit == 0:
            return ""
        return self._sandbox.remark(bytes(self.capture.out.end + self.capture.err.end))

    def _how(self) -> str:
        match self.verdict:
            case "timeout":
                return f"[timeout after {self._timeout_s:g}s]"
            case "cancelled":
                return "[cancelled]"
        return f"[signal {-self.exit}]" if self.exit < 0 else f"[exit {self.exit}]"


@dataclass(frozen=True, slots=True)
class _State:
    """A living process: its group and its session."""

    group: int
    session: int
    exiting: bool
    """Whether it is about to end: its pipes are closed first."""


def _state(pid: int) -> _State | None:
    """None for a process that has ended, whether or not it was reaped."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:7]
    except OSError:
        return None
    state, _, group, session, _, _, flags = found
    return None if state in "ZX" else _State(int(group), int(session), bool(int(flags) & _EXITING))


def _is_of(pid: int, session: int, mark: bytes) -> bool:
    state = _state(pid)
    if state is None or state.session == session:
        return state is not None
    with suppress(OSError):
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _signal(pid: int, sig: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sig)


def _not_started(error: Exception) -> ToolError:
    if isinstance(error, OSError):
        return sentence(error, "start the shell")
    return ToolError("the command has a zero byte in it.")


def reap() -> None:
    """Take the exit statuses of adopted processes that ended. Not while a command runs: it waits for its shell."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class _Terminated(BaseException):
    """TERM came: the owner is dead, or somebody ends this process."""


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # it is raised once, so that it cannot cut short what it begins
    raise _Terminated


@contextmanager
def nothing_left(sandbox: Sandbox | None = None) -> Iterator[None]:
    """For the life of a runner's process: however it ends, no process that it started is left. TERM ends it so, too.

    ``sandbox`` is the one of its commands, if any.
    """
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is ignored here would be ignored by every command
    terminated = False
    try:
        yield
    except _Terminated:
        terminated = True
    finally:
        try:  # an owner that dies closes the channel first, so that TERM may still come here
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        except _Terminated:
            terminated = True
        finally:
            end_everything()
            if sandbox is not None:
                sandbox.sweep()
    if terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)


def end_everything() -> None:
    """End every process below this one: TERM, a short grace, then KILL until none is left."""
    deadline = monotonic() + BASH_CANCEL.value
    for pid in _alive():
        _signal(pid, signal.SIGTERM)
        _signal(pid, signal.SIGCONT)
    while _alive() and monotonic() < deadline:
        select.select([], [], [], _LOOK_S)
    os_linux.sweep()


def _alive() -> list[int]:
    return [pid for pid in os_linux.descendants(os.getpid()) if _state(pid)]
