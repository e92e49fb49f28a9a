"""The points at which a request fires hooks: one class an event, with what its handlers are told.

For now the seam between the agent and this package: the agent fires these events at ``Hooks`` and heeds the
``Decision``. ``NoHooks`` is what it has until handlers are configured and run here. The fields carry the names that
Claude Code's contract gives them on a handler's standard input; the last four events are Aerix's own.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from aerix.actors import Actor


@dataclass(frozen=True, slots=True)
class Event:
    """What all events have: the field whose value a matcher is compared with (None: the event takes no matcher)."""

    matched: ClassVar[str | None] = None

    @property
    def name(self) -> str:
        """The event's name in the settings."""
        return type(self).__name__

    @property
    def matcher_value(self) -> str | None:
        """What this one's matcher is compared with."""
        return None if self.matched is None else str(getattr(self, self.matched))


@dataclass(frozen=True, slots=True)
class SessionStart(Event):
    """A session began or goes on; ``source`` is startup, resume, clear or compact."""

    matched: ClassVar[str | None] = "source"
    source: str


@dataclass(frozen=True, slots=True)
class UserPromptSubmit(Event):
    """The user's prompt, before anything is done with it; a block ends the request."""

    prompt: str


@dataclass(frozen=True, slots=True)
class PreToolUse(Event):
    """A call is about to run; it can be refused, or given another input."""

    matched: ClassVar[str | None] = "tool_name"
    tool_name: str
    tool_input: dict[str, Any]
    tool_use_id: str


@dataclass(frozen=True, slots=True)
class PostToolUse(Event):
    """A call has run."""

    matched: ClassVar[str | None] = "tool_name"
    tool_name: str
    tool_input: dict[str, Any]
    tool_response: str
    tool_use_id: str


@dataclass(frozen=True, slots=True)
class PreCompact(Event):
    """The context is about to be compacted; a block skips that pass. ``trigger`` is manual or auto."""

    matched: ClassVar[str | None] = "trigger"
    trigger: str


@dataclass(frozen=True, slots=True)
class SubagentStart(Event):
    """An implementer or a verifier begins; ``agent_type`` is its definition's name, implementer or verifier."""

    matched: ClassVar[str | None] = "agent_type"
    agent_id: str
    agent_type: str


@dataclass(frozen=True, slots=True)
class SubagentStop(Event):
    """Such an agent has given its final, and may be asked to go on."""

    matched: ClassVar[str | None] = "agent_type"
    agent_id: str
    agent_type: str
    last_assistant_message: str
    stop_hook_active: bool = False


@dataclass(frozen=True, slots=True)
class Stop(Event):
    """The root agent has given its final, and may be asked to go on."""

    last_assistant_message: str
    stop_hook_active: bool = False


@dataclass(frozen=True, slots=True)
class SessionEnd(Event):
    """The session's process ends; ``reason`` is why."""

    matched: ClassVar[str | None] = "reason"
    reason: str


@dataclass(frozen=True, slots=True)
class RouteDecision(Event):
    """A request was routed; ``scores`` are the log-probabilities of the routes."""

    matched: ClassVar[str | None] = "route"
    route: str
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentSpawn(Event):
    """An agent was started."""

    matched: ClassVar[str | None] = "agent_type"
    agent_id: str
    agent_type: str


@dataclass(frozen=True, slots=True)
class Verify(Event):
    """A verifier has given its verdict, pass or fail."""

    matched: ClassVar[str | None] = "verdict"
    agent_id: str
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class ContextCompact(Event):
    """A compaction has ended; counts are tokens."""

    matched: ClassVar[str | None] = "trigger"
    trigger: str
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What all handlers of one event decided together. The default is: go on."""

    block: str | None = None
    """Why the thing must not be done; for a stop, what to go on with."""
    end: str | None = None
    """Why the agent that fired the event must end."""
    ask: str | None = None
    """Why the user is to be asked about a call before it runs; it is refused where nobody is there. Nothing that a hook says
    lifts what the permissions refuse or ask about."""
    updated_input: dict[str, Any] | None = None
    """Replaces a call's input."""
    context: str = ""
    """Text for the model."""


class Hooks(Protocol):
    """Whatever an agent fires its events at."""

    def fire(self, actor: Actor, event: Event) -> Decision:
        """Run every handler that matches, and merge what they decided; blocks ``actor``, which fires, in ``wait``."""
        ...


class NoHooks:
    """Nothing is configured: every event goes on."""

    def fire(self, actor: Actor, event: Event) -> Decision:  # the interface's
        """Go on."""
        return Decision()
