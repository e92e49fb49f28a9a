"""Delegation: what a request allows of it, and what an agent that may delegate holds.

``pieces.py`` is the caller's side of an ``agent`` call, ``piece.py`` the life of one piece, ``shared.py`` the segments that
every agent of a request begins with. None of it is imported before the first ``agent`` call.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from aerix.bounds import CANCEL, DEPTH, PIECE_RETRIES, PIECES, TURNS
from aerix.pool.protocol import MemberInfo

if TYPE_CHECKING:
    from aerix.agent.context import Entry
    from aerix.agent.request import RequestPlaces, RequestSpec
    from aerix.extensions.instructions import Instructions

_CALL_SHARE = 0.7
"""Of the time for a cancel: how long a root's running call may take to end."""
_LEVEL_SHARE = 0.85
"""Of its caller's time for that: how long a piece's may take."""


@dataclass(frozen=True, slots=True)
class Rules:
    """``[delegation]`` as it holds for one request; ``turns`` are those of each piece's agents."""

    turns: int = field(default_factory=lambda: TURNS.count)
    depth: int = field(default_factory=lambda: DEPTH.count)
    parallel: int = field(default_factory=lambda: PIECES.count)
    retries: int = field(default_factory=lambda: PIECE_RETRIES.count)
    planner: Literal["auto", "always", "never"] = "auto"
    planner_tools: tuple[str, ...] = ("repo_map", "agent", "plan", "context")


@dataclass(frozen=True, slots=True)
class Delegation:
    """What an agent's pieces begin with: its request, as its root has it, and its own place in it."""

    spec: "RequestSpec"
    places: "RequestPlaces"
    """The root's: its supervisor holds the shared segments of every level."""
    instructions: "Instructions"
    """The instruction files as the root read them: what its agents change of them is for the next request."""
    member: MemberInfo
    """The member that the agent runs on."""
    shared: "tuple[Entry, ...]" = ()
    """The segments that a resumed root began with, on its member; without them they are made of ``instructions``."""
    depth: int = 0
    """How many levels the agent works below the root."""

    @property
    def allowed(self) -> bool:
        """Whether the agent may delegate."""
        return self.depth < self.spec.delegation.depth

    @property
    def refusal(self) -> str:
        """The result of an ``agent`` call of an agent that may not delegate."""
        end = DEPTH.end(self.spec.delegation.depth)
        return f"{end.kind}: {end.reason}: this agent may not delegate; do the work yourself."

    @property
    def patience_s(self) -> float:
        """Seconds that the agent gives a running call, or its pieces, to end after a cancel: less on each level."""
        return CANCEL.value * _CALL_SHARE * _LEVEL_SHARE**self.depth

    def below(self, member: MemberInfo) -> "Delegation":
        """The same for the agents of its pieces."""
        shared = self.shared if member.name == self.member.name else ()
        return replace(self, member=member, depth=self.depth + 1, shared=shared)
