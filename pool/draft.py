"""Drafts: what a generation may say next, because the same words stand before it.

An agent's turns repeat what it has read: paths, lines to be replaced, calls that were made. What followed the same tokens
earlier is computed in one step with the row that is asked, and counts as far as it is what is then drawn.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SAME = 4
"""Tokens that must be the same before what followed them is worth a try."""
_PLACES = 8
"""Places that are compared, the latest first."""
_WRONG = 16
"""So many more drafted tokens wrong than right, and drafts pause: one that is wrong costs about what one saves."""
_EASED = 0.25
"""Of a wrong token, what each step of the pause makes good."""


class Drafts:
    """The tokens of one sequence, and what stood behind the same ones before."""

    def __init__(self, room: int) -> None:
        """``room`` is how many tokens the sequence may hold."""
        self._room = np.empty(room, dtype=np.int32)
        self._count = 0
        self._balance = 0.0

    def __len__(self) -> int:
        return self._count

    def extend(self, tokens: Sequence[int]) -> None:
        """The sequence goes on by these."""
        end = self._count + len(tokens)
        self._room[self._count : end] = tokens
        self._count = end

    def judge(self, drafted: int, right: int) -> None:
        """Of so many drafted tokens so many came."""
        self._balance += right - (drafted - right)

    def next(self, most: int) -> list[int]:
        """What may come next: at most as many tokens as were the same before it, for the longer that is the surer it is."""
        if self._balance <= -_WRONG:
            self._balance += _EASED
            return []
        tokens = self._room[: self._count]
        same, place = max(((_same(tokens, place, most), place) for place in _places(tokens)), default=(0, 0))
        behind: list[int] = tokens[place + 1 :][:most].tolist()
        return [behind[at % len(behind)] for at in range(min(same, most))]  # what ends here repeats itself


def _places(tokens: "NDArray[np.int32]") -> list[int]:
    """The latest places of the last _SAME tokens before their end."""
    if len(tokens) <= _SAME:
        return []
    found = tokens[_SAME - 1 : -1] == tokens[-1]
    for back in range(1, _SAME):
        found &= tokens[_SAME - 1 - back : -1 - back] == tokens[-1 - back]
    places: list[int] = (np.flatnonzero(found)[-_PLACES:] + _SAME - 1).tolist()
    return places


def _same(tokens: "NDArray[np.int32]", place: int, most: int) -> int:
    """How many tokens up to ``place`` are the last ones too; more than ``most`` are not looked for."""
    end, same = len(tokens) - 1, _SAME
    while same < min(most, place + 1) and tokens[place - same] == tokens[end - same]:
        same += 1
    return same
