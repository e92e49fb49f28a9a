"""The prefix store of a worker: its three shelves, and the engine that they mirror (DESIGN section 4).

Whatever the shelves decide is done on the engine here, in the same order. Rows leave the cache for a snapshot when
their sequence must go, and come back as far as that is cheaper than computing them. Belongs to the worker's main
thread; ``shelves`` may be asked from any.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from aerix.actors.log import log
from aerix.pool.bounds import DISK, IDLE_ROWS
from aerix.pool.contexts import Prompt
from aerix.pool.fit import memory_limit, snapshot_bytes
from aerix.pool.plan import Plan, plans
from aerix.pool.prefix import Copy, Lease, Operation, Shelf, ShelfName, common
from aerix.pool.protocol import ShelfInfo
from aerix.pool.rows import Engine
from aerix.pool.shelf_disk import HeadFiles, Spot
from aerix.pool.shelf_memory import Part, Snapshot, Snapshots
from aerix.pool.workerargs import WorkerArgs

WORTH = 32
"""Rows below which nothing is kept: to compute them costs no more than to look after them."""

_REPLY = 128
"""Rows that a reply is expected to have, where it may have as many."""


def budget_of(args: WorkerArgs) -> int:
    """Bytes of snapshots that a worker keeps."""
    if args.context_budget >= 0:
        return args.context_budget
    return snapshot_bytes(memory_limit())


class Store:
    """Where a worker's prompts start from."""

    def __init__(self, engine: Engine, budget: int = 0, disk: HeadFiles | None = None) -> None:
        """``budget`` bounds the bytes of snapshots in memory; 0 keeps none."""
        facts = engine.facts
        self.shelf = Shelf(facts.sequences, facts.cells, cuttable=facts.cuttable)
        self.memory = Snapshots(budget, facts.chunk, cuttable=facts.cuttable)
        self.rates = facts.rates
        self._engine = engine
        self._disk = disk
        self._heads: dict[int, int] = {}
        """Rows of the pinned head that a sequence began with."""
        self._marks: dict[int, set[int]] = {}
        """Where a running prompt's rows are kept on the way, because they cannot be cut back to there later."""
        self._due: list[list[int]] = []
        """Heads that are to be written when there is nothing else to do."""
        self._found: Counter[str] = Counter()
        self._missed: Counter[str] = Counter()

    # --- a generation's way through it ----------------------------------------------------------------------------

    def admit(
        self, tokens: Sequence[int], *, reserve: int, latest: int | None = None, prompt: Prompt | None = None
    ) -> Lease | None:
        """Lease a sequence for a prompt of ``tokens`` and up to ``reserve`` rows after it; None where there is no room.

        Rows before its start are in place in the engine too, restored ones among them. At least the last token is
        computed again, for its logits, or all from row ``latest`` on. ``prompt`` tells of the tokens which are a pinned
        head, and where segments end.
        """
        began = time.perf_counter()
        tokens = list(tokens)
        limit = len(tokens) - 1 if latest is None else latest
        for plan in self._plans(tokens, limit):
            need = len(tokens) - plan.place.start + reserve
            victims = self.shelf.victims(plan.place, need)
            if victims is not None:
                lease = self._carry_out(plan, victims, tokens, need)
                if latest is None:
                    self._count(plan, lease, limit)
                self._heads[lease.sequence] = prompt.head if prompt else 0
                self._marks[lease.sequence] = self._marks_of(prompt) if prompt else set()
                return replace(lease, seconds=time.perf_counter() - began)
        return None

    def until(self, sequence: int, end: int) -> int:
        """Where the next rows of a running prompt must stop, at ``end`` at the latest."""
        at = len(self.shelf.tokens(sequence))
        return min((mark for mark in self._marks[sequence] if at < mark < end), default=end)

    def commit(self, sequence: int, tokens: Sequence[int]) -> None:
        """Rows were computed at the end of a leased sequence."""
        self.shelf.commit(sequence, tokens)
        if len(self.shelf.tokens(sequence)) in self._marks[sequence]:
            self._keep(sequence)

    def release(self, sequence: int, *, keep: bool = True) -> None:
        """See Shelf.release. A pinned head that was computed is to be written."""
        self._marks.pop(sequence, None)
        head = list(self.shelf.tokens(sequence)[: self._heads[sequence]])
        if keep and self._disk and len(head) >= WORTH and head not in self._due and self._disk.lacks(head):
            self._due.append(head)
        self._do(self.shelf.release(sequence, keep=keep))

    @property
    def due(self) -> bool:
        """Whether there is something for ``rest`` to do."""
        return bool(self._due)

    def rest(self) -> None:
        """Nobody waits: hand what is due to the writer."""
        due, self._due = self._due, []
        for head in due:
            rows = self._rows_of(head)
            if self._disk and rows and self._disk.lacks(head):
                self._disk.write(head, rows)

    def close(self) -> None:
        """Wait for what is being written, for a while."""
        if self._disk:
            self._disk.close()

    def shelves(self) -> list[ShelfInfo]:
        """What is kept where, and how often something was found there."""
        facts, disk = self._engine.facts, self._disk
        sizes: dict[ShelfName, tuple[int, int, int]] = {
            "resident": (
                self.shelf.used * facts.row_bytes,
                facts.cells * facts.row_bytes,
                self.shelf.entries,
            ),
            "memory": (self.memory.bytes, self.memory.limit, self.memory.entries),
            "disk": (disk.bytes, DISK.count, disk.entries) if disk else (0, 0, 0),
        }
        return [ShelfInfo(name, *size, self._found[name], self._missed[name]) for name, size in sizes.items()]

    # --- plans ----------------------------------------------------------------------------------------------------

    def _plans(self, tokens: list[int], limit: int) -> list[Plan]:
        disk = self._disk.find(tokens, limit) if self._disk else []
        return plans(
            self.shelf.places(tokens, limit),
            self.memory.find(tokens, limit),
            disk,
            len(tokens),
            self.rates,
            cuttable=self._engine.facts.cuttable,
        )

    def _carry_out(self, plan: Plan, victims: list[int], tokens: list[int], need: int) -> Lease:
        self.memory.use(plan.parts)
        place = plan.place
        cut = place.sequence is not None and not place.fork
        for sequence in [*victims, *([place.sequence] if cut and place.sequence is not None else [])]:
            if sequence in victims or len(self.shelf.tokens(sequence)) - place.start >= WORTH:
                self._keep(sequence)
        lease = self.shelf.take(place, victims, need)
        self._do(lease.operations)
        ahead = min(need, len(tokens) - place.start + _REPLY)
        self._clear_the_way(ahead - (plan.start - place.start))
        for part in plan.parts:
            if not self._restore(lease.sequence, part, tokens):
                break
            lease = replace(lease, start=part.upto, shelf=part.shelf)
        if lease.shelf == "disk":
            log("prefix.from_disk", rows=lease.start)
        return lease

    def _clear_the_way(self, rows: int) -> None:
        """Let what nobody uses leave the cache, where so many rows are computed sooner without it.

        Its way out and back counts, and nothing is lost: what memory has no room for stays where it is.
        """
        facts, (idle, cells) = self._engine.facts, self.shelf.idle()
        if cells <= IDLE_ROWS.count or not facts.cuttable or not self.memory.limit:
            return
        missing = sum(end - start for s in idle for start, end in self._missing(s))
        out = min(missing, cells) * facts.row_bytes
        moving = out * self.rates.out + cells * facts.row_bytes * self.rates.memory
        if self.memory.bytes + out > self.memory.limit or moving >= self.rates.slowed(cells, rows):
            return
        for sequence in idle:
            self._keep(sequence, worth=1)
            if not self._missing(sequence):
                self._do((self.shelf.leave(sequence),))

    def _restore(self, sequence: int, part: Part, tokens: list[int]) -> bool:
        """Put a part's rows behind those that the sequence has. What it holds beyond them takes cells for a moment."""
        start = len(self.shelf.tokens(sequence))
        data = self._bytes(part) if self.shelf.spare(sequence) >= part.end - part.start else None
        if data is None:
            return False
        began = time.perf_counter()
        if not self._engine.load(sequence, data, start, part.upto):
            self._forget(part)
            return False
        self.rates = self.rates.restored(len(data), time.perf_counter() - began)
        self.shelf.commit(sequence, tokens[start : part.upto])
        return True

    def _bytes(self, part: Part) -> memoryview | None:
        if isinstance(part.kept, Snapshot):
            return part.kept.data
        assert isinstance(part.kept, Spot)
        assert self._disk is not None
        began = time.perf_counter()
        data = self._disk.read(part.kept)
        self.rates = self.rates.read(part.bytes, time.perf_counter() - began)
        return data

    def _forget(self, part: Part) -> None:
        """The engine did not take it."""
        if isinstance(part.kept, Snapshot):
            log("prefix.not_restored", level="warning", rows=len(part.kept.tokens))
            self.memory.forget(part.kept)
        elif isinstance(part.kept, Spot) and self._disk:
            self._disk.forget(part.kept, "the engine does not take its rows")

    def _count(self, plan: Plan, lease: Lease, limit: int) -> None:
        """A shelf is asked for what those before it have not, where that is worth it."""
        reached = {"resident": plan.place.start, "memory": 0, "disk": 0}
        for part in plan.parts:
            if part.upto <= lease.start:
                reached[part.shelf] = part.upto
        known = 0
        for name, upto in reached.items():
            if limit - known >= WORTH:
                self._found[name] += upto > known
                self._missed[name] += upto <= known
            known = max(known, upto)

    # --- keeping --------------------------------------------------------------------------------------------------

    def _keep(self, sequence: int, worth: int = WORTH) -> None:
        """Snapshots of what the sequence holds and none has, where that is worth it."""
        tokens, missing = list(self.shelf.tokens(sequence)), self._missing(sequence)
        if sum(end - start for start, end in missing) < worth:
            return
        head = self._heads.get(sequence, 0)
        for start, end in missing:
            began = time.perf_counter()
            data = self._engine.save(sequence, start, end)
            pinned = start < head if self._engine.facts.cuttable else end == head
            if data is None or not self.memory.put(tokens[:end], start, data, pinned=pinned):
                return
            self.rates = self.rates.saved(len(data), time.perf_counter() - began)

    def _missing(self, sequence: int) -> list[tuple[int, int]]:
        """Which of its rows are in no snapshot, where snapshots are kept."""
        return self.memory.missing(list(self.shelf.tokens(sequence))) if self.memory.limit else []

    def _marks_of(self, prompt: Prompt) -> set[int]:
        """Ends of segments that are worth a snapshot, the last one and the head's before others."""
        if self._engine.facts.cuttable or not self.memory.limit:
            return set()
        marks = {prompt.head} if prompt.head >= WORTH else set[int]()
        for end in reversed(prompt.ends):
            if end >= WORTH and all(abs(end - mark) >= WORTH for mark in marks):
                marks.add(end)
        return marks

    def _rows_of(self, head: list[int]) -> list[tuple[int, int, memoryview]]:
        """A head's rows, from the cache, to which they come back for it; where it cannot be cut, from the snapshot.

        Nothing where they have gone.
        """
        if not self._engine.facts.cuttable:
            kept = [part.kept for part in self.memory.find(head, len(head)) if part.end == len(head)]
            return [(0, len(head), one.data) for one in kept if isinstance(one, Snapshot)]
        holder = next(
            (s for s in self.shelf.sequences if common(list(self.shelf.tokens(s)), head) == len(head)), None
        )
        if holder is not None:
            return self._saved(holder, len(head))
        lease = self.admit([*head, 0], reserve=0, latest=len(head))
        if lease is None:
            return []
        rows = self._saved(lease.sequence, len(head)) if lease.start == len(head) else []
        self.release(lease.sequence, keep=False)
        return rows

    def _saved(self, sequence: int, upto: int) -> list[tuple[int, int, memoryview]]:
        """The first rows of a sequence, in stretches; nothing where the engine does not give one of them."""
        ends = [*range(self._engine.facts.chunk, upto, self._engine.facts.chunk), upto]
        rows = [
            (start, end, data)
            for start, end in zip([0, *ends], ends, strict=False)
            if (data := self._engine.save(sequence, start, end)) is not None
        ]
        return rows if len(rows) == len(ends) else []

    def _do(self, operations: tuple[Operation, ...]) -> None:
        for operation in operations:
            if isinstance(operation, Copy):
                self._engine.copy(operation.source, operation.target, operation.upto)
            else:
                cut = self._engine.cut(operation.sequence, operation.at)
                assert cut, "the shelf cuts only where the engine can"
