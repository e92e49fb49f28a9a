"""Shared: the segments that every agent of a request begins with, on one member, for its pieces to fork.

The first piece on a member has them built there; others that come meanwhile wait in the mailbox, and fork.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aerix.actors import Actor, ChildSpec, Ref, Refused, on
from aerix.agent.context import Entry
from aerix.agent.root import shared_entries
from aerix.pool.bounds import CONTROL
from aerix.pool.client import PoolContext, load_member
from aerix.pool.protocol import MemberInfo, MemberList, Members, Segment

if TYPE_CHECKING:
    from aerix.agent.delegation import Delegation
    from aerix.extensions.instructions import Instructions


@dataclass(frozen=True, slots=True)
class ForkShared:
    """Fork the shared segments; answered by ``Forked``, refused with ``no_member`` where the pool has no such member."""


@dataclass(frozen=True, slots=True)
class Forked:
    """A context of its own for whoever asked, with these segments, on this member."""

    context: PoolContext
    entries: tuple[Entry, ...]
    member: MemberInfo


def shared_child(delegation: "Delegation", member: str | None) -> ChildSpec:
    """How to start the one of a member; None is the member that the caller runs on."""
    own = member is None or member == delegation.member.name
    known, name = (delegation.member, delegation.member.name) if own else (None, str(member))
    pool, instructions = delegation.places.pool, delegation.instructions
    recorded = delegation.shared if own else ()
    return ChildSpec(
        f"shared:{name}", lambda: Shared(pool, name, known, instructions, recorded), restart="temporary"
    )


class Shared(Actor):
    """Belongs to a request's supervisor; its context goes with the request. ``known`` is a member that is in use already,
    ``recorded`` what a session that was resumed began with.
    """

    def __init__(
        self,
        pool: Ref,
        member: str,
        known: MemberInfo | None,
        instructions: "Instructions",
        recorded: tuple[Entry, ...] = (),
    ) -> None:
        self._pool = pool
        self._member = member
        self._known = known
        self._instructions = instructions
        self._recorded = recorded
        self._built: Forked | None = None

    @on(ForkShared)
    def fork(self, _message: ForkShared) -> Forked:
        """Fork them; build them first where that is not done, or failed."""
        if self._built is None:
            self._built = self._build()
        built = self._built
        return Forked(built.context.fork(), built.entries, built.member)

    def _build(self) -> Forked:
        member = self._known or self._find()
        entries = self._recorded or shared_entries(self._instructions, member)
        context = PoolContext(self, self._pool, member.name)
        context.create([Segment(entry.id, entry.role, entry.text, entry.pinned) for entry in entries])
        return Forked(context, entries, member)

    def _find(self) -> MemberInfo:
        """The member, which has to be loaded: the name comes from a model, and must not make the pool open anything."""
        call = self.request(self._pool, MemberList(0))
        self.wait(call, deadline_s=2 * CONTROL.value)
        listed: Members = call.result()
        named = [one for one in listed.members if self._member in (one.name, one.name.partition(" ")[0])]
        if not named:
            names = ", ".join(one.name for one in listed.members) or "none"
            raise Refused("no_member", f"the pool has no member {self._member!r:.200}; it has: {names}")
        if self._member not in [one.name for one in named]:
            return named[0]  # it has flags of its own: a load by its bare name would be another member
        return load_member(self, self._pool, self._member)

    def teardown(self, exit: object) -> None:
        """Let the pool forget the segments."""
        if self._built is not None:
            self._built.context.drop()
