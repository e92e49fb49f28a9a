"""A generation's way out of its worker: never waits for a slow client."""

from dataclasses import replace

from aerix.actors.child import Channel
from aerix.pool.protocol import Token


class Pieces:
    """What is told of one generation as it goes. Tokens that a client does not take are put together until it does.

    A token has its client's number already: it is packed here, and the daemon passes it on as it is.
    """

    def __init__(self, channel: Channel, call: int) -> None:
        self._channel = channel
        self._call = call
        self._kept: Token | None = None

    def send(self, piece: object) -> None:
        """Send, or keep a token; progress that is not taken is passed over, for the next says more."""
        if not isinstance(piece, Token):
            self._channel.offer(self._call, piece)
            return
        if self._kept is not None and self._kept.thinking != piece.thinking:
            self.flush()
        if self._kept is not None:
            piece = replace(
                piece, tokens=[*self._kept.tokens, *piece.tokens], data=self._kept.data + piece.data
            )
        self._kept = None if self._channel.offer(self._call, piece, packed=True) else piece

    def flush(self) -> None:
        """Send what was kept, before the last word."""
        if self._kept is not None:
            self._channel.offer(self._call, self._kept, last=True, packed=True)
            self._kept = None
