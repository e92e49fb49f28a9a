"""Logits to a token: masks, top-p, min-p, temperature. Pure but for numpy.

A draw depends on the seed and the place of the token in its turn alone, so that a turn that is taken up again after a
loss draws the numbers it would have drawn undisturbed.
"""

import secrets
from typing import TYPE_CHECKING

import numpy as np

from aerix.pool.protocol import Sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aerix.pool.rows import Logits

    Bits = NDArray[np.bool_]

_WORD = (1 << 64) - 1
_NEVER = np.float32(-np.inf)
_FEW = (64, 4096, 1 << 30)
"""Candidates to look at for top-p: mostly a few hold its share."""


class Sampler:
    """Draws the tokens of one generation. Without a seed it takes one of its own."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._seed = secrets.randbits(64) if sampling.seed is None else sampling.seed

    def best(self, logits: "Logits") -> int | None:
        """What ``draw`` gives wherever it is allowed; None where that is not known."""
        best = int(logits.argmax())
        return best if self._sampling.temperature <= 0 and logits[best] > _NEVER else None

    def draw(self, logits: "Logits", place: int, allowed: "Bits | None" = None) -> int | None:
        """The token at ``place`` of the turn (0 is the first). None where nothing that is allowed has a number."""
        scores = logits if allowed is None else np.where(allowed, logits, _NEVER)
        best = int(scores.argmax())
        if not scores[best] > _NEVER:  # what is no number wins too: leave those out, and look again
            scores = np.where(scores > _NEVER, scores, _NEVER)
            best = int(scores.argmax())
            if not scores[best] > _NEVER:
                return None
        if self._sampling.temperature <= 0:
            return best
        kept, relative = _kept(scores - scores[best], self._sampling)
        steps = np.cumsum(np.exp(relative / self._sampling.temperature, dtype=np.float64))
        at = int(np.searchsorted(steps, uniform(self._seed, place) * steps[-1], side="right"))
        return int(kept[min(at, len(kept) - 1)])


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


def _kept(relative: "Logits", sampling: Sampling) -> "tuple[NDArray[np.intp], Logits]":
    """The tokens that min-p and top-p leave, and their scores; by the model's own probabilities, temperature comes after.

    ``relative`` are the logits less the best one's. min-p 0 keeps all; top-p 1 does.
    """
    floor = np.float32(np.log(sampling.min_p)) if sampling.min_p > 0 else np.nextafter(_NEVER, np.float32(0))
    kept = np.flatnonzero(relative >= floor)
    scores = relative[kept]
    if sampling.top_p >= 1:
        return kept, scores
    # The whole of what is possible counts, also what min-p takes away.
    wanted = sampling.top_p * float(np.exp(relative).sum(dtype=np.float64))
    for few in _FEW:
        some = _best(scores, few)
        shares = np.cumsum(np.exp(scores[some], dtype=np.float64))
        if shares[-1] >= wanted or len(some) == len(scores):
            break
    some = some[: int(np.searchsorted(shares, wanted)) + 1]
    return kept[some], scores[some]


def _best(scores: "Logits", few: int) -> "NDArray[np.intp]":
    """Where the ``few`` best are, best first: sorting all would cost more than all else on a token's way."""
    if len(scores) > few:
        some = np.argpartition(-scores, few)[:few]
        return some[np.argsort(-scores[some], kind="stable")]
    return np.argsort(-scores, kind="stable")
