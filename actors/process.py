"""ProcessActor: an actor whose body runs in a child process, so that it can be killed.

One thread serves the mailbox, the child's socket, its standard error and its pidfd in one wait: nothing polls, and a
full socket never blocks it. The child must be started by the thread that outlives it (the parent-death signal is that
thread's), which is this actor's.
"""

import itertools
import os
import signal
import socket
from contextlib import suppress
from typing import Any

from aerix.actors.actor import Actor, Answer, on
from aerix.actors.bounds import (
    CHILD_CREDIT,
    CHILD_PING,
    CHILD_PINGS_MISSED,
    CHILD_PROGRESS,
    CHILD_STDERR,
    CHILD_STOP,
    CHILD_TERM,
)
from aerix.actors.child import Guard
from aerix.actors.log import log
from aerix.actors.messages import CallCancelled, Cancel, Exit, Refused, Stop, Taken, Tick
from aerix.actors.spawn import Spawned
from aerix.actors.wire import Codec, FrameSocket, Packed, Plain, WireError

_LOOK = object()
"""A timer's token: look whether the child still answers, and gets on."""


class ProcessActor(Actor):
    """Owns one child process: starts it, passes messages on as calls, and ends it.

    A message whose class is in ``codec`` and that has no handler here becomes a call; the child's pieces and answer
    go to whoever asked, the pieces as fast as they are taken there. At most ``window`` calls are open, one more is
    refused with ``busy``. While calls are open the child is pinged: one that misses three pings, or makes no progress
    for ten minutes, is killed. When it dies every open call is refused with ``worker_died``, and the actor ends with
    ``lost`` and the reason. A new start is a new actor: nothing is adopted.
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
        self._looking = False
        self._unanswered = 0
        self._steps = 0
        self._moved_at = 0.0
        self._errors = bytearray()
        self._crash = ""
        self._stopping = False
        self._deaf = False
        self._child: Spawned | None = None

    # --- for subclasses

    def ready(self, info: Plain) -> None:
        """Called when the child said that it is up, with what it told about itself."""

    @property
    def pid(self) -> int:
        """The child's process id; 0 before it was started."""
        return 0 if self._child is None else self._child.pid

    @property
    def open_calls(self) -> int:
        """How many calls the child has not answered."""
        return len(self._open)

    def kill(self, why: str) -> None:
        """End the child by force, now; its open calls are refused with ``why``."""
        self._crash = self._crash or why
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    # --- birth

    def setup(self) -> None:
        """Start the child; the actor is up when the child says ``ready``."""
        ours, theirs = socket.socketpair()
        self._channel = FrameSocket(ours, self._want_write)
        with theirs:
            try:
                self._child = Spawned(self.name, theirs, self._guard, *self._spawn)
            except BaseException:
                ours.close()
                raise
        self.watch(self._channel.fileno(), self._read)
        self.watch(self._child.errors.fileno(), self._read_errors)
        self.watch(self._child.pidfd, self._ended)

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
        frame: Plain = {"t": "call", "id": number, "m": self._codec.encode(message)}
        asked = self._life.answer
        if asked is not None and asked.takes_pieces:
            asked.credit = frame["credit"] = CHILD_CREDIT.count
        self._send(frame)
        if not self._open:
            self._look_at_it()
        self._open[number] = self.later()
        return None

    @on(CallCancelled)
    def _cancel(self, message: CallCancelled) -> None:
        self._tell_child(message.token, {"t": "cancel"})

    @on(Taken)
    def _taken(self, message: Taken) -> None:
        self._tell_child(message.token, {"t": "credit", "n": message.count})

    def _tell_child(self, token: int, frame: Plain) -> None:
        """Send a frame about the open call with that answer."""
        for number, answer in self._open.items():
            if answer.token == token:
                self._send({**frame, "id": number})
                return

    # --- whether it lives

    def _look_at_it(self) -> None:
        """It has something to do from now on: see to it that it does."""
        self._moved_at = self.clock.now()
        if not self._looking:
            self._looking = True
            self.after(CHILD_PING.value, _LOOK)

    def _look(self) -> None:
        """End a child that is stuck, else ping it; one with nothing to do is left alone."""
        self._looking = bool(self._open) and not self._stopping
        if not self._looking:
            return
        if self._unanswered >= CHILD_PINGS_MISSED.count:
            self.kill(f"it answered none of {self._unanswered} pings, {CHILD_PING.value:g} s apart")
        elif self.clock.now() - self._moved_at >= CHILD_PROGRESS.value:
            self.kill(f"it made no progress for {CHILD_PROGRESS.value:g} s")
        else:
            self._unanswered += 1
            self._send({"t": "ping"})
            self.after(CHILD_PING.value, _LOOK)

    def _heard(self, steps: int) -> None:
        """A sign of life, and of progress where it took a step since the last pong."""
        self._unanswered = 0
        if steps != self._steps:
            self._steps, self._moved_at = steps, self.clock.now()

    # --- the channel

    def _send(self, plain: Plain) -> None:
        """Raises Refused for what cannot be said in a frame; a channel that takes nothing ends the child instead."""
        try:
            self._channel.send(plain)
        except WireError as error:
            if error.code != "peer_stuck":
                raise Refused(error.code, error.message) from None
            self.kill(f"{error.code}: {error.message}")
        except OSError:
            self._channel_gone()

    def _want_write(self, wanted: bool) -> None:
        if not self._deaf:
            self.watch(self._channel.fileno(), self._read, self._flush if wanted else None)

    def _flush(self) -> None:
        try:
            self._channel.flush()
        except OSError:
            self._channel_gone()

    def _read(self) -> None:
        frames = None
        try:
            frames = self._channel.receive()
        except WireError as error:
            self.kill(f"{error.code}: {error.message}")
        except OSError:
            pass
        if frames is None:
            self._channel_gone()
            return
        for frame in frames:
            self._take(frame)

    def _channel_gone(self) -> None:
        """An early hint of its death, which the pidfd tells for sure; one that lives on without a channel is ended."""
        if not self._deaf:
            self._deaf = True
            self.unwatch(self._channel.fileno())
            self.after(self._stop_s, signal.SIGTERM)

    def _take(self, frame: Plain) -> None:
        if frame.get("t") == "ready":
            if not self.ref.started.is_set():
                self.ready(frame.get("info", {}))
                self.declare_started()
            return
        try:
            self._take_answer(frame)
        except (WireError, KeyError, TypeError) as error:
            self.kill(f"sent a frame that is none: {error!r}")

    def _take_answer(self, frame: Plain) -> None:
        """An answer leaves the table when it could be read, not before: else nobody would give it."""
        if frame["t"] == "crash":
            self._crash = str(frame["text"])
            return
        if frame["t"] == "pong":
            self._heard(frame["steps"])
            return
        answer = self._open.get(frame["id"])
        if answer is None:
            return
        self._unanswered, self._moved_at = 0, self.clock.now()
        match frame["t"]:
            case "piece":
                plain = frame["m"]
                answer.piece(Packed(plain) if type(plain) is bytes else self._codec.decode(plain))
            case "reply":
                value = self._codec.decode(frame["m"])
                del self._open[frame["id"]]
                answer.reply(value)
            case "error":
                refusal = Refused(str(frame["code"]), str(frame["text"]))
                del self._open[frame["id"]]
                answer.refuse(refusal)

    def _read_errors(self) -> None:
        assert self._child is not None
        try:
            data = os.read(self._child.errors.fileno(), 65536)
        except BlockingIOError:
            return
        if not data:
            self.unwatch(self._child.errors.fileno())
            return
        self._errors += data
        del self._errors[: -CHILD_STDERR.count]

    # --- death

    @on(Stop)
    def _stop(self, message: Stop) -> None:
        if message.force:
            self.kill("did not stop in its grace")
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
        if message.token is _LOOK:
            self._look()
        elif message.token is signal.SIGTERM and self._child is not None:
            self._child.signal(signal.SIGTERM)
            self.after(self._term_s, signal.SIGKILL)
        elif message.token is signal.SIGKILL:
            self.kill("did not stop")

    def _ended(self) -> None:
        """The pidfd says it is dead: read what it still sent, then reap it here and nowhere else."""
        assert self._child is not None
        self.unwatch(self._child.pidfd)
        with suppress(WireError):
            for frame in self._channel.drain():
                self._take(frame)
        self._read_errors()
        code = self._child.reap()
        if self._stopping:
            self.stop("shutdown", self._reason)
        elif code == 0 and self.ref.started.is_set():
            self.stop("normal")
        else:
            self.stop("lost", self._why(code))

    def _why(self, code: int | None) -> str:
        detail = self._crash or self._errors.decode("utf-8", "replace").strip()
        return f"{_end_of(code)}: {detail}" if detail else _end_of(code)

    def teardown(self, exit: Exit) -> None:
        """Refuse what is open; end the child by force if it still lives (this actor crashed)."""
        if self._child is not None:
            self._child.reap()
            self._child.close()
            self._channel.close()
        for answer in self._open.values():
            answer.refuse(Refused("worker_died", f"{self.name} ended: {exit.detail or exit.kind}"))
        if exit.abnormal:
            log("child.lost", level="warning", actor=self.name, why=exit.detail)


def _end_of(code: int | None) -> str:
    if code is None:
        return "ended, and its exit status was taken by somebody else"
    if code >= 0:
        return f"exit {code}"
    known = {sig.value: sig.name for sig in signal.Signals}
    return f"signal {known.get(-code, -code)}"
