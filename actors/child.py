"""The child's end of a ProcessActor: what every child does at birth, its channel, and its end.

A child's body is a function ``main(channel, args)`` in a module of its own. Its first line says which messages it
speaks: ``channel.codec = CODEC``. It ends by returning, by a raised ChannelClosed, or by a crash.
"""

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
from aerix.actors.wire import Codec, FrameReader, Plain, WireError, pack

Guard = Literal["kill", "term"]
"""The signal a child gets when its owner dies: KILL for a worker, TERM for a runner, which ends its own children."""

MARK = "AERIX_RUNNER"
"""The variable by which the processes of a runner are found after the runner itself was killed."""

SAFE_PATH = "PYTHONSAFEPATH"
"""Set while a child's interpreter starts, so that nothing is imported from the working directory."""

_CRASHED = 70
_READ = 262_144


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
    """Frames to and from the owner. Any thread may send; one thread receives."""

    codec: Codec = Codec(())

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(True)
        self._reader = FrameReader()
        self._frames: deque[Plain] = deque()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """The descriptor, for a select loop; ``receive(0)`` then never blocks."""
        return self._sock.fileno()

    # --- out

    def ready(self, info: Plain | None = None) -> None:
        """Say that this child is up; ``info`` goes to the owner's ``ready``."""
        self._send({"t": "ready", "info": info or {}})

    def piece(self, call: int, message: Any) -> None:
        """Send a part of an answer."""
        self._send({"t": "piece", "id": call, "m": self.codec.encode(message)})

    def reply(self, call: int, message: Any) -> None:
        """Answer a call. What fits in no frame is answered with why."""
        try:
            self._send({"t": "reply", "id": call, "m": self.codec.encode(message)})
        except WireError as error:
            self.refuse(call, error.code, error.message)

    def refuse(self, call: int, code: str, sentence: str) -> None:
        """Answer a call with "no"."""
        self._send({"t": "error", "id": call, "code": code, "text": sentence})

    def crashed(self, text: str) -> None:
        """Tell the owner what this child dies of; the end of it, if it is long."""
        self._send({"t": "crash", "text": text[-CHILD_STDERR.count :]})

    def _send(self, plain: Plain) -> None:
        try:
            data = pack(plain)
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
            if not wait_readable(self._sock, None if deadline is None else deadline - monotonic()):
                return None
            try:
                data = self._sock.recv(_READ)
            except OSError as error:
                raise ChannelClosed("the owner is gone") from error
            if not data:
                raise ChannelClosed("the owner is gone")
            self._frames.extend(self._reader.feed(data))

    def _incoming(self, frame: Plain) -> Incoming | None:
        match frame.get("t"):
            case "call":
                try:
                    return IncomingCall(frame["id"], self.codec.decode(frame["m"]))
                except WireError as error:
                    self.refuse(frame["id"], error.code, error.message)
            case "cancel":
                return IncomingCancel(frame["id"])
            case "stop":
                raise ChannelClosed("stop")
        return None

    def start_reader(self, take: Callable[[Incoming | None], None]) -> None:
        """Receive in a thread of its own, for a child whose main thread computes; ``take(None)`` is the end."""

        def read() -> None:
            try:
                while (incoming := self.receive()) is not None:
                    take(incoming)
            except (ChannelClosed, WireError):
                pass
            finally:
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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.dup2(errors.fileno(), 1)
    os.dup2(errors.fileno(), 2)
    errors.close()
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
