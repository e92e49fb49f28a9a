"""The scheduler of a worker: several generations side by side in one engine, one batch a step (DESIGN section 4).

A step takes the next rows of every generation that is at its reply, and a slice of the prompts. Nothing here waits, and
nothing is safe to share: it belongs to the worker's main thread.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.bounds import DRAFT, PASSED_OVER, PROMPT_SLICE, PROMPT_STEP, REPLY_SLICE
from aerix.pool.generation import Bench, Generation, Job, start
from aerix.pool.prefix import common
from aerix.pool.rows import Failed, OutOfRoom, Row

if TYPE_CHECKING:
    from aerix.pool.rows import Logits

_NEAR = 32
"""A prompt that lacks no more rows than this counts as resident, and one that shares no more with another as new."""
_TILE = 64
"""llama.cpp takes attention of 64 rows together: 65 cost a quarter more than 64, and 63 more than half as much again."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A generation that is over: its last word, or why there is none."""

    job: Job
    outcome: p.Done | Refused


@dataclass(slots=True, eq=False)
class _Running:
    job: Job
    generation: Generation
    tokens: list[int]
    """What its prompt begins with, for others to wait for."""

    @property
    def filling(self) -> bool:
        return self.generation.filling


class Scheduler:
    """Runs at most ``max_batch`` generations at once."""

    def __init__(self, bench: Bench, max_batch: int) -> None:
        self._bench = bench
        self._max_batch = max_batch
        self._running: list[_Running] = []
        self._passed: Counter[int] = Counter()
        """How often a waiting job was passed over, by its call."""
        self._crowd: tuple[list[int], list[int]] | None = None
        """Who was ready and who ran when the next one did not fit: until somebody comes or goes it does not fit."""

    @property
    def running(self) -> int:
        """Generations that are under way."""
        return len(self._running)

    # --- admission

    def choose(self, waiting: Sequence[Job]) -> Job | None:
        """Which of those that wait, in the order they came, is to begin now.

        One whose prompt is resident goes first, but nobody is passed over more than twice; one whose prompt another
        generation is filling waits for it and forks; what does not fit waits, and nobody takes its room.
        """
        if len(self._running) >= self._max_batch:
            return None
        if len(waiting) == 1 and not self._running:
            return waiting[0]
        ready = [job for job in waiting if not self._being_filled(job)]
        crowd = [job.call for job in ready], [one.job.call for one in self._running]
        if not ready or crowd == self._crowd:
            return None
        chosen = self._preferred(ready)
        if chosen is not ready[0] and not self._fits(chosen):
            chosen = ready[0]
        if self._running and not self._fits(chosen):
            self._crowd = crowd
            return None
        for job in ready[: ready.index(chosen)]:
            self._passed[job.call] += 1
        return chosen

    def begin(self, job: Job, send: Callable[[object], None]) -> Ended | None:
        """Start a job that was chosen. What cannot begin, or is whole already, has ended."""
        self._passed.pop(job.call, None)
        try:
            generation = start(job, self._bench, send)
            opened = _Running(job, generation, list(job.prompt.tokens))
            if not generation.open():
                raise Refused("no_room", "The prompt and its reply do not fit into the member's cells.")
        except Refused as refusal:
            return Ended(job, refusal)
        if generation.done is not None:
            return self._end(opened, generation.done)
        self._running.append(opened)
        return None

    def forget(self, job: Job) -> None:
        """A job that waited was cancelled."""
        self._passed.pop(job.call, None)

    def _preferred(self, ready: list[Job]) -> Job:
        head = ready[0]
        if self._passed[head.call] >= PASSED_OVER.count:
            return head
        return next((job for job in ready if self._lacking(job) <= _NEAR), head)

    def _lacking(self, job: Job) -> int:
        tokens = job.prompt.tokens
        return len(tokens) - self._bench.shelf.resident(tokens)

    def _fits(self, job: Job) -> bool:
        rows, reply = job.rows(self._bench.engine.facts)
        return self._bench.shelf.fits(rows, reserve=reply)

    def _being_filled(self, job: Job) -> bool:
        """Whether rows that it needs, and that nobody has yet, are on their way into another one's prompt."""
        tokens = list(job.prompt.tokens)
        coming = max((common(one.tokens, tokens) for one in self._running if one.filling), default=0)
        return coming > _NEAR and coming > self._bench.shelf.resident(tokens) + _NEAR

    # --- a step

    def step(self) -> list[Ended]:
        """Tell who was cancelled, or else compute one batch, and tell who is over.

        After Aborted nobody has moved; call it again. Raises what the engine ends with.
        """
        if ended := self._end_cancelled():
            return ended
        batch = self._batch()
        rows = [row for _, part in batch for row in part]
        try:
            logits = iter(self._bench.decode(rows))
        except Failed as failed:
            return [self._end(one, failed.why) for one in self._on(failed.sequence, batch)]
        except OutOfRoom as full:
            return [self._cut(one) for one in self._on(full.sequence, batch)]
        for one, part in batch:
            ended += self._take(one, part, [next(logits) for row in part if row.logits])
        return ended

    def _batch(self) -> list[tuple[_Running, list[Row]]]:
        """Everybody's next rows, and a slice of the prompts, the one that has waited longest first."""
        room = self._bench.engine.facts.batch
        batch: list[tuple[_Running, list[Row]]] = []
        replies = [one for one in self._running if not one.filling]
        ahead = self._ahead(len(replies))
        for behind, one in zip(range(len(replies) - 1, -1, -1), replies, strict=True):
            if room:  # a long stretch that is forced leaves a row to each of those behind it
                limit = min(max(room - behind, 1), REPLY_SLICE.count)
                batch.append((one, one.generation.rows(limit, ahead)))
                room -= len(batch[-1][1])
        if batch:
            room = min(room, self._slice(beside=sum(len(rows) for _, rows in batch)))
        for one in self._running:
            if one.filling and room:
                batch.append((one, one.generation.rows(room)))
                room -= len(batch[-1][1])
        return batch

    def _ahead(self, replies: int) -> int:
        """Rows that each of so many replies may draft: beside others a right one saves less. None beside a prompt that is
        read, from whose slice they would be taken.
        """
        if replies < len(self._running):
            return 0
        return DRAFT.count if replies == 1 else DRAFT.count // 2

    def _slice(self, beside: int) -> int:
        """Rows of prompts that may join so many rows of replies: as many as the pause allows, all together whole tiles."""
        fast = int(PROMPT_STEP.value / self._bench.store.rates.row)
        rows = max(min(PROMPT_SLICE.count, fast - fast % _TILE), min(PROMPT_SLICE.count, _TILE))
        return rows - beside if rows > beside else rows

    def _take(self, one: _Running, rows: list[Row], logits: "list[Logits]") -> list[Ended]:
        try:
            one.generation.take(rows, logits)
        except Refused as refusal:
            return [self._end(one, refusal)]
        done = one.generation.done
        return [self._end(one, done)] if done is not None else []

    def _on(self, sequence: int | None, batch: list[tuple[_Running, list[Row]]]) -> list[_Running]:
        """Whose rows the engine complained about; the last to come where it names nobody."""
        found = [one for one, rows in batch if any(row.sequence == sequence for row in rows)]
        return found or [batch[-1][0]]

    def _end_cancelled(self) -> list[Ended]:
        return [self._cut(one, "cancelled") for one in self._running[:] if one.job.cancelled.is_set()]

    def _cut(self, one: _Running, stop: p.Stop = "length") -> Ended:
        one.generation.end(stop)
        assert one.generation.done is not None
        return self._end(one, one.generation.done)

    def _end(self, one: _Running, outcome: p.Done | Refused) -> Ended:
        if one in self._running:
            self._running.remove(one)
        one.generation.close()
        return Ended(one.job, outcome)

    def close(self) -> None:
        """Give all sequences back; nobody is told."""
        for one in self._running[:]:
            one.generation.close()
        self._running.clear()
