"""Where a generation starts from: the cheapest way by measured rates. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aerix.pool.prefix import Place
from aerix.pool.rates import Rates
from aerix.pool.shelf_memory import Part


@dataclass(frozen=True, slots=True)
class Plan:
    """Start at ``place``, then restore ``parts`` in order; rows from ``start`` on are computed."""

    place: Place
    parts: tuple[Part, ...]
    start: int
    seconds: float
    """What it is expected to take until the prompt is filled."""


def plans(
    places: Iterable[Place],
    memory: Sequence[Part],
    disk: Sequence[Part],
    rows: int,
    rates: Rates,
    *,
    cuttable: bool,
) -> list[Plan]:
    """The ways to start a prompt of ``rows``, cheapest first; of equal ones the order of ``places`` decides."""
    found = [_best(place, memory, disk, rows, rates, cuttable=cuttable) for place in places]
    return sorted(found, key=lambda plan: plan.seconds)


def _best(
    place: Place, memory: Sequence[Part], disk: Sequence[Part], rows: int, rates: Rates, *, cuttable: bool
) -> Plan:
    """Go on from a place with as many parts as pay."""
    best = Plan(place, (), place.start, (rows - place.start) * rates.row)
    if place.start and not cuttable:
        return best
    spent, parts = 0.0, list[Part]()
    reach = max((part.upto for part in memory), default=0)
    for part in [*memory, *(part for part in disk if part.upto > reach)]:
        if part.upto <= (parts[-1].upto if parts else place.start):
            continue
        parts = [*parts, part] if cuttable else [part]
        spent = spent * cuttable + part.bytes * (rates.memory + rates.disk * (part.shelf == "disk"))
        seconds = spent + (rows - part.upto) * rates.row
        if seconds < best.seconds:
            best = Plan(place, tuple(parts), part.upto, seconds)
    return best
