"""ProcessActor: an actor whose body runs in a child process, so that it can be killed.

One thread serves the mailbox, the child's socket, its standard error and its pidfd in one wait: nothing polls, and a
full socket never blocks it. The child must be started by the thread that outlives it (the parent-death signal is that
thread's), which is this actor's.
"""

import itertools
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from aerix.actors import os_linux
from aerix.actors.actor import Actor, Answer, on
from aerix.actors.bounds import CHILD_STDERR, CHILD_STOP, CHILD_TERM, SWEEPS
from aerix.actors.child import MARK, Guard, child_main
from aerix.actors.log import log
from aerix.actors.messages import CallCancelled, Cancel, Exit, Refused, Stop, Tick
from aerix.actors.wire import Codec, FrameSocket, Plain, WireError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess


class ProcessActor(Actor):
    """Owns one child process: starts it, passes messages on as calls, and ends it.

    A message whose class is in ``codec`` and that has no handler here becomes a call; the child's pieces and answer
    go to whoever asked. At most ``window`` calls are open, one more is refused with ``busy``. When the child dies
    every open call is refused with ``worker_died``, and the actor ends with ``lost`` and the reason. A new start is a
    new actor: nothing is adopted.
    """

    starts_later = True

    def __init__(
        self,
        body: str,
        args: dict[str, Any],
        codec: Codec,
        *,
        guard: Guard,
        window: int,
        stop_s: float | None = None,
        term_s: float | None = None,
    ) -> None:
        """``body`` is ``package.module:function``. ``stop_s`` after a stop comes TERM, ``term_s`` later KILL."""
        self._spawn = (body, args)
        self._codec = codec
        self._guard: Guard = guard
        self._window = window
        self._stop_s = CHILD_STOP.value if stop_s is None else stop_s
        self._term_s = CHILD_TERM.value if term_s is None else term_s
        self._ids = itertools.count(1)
        self._open: dict[int, Answer] = {}
        self._errors = bytearray()
        self._crash = ""
        self._stopping = False
        self._mark = uuid4().hex
        self._process: SpawnProcess | None = None

    # --- for subclasses

    def ready(self, info: Plain) -> None:
        """Called when the child said that it is up, with what it told about itself."""

    @property
    def pid(self) -> int:
        """The child's process id; 0 before it was started."""
        return (self._process and self._process.pid) or 0

    @property
    def open_calls(self) -> int:
        """How many calls the child has not answered."""
        return len(self._open)

    def kill(self, why: str) -> None:
        """End the child by force, now; its open calls are refused with ``why``."""
        self._crash = self._crash or why
        os_linux.signal_group(self.pid, signal.SIGKILL)

    # --- birth

    def setup(self) -> None:
        """Start the child; the actor is up when the child says ``ready``."""
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        ours, theirs = socket.socketpair()
        errors, child_errors = context.Pipe(duplex=False)
        body, args = self._spawn
        process = context.Process(
            target=child_main,
            args=(theirs, child_errors, os.getpid(), self._guard, body, args, self._mark),
            name=self.name,
            daemon=True,
        )
        # A Ctrl-C while it starts must not end it half born: it unblocks the signal when it ignores it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
            child_errors.close()
        assert process.pid is not None
        self._process = process
        self._pidfd = os_linux.pidfd_open(process.pid)
        self._stderr: Connection = errors
        self._channel = FrameSocket(ours, self._want_write)
        os.set_blocking(errors.fileno(), False)
        self.watch(self._channel.fileno(), self._read)
        self.watch(errors.fileno(), self._read_errors)
        self.watch(self._pidfd, self._ended)

    def _want_write(self, wanted: bool) -> None:
        self.watch(self._channel.fileno(), self._read, self._flush if wanted else None)

    def _flush(self) -> None:
        self._guarded(self._channel.flush)

    # --- calls

    def unhandled(self, message: object) -> object:
        """Pass a message that the child speaks on to it; refuse any other."""
        if type(message) not in self._codec:
            return super().unhandled(message)
        if self._stopping:
            raise Refused("stopping", f"{self.name} is stopping")
        if len(self._open) >= self._window:
            raise Refused("busy", f"{self.name} works on {len(self._open)} calls and takes no more")
        number = next(self._ids)
        self._open[number] = self.later()
        self._send({"t": "call", "id": number, "m": self._codec.encode(message)})
        return None

    @on(CallCancelled)
    def _cancel(self, message: CallCancelled) -> None:
        for number, answer in self._open.items():
            if answer.token == message.token:
                self._send({"t": "cancel", "id": number})
                return

    def _send(self, plain: Plain) -> None:
        self._guarded(lambda: self._channel.send(plain))

    def _guarded(self, use: Callable[[], Any]) -> Any:
        """Use the channel; a broken one ends the child (whose end is then seen by its pidfd)."""
        try:
            return use()
        except WireError as error:
            self.kill(f"{error.code}: {error.message}")
        except OSError as error:
            self._channel_gone(str(error))
        return None

    def _read(self) -> None:
        frames = self._guarded(self._channel.receive)
        if frames is None:
            self._channel_gone("closed its channel")
            return
        for frame in frames:
            try:
                self._take(frame)
            except (WireError, KeyError, TypeError, AttributeError) as error:
                self.kill(f"sent a frame that is none: {error!r}")

    def _channel_gone(self, _why: str) -> None:
        """An early hint of its death; the pidfd tells for sure."""
        self.unwatch(self._channel.fileno())

    def _take(self, frame: Plain) -> None:
        match frame["t"]:
            case "piece":
                if answer := self._open.get(frame["id"]):
                    answer.piece(self._codec.decode(frame["m"]))
            case "reply":
                if answer := self._open.pop(frame["id"], None):
                    answer.reply(self._codec.decode(frame["m"]))
            case "error":
                if answer := self._open.pop(frame["id"], None):
                    answer.refuse(Refused(frame["code"], frame["text"]))
            case "ready":
                self.ready(frame["info"])
                self.declare_started()
            case "crash":
                self._crash = str(frame["text"])

    def _read_errors(self) -> None:
        try:
            data = os.read(self._stderr.fileno(), 65536)
        except BlockingIOError:
            return
        if not data:
            self.unwatch(self._stderr.fileno())
            return
        self._errors += data
        del self._errors[: -CHILD_STDERR.count]

    # --- death

    @on(Stop)
    def _stop(self, message: Stop) -> None:
        self._finish(message.reason)

    @on(Cancel)
    def _cancelled_all(self, message: Cancel) -> None:
        self._finish(message.reason)

    def _finish(self, reason: str) -> None:
        """Ask the child to end; the signals follow if it does not."""
        if self._stopping:
            return
        self._stopping, self._reason = True, reason
        self._send({"t": "stop"})
        up = self.ref.started.is_set()
        self.after(self._stop_s if up else 0.0, signal.SIGTERM)

    @on(Tick)
    def _force(self, message: Tick) -> None:
        if message.token is signal.SIGTERM:
            os_linux.signal_group(self.pid, signal.SIGTERM)
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            self.after(self._term_s, signal.SIGKILL)
        elif message.token is signal.SIGKILL:
            self.kill("did not stop")

    def _ended(self) -> None:
        """The pidfd says it is dead: read what it still sent, then reap it here and nowhere else."""
        self.unwatch(self._pidfd)
        with suppress(OSError, WireError):
            while frames := self._channel.receive():
                for frame in frames:
                    with suppress(WireError, KeyError, TypeError, AttributeError):
                        self._take(frame)
        self._read_errors()
        code = self._reap()
        if self._stopping:
            self.stop("shutdown", self._reason)
        elif code == 0:
            self.stop("normal")
        else:
            self.stop("lost", self._why(code))

    def _reap(self) -> int:
        assert self._process is not None
        # Before the reap its group cannot have another's id.
        os_linux.signal_group(self.pid, signal.SIGKILL)
        self._process.join()
        code = self._process.exitcode
        if self._guard == "term" and code != 0:
            _end_marked(f"{MARK}={self._mark}".encode())
        return code or 0

    def _why(self, code: int) -> str:
        end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
        detail = self._crash or self._errors.decode("utf-8", "replace").strip()
        return f"{end}: {detail}" if detail else end

    def teardown(self, exit: Exit) -> None:
        """Refuse what is open; end the child by force if it still lives (this actor crashed)."""
        if self._process is not None:
            if self._process.is_alive():
                self._reap()
            self._stderr.close()
            self._channel.close()
            os.close(self._pidfd)
            self._process.close()
        for answer in self._open.values():
            answer.refuse(Refused("worker_died", f"{self.name} ended: {exit.detail or exit.kind}"))
        if exit.abnormal:
            log("child.lost", level="warning", actor=self.name, why=exit.detail)


def _end_marked(mark: bytes) -> None:
    """Kill the processes that a killed runner left behind, wherever they went: they carry its mark."""
    for _ in range(SWEEPS.count):
        found = [int(at.name) for at in Path("/proc").iterdir() if at.name.isdigit() and _is_marked(at, mark)]
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _is_marked(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
