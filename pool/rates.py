"""What a worker has measured of its engine and its shelves; the cheapest plan is chosen by it. Pure."""

from dataclasses import dataclass, replace

_NEW = 0.25
"""How much a new measurement counts."""
_FEW = 16
"""Rows of a step below which its time says nothing about filling."""
_SLOWED = 5e-5
"""Of a row's time, what each row in the cache that nobody uses adds to it (docs/performance.md)."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a worker has measured: seconds a row computed, and seconds a byte on its way back from a shelf but for ``out``."""

    row: float = 3e-3
    out: float = 2e-9
    """On the way to memory."""
    memory: float = 1e-9
    disk: float = 4e-9
    """Until one was read: what a slow solid disk gives."""

    def slowed(self, idle: int, rows: int) -> float:
        """Seconds that ``rows`` take longer beside so many rows that nobody uses."""
        return idle * rows * self.row * _SLOWED

    def filled(self, rows: int, seconds: float) -> "Rates":
        """A step computed so many rows."""
        return self if rows < _FEW else replace(self, row=_mixed(self.row, seconds / rows))

    def saved(self, size: int, seconds: float) -> "Rates":
        """So many bytes went to memory."""
        return replace(self, out=_mixed(self.out, seconds / size))

    def restored(self, size: int, seconds: float) -> "Rates":
        """So many bytes came back from memory."""
        return replace(self, memory=_mixed(self.memory, seconds / size))

    def read(self, size: int, seconds: float) -> "Rates":
        """So many bytes were read from the disk."""
        return replace(self, disk=_mixed(self.disk, seconds / size))


def _mixed(old: float, new: float) -> float:
    return old + _NEW * (new - old)
