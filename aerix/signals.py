"""Signals: the actor that turns Ctrl-C and TERM into a cancel, whatever the main thread is doing.

The C-level handler writes the signal's number to a socket that this actor watches; no Python code runs in the
interrupted thread, so that no lock it holds can block it.
"""

import os
import signal
import socket

from aerix.actors import Actor, Exit, whereis
from aerix.exits import INTERRUPTED, TERMINATED

_REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "terminated"}


def install() -> socket.socket:
    """Send signals to a socket from now on, and return its reading end. Call it in the main thread."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    for sig in _REASONS:
        if (
            signal.getsignal(sig) is not signal.SIG_IGN
        ):  # as under nohup: whoever started this process wants that
            signal.signal(sig, _ignore)
    signal.set_wakeup_fd(writer.detach())
    return reader


def _ignore(_number: int, _frame: object) -> None:
    """The signal was written to the socket already."""


class Signals(Actor):
    """The first signal cancels the actors of those names that there are; the second ends the process at once.

    Child processes die with it: workers by KILL, runners by TERM, which end their own children.
    """

    def __init__(self, reader: socket.socket, *targets: str) -> None:
        self._reader = reader
        self._targets = targets
        self._seen = False

    def setup(self) -> None:
        """Watch the socket."""
        self.watch(self._reader, self._read)

    def _read(self) -> None:
        for number in self._reader.recv(64):
            reason = _REASONS.get(signal.Signals(number))
            if reason is None:
                continue
            if self._seen:
                os._exit(TERMINATED if reason == "terminated" else INTERRUPTED)
            self._seen = True
            for target in map(whereis, self._targets):
                if target is not None:
                    target.cancel(reason)

    def teardown(self, exit: Exit) -> None:
        """Let go of the socket's reading end; the writing one stays, so that a late signal hits nothing else."""
        self._reader.close()
