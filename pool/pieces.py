"""A generation's way out of its worker: never waits for a slow client."""

from dataclasses import replace

from aerix.actors.child import Channel
from aerix.actors.wire import Packed
from aerix.pool.protocol import CODEC, Token


class Pieces:
    """What is told of one generation as it goes. Tokens that a client does not take are put together until it does."""

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
        self._kept = None if self._channel.offer(self._call, _packed(piece)) else piece

    def flush(self) -> None:
        """Send what was kept, before the last word."""
        if self._kept is not None:
            self._channel.offer(self._call, _packed(self._kept), last=True)
            self._kept = None


def _packed(token: Token) -> Packed:
    """It has its client's number already: the daemon passes it on as it is."""
    return Packed.of(CODEC.encode(token))
