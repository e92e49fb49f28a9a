"""The resident shelf of the prefix store: which sequence of the cache holds which tokens. Pure.

It decides where a generation's prompt starts from: it goes on in a sequence that holds its beginning, or in a fork of
one, or in an empty one; what is used least recently makes room. Rows that a generation uses are never taken away.
The shelf is a model of the engine's cache: whoever asks it carries its operations out there, in order.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import eq
from typing import Literal

_STRIDE = 64


@dataclass(frozen=True, slots=True)
class Copy:
    """Give the empty sequence ``target`` the first ``upto`` rows of ``source``."""

    source: int
    target: int
    upto: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Drop the rows of ``sequence`` from ``at`` on; 0 empties it."""

    sequence: int
    at: int


Operation = Copy | Cut
ShelfName = Literal["none", "resident", "memory", "disk"]


@dataclass(frozen=True, slots=True)
class Lease:
    """A sequence in the hands of one generation until ``release``. Rows before ``start`` are there already."""

    sequence: int
    start: int
    operations: tuple[Operation, ...] = ()
    shelf: ShelfName = field(default="none", compare=False)
    """What held the last of those rows."""
    seconds: float = field(default=0.0, compare=False)
    """What it took to put them there."""


@dataclass(slots=True)
class _Held:
    tokens: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    """The cell of each row; sequences that share rows name the same cells."""
    leased: bool = False
    reserved: int = 0
    """Cells promised to the generation and not yet used."""
    used: int = 0
    """When it was last leased or released, for least recently used."""


@dataclass(frozen=True, slots=True)
class Place:
    """A way to start: go on in ``sequence`` itself, or fork it, or neither; from row ``start``."""

    sequence: int | None
    start: int
    fork: bool


class Shelf:
    """The sequences of one cache. ``cells`` bounds the rows of all together, a shared row counted once."""

    def __init__(self, sequences: int, cells: int, *, cuttable: bool = True) -> None:
        self._free = list(range(sequences))
        self._held: dict[int, _Held] = {}
        self._holders: Counter[int] = Counter()
        self._cells = cells
        self._cuttable = cuttable
        self._next_cell = count()
        self._clock = count(1)

    @property
    def used(self) -> int:
        """Cells that hold a row."""
        return len(self._holders)

    @property
    def promised(self) -> int:
        """Cells that running generations may still fill."""
        return sum(held.reserved for held in self._held.values())

    def tokens(self, sequence: int) -> Sequence[int]:
        """What a sequence holds; nothing for an empty one."""
        held = self._held.get(sequence)
        return held.tokens if held else ()

    def resident(self, tokens: Sequence[int]) -> int:
        """How many leading rows of these tokens some sequence holds."""
        tokens = list(tokens)
        return max((common(held.tokens, tokens) for held in self._held.values()), default=0)

    def fits(self, tokens: Sequence[int], *, reserve: int) -> bool:
        """Whether there is room now for a prompt of ``tokens`` and up to ``reserve`` rows after it."""
        tokens = list(tokens)
        return any(
            self.victims(place, len(tokens) - place.start + reserve) is not None
            for place in self.places(tokens, len(tokens) - 1)
        )

    def places(self, tokens: list[int], limit: int) -> Iterable[Place]:
        """The ways to start a prompt, best first; rows from ``limit`` on are computed again."""
        shared = {s: min(common(h.tokens, tokens), limit) for s, h in self._held.items()}
        usable = [s for s, n in shared.items() if n and (self._cuttable or n == len(self._held[s].tokens))]
        best = max(
            usable, key=lambda s: (shared[s], not self._held[s].leased, self._held[s].used), default=None
        )
        if best is not None:
            start, held = shared[best], self._held[best]
            # The row that is computed again for its logits is no loss; a longer tail is a turn worth keeping.
            spare = len(held.tokens) - start <= 1
            in_place = not held.leased
            if in_place and spare:
                yield Place(best, start, fork=False)
            yield Place(best, start, fork=True)
            if in_place and not spare:
                yield Place(best, start, fork=False)
        yield Place(None, 0, fork=False)

    def victims(self, place: Place, need: int) -> list[int] | None:
        """Which idle sequences must go for ``place`` to have a sequence and ``need`` cells; None if all are too few."""
        fresh = place.fork or place.sequence is None
        gone: Counter[int] = Counter()
        room = self._cells - self.used - self.promised
        if place.sequence is not None and not fresh:
            room += self._give(gone, self._held[place.sequence].cells[place.start :])
        victims: list[int] = []
        idle = [s for s, held in self._held.items() if not held.leased and s != place.sequence]
        for sequence in sorted(idle, key=lambda s: self._held[s].used):
            if room >= need and (not fresh or self._free or victims):
                break
            victims.append(sequence)
            room += self._give(gone, self._held[sequence].cells)
        enough = room >= need and (not fresh or bool(self._free) or bool(victims))
        return victims if enough else None

    def idle(self) -> tuple[list[int], int]:
        """The sequences that nobody uses, and how many cells would be empty without them."""
        kept: set[int] = set()
        for held in self._held.values():
            if held.leased:
                kept.update(held.cells)
        return [s for s, held in self._held.items() if not held.leased], self.used - len(kept)

    def leave(self, sequence: int) -> Operation:
        """An idle sequence goes."""
        assert not self._held[sequence].leased
        return self._drop(sequence)

    def take(self, place: Place, victims: list[int], need: int) -> Lease:
        """Lease that place, once the victims are gone, with ``need`` cells."""
        operations: list[Operation] = [self._drop(sequence) for sequence in victims]
        if place.sequence is None or place.fork:
            target = self._free.pop()
            self._held[target] = _Held()
            if place.sequence is not None:
                operations.append(self._fork(place.sequence, target, place.start))
        else:
            target = place.sequence
            if place.start < len(self._held[target].tokens):
                operations.append(self._cut(target, place.start))
        held = self._held[target]
        held.leased, held.reserved, held.used = True, need, next(self._clock)
        return Lease(target, place.start, tuple(operations), "resident" if place.start else "none")

    def commit(self, sequence: int, tokens: Sequence[int]) -> None:
        """Rows were computed at the end of a leased sequence."""
        held = self._held[sequence]
        assert held.leased
        assert len(tokens) <= held.reserved, "more rows than were reserved"
        cells = [next(self._next_cell) for _ in tokens]
        held.tokens.extend(tokens)
        held.cells.extend(cells)
        held.reserved -= len(tokens)
        self._holders.update(cells)

    def spare(self, sequence: int) -> int:
        """Cells that a leased sequence may take for a moment: its own and what nobody is promised."""
        return self._cells - self.used - self.promised + self._held[sequence].reserved

    @property
    def entries(self) -> int:
        """Sequences that hold something or are leased."""
        return len(self._held)

    @property
    def sequences(self) -> Iterable[int]:
        """Those that hold something or are leased."""
        return self._held.keys()

    def release(self, sequence: int, *, keep: bool = True) -> tuple[Operation, ...]:
        """End a lease. What was computed stays on the shelf, unless it is not worth keeping."""
        held = self._held[sequence]
        assert held.leased
        held.leased, held.reserved, held.used = False, 0, next(self._clock)
        return () if keep and held.tokens else (self._drop(sequence),)

    # --- private --------------------------------------------------------------------------------------------------

    def _give(self, gone: Counter[int], cells: list[int]) -> int:
        """One holder of each cell goes; how many cells are empty then."""
        gone.update(cells)
        return sum(map(eq, map(gone.__getitem__, cells), map(self._holders.__getitem__, cells)))

    def _fork(self, source: int, target: int, upto: int) -> Copy:
        self._held[target].tokens = self._held[source].tokens[:upto]
        self._held[target].cells = self._held[source].cells[:upto]
        self._holders.update(self._held[target].cells)
        return Copy(source, target, upto)

    def _cut(self, sequence: int, at: int) -> Cut:
        held = self._held[sequence]
        for cell in held.cells[at:]:
            self._holders[cell] -= 1
            if not self._holders[cell]:
                del self._holders[cell]
        del held.tokens[at:], held.cells[at:]
        return Cut(sequence, at)

    def _drop(self, sequence: int) -> Cut:
        cut = self._cut(sequence, 0)
        del self._held[sequence]
        self._free.append(sequence)
        return cut


def common(one: list[int], other: list[int]) -> int:
    """How many leading tokens two lists share."""
    end = min(len(one), len(other))
    at = 0
    while at < end and one[at : at + _STRIDE] == other[at : at + _STRIDE]:
        at += _STRIDE
    while at < end and one[at] == other[at]:
        at += 1
    return min(at, end)
