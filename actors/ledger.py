"""Ledger: what a request has spent of each bound that counts.

A bound is spent unit by unit, by an agent. Who spends logs the ``Spent`` that it is given before it does what the unit
pays for; ``replay`` makes the counts of those records again. So whoever begins with them, after a restart, on a resume or
as a farm's second run, goes on where the first one stopped, wherever that one was killed: no budget is refilled.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType

from aerix.actors.bounds import Bound, Outcome


@dataclass(frozen=True, slots=True)
class Spent:
    """The record of one unit, as it stands in a log. ``per``: the bound whose every unit counts this one anew."""

    agent: str
    bound: str
    per: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """The unit was there: ``count`` more are left, and ``record`` is to be logged before it is used."""

    count: int
    record: Spent


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No unit was left, and none was taken: how the one who needed it ends."""

    outcome: Outcome


Counts = Mapping[Spent, int]
"""How many units of each kind are spent."""
NOTHING: Counts = MappingProxyType({})


def replay(records: Iterable[Spent], counts: Counts = NOTHING) -> Counts:
    """What is spent after ``records``, from ``counts`` on. Pure: a log may be replayed in one piece or in many."""
    found = dict(counts)
    for record in records:
        for inner in [one for one in found if one.agent == record.agent and one.per == record.bound]:
            del found[inner]
        found[record] = found.get(record, 0) + 1
    return MappingProxyType(found)


class Ledger:
    """Made and owned by a request's actor, which outlives its agents; they spend from it in their own threads.

    The request waits for its agent, so it cannot be asked: this is a small object under a lock, not an actor. Nothing
    in it waits. ``limits`` are those of this request where they are not the table's; ``records`` is what earlier runs of
    the same request spent, from its log. An agent that is tried again under another id has its own units.
    """

    def __init__(self, limits: Mapping[Bound, int] | None = None, records: Iterable[Spent] = ()) -> None:
        self._limits = dict(limits or {})
        self._counts = replay(records)
        self._lock = Lock()

    def limit(self, bound: Bound) -> int:
        """How many units each agent of this request has."""
        return self._limits.get(bound, bound.count)

    def spent(self, agent: str, bound: Bound) -> int:
        """How many units an agent has spent, since the last unit of ``bound.per`` if there is one."""
        return self._counts.get(_record(agent, bound), 0)

    def spend(self, agent: str, bound: Bound) -> Left | Exhausted:
        """Take one unit."""
        record, limit = _record(agent, bound), self.limit(bound)
        with self._lock:
            used = self._counts.get(record, 0) + 1
            if used > limit:
                return Exhausted(bound.end(limit))
            self._counts = replay((record,), self._counts)
        return Left(limit - used, record)


def _record(agent: str, bound: Bound) -> Spent:
    return Spent(agent, bound.name, bound.per)
