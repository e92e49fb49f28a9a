"""How many of the permitted threads a step uses: fewer while other programs keep the cores busy. Pure.

The threads of a step meet at a barrier after each operation, so one that waits for a core holds up all: on two cores of
which another program keeps one busy, two threads take from twice to ten times as long as one (docs/performance.md).
"""

_ENOUGH = 0.8
"""Of the processor that its threads could have taken, what a step takes that nobody disturbs."""
_STEPS = 4
"""How many steps a share is the mean of, about."""
_FIRST_S, _LAST_S = 0.2, 4.0
"""Seconds of computing with fewer threads before more are tried again: at first, and after many tries that failed."""


class Pace:
    """Halves the threads when steps are held up, and doubles them again when a while has passed."""

    def __init__(self) -> None:
        self._halvings = 0
        self._share = 1.0
        """What the last steps took of the processor that their threads could have taken."""
        self._pause = _FIRST_S
        self._left = 0.0

    def threads(self, most: int) -> int:
        """Of ``most`` threads that may be used, those that the next step should use."""
        return max(1, most >> self._halvings)

    def took(self, most: int, wall_s: float, processor_s: float) -> None:
        """The step with ``threads(most)`` is over: its time, and that of all its threads on the processor."""
        threads = self.threads(most)
        self._share += (processor_s / (wall_s * threads) - self._share) / _STEPS
        self._left -= wall_s
        if threads > 1 and self._share < _ENOUGH:
            self._halve()
        elif self._left <= 0:
            self._double()

    def _halve(self) -> None:
        self._halvings, self._share = self._halvings + 1, 1.0
        self._left, self._pause = self._pause, min(2 * self._pause, _LAST_S)

    def _double(self) -> None:
        """Try more; where all are used and nothing has held them up meanwhile, the next trouble is a first one."""
        if self._halvings:
            self._halvings, self._share = self._halvings - 1, 1.0
        else:
            self._pause = _FIRST_S
        self._left = self._pause
