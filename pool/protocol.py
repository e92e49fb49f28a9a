"""Protocol version 3: every request, reply and frame between a pool and its clients.

A frame is a 4-byte big-endian length and one CBOR map, at most 16 MiB. The map is a message of this module: its
class name under ``type``, its fields beside it. ``id`` is the client's number for a request; each answer carries it.
The same messages, without the socket's handshake, travel between a member and its worker process.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from aerix.actors.dump import ActorRecord
from aerix.actors.wire import Codec

VERSION = 3

Role = Literal["system", "user", "assistant"]
Stop = Literal["final", "length", "stop", "cancelled"]
"""Why a generation ended: the constraint was satisfied; ``max_tokens`` was reached; the model ended its turn by
itself without a constraint; a ``Cancel`` came."""

# Error codes that mean "the rows are gone, create the context again and ask on" (DESIGN section 4).
LOST = frozenset({"connection_lost", "unknown_context", "member_restarted"})


BROKEN_OFF = frozenset({"server_cut"})
"""Error codes that mean "nothing of this turn stays, but its context is there": ask again from the turn's beginning."""


# --- parts of messages --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a context: text with an id, a role and a pinned flag.

    ``tokens`` are the exact ids of a generated turn (without role markers or the end-of-turn token), valid for the
    vocabulary whose digest is ``vocab``; when that is the member's own, the ids are used and the text is not.
    """

    id: str
    role: Role
    text: str
    pinned: bool = False
    tokens: list[int] | None = None
    vocab: str | None = None


@dataclass(frozen=True, slots=True)
class SegmentCount:
    """How many tokens a segment takes; role markers count to the segment they open."""

    id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn. Temperature 0 takes the most likely one."""

    temperature: float = 0.2
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a generation may say: exactly one of a JSON value of ``schema``, or one of ``texts``."""

    schema: str | None = None
    """As JSON: it is only passed on, and taken apart where it is held."""
    texts: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a generation cost. ``recomputed_from`` is the first prompt row that had to be computed; times in ms."""

    prompt_tokens: int
    completion_tokens: int
    recomputed_from: int
    shelf: Literal["none", "resident", "memory", "disk"]
    """What held the last of the rows before it."""
    restore_ms: float
    fill_ms: float
    decode_ms: float
    forced_tokens: int = 0
    thinking_tokens: int = 0
    """Those of ``completion_tokens`` that came before the answer."""
    drafted_tokens: int = 0
    """Those of ``completion_tokens`` that were computed before they were known, and were right."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What a member's worker has done since it came up; times are those of each generation, summed, in ms.

    ``generations`` have ended, the ``cancelled`` among them; ``refused`` never began. Of ``prompt_tokens``,
    ``resumed_tokens`` were found computed; of ``generated_tokens``, ``drafted_tokens`` were drafted, and right.
    """

    generations: int = 0
    cancelled: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    resumed_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    fill_ms: float = 0.0
    decode_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class ShelfInfo:
    """One shelf of a member's prefix store, since its worker came up.

    ``hits`` counts the generations that found rows on it, ``misses`` those that asked it and found none.
    """

    name: Literal["none", "resident", "memory", "disk"]
    bytes: int
    limit: int
    entries: int
    hits: int
    misses: int


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member as ``MemberList`` and ``Status`` tell it."""

    name: str
    state: Literal["loading", "ready", "restarting", "failed"]
    window: int = 0
    cells: int = 0
    vocab: str = ""
    json: bool = True
    """Whether the member can be held to a ``Json`` constraint."""
    thinking: int = 0
    """Tokens that the model may think with before each turn; 0: it does not think first."""
    estimated: bool = False
    """Whether its counts of tokens are estimates, to be shown with ≈: the server cannot count."""
    restarts: int = 0
    contexts: int = 0
    running: int = 0
    waiting: int = 0
    threads: int = 0
    settings: str = ""
    """The rung of the ladder of plainer settings that is in force, as a sentence; empty on the first."""
    note: str = ""
    """Why it is failed or restarting, or what the self-test found."""
    pid: int = 0
    restarted: str = ""
    """Why it was restarted last."""
    totals: Totals = field(default_factory=Totals)
    shelves: list[ShelfInfo] = field(default_factory=list)


# --- requests -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """First on every connection. ``owner`` is absent on a control connection; on a connection for a generation it
    is the token of the control connection's ``Welcome``.
    """

    version: int
    client: str
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class MemberLoad:
    """Load a model, or find it loaded; answered by ``MemberLoaded`` when it is ready."""

    id: int
    ref: str
    flags: dict[str, Any] = field(default_factory=dict)
    file: str = ""
    """Where the client found the model's file: the daemon's folders may be others. Empty: the daemon looks itself."""


@dataclass(frozen=True, slots=True)
class MemberUnload:
    """Unload a member; answered by ``Ok`` when its memory is free. One in use is refused with ``member_in_use``."""

    id: int
    member: str


@dataclass(frozen=True, slots=True)
class MemberList:
    """Asks for ``Members``."""

    id: int


@dataclass(frozen=True, slots=True)
class ContextCreate:
    """Create a context on a member; answered by ``ContextState``."""

    id: int
    member: str
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class ContextAppend:
    """Add segments at the end; answered by ``ContextState``."""

    id: int
    context: str
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class ContextReplace:
    """Put another text in place of a segment's; answered by ``ContextState``. Rows from there on are computed again."""

    id: int
    context: str
    segment: Segment


@dataclass(frozen=True, slots=True)
class ContextRemove:
    """Take segments out; answered by ``ContextState``."""

    id: int
    context: str
    segments: list[str]


@dataclass(frozen=True, slots=True)
class ContextFork:
    """A new context with the leading segments up to and including ``upto`` (all when absent)."""

    id: int
    context: str
    upto: str | None = None


@dataclass(frozen=True, slots=True)
class ContextDrop:
    """Forget a context; answered by ``Ok``."""

    id: int
    context: str


@dataclass(frozen=True, slots=True)
class ContextRead:
    """Asks for ``ContextText``."""

    id: int
    context: str


@dataclass(frozen=True, slots=True)
class Generate:
    """Generate on a context: ``Progress`` and ``Token`` frames, then ``Done`` or ``Error``.

    Segments to ``append`` are put at the context's end first, and a ``ContextState`` comes before all else. Where none
    has come, a refusal has changed nothing.
    ``start`` are ids of this same turn that the client already holds, those of its thinking first: they count as
    generated, are not sent again, and the stream goes on after them. ``max_tokens`` bounds the answer, not the
    thinking, which takes what its budget and the window leave.
    """

    id: int
    context: str
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    constraint: Constraint | None = None
    start: list[int] = field(default_factory=list)
    append: list[Segment] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the generation ``target`` (a ``Generate`` id of this connection) within one batch; its ``Done`` says so."""

    target: int


@dataclass(frozen=True, slots=True)
class Status:
    """Asks for ``PoolStatus``, with what every actor of the pool's process does where ``actors`` is set."""

    id: int
    actors: bool = False


@dataclass(frozen=True, slots=True)
class StopPool:
    """Stop the pool; answered by ``Ok`` before it goes."""

    id: int


# --- answers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answers ``Hello``. ``owner`` names this control connection to the connections of its generations."""

    version: int
    pool: str
    pid: int
    owner: str


@dataclass(frozen=True, slots=True)
class MemberLoaded:
    """The member is ready."""

    id: int
    member: MemberInfo


@dataclass(frozen=True, slots=True)
class Members:
    """Every member, loaded or loading."""

    id: int
    members: list[MemberInfo]


@dataclass(frozen=True, slots=True)
class ContextState:
    """A context after a change: the tokens of each segment from the first that changed on (the counts of those before
    are what they were), and of all of it (``tokens``, a prompt's length without the marker that opens the model's turn,
    which is ``opening`` tokens). ``estimated``: they are about so many, and that of any segment may have changed.
    """

    id: int
    context: str
    segments: list[SegmentCount]
    tokens: int
    opening: int
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class ContextText:
    """A context's segments as the worker holds them, and its exact token ids."""

    id: int
    context: str
    segments: list[Segment]
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Progress:
    """Before the first token of a long prefill: rows done of rows to do."""

    id: int
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Token:
    """Tokens as they are generated: usually one, more for a stretch that the schema forces.

    ``data`` are their bytes; a character may be split over two frames.
    """

    id: int
    tokens: list[int]
    data: bytes
    thinking: bool = False
    """Whether they come before the answer."""


@dataclass(frozen=True, slots=True)
class Done:
    """A generation's end. ``tokens`` are all ids of the answer (from ``start`` too), without the end-of-turn token.

    A model that thinks first has ``thinking``, the text of it, and ``thinking_tokens``, its ids with the closing: they
    stand between the prompt and the answer, and belong in no context. ``scores`` are, for ``OneOf``, the log-probability of each text in the order given; ``choice`` is the index of the
    best one, absent where none matched.
    """

    id: int
    stop: Stop
    text: str
    tokens: list[int]
    usage: Usage
    vocab: str
    choice: int | None = None
    scores: list[float] | None = None
    thinking: str | None = None
    thinking_tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ok:
    """Done, nothing to tell."""

    id: int


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The pool as ``aerix pool status`` shows it. ``actors`` is there where it was asked for."""

    id: int
    pool: str
    pid: int
    uptime_secs: float
    socket: str
    connections: int
    members: list[MemberInfo]
    actors: list[ActorRecord] | None = None


@dataclass(frozen=True, slots=True)
class Error:
    """A refusal or failure: a stable ``code`` and a sentence. ``id`` is 0 where no request could be read."""

    id: int
    code: str
    message: str


REQUESTS = (
    Hello, MemberLoad, MemberUnload, MemberList, ContextCreate, ContextAppend, ContextReplace, ContextRemove,
    ContextFork, ContextDrop, ContextRead, Generate, Cancel, Status, StopPool,
)  # fmt: skip
ANSWERS = (
    Welcome, MemberLoaded, Members, ContextState, ContextText, Progress, Token, Done, Ok, PoolStatus, Error,
)  # fmt: skip

CODEC = Codec((*REQUESTS, *ANSWERS))
"""Turns messages into maps and back, for the socket."""


@dataclass(frozen=True, slots=True)
class Permit:
    """To a worker, and never on the socket: compute with so many threads from now on, with none where it is 0.

    Answered by ``Ok`` when no step uses more.
    """

    threads: int


@dataclass(frozen=True, slots=True)
class Budget:
    """To a worker, and never on the socket: keep at most so many bytes of snapshots in memory. Answered by ``Ok``."""

    bytes: int


WORKER_CODEC = Codec((*REQUESTS, *ANSWERS, Permit, Budget))
"""What a member and its worker process say."""
