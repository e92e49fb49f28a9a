"""A spawned child process: its birth, the signals to it and its group, its one reaper, and who it leaves behind."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from aerix.actors import os_linux
from aerix.actors.bounds import SWEEPS
from aerix.actors.child import HEEDED, MARK, SAFE_PATH, Guard, child_main, restore_safe_path
from aerix.actors.log import log

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class Spawned:
    """One child process. Made, used and closed in the thread of the actor that owns it, whose end is the child's."""

    def __init__(
        self, name: str, theirs: socket.socket, guard: Guard, body: str, args: dict[str, Any]
    ) -> None:
        """Start it; ``theirs`` is its end of the channel, and the caller's to close."""
        import multiprocessing
        from multiprocessing import process as multiprocessing_process
        from multiprocessing import resource_tracker

        context = multiprocessing.get_context("spawn")
        self._guard = guard
        self._mark = uuid4().hex
        self._reaped = False
        self._code: int | None = None
        self.errors: Connection
        """The reading end of its standard output and error; does not block."""
        self.errors, theirs_errors = context.Pipe(duplex=False)
        os.set_blocking(self.errors.fileno(), False)
        self._process = context.Process(
            target=child_main,
            args=(
                theirs,
                theirs_errors,
                os.getpid(),
                guard,
                body,
                args,
                self._mark,
                os.environ.get(SAFE_PATH),
            ),
            name=name,
        )
        try:
            with _safe_path():
                # It would unblock SIGINT below, were it brought up by the start.
                resource_tracker.ensure_running()
                with _signals_blocked():
                    self._process.start()
        except BaseException:
            self.errors.close()
            raise
        finally:
            theirs_errors.close()
        # multiprocessing reaps whoever is in its list whenever it starts another, and joins them all at exit.
        multiprocessing_process._children.discard(self._process)  # type: ignore[attr-defined]  # noqa: SLF001  # one reaper
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.pidfd = os_linux.pidfd_open(self.pid)
        """Becomes readable when it ends."""

    def signal(self, sig: signal.Signals) -> None:
        """Signal its group, or itself where it is too young to have one.

        What a runner has started goes before the runner: whoever kills it may end before it could sweep after it.
        """
        if sig is signal.SIGKILL and self._guard == "term" and not self._reaped:
            _kill(os_linux.descendants(self.pid))
        if not self._reaped and not os_linux.signal_group(self.pid, sig):
            os_linux.signal_process(self.pidfd, sig)

    def reap(self) -> int | None:
        """End it if it lives, with its group and what it left behind; its exit code, or minus the signal's number.

        None when somebody else in this process took its exit status. The only place where it is waited for.
        """
        if not self._reaped:
            # Before the reap its group cannot have another's id.
            self.signal(signal.SIGKILL)
            self._reaped = True
            self._process.join()
            self._code = self._process.exitcode
            if self._guard == "term" and self._code != 0:
                _end_marked(f"{MARK}={self._mark}".encode())
        return self._code

    def close(self) -> None:
        """Let go of its descriptors; after ``reap``."""
        self.errors.close()
        os.close(self.pidfd)
        with suppress(ValueError):  # its exit status was taken by somebody else: it seems to run
            self._process.close()


_starting = threading.Lock()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A Ctrl-C, or a look at what hangs, must not end a child half born: it unblocks them when it is ready for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Start interpreters that do not import from the working directory: a repository's ``struct.py`` is data.

    Only the environment reaches both the child and multiprocessing's own helper; the child puts it back for the
    programs that it starts.
    """
    with _starting:
        before = os.environ.get(SAFE_PATH)
        os.environ[SAFE_PATH] = "1"
        try:
            yield
        finally:
            restore_safe_path(before)


def _end_marked(mark: bytes) -> None:
    """Kill the processes that a killed runner left behind, wherever they went: they carry its mark."""
    for _ in range(SWEEPS.count):
        found = [int(at.name) for at in Path("/proc").iterdir() if at.name.isdigit() and _is_marked(at, mark)]
        if not found:
            return
        _kill(found)
    log("child.outlived", level="warning", pids=found)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _is_marked(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
