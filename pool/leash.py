"""The worker's end of a permit: how many threads it may compute with, asked at every step and never sent for.

The daemon tells (``Permit``); a step that runs is let end first, and only then is the permit answered.
"""

import threading
from collections.abc import Callable

from aerix.actors.child import Channel, Incoming, IncomingCall
from aerix.pool.protocol import Ok, Permit
from aerix.pool.rows import Aborted


class Leash:
    """``with leash as threads:`` around a step. One thread steps; ``permit`` and ``interrupt`` come from any.

    ``threads`` is 0 where no daemon permits anything: the step takes what it likes.
    """

    def __init__(self, channel: Channel | None = None) -> None:
        """With a channel, nothing may be computed until a permit has come."""
        self._channel = channel
        self._threads = 0
        self._changed = threading.Condition()
        self._stepping = self._interrupted = False
        self._unanswered: list[int] = []

    def permit(self, call: int, threads: int) -> None:
        """From now on so many threads, 0 for none; the call is answered when no step uses more."""
        with self._changed:
            self._threads = threads
            self._unanswered.append(call)
            if not self._stepping:
                self._answer()
            self._changed.notify()

    def interrupt(self) -> None:
        """End the wait for a permit with Aborted, this one or the next."""
        with self._changed:
            self._interrupted = True
            self._changed.notify()

    def resume(self) -> None:
        """Take an ``interrupt`` back."""
        self._interrupted = False

    def __enter__(self) -> int:
        if self._channel is None:
            return 0
        with self._changed:
            self._changed.wait_for(lambda: self._threads or self._interrupted)
            if not self._threads:
                raise Aborted
            self._stepping = True
            return self._threads

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stepping = False
            self._answer()

    def _answer(self) -> None:
        if self._channel is not None:
            for call in self._unanswered:
                self._channel.reply(call, Ok(0))
        self._unanswered.clear()


class Door:
    """Where a worker's reader thread hands on what comes: permits at once, from birth on; the rest when somebody serves."""

    def __init__(self, leash: Leash) -> None:
        self._leash = leash
        self._early: list[Incoming | None] = []
        self._serve: Callable[[Incoming | None], None] | None = None
        self._opening = threading.Lock()

    def take(self, incoming: Incoming | None) -> None:
        """Something came; None is the end."""
        if isinstance(incoming, IncomingCall) and isinstance(incoming.message, Permit):
            self._leash.permit(incoming.id, incoming.message.threads)
            return
        with self._opening:
            if self._serve is None:
                self._early.append(incoming)
                return
        self._serve(incoming)

    def open(self, serve: Callable[[Incoming | None], None]) -> None:
        """From now on somebody serves, also what came before."""
        with self._opening:
            for incoming in self._early:
                serve(incoming)
            self._serve = serve
