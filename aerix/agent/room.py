"""Room: the limits of a context, in tokens of its member's window. Pure."""

from dataclasses import dataclass

BYTES_A_TOKEN = 3
"""How many bytes of a result are taken for one token, before the pool has counted them."""
RESULT_SHARE = 0.15
"""A result takes at most this share of the window."""
TURN_SHARE = 4
"""A turn asks for at most the window divided by this."""
NOTES_SHARE = 32
"""Of the window, one part in so many is left free by results: for the notes that may follow them."""
STEP_SHARE = 0.05
"""A compaction that frees less of the window than this is not tried again until the context has grown by as much."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """The settings ``context.soft_ratio`` and ``context.target_ratio``."""

    soft: float = 0.70
    target: float = 0.50


@dataclass(frozen=True, slots=True)
class Limits:
    """What a context may take, all in tokens."""

    window: int
    turn: int
    """What a turn asks for."""
    soft: int
    """Over it the context is compacted before a turn."""
    target: int
    """A compaction goes on until the context is at or under it."""

    @classmethod
    def of(cls, window: int, max_new_tokens: int, ratios: Ratios) -> "Limits":
        """The limits in a window. A target that would leave no room for a turn, or is over the soft limit, is lowered."""
        turn = min(max_new_tokens, window // TURN_SHARE)
        soft = int(window * ratios.soft)
        return cls(window, turn, soft, min(int(window * ratios.target), soft, window - turn - 1))

    @property
    def full(self) -> int:
        """The most tokens beside which a turn still fits."""
        return self.window - self.turn - 1

    @property
    def with_results(self) -> int:
        """The most tokens of a context to which results are added: a turn and some notes fit beside it."""
        return self.full - self.window // NOTES_SHARE

    @property
    def step(self) -> int:
        """What a compaction must free to count."""
        return int(self.window * STEP_SHARE)

    @property
    def result(self) -> int:
        """The most tokens of one result."""
        return int(self.window * RESULT_SHARE)
