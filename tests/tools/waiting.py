"""Waiting for what processes do, in tests."""

import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic


def a_second() -> float:
    """A second, and as much longer as more runs on this machine than it has cores."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def until(is_so: Callable[[], object], within_s: float = 30) -> None:
    """Wait until something is so. Files of processes tell nobody when they are written, so this looks."""
    end = monotonic() + within_s
    while not is_so():
        assert monotonic() < end, f"it was not so within {within_s:g} s"
        threading.Event().wait(0.005)


def pid_in(path: Path) -> int:
    """The process id that a command writes into a file."""
    until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def ends(pidfd: int, within_s: float) -> bool:
    """Whether the process of a descriptor ends in that time."""
    return bool(select.select([pidfd], [], [], within_s)[0])


def is_gone(pid: int, within_s: float) -> bool:
    """Whether a process ends in that time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return ends(fd, within_s)
    finally:
        os.close(fd)
