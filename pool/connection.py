"""Connection: one client's connection to the daemon; a control connection, or that of one generation.

A control connection is the owner of the contexts that were created on it: it alone knows which member holds them, and
drops them when it closes. A generation's connection names its owner, and asks through it.
"""

import hmac
import os
import secrets
import socket
from dataclasses import dataclass, replace
from typing import Any

import aerix.pool.protocol as p
from aerix.actors import Actor, Call, Exit, Gone, Piece, Ref, Refused, Reply, Stop, System, Tick, on, whereis
from aerix.actors.dump import actor_records
from aerix.actors.wire import Plain, WireError
from aerix.pool.bounds import HELLO, REQUESTS, STATUS_ALONE, UNREAD
from aerix.pool.line import Line

CONNECTIONS = "connections"
MEMBERS = "members"
POOL = "pool"

# What an actor's end is called to a client: codes of the runtime become codes of the protocol.
_CODES = {
    "worker_died": "member_restarted", "gone": "member_restarted", "stopping": "member_restarted",
    "crashed": "member_restarted", "busy": "pool_busy", "mailbox_full": "pool_busy",
}  # fmt: skip


def member_actor(name: str) -> str:
    """The name of a member's actor."""
    return f"member:{name}"


def worker_actor(name: str) -> str:
    """The name of the actor of a member's worker."""
    return f"worker:{name}"


def silent(actor: str) -> p.MemberInfo:
    """What is told of the member of that actor when it does not tell itself."""
    note = "it does not answer; what it does: aerix pool status --actors"
    return p.MemberInfo(actor.removeprefix(member_actor("")), "failed", note=note)


@dataclass(frozen=True, slots=True)
class Uses(System):
    """To the members: a connection has begun to use a member, or (None) has closed and uses none any more."""

    connection: int
    member: str | None


@dataclass(frozen=True, slots=True)
class Unload:
    """To the members: a connection, which has no context on the member, wants it unloaded."""

    connection: int
    member: str


@dataclass(frozen=True, slots=True)
class _Join:
    """A generation's connection shows its owner the token that it was given."""

    secret: str


@dataclass(frozen=True, slots=True)
class _Owned:
    """A request of a connection that has joined, for a context of its owner's."""

    request: p.Generate
    joined: Ref


@dataclass(frozen=True, slots=True)
class _Held(System):
    """To a connection that has joined: which member holds the context that it asked for."""

    context: str
    member: str


@dataclass(frozen=True, slots=True)
class _Lost(System):
    """To an owner: a context that a joined connection asked for is gone."""

    context: str


@dataclass(slots=True)
class _Open:
    """A request that has not been answered."""

    id: int
    request: Any
    call: Call
    member: str = ""
    """The member that a new context will be on."""


class Connection(Actor):
    """Reads requests from one socket, has them answered, writes the answers. Ends when the socket does."""

    def __init__(self, sock: socket.socket, number: int, version: str, since: float) -> None:
        """``since`` is when the pool began, on the clock of actors."""
        self._sock = sock
        self._number = number
        self._version = version
        self._since = since
        self._secret = secrets.token_hex(16)
        self._greeted = False
        self._owner: Ref | None = None
        """On a generation's connection, its control connection."""
        self._joining: Call | None = None
        self._open: dict[int, _Open] = {}
        self._contexts: dict[str, str] = {}
        """The member of each context of this control connection."""
        self._held: _Held | None = None
        """On a generation's connection, the context that it asked for last: the next turn is most likely of it too."""
        self._used: set[str] = set()
        """The members that this control connection has loaded, or made a context on."""

    def setup(self) -> None:
        """Wait for Hello, for so long."""
        self._line = Line(self, self._sock, self, UNREAD.count)
        self._line.drained = self._take_pieces
        self.after(HELLO.value, None)

    @on(Tick)
    def _tick(self, message: Tick) -> None:
        if message.token is not None:
            self._tell_alone(message.token)
        elif not self._greeted and self._joining is None:
            self._reject("no_hello", f"no Hello came in {HELLO.value:g} s")

    # --- the line

    def take(self, line: Line, message: Any) -> None:
        """A message came from the client."""
        if not self._greeted:
            self._greet(message)
        else:
            self._serve(message)

    def misread(self, line: Line, plain: Plain, error: WireError) -> None:
        """A frame that is no message: say so; the connection stays."""
        id_ = plain.get("id")
        self._line.send(p.Error(id_ if isinstance(id_, int) else 0, error.code, error.message))

    def ended(self, line: Line, error: WireError | None) -> None:
        """The client has gone, or sent what is no frame: what runs for it is cancelled, and its contexts go."""
        if error is not None:
            self._line.send(p.Error(0, error.code, error.message))
        self._line.close()
        for one in self._open.values():
            one.call.cancel()
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        """A context that is still being made would be nobody's: wait for its name, to drop it."""
        making = (isinstance(one.request, (p.ContextCreate, p.ContextFork)) for one in self._open.values())
        if not self._line.open and not any(making):
            self.stop()

    def _reject(self, code: str, sentence: str) -> None:
        self._line.send(p.Error(0, code, sentence))
        self._line.close()
        self.stop()

    # --- the handshake

    def _greet(self, hello: Any) -> None:
        if not isinstance(hello, p.Hello):
            self._reject("no_hello", f"the first message is {type(hello).__name__}, not Hello")
        elif hello.version != p.VERSION:
            why = f"the pool speaks version {p.VERSION} of the protocol, the client version {hello.version}"
            self._reject("protocol_version", f"{why}: run `aerix pool stop`, then run again")
        elif hello.owner is None:
            self._welcome(f"{self._number}-{self._secret}")
        else:
            number, _, secret = hello.owner.partition("-")
            owner = whereis(f"connection:{number}")
            if owner is None:
                self._reject("unknown_owner", "no control connection has this owner token, or it has closed")
            else:
                self._owner, self._joining = owner, self.request(owner, _Join(secret))
                self._line.hold(True)

    def _welcome(self, owner: str) -> None:
        self._greeted = True
        self._line.send(p.Welcome(p.VERSION, self._version, os.getpid(), owner))

    @on(_Join)
    def _let_join(self, message: _Join) -> str:
        if self._owner is not None or not hmac.compare_digest(message.secret.encode(), self._secret.encode()):
            raise Refused("unknown_owner", "no control connection has this owner token")
        return f"{self._number}-{self._secret}"

    def _joined(self, reply: Reply) -> None:
        self._joining = None
        if reply.error is not None:
            self._reject("unknown_owner", reply.error.message)
        else:
            self._welcome(reply.value)
            self._line.hold(False)

    # --- requests

    def _serve(self, request: Any) -> None:
        try:
            self._route(request)
        except Refused as refusal:
            self._refuse(getattr(request, "id", 0), refusal)

    def _route(self, request: Any) -> None:
        if isinstance(request, p.Cancel):
            for one in self._open.values():
                if one.id == request.target:
                    one.call.cancel()
        elif len(self._open) >= REQUESTS.count:
            raise Refused("pool_busy", f"{len(self._open)} requests of this connection are not answered yet")
        elif self._owner is not None:
            if not isinstance(request, p.Generate):
                raise Refused("wrong_connection", "a generation's connection takes Generate and Cancel only")
            if self._held is not None and request.context == self._held.context:
                self._ask(_worker(self._held.member), request)
            else:
                self._ask(self._owner, request, _Owned(request, self.ref))
        elif isinstance(request, (p.MemberLoad, p.MemberList)):
            self._ask(_service(MEMBERS), request)
        elif isinstance(request, p.MemberUnload):
            self._unload(request)
        elif isinstance(request, p.Status):
            self.after(STATUS_ALONE.value, self._ask(_service(CONNECTIONS), request).call.token)
        elif isinstance(request, p.StopPool):
            self._line.send(p.Ok(request.id))
            _service(POOL).stop("stopped by a client")
        elif isinstance(request, p.ContextCreate):
            ref = _member(request.member)
            self._use(request.member)
            self._ask(ref, request).member = request.member
        elif hasattr(request, "context"):
            name = self._member_of(request.context)
            self._ask(_worker(name), request).member = name
        else:
            raise Refused("unexpected_message", f"{type(request).__name__} is no request, or came twice")

    def _use(self, name: str) -> None:
        if name not in self._used:
            self._used.add(name)
            _service(MEMBERS).tell_if_alive(Uses(self._number, name))

    def _unload(self, request: p.MemberUnload) -> None:
        going = {one.request.context for one in self._open.values() if isinstance(one.request, p.ContextDrop)}
        if any(name == request.member for context, name in self._contexts.items() if context not in going):
            raise Refused(
                "member_in_use", f"{request.member} has contexts of this connection; drop them first"
            )
        self._ask(_service(MEMBERS), request, Unload(self._number, request.member))

    def _ask(self, ref: Ref, request: Any, message: Any = None) -> _Open:
        call = self.request(ref, message or request)
        one = self._open[call.token] = _Open(request.id, request, call)
        return one

    def _member_of(self, context: str) -> str:
        name = self._contexts.get(context)
        if name is None:
            raise Refused("unknown_context", f"this connection has no context {context:.64}; create it again")
        return name

    @on(_Owned)
    def _pass_on(self, message: _Owned) -> None:
        """A joined connection's generation: only the owner knows whose context it is, and on which member."""
        context = message.request.context
        held = _Held(context, self._member_of(context))
        self.forward(_worker(held.member), message.request)
        message.joined.tell_if_alive(held)

    @on(_Held)
    def _told_who_holds(self, message: _Held) -> None:
        self._held = message

    # --- answers

    @on(Piece)
    def _piece(self, message: Piece) -> None:
        if one := self._open.get(message.token):
            self._line.send(message.value, answers=one.id)
            if self._line.full:
                one.call.pause()

    def _take_pieces(self) -> None:
        """The client reads again: so do we."""
        for one in self._open.values():
            one.call.resume()

    @on(Reply)
    def _answered(self, message: Reply) -> None:
        if self._joining is not None and message.token == self._joining.token:
            self._joined(message)
        elif one := self._open.pop(message.token, None):
            if message.error is not None:
                self._note_loss(one, message.error)
                self._refuse(one.id, message.error)
            else:
                self._note(one, message.value)
                self._line.send(self._with_actors(one, message.value), answers=one.id)
            self._end_if_idle()

    def _with_actors(self, one: _Open, answer: Any) -> Any:
        asked = isinstance(one.request, p.Status) and one.request.actors
        return replace(answer, actors=actor_records()) if asked else answer

    def _tell_alone(self, token: object) -> None:
        """Nothing came of the members in time: a status tells what can be told without them."""
        one = self._open.pop(token, None) if isinstance(token, int) else None
        if one is None:
            return
        living, uptime = actor_records(), self.clock.now() - self._since
        members = [silent(record.name) for record in living if record.name.startswith(member_actor(""))]
        connections = sum(record.kind == type(self).__name__ for record in living)
        path = self._sock.getsockname()
        status = p.PoolStatus(0, self._version, os.getpid(), uptime, path, connections, members)
        self._line.send(self._with_actors(one, status), answers=one.id)

    def _refuse(self, id_: int, refusal: Refused) -> None:
        self._line.send(p.Error(id_, _code(refusal), refusal.message))

    def _note_loss(self, one: _Open, refusal: Refused) -> None:
        """A context that its member has lost is nobody's any more; the books of it are the owner's."""
        if _code(refusal) in p.LOST and hasattr(one.request, "context"):
            lost = _Lost(one.request.context)
            if self._owner is None:
                self._forget(lost)
            else:
                self._owner.tell_if_alive(lost)

    @on(_Lost)
    def _forget(self, message: _Lost) -> None:
        self._contexts.pop(message.context, None)

    def _note(self, one: _Open, answer: Any) -> None:
        """Keep the books of who holds which context."""
        if isinstance(one.request, (p.ContextCreate, p.ContextFork)):
            self._contexts[answer.context] = one.member
        elif isinstance(one.request, p.ContextDrop):
            self._contexts.pop(one.request.context, None)
        elif isinstance(one.request, p.MemberLoad):
            self._use(answer.member.name)
        elif isinstance(one.request, p.MemberUnload):
            self._used.discard(one.request.member)

    # --- the end

    @on(Stop)
    def _stop(self, message: Stop) -> None:
        self.stop("shutdown", message.reason)

    def teardown(self, exit: Exit) -> None:
        """Close the socket, and drop the contexts: nobody else can name them."""
        self._line.drop()
        for context, name in self._contexts.items():
            try:
                _member(name).tell(p.ContextDrop(0, context))
            except Refused:  # the member has ended, and its contexts with it
                continue
        if self._used and (members := whereis(MEMBERS)):
            members.tell_if_alive(Uses(self._number, None))


def _code(refusal: Refused) -> str:
    return _CODES.get(refusal.code, refusal.code)


def _member(name: str) -> Ref:
    ref = whereis(member_actor(name))
    if ref is None:
        raise Refused("unknown_member", f"the pool has no member {name!r:.200}; load it first (MemberLoad)")
    return ref


def _worker(name: str) -> Ref:
    """Who answers for a member's contexts: its worker, to spare a message a hop; the member itself while none is up."""
    worker = whereis(worker_actor(name))
    return worker if worker is not None and worker.up and worker.alive else _member(name)


def _service(name: str) -> Ref:
    ref = whereis(name)
    if ref is None:
        raise Gone(f"the pool's {name}")
    return ref
