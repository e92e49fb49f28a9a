"""Permits: which members compute now, and with how many threads each (DESIGN section 4).

At most as many members compute at once as there are cores, and their threads are never more than the cores: a bigger
or newer share is granted only when another member's step has given it back.
"""

import os
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from aerix.actors import Actor, Ref, Reply, System, Tick, Timer, on
from aerix.actors.log import log
from aerix.pool.bounds import PERMIT_RECALL, PERMIT_SLICE
from aerix.pool.protocol import Permit

PERMITS = "permits"

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Want(System):
    """A worker has something to compute."""

    worker: Ref


@dataclass(frozen=True, slots=True)
class Rest(System):
    """It has nothing to compute any more. It keeps its threads until another one wants them."""

    worker: Ref


@dataclass(frozen=True, slots=True)
class Ended(System):
    """It is gone, and its threads are free."""

    worker: Ref


@dataclass(slots=True)
class _Held:
    in_force: int = 0
    told: deque[int] = field(default_factory=deque)
    """Shares it was told and has not answered for, oldest first."""

    @property
    def most(self) -> int:
        """The threads that it may be using."""
        return max(self.in_force, *self.told) if self.told else self.in_force

    @property
    def target(self) -> int:
        """What it was told last."""
        return self.told[-1] if self.told else self.in_force


class Shares(Generic[K]):
    """Who may compute with how many threads: the decisions alone, the caller tells and hears.

    A worker that was told a share answers when no step of it uses more; until then the larger one counts.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._wanting: list[K] = []
        self._held: dict[K, _Held] = {}

    @property
    def crowded(self) -> bool:
        """Whether more want to compute than there are cores."""
        return len(self._wanting) > self._cores

    @property
    def used(self) -> int:
        """Threads that may be computing now."""
        return sum(held.most for held in self._held.values())

    def want(self, key: K) -> None:
        """It has something to compute; it comes last."""
        self._held.setdefault(key, _Held())
        if key not in self._wanting:
            self._wanting.append(key)

    def rest(self, key: K) -> None:
        """It has nothing to compute."""
        if key in self._wanting:
            self._wanting.remove(key)

    def forget(self, key: K) -> None:
        """It is gone."""
        self.rest(key)
        self._held.pop(key, None)

    def rotate(self) -> None:
        """Who computes longest makes room for who waits longest."""
        self._wanting.append(self._wanting.pop(0))

    def answered(self, key: K) -> None:
        """What it was told first, of what it has not answered, is in force."""
        held = self._held.get(key)
        if held is not None and held.told:
            held.in_force = held.told.popleft()

    def overdue(self, key: K) -> None:
        """It does not answer: all that it was told counts as in force."""
        held = self._held.get(key)
        while held is not None and held.told:
            held.in_force = held.told.popleft()

    def decide(self) -> list[tuple[K, int]]:
        """Whom to tell which share now. First those that give back; a grant takes only what is free."""
        computing = self._wanting[: self._cores]
        share = self._cores // len(computing) if computing else self._cores
        orders = []
        hungry = any(self._held[key].target < share for key in computing)
        for key, held in self._held.items():
            least = share if key in computing else 0
            if held.target > least and hungry:
                orders.append(self._tell(key, least))
        for key in computing:
            target = self._held[key].target
            grant = min(share, target + self._cores - self.used)
            if grant > target:
                orders.append(self._tell(key, grant))
        return orders

    def _tell(self, key: K, share: int) -> tuple[K, int]:
        self._held[key].told.append(share)
        assert share == 0 or self.used <= self._cores
        return key, share


class Permits(Actor):
    """Tells the workers their shares. What it decides from are messages: it never waits, and a hung worker blocks nobody for long."""

    def __init__(self, cores: int | None = None) -> None:
        """``cores`` are those that this process may use, unless given."""
        self._shares: Shares[Ref] = Shares(cores or len(os.sched_getaffinity(0)))
        self._asked: dict[int, tuple[Ref, Timer]] = {}
        """Orders that were not answered: to whom, and the timer that ends the patience with it."""
        self._slice: Timer | None = None

    @on(Want)
    def _want(self, message: Want) -> None:
        self._shares.want(message.worker)
        self._decide()

    @on(Rest)
    def _rest(self, message: Rest) -> None:
        self._shares.rest(message.worker)
        self._decide()

    @on(Ended)
    def _ended(self, message: Ended) -> None:
        self._shares.forget(message.worker)
        self._decide()

    @on(Reply)
    def _answered(self, message: Reply) -> None:
        """Also a refusal: the worker has ended, and says so itself."""
        worker, timer = self._asked.pop(message.token, (None, None))
        if worker is not None and timer is not None:
            timer.cancel()
            self._shares.answered(worker)
            self._decide()

    def _decide(self) -> None:
        for worker, threads in self._shares.decide():
            token = self.request(worker, Permit(threads)).token
            self._asked[token] = worker, self.after(PERMIT_RECALL.value, worker)
        if self._shares.crowded and self._slice is None:
            self._slice = self.after(PERMIT_SLICE.value, PERMIT_SLICE)

    @on(Tick)
    def _tick(self, message: Tick) -> None:
        if message.token is PERMIT_SLICE:
            self._slice = None
            if self._shares.crowded:
                self._shares.rotate()
        elif isinstance(worker := message.token, Ref):
            for token in [token for token, (asked, _) in self._asked.items() if asked is worker]:
                self._asked.pop(token)[1].cancel()
            self._shares.overdue(worker)
            log("permit.overdue", level="warning", worker=worker.name)
        self._decide()
