"""The events of a session: one frozen dataclass a type, one JSON line each.

Every line has ``ts`` (UTC, ISO 8601), ``type`` and ``agent``. What a context holds is in ``segment`` events (text the
agent put there) and ``message`` events (turns, with their exact tokens, and tool results); ``compaction`` and
``context.op`` events say what changed before a context's end. So each context can be built again from the log
(``replay.py``).
"""

import json
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from aerix.bounds import TITLE

ROOT = "a1"
"""The id of a request's root agent."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What every event has: when it was made, and the agent it is about."""

    type: ClassVar[str]
    ts: str = field(default_factory=_now)
    agent: str = ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStart(Event):
    """A request of a session begins: one that was ``resumed`` goes on with what an earlier run of Aerix has logged.

    ``title`` is the first line of the prompt.
    """

    type: ClassVar[str] = "session.start"
    session: str
    """The session's id."""
    version: str
    """Of Aerix."""
    cwd: str
    project: str
    """The key under which the project's sessions are kept."""
    model: str
    """The main model's reference."""
    title: str = ""
    resumed: bool = False
    notes: list[str] = field(default_factory=list)
    """What was told at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Event):
    """How the request was classified; ``scores`` are log-probabilities by route, absent where none were given."""

    type: ClassVar[str] = "route"
    route: str
    """``answer``, ``edit``, ``investigate`` or ``plan``."""
    default: bool = False
    """Whether no route was chosen, so that the default is taken."""
    forced: bool = False
    """Whether the user named it, so that nothing was classified."""
    scores: dict[str, float] | None = None
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpawn(Event):
    """An agent begins. One that is ``resumed`` has the context that an earlier one of its id had, and goes on there."""

    type: ClassVar[str] = "agent.spawn"
    kind: str
    """``root``, ``implementer`` or ``verifier``."""
    member: str
    """The model that it runs on, as the pool calls it."""
    window: int
    """Tokens of its window."""
    vocab: str
    """The digest of the model's vocabulary: token ids mean something only with it."""
    tools: list[str]
    """Those that it may call."""
    max_turns: int
    resumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend(Event):
    """The agent took one unit of a bound from its request's ledger; logged before what the unit pays for is begun.

    ``per``: the bound whose every unit counts this one anew; absent where it is counted once (see ``session.spent``).
    """

    type: ClassVar[str] = "spend"
    bound: str
    per: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(Event):
    """A segment joined the context. ``text`` is absent where a ``message`` of the same id has it."""

    type: ClassVar[str] = "segment"
    id: str
    role: str
    """``system``, ``user`` or ``assistant``."""
    label: str
    """What it is: ``system``, ``instructions``, ``prompt``, ``brief``, ``turn``, ``result``, ``note``, …"""
    tokens: int
    """Its length, as the pool counts it."""
    pinned: bool = False
    """Whether it never gives way to a marker."""
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Event):
    """A generated turn (role assistant, with its tokens and usage) or a tool's result (role user, with its call).

    ``kept`` is false for a turn that was cut and did not join the context. What was thought before a turn,
    ``thinking``, joins no context.
    """

    type: ClassVar[str] = "message"
    id: str
    """The segment that it is."""
    role: str
    text: str
    tokens: list[int] | None = None
    """The ids that were generated, without the one that ends the turn."""
    vocab: str | None = None
    thinking: str | None = None
    thinking_tokens: list[int] | None = None
    stop: str | None = None
    """Why the generation ended: ``final``, ``stop``, ``length``, ``cancelled``."""
    usage: dict[str, Any] | None = None
    kept: bool = True
    call: str | None = None
    """The id of the call whose result it is."""
    tool: str | None = None
    input: dict[str, Any] | None = None
    error: bool = False
    """Whether the call failed."""
    spool: str | None = None
    """The file with all of a result that was cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRepaired(Event):
    """The turn ``id`` of a model that is not held to the schema had another shape, and was read as what it means."""

    type: ClassVar[str] = "turn.repaired"
    id: str
    shape: Literal["tags", "fence", "function", "json", "thinking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite(Event):
    """A context changed before its end. ``put``: segments, each in the place of the one with its id; one with the
    same text keeps its exact tokens. ``removed``: ids of segments that are gone.
    """

    put: list[dict[str, Any]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(Rewrite):
    """The context was over its limit: markers stand for what gave way, and a prompt that is too long is gone. ``before`` and
    ``after`` are its tokens.
    """

    type: ClassVar[str] = "compaction"
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOp(Rewrite):
    """The agent used the ``context`` tool; ``error`` is there where the operation was refused, and changed nothing."""

    type: ClassVar[str] = "context.op"
    op: str
    ids: list[str] = field(default_factory=list)
    text: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Event):
    """The agent replaced its plan."""

    type: ClassVar[str] = "plan"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionAsked(Event):
    """A call was asked about, or refused. ``verdict``: what the user said (``once``, ``session``, ``always``, ``no``), or
    ``refused`` where nobody was there to ask, or ``denied`` by a rule.
    """

    type: ClassVar[str] = "permission"
    call: str
    tool: str
    verdict: str
    rules: list[str] = field(default_factory=list)
    """The rule that denies it, or those that would allow it; ``session`` and ``always`` have granted them."""
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Event):
    """How the files were before a call that may change them, and, without ``call``, when the request's calls were over.

    Trees and records are objects in the session's folder.
    """

    type: ClassVar[str] = "snapshot"
    call: str | None = None
    """The call behind it."""
    tree: str | None = None
    """A git tree of the working tree; absent outside a repository."""
    about: str | None = None
    """What git does not keep of the tree: modes, empty folders, what is not in it."""
    root: str | None = None
    """The folder that the tree is of."""
    kept: str | None = None
    """A record of files that no tree has and that the call names, or, at the end, that the request touched."""
    not_covered: list[str] | None = None
    """What undo cannot bring back; absent where the tree is the one before."""
    more: int | None = None
    """How many names there are beyond those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo(Event):
    """The user had files put back to how they were; logged before the first of them is touched."""

    type: ClassVar[str] = "undo"
    to: str
    """Before what, in words."""
    record: str
    """What each path was and is to be: an object in the session's folder."""
    files: int
    """How many paths that is."""
    back: bool = False
    """Whether an undo was taken back."""
    first: int | None = None
    """The first event that it undid, counted from 0 over the ``snapshot`` and ``undo`` events; absent in older logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Event):
    """A command in the background has started, has exited, or was killed; ``how`` says it in words."""

    type: ClassVar[str] = "job"
    id: str
    state: Literal["started", "exited", "killed"]
    how: str
    command: str | None = None
    """At its start."""
    exit: int | None = None
    """Its exit status, or minus the number of the signal that ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceState(Event):
    """A delegated piece waits for another's end, begins, or has ended, with its outcome and how often it was tried.

    ``agent`` is the piece's id, which is that of its first implementer: the caller's and the call's.
    """

    type: ClassVar[str] = "piece"
    state: Literal["waits", "begins", "ended"]
    outcome: str | None = None
    reason: str | None = None
    attempts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Event):
    """What the verifier ``agent`` found; a verifier that ended without a verdict counts as ``fail``."""

    type: ClassVar[str] = "verdict"
    verdict: Literal["pass", "fail"]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnd(Event):
    """An agent ended: the outcome's kind and reason."""

    type: ClassVar[str] = "agent.end"
    outcome: str
    reason: str
    turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd(Event):
    """The request ended; the fields are those of ``--output-format json``."""

    type: ClassVar[str] = "session.end"
    session: str
    outcome: str
    """``done``, ``failed``, ``killed``, ``refused``, ``budget`` or ``cancelled``."""
    reason: str
    """Why, where it is not ``done``."""
    text: str
    """The answer."""
    diff: str
    """What the request changed."""
    untracked: list[str]
    """What the diff leaves out."""
    usage: dict[str, int]
    """Sums over all generations."""
    turns: int
    """Of the root agent."""
    exit: int
    """The exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token(Event):
    """Text of the turn that is being generated; only streamed, never logged."""

    type: ClassVar[str] = "token"
    text: str
    tokens: int = 0
    """How many tokens that took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Event):
    """How far the model is in reading a prompt, in tokens; zeros while it has not begun. Only shown, never logged.

    ``anew``: what was streamed of this turn is void, and comes anew.
    """

    type: ClassVar[str] = "reading"
    done: int = 0
    total: int = 0
    anew: bool = False

    @property
    def sentence(self) -> str:
        """The note that it is, where it is told in words."""
        return (
            f"reading the prompt: {self.done:,} of {self.total:,} tokens"
            if self.total
            else "waiting for the model"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Event):
    """A sentence for the user about what is going on; only streamed, never logged."""

    type: ClassVar[str] = "note"
    text: str


def title(prompt: str) -> str:
    """What a prompt is called in a list: its first line, cut."""
    first = prompt.strip().partition("\n")[0].strip()
    return first if len(first) <= TITLE.count else f"{first[: TITLE.count - 1]}…"


def line(event: Event) -> bytes:
    """The event as a line of JSON, its newline included. Fields that are None are left out."""
    values = {f.name: value for f in fields(event) if (value := getattr(event, f.name)) is not None}
    ts = values.pop("ts")
    text = json.dumps({"ts": ts, "type": event.type, **values}, ensure_ascii=False)
    return text.encode("utf-8", "replace") + b"\n"
