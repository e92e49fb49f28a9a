"""Actor: one mailbox, one thread, one handler a message class. The only file that touches Pykka.

Pykka gives the thread, the envelope and the registry. What it lacks (spec/actors.md 1.4) stands here, in
``life`` and in ``mailbox``: two lanes that can be closed, exit reasons, a monitor, synchronous start, names, replies.
"""

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

import pykka
from pykka._envelope import Envelope

from aerix.actors.bounds import MAILBOX, START
from aerix.actors.clock import SYSTEM_CLOCK, Clock, Timer
from aerix.actors.life import Life
from aerix.actors.mailbox import Mailbox, MailboxClosed, MailboxFull, Slot
from aerix.actors.messages import (
    CallCancelled,
    Cancel,
    DeadlineExceeded,
    Exit,
    ExitKind,
    Gone,
    Piece,
    Refused,
    Reply,
    StartFailed,
    Stop,
    System,
    Taken,
)

_Handler = TypeVar("_Handler", bound=Callable[..., object])
_TOKENS = itertools.count(1)


def on(message: type) -> Callable[[_Handler], _Handler]:
    """Mark a method as the handler of one message class. What it returns answers an ask or a request.

    Raises TypeError for a class whose instances can change: sender and receiver share them.
    """
    parameters = getattr(message, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise TypeError(f"{message.__name__} is no message: make it a frozen dataclass")

    def mark(method: _Handler) -> _Handler:
        if "handles" in method.__dict__:
            raise TypeError(f"{method.__name__} handles {method.__dict__['handles'].__name__} already")
        method.__dict__["handles"] = message
        return method

    return mark


class Answer:
    """Where the answer to a message goes. Whoever holds it must reply or refuse once; later answers are dropped."""

    __slots__ = ("_caller", "_done", "_kept_in", "_slot", "cancelled", "credit", "holder", "token")

    def __init__(self, caller: "Ref | None", slot: "Slot | None", holder: "Ref") -> None:
        self.token = next(_TOKENS)
        self.holder = holder
        """Who works on it now: a cancel goes there."""
        self.cancelled = False
        """Whether the caller does not want it any more; a handler that works long may look."""
        self.credit = 0
        """How many pieces may be on their way at once, where the holder keeps count: it is then told ``Taken``."""
        self._caller = caller
        self._slot = slot
        self._kept_in: set[Answer] | None = None
        self._done = False

    @property
    def takes_pieces(self) -> bool:
        """Whether somebody gets the pieces: an ``ask`` and a ``tell`` do not."""
        return self._caller is not None

    def piece(self, value: object) -> None:
        """Send a part of the answer; an ``ask`` does not see it."""
        if self._caller is not None and not self._done:
            self._caller.tell_if_alive(Piece(self.token, value))

    def reply(self, value: object = None) -> None:
        """Answer."""
        self._finish(value, None)

    def refuse(self, error: Refused) -> None:
        """Answer "no"."""
        self._finish(None, error)

    def keep(self, among: "set[Answer]") -> None:
        """Stand among the answers that an actor owes, until it is given, or another actor keeps it."""
        if self._kept_in is not None:
            self._kept_in.discard(self)
        self._kept_in = among
        among.add(self)

    def give_up(self) -> None:
        """The caller's end: tell whoever works on it that the answer is not wanted."""
        # The flag first: whoever is being handed the message right now sees it, and any other holder is told.
        self.cancelled = True
        self.holder.tell_if_alive(CallCancelled(self.token))

    def _finish(self, value: object, error: Refused | None) -> None:
        if self._done:
            return
        self._done = True
        if self._kept_in is not None:
            self._kept_in.discard(self)
        if self._caller is not None:
            self._caller.tell_if_alive(Reply(self.token, value, error))
        elif self._slot is not None:
            self._slot.fill(value, error)


class Call:
    """A request that an actor sent and whose answer it will wait for."""

    __slots__ = ("_answer", "_paused", "_untold", "asks", "done", "error", "since", "token", "value")

    def __init__(self, answer: Answer, message: object) -> None:
        self._answer = answer
        self.asks = type(message).__name__
        self.since = monotonic()
        self._paused = False
        self._untold = 0  # pieces that were taken since the holder was last told
        self.token = answer.token
        self.done = False
        self.value: Any = None
        self.error: Refused | None = None

    def result(self) -> Any:
        """The answer; raises the refusal."""
        assert self.done, "the call is not answered yet: wait for it first"
        if self.error is not None:
            raise self.error
        return self.value

    @property
    def holder(self) -> str:
        """The name of the actor that works on it now."""
        return self._answer.holder.name

    def cancel(self) -> None:
        """Tell whoever works on it that the answer is not wanted; it is still answered."""
        if not self.done:
            self._answer.give_up()

    def pause(self) -> None:
        """Take no more pieces for now, beyond those on their way: whoever sends them hears of none being taken."""
        self._paused = True

    def resume(self) -> None:
        """Take pieces again."""
        self._paused = False
        self._tell_taken()

    def take(self) -> None:
        """For the runtime: a piece was handled."""
        self._untold += 1
        if 2 * self._untold >= self._answer.credit:
            self._tell_taken()

    def _tell_taken(self) -> None:
        if self._answer.credit and self._untold and not self._paused:
            self._answer.holder.tell_if_alive(Taken(self.token, self._untold))
            self._untold = 0


class Ref:
    """An actor as others see it. Messages go to this incarnation only; keep the name to find the next one."""

    __slots__ = ("_mailbox", "abandoned", "exit", "gone", "incarnation", "name", "refusal", "started", "up")

    def __init__(self, name: str, incarnation: int, mailbox: "Mailbox[Envelope[Any]]") -> None:
        self.name = name
        self.incarnation = incarnation
        self._mailbox = mailbox
        self.started = threading.Event()
        """Set when ``setup`` is done, or failed."""
        self.up = False
        """Whether it came up."""
        self.abandoned = False
        """Whether whoever started it has given it up, though its thread runs on."""
        self.gone = threading.Event()
        """Set when the actor has ended and cleaned up."""
        self.exit: Exit | None = None
        self.refusal: Refused | None = None
        """What ``setup`` refused with, where that is why it did not start."""

    def __repr__(self) -> str:
        return f"<{self.name}#{self.incarnation}>"

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return not self.gone.is_set()

    @property
    def queued(self) -> int:
        """How many messages wait in its mailbox."""
        return len(self._mailbox)

    def tell(self, message: object) -> None:
        """Send and go on. Raises Gone, or Refused ``mailbox_full``."""
        self._put(Envelope(message))

    def tell_if_alive(self, message: System) -> None:
        """Send a system message; one to an actor that has ended is dropped."""
        with suppress(MailboxClosed):
            self._mailbox.put(Envelope(message), system=True)

    def ask(self, message: object, deadline_s: float) -> Any:
        """Send and block for the answer: for edges (command line, screen, tests), never inside an actor.

        Raises the refusal, Gone, or DeadlineExceeded, which also cancels what was asked.
        """
        slot = Slot()
        answer = Answer(None, slot, self)
        self.send(message, answer)
        if not slot.wait(deadline_s):
            answer.give_up()
            raise DeadlineExceeded(f"{self.name} did not answer {type(message).__name__} in {deadline_s:g} s")
        if slot.error is not None:
            raise slot.error.with_traceback(None)
        return slot.value

    def send(self, message: object, answer: Answer) -> None:
        """Send with an answer address of one's own. Raises Gone, or Refused ``mailbox_full``."""
        before, answer.holder = answer.holder, self
        try:
            self._put(Envelope(message, answer))  # type: ignore[arg-type]  # ours in the future's place
        except Refused:
            answer.holder = before
            if answer.cancelled:  # whoever cancelled it told this one
                answer.give_up()
            raise

    def leave(self) -> None:
        """Give its name free, at its end or when it is given up; another incarnation's is left alone."""
        with _directory_lock:
            if _directory.get(self.name) is self:
                del _directory[self.name]

    def _put(self, envelope: "Envelope[Any]") -> None:
        try:
            self._mailbox.put(envelope, system=isinstance(envelope.message, System))
        except MailboxClosed:
            raise Gone(self.name, self.exit) from None
        except MailboxFull:
            raise Refused(
                "mailbox_full", f"{self.name} has {self.queued} messages waiting and takes no more"
            ) from None

    def abandon(self, reason: str, *, force: bool = False) -> None:
        """Give it up, though its thread may run on: its name is free, users are refused as if it had ended."""
        self.abandoned = True
        self.leave()
        for envelope in self._mailbox.shut():
            answer: Any = envelope.reply_to  # ours in the future's place
            if answer is not None:
                answer.refuse(Gone(self.name))
        self.stop(reason, force=force)

    def stop(self, reason: str = "shutdown", *, force: bool = False) -> None:
        """Ask it to end after what it is doing; with ``force``, to kill its process."""
        self.tell_if_alive(Stop(reason, force))

    def cancel(self, reason: str = "cancelled") -> None:
        """Ask it to give up what it is doing."""
        self.tell_if_alive(Cancel(reason))

    def join(self, timeout_s: float) -> Exit | None:
        """Wait for its end; None when it has not come in time."""
        return self.exit if self.gone.wait(timeout_s) else None


_directory: dict[str, Ref] = {}
_incarnations = itertools.count(1)
_directory_lock = threading.Lock()


def whereis(name: str) -> Ref | None:
    """The living actor of that name."""
    return _directory.get(name)


class Actor:
    """A mailbox and a thread. Subclasses mark handlers with ``on``; each runs alone, in the actor's own thread.

    A handler answers with its return value, refuses by raising Refused, and crashes the actor by any other exception
    (an asker is told). ``later`` and ``forward`` leave the answer to somebody else.
    """

    clock: Clock = SYSTEM_CLOCK
    mailbox_limit: int = 0
    """The user lane's bound; 0 takes the table's."""
    starts_later: bool = False
    """Whether the actor itself says when it is up, with ``declare_started``, instead of at the end of ``setup``."""

    name: str
    ref: Ref
    _life: Life

    def __init_subclass__(cls) -> None:
        """Raises TypeError for a class that says twice what it does with one message."""
        super().__init_subclass__()
        handled = [
            method.handles for method in vars(cls).values() if "handles" in getattr(method, "__dict__", ())
        ]
        for message in set(handled):
            if handled.count(message) > 1:
                raise TypeError(f"{cls.__name__} has {handled.count(message)} handlers of {message.__name__}")

    # --- what a subclass may define

    def setup(self) -> None:
        """Begin, in the actor's own thread. An exception is a start error."""

    def teardown(self, exit: Exit) -> None:
        """Clean up, whatever the end was; the mailbox is closed already."""

    def unhandled(self, message: object) -> object:
        """Answer a message that has no handler; the default refuses it to its sender."""
        raise Refused("unknown_message", f"{self.name} takes no {type(message).__name__}")

    # --- what a subclass may call

    def stop(self, kind: ExitKind = "normal", detail: str = "") -> None:
        """End after this handler."""
        self._life.exit = Exit(kind, detail)

    def declare_started(self) -> None:
        """Say that the actor is up (where ``starts_later``)."""
        self._life.declare_started()

    def later(self) -> Answer:
        """Take over the answer to the message being handled; the handler's return value is then dropped."""
        answer = self._life.answer or Answer(None, None, self.ref)
        self._life.answer = None
        answer.keep(self._life.owed)
        return answer

    def forward(self, ref: Ref, message: object) -> None:
        """Hand the message's answer on to another actor. Raises Gone or Refused, and then still holds the answer."""
        ref.send(message, self._life.answer or Answer(None, None, self.ref))
        self._life.answer = None

    def request(self, ref: Ref, message: object) -> Call:
        """Send a message whose answer comes back here as Piece and Reply. Never raises: a refusal is the answer."""
        answer = Answer(self.ref, None, ref)
        call = self._life.calls[answer.token] = Call(answer, message)
        try:
            ref.send(message, answer)
        except Refused as error:
            answer.refuse(error)
        return call

    def wait(
        self, *calls: Call, deadline_s: float, on_piece: Callable[[Call, Any], None] | None = None
    ) -> Call:
        """Block until one of the calls is answered, and return it; the system lane stays served.

        ``deadline_s`` counts silence: a piece begins it anew. Raises Cancelled when the actor is cancelled or stopped
        (a stop that is caught here is obeyed after the handler), or, as GivenUp, when the answer that this handler is
        to give is not wanted any more; DeadlineExceeded. Other messages keep for later.
        An answer to another call makes that one done at once, unless pieces came before it, or answers have a handler.
        """
        return self._life.wait(calls, deadline_s, on_piece)

    def after(self, seconds: float, token: object) -> Timer:
        """Get Tick(token) after that time."""
        return self.clock.after(seconds, self.ref, token)

    def watch(
        self, fileobj: Any, read: Callable[[], None] | None, write: Callable[[], None] | None = None
    ) -> None:
        """Run a callback in this thread whenever the descriptor can be read, or written."""
        self._life.mailbox.watch(fileobj, read, write)

    def unwatch(self, fileobj: Any) -> None:
        """Forget a descriptor. Call it before closing the descriptor."""
        self._life.mailbox.watch(fileobj, None, None)


_running: dict[int, Actor] = {}
"""Every actor whose thread has not ended, by its incarnation."""


def living() -> list[Actor]:
    """Every actor of this process whose thread has not ended, also one that was given up. Takes no lock."""
    return list(_running.values())


class _Shell(pykka.ThreadingActor):
    """The Pykka actor around ours: it gives the thread and the registry, and none of its own rules."""

    use_daemon_thread = True

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._life = actor._life  # noqa: SLF001  # the one private thing of an actor
        _running[actor.ref.incarnation] = actor
        super().__init__()

    def _create_actor_inbox(self) -> Any:  # type: ignore[override]  # a method here: the life has the mailbox
        return self._life.mailbox

    def _start_actor_loop(self) -> None:
        thread = threading.Thread(target=self._actor_loop, name=self._actor.name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more threads: an end like any other
            self._life.end(Exit("crash", f"no thread could be started for it: {error}"))
            self._leave_registry()

    def _actor_loop(self) -> None:
        try:
            self._life.run()
        finally:
            self._leave_registry()

    def _leave_registry(self) -> None:
        self.actor_stopped.set()
        _running.pop(self._actor.ref.incarnation, None)
        pykka.ActorRegistry.unregister(self.actor_ref)


class Unstartable(Actor):
    """Stands in for an actor that cannot be started, so that this is told as every start error is."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def setup(self) -> None:
        """Raise what is in the way."""
        raise self._error


def launch(actor: Actor, name: str, monitor: Ref | None = None) -> Ref:
    """Start an actor and return at once; ``monitor`` is told Started, and Down at its end.

    A name that another living actor holds is a start error, Refused ``name_taken``.
    """
    mailbox = Mailbox(actor.mailbox_limit or MAILBOX.count, Envelope)
    ref = Ref(name, next(_incarnations), mailbox)
    if not _enter(ref):
        actor = Unstartable(Refused("name_taken", f"an actor named {name} lives already"))
    actor.name, actor.ref = name, ref
    actor._life = Life(actor, ref, mailbox, monitor)  # noqa: SLF001  # the one private thing of an actor
    _Shell.start(actor)
    return ref


def _enter(ref: Ref) -> bool:
    """Give the name to this incarnation, unless it is taken."""
    with _directory_lock:
        return _directory.setdefault(ref.name, ref) is ref


def start(actor: Actor, name: str, monitor: Ref | None = None, start_timeout_s: float | None = None) -> Ref:
    """Start an actor and wait until it is up. Raises what ``setup`` refused with, or StartFailed; a late one is stopped."""
    ref = launch(actor, name, monitor)
    limit = START.value if start_timeout_s is None else start_timeout_s
    if not ref.started.wait(limit):
        ref.abandon("start timeout")
        raise StartFailed(f"{name} was not up in {limit:g} s")
    if ref.refusal is not None:
        raise ref.refusal
    if not ref.up:
        why = (ref.exit and (ref.exit.detail or ref.exit.kind)) or ""
        raise StartFailed(f"{name} did not start: {why.strip().rpartition(chr(10))[2]}")
    return ref
