"""Logits to a token: masks, top-p, min-p, temperature. Pure but for numpy.

A draw depends on the seed and the place of the token in its turn alone, so that a turn that is taken up again after a
loss draws the numbers it would have drawn undisturbed.
"""

import secrets
from typing import TYPE_CHECKING

import numpy as np

from aerix.actors import Refused
from aerix.pool.protocol import Sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aerix.pool.rows import Logits

    Bits = NDArray[np.bool_]

_WORD = (1 << 64) - 1
_HOTTEST = 1000


def check_sampling(sampling: Sampling) -> None:
    """Refuse what nothing can be drawn by. Not a number is in no range."""
    for name, value, fits, allowed in (
        ("temperature", sampling.temperature, 0 <= sampling.temperature <= _HOTTEST, f"0 to {_HOTTEST:,}"),
        ("top_p", sampling.top_p, 0 < sampling.top_p <= 1, "above 0, at most 1"),
        ("min_p", sampling.min_p, 0 <= sampling.min_p <= 1, "0 to 1"),
        ("seed", sampling.seed or 0, 0 <= (sampling.seed or 0) <= _WORD, f"0 to {_WORD}"),
    ):
        if not fits:
            raise Refused("bad_request", f"The sampling's {name} is {value}; it must be {allowed}.")


class Sampler:
    """Draws the tokens of one generation. Without a seed it takes one of its own."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._seed = secrets.randbits(64) if sampling.seed is None else sampling.seed

    def draw(self, logits: "Logits", place: int, allowed: "Bits | None" = None) -> int | None:
        """The token at ``place`` of the turn (0 is the first). None where nothing that is allowed has a number."""
        tokens, scores = _possible(logits, allowed)
        if not len(tokens):
            return None
        best = int(scores.argmax())
        if self._sampling.temperature <= 0:
            return int(tokens[best])
        kept = _kept(scores - scores[best], self._sampling)
        weights = np.exp((scores[kept] - scores[best]) / self._sampling.temperature, dtype=np.float64)
        steps = np.cumsum(weights)
        at = int(np.searchsorted(steps, uniform(self._seed, place) * steps[-1], side="right"))
        return int(tokens[kept[min(at, len(kept) - 1)]])


def uniform(seed: int, place: int) -> float:
    """A number in [0, 1) that only the two decide (splitmix64's mixing)."""
    x = (seed * 0x9E3779B97F4A7C15 + (place + 1) * 0xD1B54A32D192ED03) & _WORD
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> shift)) * factor) & _WORD
    return ((x ^ (x >> 31)) >> 11) / (1 << 53)


def log_probabilities(logits: "Logits", tokens: list[int]) -> list[float]:
    """The natural logarithm of each token's probability."""
    top = float(logits.max())
    total = top + float(np.log(np.exp(logits - np.float32(top), dtype=np.float64).sum()))
    return [float(logits[token]) - total for token in tokens]


def _possible(logits: "Logits", allowed: "Bits | None") -> "tuple[NDArray[np.intp], Logits]":
    """The tokens that may be drawn, and their logits."""
    if allowed is None:
        tokens = np.flatnonzero(logits > -np.inf)
    else:
        tokens = np.flatnonzero(allowed)
        tokens = tokens[logits[tokens] > -np.inf]
    return tokens, logits[tokens]


def _kept(relative: "Logits", sampling: Sampling) -> "NDArray[np.intp]":
    """What min-p and top-p leave, by the model's own probabilities; temperature comes after. Best first.

    ``relative`` are the logits less the best one's. min-p 0 keeps all; top-p 1 does.
    """
    floor = np.log(sampling.min_p) if sampling.min_p > 0 else -np.inf
    kept = np.flatnonzero(relative >= floor)
    kept = kept[np.argsort(-relative[kept], kind="stable")]
    if sampling.top_p >= 1:
        return kept
    # The whole of what is possible counts, also what min-p takes away.
    shares = np.cumsum(np.exp(relative[kept], dtype=np.float64)) / np.exp(relative, dtype=np.float64).sum()
    return kept[: int(np.searchsorted(shares, sampling.top_p)) + 1]
