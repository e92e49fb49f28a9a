"""Calls that only Linux has: pidfd, prctl, the list of a process's descendants in /proc, epoll with an eventfd."""

import ctypes
import fcntl
import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from aerix.actors.bounds import SWEEPS
from aerix.actors.log import log

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def pidfd_open(pid: int) -> int:
    """A descriptor that becomes readable when the process ends. The caller closes it."""
    fd = os.pidfd_open(pid)
    os.set_inheritable(fd, False)
    return fd


def lock(fd: int, within_s: float, every_s: float, waits: Callable[[], object] | None = None) -> bool:
    """Lock a file for this process alone; whether it could be had in time. ``waits`` is called once, where another has it.

    Nothing tells that a lock is free in a bounded time: it is looked at every so often.
    """
    by, nothing = monotonic() + within_s, threading.Event()
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if monotonic() >= by:
                return False
        if waits is not None:
            waits()
            waits = None
        nothing.wait(every_s)


def die_with_parent(sig: signal.Signals, parent: int) -> None:
    """Get ``sig`` when the thread that started this process ends; end at once where that was before this call."""
    _prctl(_PR_SET_PDEATHSIG, int(sig))
    if os.getppid() != parent:
        os._exit(70)


def run_on_when_unread(pipe: int) -> None:
    """Be continued (SIGCONT), should this process be stopped, when nobody has the pipe's other end any more.

    A signal of death that ends a process does not reach it while it is stopped; only KILL does.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGCONT)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans, so that they can be found and ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def be_killed_first() -> None:
    """When memory runs out, the kernel ends this process before others of the user."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def signal_group(leader: int, sig: signal.Signals) -> bool:
    """Signal a process group; whether there was anything left in it."""
    try:
        os.killpg(leader, sig)
    except ProcessLookupError:
        return False
    except PermissionError:  # only what belongs to another user is left of it
        return True
    return True


def signal_process(pidfd: int, sig: signal.Signals) -> None:
    """Signal exactly that process; one that has ended is passed over."""
    with suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pidfd, sig)


def children(pid: int) -> list[int]:
    """The direct children of a process, of all its threads."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``, parents before children."""
    found: list[int] = []
    todo = children(pid)
    while todo:
        child = todo.pop(0)
        found.append(child)
        todo += children(child)
    return found


def sweep() -> list[int]:
    """Kill every descendant of this process, until none is left; returns whom it killed.

    For a process that adopts orphans: whoever left its group or session is still found here. A process that keeps
    forking could outrun one round, so there are several, each stopping all it sees before it kills them; whom the
    last one still found is logged.
    """
    killed: list[int] = []
    for _ in range(SWEEPS.count):
        targets = _living(os.getpid())
        if not targets:
            break
        for pid in targets:
            _signal(pid, signal.SIGSTOP)
        ended = [pid for pid in targets if _signal(pid, signal.SIGKILL)]
        for pid in ended:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        killed += ended
    else:
        log("child.outlived", level="warning", pids=targets)
    return killed


def _signal(pid: int, sig: signal.Signals) -> bool:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sig)
        return True
    return False


def _living(root: int) -> list[int]:
    found: list[int] = []
    todo = children(root)
    while todo:
        child = todo.pop(0)
        if _is_zombie(child):
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        else:
            found.append(child)
        todo += children(child)
    return found


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def peer_uid(sock: object) -> int:
    """The user id at the other end of a Unix socket."""
    import socket
    import struct

    assert isinstance(sock, socket.socket)
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", data)
    return int(uid)


_Callbacks = tuple[Callable[[], None] | None, Callable[[], None] | None]
Readiness = tuple[int, _Callbacks, int]
"""A descriptor, what was watched for it, and epoll's mask."""


def _mask(callbacks: _Callbacks) -> int:
    read, write = callbacks
    return (select.EPOLLIN if read else 0) | (select.EPOLLOUT if write else 0)


class Poller:
    """epoll over an actor's descriptors and an eventfd that wakes it for a message.

    Not ``selectors``, which costs more than the waits themselves: every call of a child comes through here twice.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()  # it closes itself, should there be no second descriptor
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Edge-triggered: each write wakes once, and nobody needs to read it.
        self._epoll.register(self._wake, select.EPOLLIN | select.EPOLLET)
        self._watched: dict[int, _Callbacks] = {}

    def wake(self) -> None:
        """End the wait of ``poll``; any thread may."""
        os.eventfd_write(self._wake, 1)

    def poll(self, timeout_s: float | None) -> list[Readiness]:
        """Wait until something is ready, ``wake`` is called or the time is over; None waits for ever."""
        ready, watched = [], self._watched
        for fd, mask in self._epoll.poll(timeout_s, len(watched) or 1):
            callbacks = watched.get(fd)
            if callbacks is not None:
                ready.append((fd, callbacks, mask))
        return ready

    def run(self, fd: int, callbacks: _Callbacks, mask: int) -> None:
        """Run the callbacks of what ``poll`` gave; what an earlier one stopped watching is passed over."""
        read, write = callbacks
        # Watched anew since (its number may be another descriptor's now): what is ready is told again.
        if read is not None and mask & ~select.EPOLLOUT and self._watched.get(fd) is callbacks:
            read()
        if write is not None and mask & ~select.EPOLLIN and self._watched.get(fd) is callbacks:
            write()

    def watch(self, fileobj: Any, read: Callable[[], None] | None, write: Callable[[], None] | None) -> None:
        """Give these callbacks for a descriptor in place of earlier ones; both None forgets it."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        before, mask = _mask(self._watched.pop(fd, (None, None))), _mask((read, write))
        if mask and not before:
            self._epoll.register(fd, mask)
        elif mask and mask != before:
            self._epoll.modify(fd, mask)
        elif before and not mask:
            with suppress(OSError):  # it was closed first
                self._epoll.unregister(fd)
        if mask:
            self._watched[fd] = (read, write)

    def close(self) -> None:
        """Close its own two descriptors."""
        self._epoll.close()
        os.close(self._wake)
