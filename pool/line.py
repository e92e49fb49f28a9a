"""One connection between a pool and a client, as the actor at either end sees it: messages out, messages in, its end."""

import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from aerix.actors import Actor
from aerix.actors.wire import FrameSocket, Packed, Plain, WireError
from aerix.pool.protocol import CODEC


class Listener(Protocol):
    """What happens on a line. Called in the owning actor's thread, never from inside ``Line.send``."""

    def take(self, line: "Line", message: Any) -> None:
        """A message came."""

    def misread(self, line: "Line", plain: Plain, error: WireError) -> None:
        """A frame came that holds no known message."""

    def ended(self, line: "Line", error: WireError | None) -> None:
        """The other end closed (None), or broke the rules of frames or the connection; told once.

        Whoever is told closes the line, and may send a last word before.
        """


class Line:
    """A connected socket that speaks the protocol. Belongs to ``actor``, used in its thread only.

    With ``unread``, the other end is not read while more than so many bytes wait for it: who asks and never reads has
    to wait, and costs no more memory. Only one of two ends may do so, else both could wait for ever.
    """

    def __init__(
        self, actor: Actor, sock: socket.socket, listener: Listener, unread: int | None = None
    ) -> None:
        self._actor = actor
        self._unread = unread
        self._frames = FrameSocket(sock, self._want_write)
        self.listener = listener
        """May be exchanged, as when a handshake is over."""
        self.open = True
        self.drained: Callable[[], None] | None = None
        """Called when the line was ``full`` and is not any more."""
        self._told = False
        self._broken: WireError | None = None
        self._came: deque[Plain] = deque()
        """Frames that were read and not handed on."""
        self._held = self._writing = False
        actor.watch(self._frames, self._read)

    @property
    def full(self) -> bool:
        """Whether more waits for the other end than it should."""
        return self._unread is not None and self._frames.waiting > self._unread

    def hold(self, held: bool) -> None:
        """Hand nothing on, and read nothing, for now; or do so again."""
        if held != self._held:
            self._held = held
            if not held:
                self._hand_on_all()

    def send(self, message: Any, answers: int | None = None) -> None:
        """Send a message; ``answers`` is the request id that it carries, in place of its own (not of one that is packed).

        Never raises: a line that cannot take it ends, which the listener is told afterwards.
        """
        if not self.open or self._broken is not None:
            return
        try:
            self._frames.send(message if isinstance(message, Packed) else _plain(message, answers))
        except (WireError, OSError) as error:
            self._break(error)

    def close(self) -> None:
        """Close the connection; nothing more is told."""
        if self.open:
            self._actor.unwatch(self._frames)
            self.drop()

    def drop(self) -> None:
        """Close it in the actor's ``teardown``, when the actor watches nothing any more."""
        if self.open:
            self.open, self._told = False, True
            self._frames.close()

    def _read(self) -> None:
        if self._broken is not None:
            self._end(self._broken)
            return
        try:
            frames = self._frames.receive()
        except WireError as error:
            self._end(error)
            return
        except OSError as error:
            self._end(_as_wire(error))
            return
        if frames is None:
            self._end(None)
            return
        self._came.extend(frames)
        self._hand_on_all()

    def _hand_on_all(self) -> None:
        while self._came and self.open and not (self._held or self.full):
            self._hand_on(self._came.popleft())
        self._watch()

    def _hand_on(self, plain: Plain) -> None:
        try:
            message = CODEC.decode(plain)
        except WireError as error:
            self.listener.misread(self, plain, error)
        else:
            self.listener.take(self, message)

    def _flush(self) -> None:
        was_full = self.full
        try:
            self._frames.flush()
        except OSError as error:
            self._break(error)
            return
        if was_full and not self.full:
            self._hand_on_all()
            if self.drained is not None:
                self.drained()

    def _break(self, error: WireError | OSError) -> None:
        """Make the socket readable at its end, so that the end is told from the loop and not from inside a send."""
        self._broken = error if isinstance(error, WireError) else _as_wire(error)
        with suppress(OSError):
            self._frames.sock.shutdown(socket.SHUT_RDWR)
        self._want_write(False)

    def _want_write(self, wanted: bool) -> None:
        self._writing = wanted
        self._watch()

    def _watch(self) -> None:
        """Read, unless there is enough to do; a broken line is read for its end to be told."""
        if self.open:
            waits = self._broken is None and (self._held or self.full or bool(self._came))
            self._actor.watch(
                self._frames, None if waits else self._read, self._flush if self._writing else None
            )

    def _end(self, error: WireError | None) -> None:
        if not self._told:
            self._told = True
            self._came.clear()
            self.listener.ended(self, error)


def _plain(message: Any, answers: int | None) -> Plain:
    plain = CODEC.encode(message)
    if answers is not None:
        plain["id"] = answers
    return plain


def _as_wire(error: OSError) -> WireError:
    return WireError("connection_lost", error.strerror or str(error))
