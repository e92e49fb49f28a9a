"""The life of an actor: set-up, one message after the other, the end. All that an actor has beside its own state.

It stands apart from ``Actor`` so that a subclass may call its own things what it likes: only ``_life`` is taken.
"""

import traceback
from collections.abc import Callable
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from aerix.actors.dump import SETUP, TEARDOWN
from aerix.actors.log import log
from aerix.actors.mailbox import Mailbox, Ready
from aerix.actors.messages import (
    CallCancelled,
    Cancel,
    Cancelled,
    DeadlineExceeded,
    Down,
    Exit,
    GivenUp,
    Gone,
    Piece,
    Refused,
    Reply,
    Started,
    Stop,
    System,
)

if TYPE_CHECKING:
    from aerix.actors.actor import Actor, Answer, Call, Ref


class Envelope(Protocol):
    """Pykka's envelope as we use it: the future's place holds where the answer goes."""

    message: Any
    reply_to: Any


@cache
def _handlers(cls: type) -> dict[type, Callable[[Any, Any], object]]:
    """The handlers of an actor class; by the method's name, so that one which overrides a handler is the handler."""
    return {
        method.handles: getattr(cls, name)
        for base in reversed(cls.__mro__)
        for name, method in vars(base).items()
        if "handles" in getattr(method, "__dict__", ())
    }


class Life:
    """Runs one actor, in its thread. ``answer`` is where the answer to the message being handled goes."""

    def __init__(self, actor: "Actor", ref: "Ref", mailbox: Mailbox[Any], monitor: "Ref | None") -> None:
        self.mailbox = mailbox
        self.exit: Exit | None = None
        self.answer: Answer | None = None
        self.calls: dict[int, Call] = {}
        """The requests that this actor sent and that are not answered."""
        self.owed: set[Answer] = set()
        """The answers that it took over with ``later`` and has not given."""
        self.doing: object | None = SETUP
        """The message it handles, or the part of its life that is a text; None when idle. For ``dump``, as the next two."""
        self.since = monotonic()
        """When it began that."""
        self.waited: tuple[tuple[Call, ...], float] | None = None
        """The calls that it is blocked on, and since when."""
        self._actor = actor
        self._ref = ref
        self._monitor = monitor
        self._handlers = _handlers(type(actor))  # type: ignore[arg-type]  # mypy holds a class for unhashable
        self._stopped: Envelope | None = None  # the stop that ended a wait

    def run(self) -> None:
        """From set-up to the end."""
        actor = self._actor
        try:
            actor.setup()
            if not actor.starts_later:
                self.declare_started()
            self.doing = None
            while self.exit is None:
                envelope, self._stopped = self._stopped or self.mailbox.get(), None
                assert envelope is not None
                self._handle(envelope)
        except Cancelled as cancelled:
            self.exit = Exit("shutdown", cancelled.reason)
        except Refused as refusal:  # of setup: a handler's is answered where it is raised
            self._ref.refusal = refusal
            self.exit = Exit("crash", refusal.message)
        except BaseException:  # noqa: BLE001  # whatever it was ends this actor only; the monitor is told
            self.exit = Exit("crash", traceback.format_exc())
        self.end(self.exit)

    def declare_started(self) -> None:
        """Say once that the actor is up."""
        ref = self._ref
        if not ref.started.is_set():
            ref.up = True
            ref.started.set()
            if self._monitor is not None:
                self._monitor.tell_if_alive(Started(ref.name, ref.incarnation))

    # --- messages

    def _handle(self, envelope: "Envelope") -> None:
        answer: Answer | None = envelope.reply_to
        if answer is not None and answer.cancelled:
            answer.refuse(Refused("cancelled", "cancelled before it began"))
            return
        self.since = monotonic()
        self.doing = message = envelope.message
        if type(message) is Ready:
            self.mailbox.run()
            self.doing = None
            return
        self.answer = answer
        try:
            value = self._dispatch(message)
        except Refused as refusal:
            if self.answer is not None:
                self.answer.refuse(refusal)
            else:
                self._note_refusal(message, refusal)
        except Cancelled as cancelled:
            if self.answer is not None:
                self.answer.refuse(Refused("cancelled", f"{self._ref.name}: {cancelled.reason}"))
            if not isinstance(cancelled, GivenUp):
                raise
        except BaseException as error:
            if self.answer is not None:
                why = traceback.format_exception_only(error)[-1].strip()
                self.answer.refuse(Refused("crashed", f"{self._ref.name} crashed: {why}"))
            raise
        else:
            if self.answer is not None:
                self.answer.reply(value)
        finally:
            self.answer = self.doing = None

    def _dispatch(self, message: Any) -> object:
        kind = type(message)
        if kind is Reply:
            self._settle(message)
        handler = self._handlers.get(kind)
        if handler is not None:
            value = handler(self._actor, message)
            if kind is Piece:
                self._take(message)
            return value
        if kind is Piece:
            self._take(message)
        if kind is Stop or kind is Cancel:
            self.exit = Exit("shutdown", message.reason)
            return None
        return None if isinstance(message, System) else self._actor.unhandled(message)

    def _take(self, piece: Piece) -> None:
        if (call := self.calls.get(piece.token)) is not None:
            call.take()

    def _settle(self, reply: Reply) -> None:
        call = self.calls.pop(reply.token, None)
        if call is not None:
            call.done, call.value, call.error = True, reply.value, reply.error

    # --- waiting, inside a handler

    def wait(
        self, calls: "tuple[Call, ...]", deadline_s: float, on_piece: "Callable[[Call, Any], None] | None"
    ) -> "Call":
        """Block until one of the calls is answered (``Actor.wait`` says the rest)."""
        tokens = {call.token for call in calls}
        since = monotonic()
        deadline = since + deadline_s
        before, self.waited = self.waited, (calls, since)
        aside: list[Envelope] = []
        try:
            while True:
                for call in calls:
                    if call.done:
                        return call
                envelope = self.mailbox.get(max(0.0, deadline - monotonic()), system_only=True)
                if envelope is None:
                    raise DeadlineExceeded(f"{self._ref.name} got no answer in {deadline_s:g} s")
                message = envelope.message
                if type(message) is Stop and self._stopped is None:
                    self._stopped = envelope
                elif type(message) in (Stop, Cancel) and envelope.reply_to is not None:
                    envelope.reply_to.reply()
                elif type(message) is Piece and message.token in tokens:
                    deadline = monotonic() + deadline_s
                if not self._serve_wait(message, tokens, on_piece, aside):
                    aside.append(envelope)
        finally:
            self.waited = before
            if aside:
                self.mailbox.unget(aside)

    def _serve_wait(
        self,
        message: object,
        tokens: set[int],
        on_piece: "Callable[[Call, Any], None] | None",
        aside: "list[Envelope]",
    ) -> bool:
        """Handle a message that came during a wait for these calls; False leaves it for later."""
        match message:
            case Reply() if message.token in tokens or self._is_whole(message, aside):
                self._settle(message)
            case Piece() if message.token in tokens:
                call = self.calls.get(message.token)
                if on_piece is not None and call is not None:
                    on_piece(call, message.value)
                self._take(message)
            case Cancel() | Stop():
                raise Cancelled(message.reason)
            case CallCancelled() if self.answer is not None and self.answer.token == message.token:
                raise GivenUp("whoever asked gave up")
            case Ready():
                self.mailbox.run()
            case _:
                return False
        return True

    def _is_whole(self, reply: Reply, aside: "list[Envelope]") -> bool:
        """Whether another call's answer may be taken now: it has no handler, and no piece of it was laid aside."""
        return Reply not in self._handlers and not any(
            isinstance(kept.message, Piece) and kept.message.token == reply.token for kept in aside
        )

    # --- the end

    def end(self, exit: Exit) -> None:
        """Refuse what waits, clean up, answer what is owed, and only then count as gone."""
        ref = self._ref
        self.doing, self.since = TEARDOWN, monotonic()
        rest = self.mailbox.close()
        if self._stopped is not None:
            rest.append(self._stopped)
        ref.leave()
        for call in self.calls.values():
            call.cancel()
        for envelope in rest:
            if envelope.reply_to is not None:
                envelope.reply_to.refuse(Gone(ref.name, exit))
        try:
            self._actor.teardown(exit)
        except BaseException:  # noqa: BLE001  # a failed clean-up is a crash; the monitor is told
            exit = Exit("crash", traceback.format_exc())
        for answer in list(self.owed):
            if answer.holder is ref:
                answer.refuse(Gone(ref.name, exit))
        if exit.kind == "crash":
            log(
                "actor.crashed", level="error", actor=ref.name, incarnation=ref.incarnation, error=exit.detail
            )
        ref.exit = exit
        ref.gone.set()
        ref.started.set()
        if self._monitor is not None:
            self._monitor.tell_if_alive(Down(ref.name, ref.incarnation, exit, ref.up))

    def _note_refusal(self, message: object, refusal: Refused) -> None:
        kind = type(message).__name__
        log("actor.refused", level="warning", actor=self._ref.name, message=kind, error=str(refusal))
