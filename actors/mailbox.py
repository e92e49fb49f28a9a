"""A mailbox of two lanes: system messages overtake user messages; bounded, closable.

Pykka's own inbox loses an ask that is put while its actor drains (spec/actors.md 1.5, trap 1). A closed mailbox
refuses instead, so every envelope is either handled or refused, never lost.
"""

import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aerix.actors.os_linux import Poller, Readiness

if TYPE_CHECKING:  # a child imports this file, and its start should not take longer for it
    from aerix.actors.messages import Refused

E = TypeVar("E")

_IO_EVERY = 32  # messages handled in a row before the descriptors are looked at


class MailboxClosed(Exception):
    """The actor has ended; nothing put here would ever be handled."""


class MailboxFull(Exception):
    """The user lane holds as many messages as it may."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Descriptors of this actor can be read or written; ``Mailbox.run`` runs their callbacks."""


class Mailbox(Generic[E]):
    """Envelopes for one actor. Any thread puts or shuts; only the actor's own thread gets, watches and closes."""

    def __init__(self, limit: int, of_ready: Callable[[Ready], E]) -> None:
        """``limit`` bounds the user lane; ``of_ready`` wraps what tells that descriptors are ready into an envelope."""
        self._limit = limit
        self._ready = of_ready(Ready())
        self._events: list[Readiness] = []
        self._system: deque[E] = deque()
        self._user: deque[E] = deque()
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._closed = False
        self._shut = False
        self._waiting = False
        self._poller: Poller | None = None
        self._in_a_row = 0
        self.idle_since = monotonic()
        """When the actor last found nothing to do."""

    @property
    def lengths(self) -> tuple[int, int]:
        """How many messages wait in the lane of the system, and in that of users."""
        return len(self._system), len(self._user)

    def __len__(self) -> int:
        return len(self._system) + len(self._user)

    def put(self, envelope: E, *, system: bool = False) -> None:
        """Add an envelope. Raises MailboxClosed, or MailboxFull on the user lane."""
        with self._lock:
            if self._closed or (self._shut and not system):
                raise MailboxClosed
            if system:
                self._system.append(envelope)
            else:
                if len(self._user) >= self._limit:
                    raise MailboxFull
                self._user.append(envelope)
            if self._waiting:
                self._waiting = False
                if self._poller is None:
                    self._filled.notify()
                else:
                    self._poller.wake()

    def get(self, timeout_s: float | None = None, *, system_only: bool = False) -> E | None:
        """The next envelope, system lane first; None when ``timeout_s`` ran out. Raises MailboxClosed."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while True:
            if self._poller is not None and self._in_a_row >= _IO_EVERY:
                self._in_a_row = 0
                if events := self._poller.poll(0.0):
                    self._events = events
                    return self._ready
            # Without the lock, which costs: nobody else takes from the lanes, but for ``shut``.
            if self._system:
                self._in_a_row += 1
                return self._system.popleft()
            if self._user and not system_only:
                self._in_a_row += 1
                try:
                    return self._user.popleft()
                except IndexError:
                    continue
            if self._closed:
                raise MailboxClosed
            self.idle_since = now = monotonic()
            left = None if deadline is None else deadline - now
            if left is not None and left <= 0:
                return None
            if events := self._wait(left, system_only):
                self._events = events
                return self._ready

    def _wait(self, left_s: float | None, system_only: bool) -> list[Readiness]:
        """Block until something may be there, unless it is already; returns the ready descriptors."""
        if self._poller is None:
            with self._lock:
                self._waiting = True
                if not self._system and (system_only or not self._user):
                    self._filled.wait(left_s)
                self._waiting = False
            return []
        # Without the lock, which ``put`` holds while it wakes: whoever it wakes would wait again, for the lock. Either
        # this look sees what was put, or ``put`` sees that somebody waits.
        self._waiting = True
        if self._system or (self._user and not system_only):
            events = []
        else:
            self._in_a_row = 0
            events = self._poller.poll(left_s)
        self._waiting = False
        return events

    def unget(self, envelopes: list[E]) -> None:
        """Put envelopes back at the head of the system lane, in order, as a wait that set them aside does."""
        with self._lock:
            self._system.extendleft(reversed(envelopes))

    def shut(self) -> list[E]:
        """Refuse users' messages from now on; returns those that waited. The system lane is still served."""
        with self._lock:
            self._shut = True
        rest: list[E] = []
        with suppress(IndexError):  # popped one by one: the actor may take one meanwhile
            while True:
                rest.append(self._user.popleft())
        return rest

    def close(self) -> list[E]:
        """Refuse everything from now on; returns what was waiting, for the actor to refuse."""
        with self._lock:
            self._closed = True
            rest = [*self._system, *self._user]
            self._system.clear()
            self._user.clear()
            poller, self._poller = self._poller, None
        if poller is not None:
            poller.close()
        return rest

    def watch(self, fileobj: Any, read: Callable[[], None] | None, write: Callable[[], None] | None) -> None:
        """Run ``read`` or ``write`` in the actor's thread whenever the descriptor is ready; both None forgets it."""
        if self._poller is None:
            if self._closed or (read is None and write is None):
                return  # a closed mailbox watches nothing any more
            with self._lock:
                self._poller = Poller()
        self._poller.watch(fileobj, read, write)

    def run(self) -> None:
        """Run the callbacks of ready descriptors; one that an earlier callback stopped watching is passed over."""
        events, self._events = self._events, []
        for event in events:
            if self._poller is not None:
                self._poller.run(*event)


class Slot:
    """Where one answer is put, for the one thread that waits for it; any thread puts.

    Not a lock: releasing one wakes that thread while the waker holds the interpreter, for which it then waits again.
    """

    __slots__ = ("_full", "_poller", "error", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.error: Refused | None = None
        self._full = False
        self._poller: Poller | None = None

    def fill(self, value: object, error: "Refused | None") -> None:
        """Put the answer: a value, or a refusal."""
        self.value, self.error, self._full = value, error, True
        if self._poller is not None:
            self._poller.wake()

    def wait(self, seconds: float) -> bool:
        """Block until the answer is there; whether it came in time."""
        deadline = monotonic() + seconds
        try:
            poller = _idle.pop()
        except IndexError:
            poller = Poller()
        self._poller = poller  # before the look: either that sees the answer, or ``fill`` sees who waits
        try:
            # Once more after a wake for somebody else: a late answer to whoever had the poller before.
            while not self._full and (left := deadline - monotonic()) > 0:
                poller.poll(min(left, _LONGEST_S))
        finally:
            _idle.append(poller)
        return self._full


_LONGEST_S = 1e6  # epoll itself waits no longer than some weeks
_idle: list[Poller] = []
"""The pollers that no slot waits with now, kept for the next: as many as ever waited at once."""


def wait_readable(fileobj: Any, timeout_s: float | None) -> bool:
    """Whether one descriptor became readable in time; for the single-threaded end of a child's channel."""
    poll = select.poll()
    poll.register(fileobj, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0, timeout_s * 1000)))
