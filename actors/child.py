"""The child's end of a ProcessActor: what every child does at birth, its channel, and its end.

A child's body is a function ``main(channel, args)`` in a module of its own. Its first line says which messages it
speaks: ``channel.codec = CODEC``. It ends by returning, by a raised ChannelClosed, or by a crash.
"""

import faulthandler
import importlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from aerix.actors import os_linux
from aerix.actors.bounds import CHILD_STDERR
from aerix.actors.log import log
from aerix.actors.mailbox import wait_readable
from aerix.actors.wire import Codec, FrameReader, Packed, Plain, WireError, pack

Guard = Literal["kill", "term"]
"""The signal a child gets when its owner dies: KILL for a worker, TERM for a runner, which ends its own children."""

MARK = "AERIX_RUNNER"
"""The variable by which the processes of a runner are found after the runner itself was killed."""

SAFE_PATH = "PYTHONSAFEPATH"
"""Set while a child's interpreter starts, so that nothing is imported from the working directory."""

HEEDED = frozenset({signal.SIGINT, signal.SIGUSR1})
"""Signals that end no child: the first it ignores; at the second it writes where its threads are to standard error."""

_CRASHED = 70
_READ = 65_536  # as in wire


class ChannelClosed(Exception):
    """The owner said stop, or is gone: end."""


@dataclass(frozen=True, slots=True)
class IncomingCall:
    """A request of the owner; it must be answered by ``reply`` or ``refuse`` with its id."""

    id: int
    message: Any


@dataclass(frozen=True, slots=True)
class IncomingCancel:
    """The answer to the call is not wanted any more; it must still come."""

    id: int


Incoming = IncomingCall | IncomingCancel


class Channel:
    """Frames to and from the owner. Any thread may send; one thread receives.

    Pings are answered by whoever receives, and pieces cost credit that the owner gives for those it took.
    """

    codec: Codec = Codec(())

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(True)
        self._reader = FrameReader()
        self._frames: deque[Plain] = deque()
        self._sending = threading.Lock()
        self._credit: dict[int, int] = {}
        """Pieces that a call may still send; a call that is not here sends none."""
        self._cancelled: set[int] = set()
        self._granted = threading.Condition()
        self._apart = False
        self._starved = 0
        self._steps = 0
        self._over = ""

    def fileno(self) -> int:
        """The descriptor, for a select loop; ``receive(0)`` then never blocks."""
        return self._sock.fileno()

    # --- out

    def ready(self, info: Plain | None = None) -> None:
        """Say that this child is up; ``info`` goes to the owner's ``ready``."""
        self._send({"t": "ready", "info": info or {}})

    def piece(self, call: int, message: Any) -> None:
        """Send a part of an answer, once the owner has taken enough of those before; a cancel ends the wait, unsent.

        Raises ChannelClosed.
        """
        while not self.offer(call, message) and call not in self._cancelled:
            self._wait_for_credit(call)

    def offer(self, call: int, message: Any, *, last: bool = False, packed: bool = False) -> bool:
        """Send a part of an answer, unless too many wait to be taken: then False, and nothing was sent.

        The ``last`` part always goes. Where nobody gets the pieces, it is dropped. It reaches the asker as ``Packed``
        where that is wanted.
        """
        with self._granted:
            left = self._credit.get(call)
            if left is None:
                return True
            if left <= 0 and not last:
                return False
            self._credit[call] = left - 1
        plain = self.codec.encode(message)
        self._send({"t": "piece", "id": call, "m": Packed.of(plain).body if packed else plain})
        return True

    def reply(self, call: int, message: Any) -> None:
        """Answer a call. What fits in no frame is answered with why."""
        try:
            self._send({"t": "reply", "id": call, "m": self.codec.encode(message)})
        except WireError as error:
            self.refuse(call, error.code, error.message)
        self._forget(call)

    def refuse(self, call: int, code: str, sentence: str) -> None:
        """Answer a call with "no"."""
        self._send({"t": "error", "id": call, "code": code, "text": sentence})
        self._forget(call)

    def progress(self) -> None:
        """Say that the work on the open calls goes on. Call it with every step of what may take minutes.

        An owner that hears of no step for ten minutes kills its child. In a child of one thread it also answers
        pings: one that computes for longer than 30 s without it, or ``receive``, counts as stuck.
        """
        self._steps += 1
        if not self._apart:
            while wait_readable(self._sock, 0) and not self._over:
                self._read()

    def crashed(self, text: str) -> None:
        """Tell the owner what this child dies of; the end of it, if it is long."""
        self._send({"t": "crash", "text": text[-CHILD_STDERR.count :]})

    def _send(self, plain: Plain) -> None:
        try:
            data = pack(plain, self._reader.limit)
            with self._sending:
                self._sock.sendall(data)
        except OSError as error:
            raise ChannelClosed("the owner is gone") from error

    # --- in

    def receive(self, timeout_s: float | None = None) -> Incoming | None:
        """The next call or cancel; None when none came in time. Raises ChannelClosed."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while True:
            while self._frames:
                if (incoming := self._incoming(self._frames.popleft())) is not None:
                    return incoming
            if self._over:
                raise ChannelClosed(self._over)
            if deadline is not None and not wait_readable(self._sock, deadline - monotonic()):
                return None
            self._read()

    def _read(self) -> None:
        """Read what came; what is about pings, credit and the end is done at once, the rest waits its turn."""
        try:
            data = self._sock.recv(_READ)
        except OSError:
            data = b""
        if not data:
            self._end("the owner is gone")
        for frame in self._reader.feed(data):
            self._take(frame)

    def _take(self, frame: Plain) -> None:
        match frame.get("t"):
            case "call":
                if "credit" in frame:
                    self._credit[frame["id"]] = frame["credit"]
                self._frames.append(frame)
            case "ping":
                # In one thread, whoever reads is at work; and who waits for credit is not stuck.
                self._steps += not self._apart or bool(self._starved)
                self._send({"t": "pong", "steps": self._steps})
            case "credit":
                self._renew(frame["id"], frame["n"])
            case "stop":
                self._end("stop")
            case "cancel":
                self._cancel(frame["id"])
                self._frames.append(frame)

    def _renew(self, call: int, pieces: int) -> None:
        with self._granted:
            if call in self._credit:
                self._credit[call] += pieces
                self._granted.notify_all()

    def _cancel(self, call: int) -> None:
        with self._granted:
            if call in self._credit:
                self._cancelled.add(call)
                self._granted.notify_all()

    def _forget(self, call: int) -> None:
        if call not in self._credit:  # it would have come with the call, so the lock is not needed to see it
            return
        with self._granted:
            self._credit.pop(call, None)
            self._cancelled.discard(call)

    def _end(self, why: str) -> None:
        with self._granted:
            self._over = self._over or why
            self._granted.notify_all()

    def _wait_for_credit(self, call: int) -> None:
        with self._granted:
            self._starved += 1
            self._granted.wait_for(lambda: not self._apart or self._may_go_on(call))
            self._starved -= 1
        while not self._apart and not self._may_go_on(call):
            self._read()
        if self._over:
            raise ChannelClosed(self._over)

    def _may_go_on(self, call: int) -> bool:
        return bool(self._over) or call in self._cancelled or self._credit.get(call, 1) > 0

    def _incoming(self, frame: Plain) -> Incoming | None:
        if frame["t"] == "cancel":
            return IncomingCancel(frame["id"])
        try:
            return IncomingCall(frame["id"], self.codec.decode(frame["m"]))
        except WireError as error:
            self.refuse(frame["id"], error.code, error.message)
        return None

    def start_reader(self, take: Callable[[Incoming | None], None]) -> None:
        """Receive in a thread of its own, for a child whose main thread computes; ``take(None)`` is the end."""
        self._apart = True

        def read() -> None:
            try:
                while (incoming := self.receive()) is not None:
                    take(incoming)
            except (ChannelClosed, WireError):
                pass
            finally:
                self._end("the channel is closed")
                take(None)

        threading.Thread(target=read, name="channel", daemon=True).start()


def restore_safe_path(before: str | None) -> None:
    """Give programs that are started from now on what the user had set."""
    if before is None:
        os.environ.pop(SAFE_PATH, None)
    else:
        os.environ[SAFE_PATH] = before


def child_main(
    sock: socket.socket,
    errors: Any,
    parent: int,
    guard: Guard,
    body: str,
    args: dict[str, Any],
    mark: str,
    safe_path: str | None,
) -> None:
    """What ``multiprocessing`` runs in the new process. Never returns to it: the exit is ours."""
    os.setsid()
    os_linux.die_with_parent(signal.SIGKILL if guard == "kill" else signal.SIGTERM, parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(errors.fileno(), 1)
    os.dup2(errors.fileno(), 2)
    if guard == "term":
        os_linux.adopt_orphans()  # so that all it starts stays below it, wherever it goes
        os_linux.run_on_when_unread(2)
    errors.close()
    faulthandler.register(signal.SIGUSR1, file=2)  # in native code too
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEEDED)
    os.environ[MARK] = mark
    restore_safe_path(safe_path)
    sock.set_inheritable(False)
    channel = Channel(sock)
    try:
        module, _, name = body.partition(":")
        getattr(importlib.import_module(module), name)(channel, args)
    except ChannelClosed:
        pass
    except BaseException:  # noqa: BLE001  # told to the owner and logged; then this process ends
        text = traceback.format_exc()
        log("child.crashed", level="error", body=body, error=text)
        with suppress(ChannelClosed):
            channel.crashed(text)
        _leave(_CRASHED)
    _leave(0)


def _leave(code: int) -> None:
    """End at once: threads that compute in native code would hold up an orderly exit."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
