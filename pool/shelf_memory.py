"""The snapshots in memory: rows that left the engine's cache, as the bytes the engine gave for them. Pure.

Where a sequence can be cut, snapshots are chunks of at most ``chunk`` rows in a tree by token ids: what two prompts
share is kept once, and a longer one covers its beginnings. Where it cannot, each is a whole state, good for its exact
tokens only. The least recently used leave first, pinned ones last as long as they take no more than half.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from aerix.pool.prefix import common


@dataclass(slots=True, eq=False)
class Snapshot:
    """Rows as bytes. ``tokens`` are those of its rows, which begin at ``start``."""

    start: int
    tokens: list[int]
    data: memoryview
    parent: "Snapshot | None" = None
    children: "list[Snapshot]" = field(default_factory=list)
    pinned: bool = False
    used: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """One step of a restore: of what ``kept`` holds from row ``start`` on, the rows up to ``upto`` are wanted."""

    start: int
    end: int
    """Where what it holds ends."""
    upto: int
    bytes: int
    kept: object
    """The Snapshot, or where on the disk it is."""
    shelf: Literal["memory", "disk"] = "memory"


class Snapshots:
    """At most ``limit`` bytes of snapshots."""

    def __init__(self, limit: int, chunk: int, *, cuttable: bool = True) -> None:
        self._limit = limit
        self._chunk = chunk
        self._cuttable = cuttable
        self._root = Snapshot(0, [], memoryview(b""))
        self._clock = count(1)
        self.bytes = self.entries = 0
        self._pinned_bytes = 0

    @property
    def limit(self) -> int:
        """Bytes that it may hold."""
        return self._limit

    def resize(self, limit: int) -> None:
        """Hold at most so many bytes from now on."""
        self._limit = limit
        self._make_room(0, set())

    def find(self, tokens: list[int], limit: int) -> list[Part]:
        """What holds the longest beginning of these tokens, in order; rows from ``limit`` on are not wanted."""
        if not self._cuttable:
            whole = [s for s in self._root.children if len(s.tokens) <= limit and _begins(s.tokens, tokens)]
            longest = max(whole, key=lambda s: len(s.tokens), default=None)
            return [_part(longest, len(longest.tokens))] if longest else []
        found = []
        for snapshot, same in self._path(tokens):
            upto = min(snapshot.start + same, limit)
            if upto <= snapshot.start:
                break
            found.append(_part(snapshot, upto))
        return found

    def missing(self, tokens: list[int]) -> list[tuple[int, int]]:
        """Which rows of a sequence with these tokens are in no snapshot, as the stretches to keep them in."""
        if not self._cuttable:
            known = any(s.tokens == tokens for s in self._root.children)
            return [] if known or not tokens else [(0, len(tokens))]
        covered = 0
        for snapshot, same in self._path(tokens):
            if same == self._chunk or snapshot.start + same == len(tokens):
                covered = snapshot.start + same
        return [(at, min(at + self._chunk, len(tokens))) for at in range(covered, len(tokens), self._chunk)]

    def put(self, tokens: list[int], start: int, data: memoryview, *, pinned: bool = False) -> bool:
        """Keep the rows of ``tokens`` from ``start`` on; False where there is no room for them.

        ``start`` is the beginning of a chunk whose predecessors are kept.
        """
        path = [snapshot for snapshot, _ in self._path(tokens[:start])] if self._cuttable else []
        parent = path[-1] if path else self._root
        assert start == (parent.start + len(parent.tokens) if self._cuttable else 0), "its beginning is kept"
        rows = tokens[start:]
        covered = [s for s in parent.children if self._cuttable and _begins(s.tokens, rows)]
        pinned = pinned or any(shorter.pinned for shorter in covered)
        for shorter in covered:
            self._drop(shorter)
        stay = {self._root, *path}
        if not self._make_room(len(data), stay):
            return False
        snapshot = Snapshot(start, rows, data, parent, pinned=pinned)
        parent.children.append(snapshot)
        self.bytes += len(data)
        self.entries += 1
        self._pinned_bytes += len(data) * pinned
        self._touch([*path, snapshot])
        return True

    def use(self, parts: Sequence[Part]) -> None:
        """These are used now."""
        self._touch([part.kept for part in parts if isinstance(part.kept, Snapshot)])

    def forget(self, snapshot: Snapshot) -> None:
        """Drop one that the engine did not take, and what goes on from it."""
        if snapshot.parent is not None:
            for child in list(snapshot.children):
                self.forget(child)
            self._drop(snapshot)

    def all(self) -> Iterator[Snapshot]:
        """Each snapshot, those that others go on from before them."""
        todo = list(self._root.children)
        while todo:
            snapshot = todo.pop()
            yield snapshot
            todo += snapshot.children

    # --- private --------------------------------------------------------------------------------------------------

    def _path(self, tokens: list[int]) -> Iterator[tuple[Snapshot, int]]:
        """The chunks along these tokens, each with how many of its rows they share; only the last may share a part."""
        node, at = self._root, 0
        while at < len(tokens):
            here = tokens[at : at + self._chunk]
            best = max(((common(s.tokens, here), s) for s in node.children), key=lambda f: f[0], default=None)
            if best is None or not best[0]:
                return
            same, node = best
            yield node, same
            if same < self._chunk:
                return
            at += same

    def _touch(self, snapshots: Sequence[Snapshot]) -> None:
        now = next(self._clock)
        for snapshot in snapshots:
            snapshot.used = now

    def _make_room(self, need: int, stay: set[Snapshot]) -> bool:
        """Let the least recently used go until ``need`` bytes fit."""
        if need > self._limit - sum(len(s.data) for s in stay):
            return False
        while self.bytes + need > self._limit:
            shielded = 2 * self._pinned_bytes <= self._limit
            ends = [s for s in self.all() if not s.children and s not in stay]
            self._drop(min(ends, key=lambda s: (shielded and s.pinned, s.used)))
        return True

    def _drop(self, snapshot: Snapshot) -> None:
        assert snapshot.parent is not None
        assert not snapshot.children
        snapshot.parent.children.remove(snapshot)
        snapshot.parent = None
        self.bytes -= len(snapshot.data)
        self.entries -= 1
        self._pinned_bytes -= len(snapshot.data) * snapshot.pinned


def _begins(shorter: list[int], longer: list[int]) -> bool:
    return longer[: len(shorter)] == shorter


def _part(snapshot: Snapshot, upto: int) -> Part:
    end = snapshot.start + len(snapshot.tokens)
    return Part(snapshot.start, end, upto, len(snapshot.data), snapshot)
