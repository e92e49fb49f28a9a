"""Room for one more member: what it takes of the memory, and who has to go for it. Decisions only.

All members together stay within the limit of ``fit.memory_limit``. A member whose size cannot be told is loaded alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aerix.actors import Refused
from aerix.pool.fit import is_known, plan, size
from aerix.pool.gpu import free_on_gpus
from aerix.pool.header import read_header
from aerix.pool.models import ResolvedModel
from aerix.pool.workerargs import WorkerArgs

Need = Callable[[int], int | None]
"""What a model takes where so many bytes are free; None where its file does not tell. Raises Refused ``no_memory``."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A member that is loaded, or being loaded."""

    name: str
    bytes: int | None
    """None: not known."""
    used: bool
    """Whether a connection uses it, so that it stays."""
    since: float
    """When it was last used."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a new member goes."""

    leave: tuple[str, ...]
    """Who has to be unloaded first."""
    room: int
    """Bytes that are free for it then."""
    bytes: int | None
    """What it takes of them."""


def need_of(model: ResolvedModel, flags: dict[str, Any]) -> Need:
    """What a model takes, loaded with these flags. Raises Refused where the file's header cannot be read."""
    if model.kind != "gguf":
        return lambda _: 0
    header = read_header(model.path)
    if not is_known(header):
        return lambda _: None
    args, gpu = WorkerArgs(str(model.path), **flags), free_on_gpus()
    return lambda room: plan(model.name, header, model.size, args, room, gpu).host


def place(name: str, need: Need, tenants: Sequence[Tenant], limit: int) -> Place:
    """The place of one more member: with as few as possible unloaded, those first that were not used for longest.

    Raises Refused ``no_memory``, with the numbers and who is in the way.
    """
    stay = sorted((one for one in tenants if one.bytes != 0), key=lambda one: (one.used, one.since))
    if need(limit) == 0:
        return Place((), limit, 0)
    leave: list[Tenant] = []
    while True:
        alone = not stay
        if alone or (need(limit) is not None and all(one.bytes is not None for one in stay)):
            room = limit - sum(one.bytes or 0 for one in stay)
            try:
                return Place(tuple(one.name for one in leave), room, need(room))
            except Refused as refusal:
                if alone or stay[0].used:
                    raise Refused(refusal.code, _beside(refusal.message, stay, limit)) from None
        elif stay[0].used:
            raise _not_beside(name, stay)
        leave.append(stay.pop(0))


def _beside(why: str, stay: list[Tenant], limit: int) -> str:
    if not stay:
        return why
    taken = ", ".join(f"{one.name} {size(one.bytes or 0)}" for one in stay)
    return f"{why} Of the limit of {size(limit)}, members in use take: {taken}."


def _not_beside(name: str, stay: list[Tenant]) -> Refused:
    unknown = next((one.name for one in stay if one.bytes is None), name)
    others = ", ".join(one.name for one in stay)
    return Refused(
        "no_memory",
        f"what {unknown} takes cannot be told from its file, so it is loaded alone, and {name} is not loaded beside"
        f" what is in use: {others}",
    )


class House:
    """Who has which part of the memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: dict[str, int | None] = {}
        self._used_at: dict[str, float] = {}

    @property
    def free(self) -> int:
        """Bytes that no member has taken, as far as that is known."""
        return self._limit - sum(taken or 0 for taken in self._taken.values())

    def move_in(self, name: str, need: Need, in_use: Callable[[str], bool], now: float) -> Place:
        """Give a new member its place; those that have to leave have left the books already. Raises as ``place`` does."""
        tenants = [
            Tenant(other, taken, in_use(other), self._used_at[other]) for other, taken in self._taken.items()
        ]
        found = place(name, need, tenants, self._limit)
        for other in found.leave:
            self.move_out(other)
        self._taken[name], self._used_at[name] = found.bytes, now
        return found

    def move_out(self, name: str) -> None:
        """It has ended, or never came up."""
        self._taken.pop(name, None)
        self._used_at.pop(name, None)

    def used(self, name: str, now: float) -> None:
        """It was in use until now."""
        if name in self._used_at:
            self._used_at[name] = now
