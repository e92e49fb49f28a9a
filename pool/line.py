"""One connection between a pool and a client, as the actor at either end sees it: messages out, messages in, its end."""

import socket
from contextlib import suppress
from typing import Any, Protocol

from aerix.actors import Actor
from aerix.actors.wire import FrameSocket, Plain, WireError
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
    """A connected socket that speaks the protocol. Belongs to ``actor``, used in its thread only."""

    def __init__(self, actor: Actor, sock: socket.socket, listener: Listener) -> None:
        self._actor = actor
        self._frames = FrameSocket(sock, self._want_write)
        self.listener = listener
        """May be exchanged, as when a handshake is over."""
        self.open = True
        self._told = False
        self._broken: WireError | None = None
        actor.watch(self._frames, self._read)

    def send(self, message: Any, answers: int | None = None) -> None:
        """Send a message; ``answers`` is the request id that it carries, in place of its own.

        Never raises: a line that cannot take it ends, which the listener is told afterwards.
        """
        if not self.open or self._broken is not None:
            return
        plain = CODEC.encode(message)
        if answers is not None:
            plain["id"] = answers
        try:
            self._frames.send(plain)
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
        try:
            frames = self._frames.receive()
        except WireError as error:
            self._end(error)
            return
        except OSError as error:
            self._end(_as_wire(error))
            return
        if frames is None:
            self._end(self._broken)
            return
        for plain in frames:
            if self.open:
                self._hand_on(plain)

    def _hand_on(self, plain: Plain) -> None:
        try:
            message = CODEC.decode(plain)
        except WireError as error:
            self.listener.misread(self, plain, error)
        else:
            self.listener.take(self, message)

    def _flush(self) -> None:
        try:
            self._frames.flush()
        except OSError as error:
            self._break(error)

    def _break(self, error: WireError | OSError) -> None:
        """Make the socket readable at its end, so that the end is told from the loop and not from inside a send."""
        self._broken = error if isinstance(error, WireError) else _as_wire(error)
        with suppress(OSError):
            self._frames.sock.shutdown(socket.SHUT_RDWR)
        self._want_write(False)

    def _want_write(self, wanted: bool) -> None:
        self._actor.watch(self._frames, self._read, self._flush if wanted else None)

    def _end(self, error: WireError | None) -> None:
        if not self._told:
            self._told = True
            self.listener.ended(self, error)


def _as_wire(error: OSError) -> WireError:
    return WireError("connection_lost", error.strerror or str(error))
