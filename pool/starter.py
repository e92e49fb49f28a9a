"""Autostart: starting a daemon in a session of its own, and noticing at once when it ends before it answers."""

import os
import select
import signal
import sys
from pathlib import Path

from aerix.actors.bounds import CHILD_TERM
from aerix.actors.os_linux import pidfd_open, signal_group
from aerix.pool.address import make_folder
from aerix.pool.bounds import MEMBER_LOAD, START_LOG

started: set[int] = set()
"""Daemons that this process started and that have not ended: children that outlive it by intent, to be spared by
whoever ends all children."""


class Starter:
    """A daemon that is coming up: one that was started here, or another client's that holds the socket's lock.

    ``fileno`` becomes readable when the process ends.
    """

    def __init__(self, pid: int, log: Path | None = None, said_before: int = 0) -> None:
        self.pid = pid
        self.log = log
        """Where it writes; None for a daemon of somebody else."""
        self.answered = False
        """Whether it got as far as to answer: its end is then no failed start."""
        self._said_before = said_before
        self._fd = pidfd_open(pid)

    def fileno(self) -> int:
        """The descriptor to watch."""
        return self._fd

    def reap(self) -> int | None:
        """The exit status of one that was started here and has ended (negative: a signal); None for another's."""
        if self.log is None:
            return None
        _, status = os.waitpid(self.pid, 0)
        started.discard(self.pid)
        return os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """End one that was started here, and all of its session; another client's is left alone."""
        if self.log is None:
            return
        signal_group(self.pid, signal.SIGTERM)
        select.select([self._fd], [], [], CHILD_TERM.value)
        signal_group(self.pid, signal.SIGKILL)
        self.reap()

    def close(self) -> None:
        """Stop watching it."""
        os.close(self._fd)

    def last_words(self) -> str:
        """The last line it wrote, or that it wrote none."""
        if self.log is None:
            return "it said nothing"
        with self.log.open("rb") as file:
            file.seek(max(self._said_before, self.log.stat().st_size - 4096))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:500] if lines else "it said nothing"


def start_daemon(command: list[str], log: Path, load_s: float) -> Starter:
    """Start a daemon, its output appended to ``log``; a member has ``load_s`` seconds to load.

    Raises OSError, naming the program or the file.
    """
    make_folder(log.parent)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(out).st_size > START_LOG.count:
            os.ftruncate(out, 0)
        said_before = os.fstat(out).st_size
        # posix_spawn: no fork in a process with threads, and no object that must outlive the daemon.
        pid = os.posix_spawnp(
            command[0], command, _environment(load_s), setsid=True, setsigmask=[], setsigdef=[signal.SIGINT, signal.SIGPIPE],
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out, 1),
                (os.POSIX_SPAWN_DUP2, out, 2),
            ],
        )  # fmt: skip
    finally:
        os.close(out)
    started.add(pid)
    return Starter(pid, log, said_before)


def _environment(load_s: float) -> dict[str, str]:
    """The daemon's: it outlives its starter, keeps a log of its own, and loads within what its starter waits."""
    inherited = {name: value for name, value in os.environ.items() if name != "AERIX_LOG_FILE"}
    return {MEMBER_LOAD.variable: f"{load_s:g}", **inherited}


def default_command() -> tuple[str, ...]:
    """The pool of this program itself."""
    return (sys.executable, "-P", "-m", "aerix")
