"""The daemon: one process that holds the members and serves a Unix socket. Nothing here polls.

The tree, in start order (rest_for_one): the members, the connections, and last the listener, so that the socket
appears only when every model that was asked for is loaded.
"""

import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aerix.pool.protocol as p
from aerix.actors import (
    Actor,
    Answer,
    ChildSpec,
    Exit,
    Gone,
    Intensity,
    Ref,
    Refused,
    Reply,
    StartChild,
    Supervisor,
    Tick,
    launch,
    on,
    whereis,
)
from aerix.actors.bounds import CHILD_STOP, CHILD_TERM
from aerix.actors.os_linux import peer_uid
from aerix.actors.wire import pack
from aerix.pool.address import Lock, holder, listen
from aerix.pool.bounds import ACCEPT_PAUSE, IDLE, MEMBER_LOAD, MEMBER_RESTARTS, MEMBER_WINDOW, OPEN
from aerix.pool.connection import CONNECTIONS, MEMBERS, POOL, Connection, member_actor
from aerix.pool.ladder import LADDER
from aerix.pool.member import Member
from aerix.pool.models import ResolvedModel, models_dir, resolve

LOAD_FLAGS: dict[str, type] = {
    "window": int, "cells": int, "max_batch": int, "batch": int, "threads": int, "memory": int, "template": str,
}  # fmt: skip
"""The flags of a load: WorkerArgs' fields that a client may set."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What a daemon is started with."""

    socket: Path
    load: tuple[ResolvedModel, ...] = ()
    flags: tuple[tuple[str, Any], ...] = ()
    """Load flags that hold for every member where its own say nothing."""
    idle_timeout_s: float = field(default_factory=lambda: IDLE.value)
    version: str = "0"


@dataclass(frozen=True, slots=True)
class _PoolStatus:
    """A Status, on its way from the connections to the members."""

    connections: int


class Members(Supervisor):
    """The loaded models. Loads one on request, and gathers what each tells about itself."""

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._since = self.clock.now()
        self._starting: dict[str, list[Answer]] = {}
        """Who waits for the start of a member, by the member's name, and below, the request for that start."""
        self._starts: dict[int, str] = {}
        self._gathers: list[_Gather] = []
        specs = [self._spec(model.name, model, {}) for model in options.load]
        super().__init__(specs, intensity=Intensity(MEMBER_RESTARTS.count, MEMBER_WINDOW.value))

    def _spec(self, name: str, model: ResolvedModel, flags: dict[str, Any]) -> ChildSpec:
        flags = {**dict(self._options.flags), **flags}
        return ChildSpec(
            member_actor(name),
            lambda: Member(name, model, flags),
            restart="transient",
            grace_s=CHILD_STOP.value + CHILD_TERM.value + 1,
            start_timeout_s=MEMBER_LOAD.value * (len(LADDER) + 1),
        )

    @on(p.MemberLoad)
    def _load(self, message: p.MemberLoad) -> None:
        """Load a model; found loaded, or loading, it answers itself."""
        model = resolve(message.ref)
        if not model.present:
            raise Refused(
                "model_missing",
                f"{model.name} is not in {models_dir()}, where this pool looks: run `aerix models pull {model.name}`; if it"
                " is elsewhere, run `aerix pool stop`, then run again",
            )
        flags = check_flags(message.flags)
        name = member_name(model.name, flags)
        if name in self._starting:
            self._starting[name].append(self.later())
        elif (ref := whereis(member_actor(name))) is not None:
            self.forward(ref, message)
        else:
            self._starts[self.request(self.ref, StartChild(self._spec(name, model, flags))).token] = name
            self._starting[name] = [self.later()]

    @on(Reply)
    def _came(self, message: Reply) -> None:
        if message.token in self._starts:
            self._member_started(self._starts.pop(message.token), message)
            return
        for gather in [one for one in self._gathers if message.token in one.missing]:
            gather.missing.discard(message.token)
            if message.value is not None:
                gather.found.append(message.value)
            self._if_gathered(gather)

    def _member_started(self, name: str, reply: Reply) -> None:
        for answer in self._starting.pop(name):
            if reply.error is None:
                reply.value.send(p.MemberLoad(0, ""), answer)
            else:
                why = reply.error.message.rpartition(" did not start: ")[2]
                answer.refuse(Refused("load_failed", f"{name} could not be loaded: {why}"))

    # --- what the members tell

    @on(p.MemberList)
    def _list(self, _: p.MemberList) -> None:
        self._gather(p.Members(0, []))

    @on(_PoolStatus)
    def _status(self, message: _PoolStatus) -> None:
        uptime, path = self.clock.now() - self._since, str(self._options.socket)
        self._gather(
            p.PoolStatus(0, self._options.version, os.getpid(), uptime, path, message.connections, [])
        )

    def _gather(self, blank: "p.Members | p.PoolStatus") -> None:
        refs = [child.ref for child in self._children.values() if child.ref is not None]
        gather = _Gather(self.later(), blank, {self.request(ref, p.MemberList(0)).token for ref in refs}, [])
        self._gathers.append(gather)
        self._if_gathered(gather)

    def _if_gathered(self, gather: "_Gather") -> None:
        if not gather.missing:
            self._gathers.remove(gather)
            found = sorted(gather.found, key=lambda info: info.name)
            gather.answer.reply(replace(gather.blank, members=found))


@dataclass(slots=True, eq=False)
class _Gather:
    answer: Answer
    blank: "p.Members | p.PoolStatus"
    missing: set[int]
    found: list[p.MemberInfo]


def member_name(ref: str, flags: dict[str, Any]) -> str:
    """A member is named by its reference, and the flags that its load set."""
    return " ".join([ref, *(f"{key}={flags[key]}" for key in sorted(flags))])


def check_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags of a load as they are. Raises Refused ``bad_flags``."""
    for key, value in flags.items():
        if key not in LOAD_FLAGS:
            raise Refused("bad_flags", f"a load has no flag {key!r:.64}; it has {', '.join(LOAD_FLAGS)}")
        if type(value) is not LOAD_FLAGS[key]:
            raise Refused(
                "bad_flags", f"the flag {key} of a load takes {LOAD_FLAGS[key].__name__}, not {value!r:.64}"
            )
    return flags


@dataclass(frozen=True, slots=True)
class _Accepted:
    sock: socket.socket
    number: int


class Connections(Supervisor):
    """The open connections; ends the pool when there was none for long enough."""

    def __init__(self, options: PoolOptions) -> None:
        super().__init__()
        self._options = options
        self._connected = 0
        self._idle = 0
        """Numbers the stretches without a connection: a timer of an earlier one means nothing."""

    def setup(self) -> None:
        """A pool that nobody ever connects to is idle from its start."""
        super().setup()
        self._arm()

    def child_up(self, name: str, ref: object) -> None:
        """One more; whatever idle time was running is over."""
        self._connected += 1
        self._idle += 1

    def child_down(self, name: str, exit: Exit, *, started: bool) -> None:
        """One less."""
        self._connected -= started
        if self._connected == 0:
            self._arm()

    @on(_Accepted)
    def _accepted(self, message: _Accepted) -> None:
        sock, number, release = message.sock, message.number, self._options.version
        if self._connected >= OPEN.count:
            why = f"the pool has {self._connected} connections and takes no more"
            with suppress(OSError):
                sock.send(pack(p.CODEC.encode(p.Error(0, "too_many_connections", why))))
            sock.close()
            return
        self._add(
            StartChild(
                ChildSpec(f"connection:{number}", lambda: Connection(sock, number, release), "temporary")
            )
        )

    def _arm(self) -> None:
        if self._options.idle_timeout_s > 0:
            self.after(self._options.idle_timeout_s, self._idle)

    @on(Tick)
    def _tick(self, message: Tick) -> None:
        if not isinstance(message.token, int):
            super()._tick(message)
        elif message.token == self._idle and self._connected == 0 and (pool := whereis(POOL)):
            pool.stop("idle")

    @on(p.Status)
    def _status(self, _: p.Status) -> None:
        members = whereis(MEMBERS)
        if members is None:
            raise Gone("the pool's members")
        self.forward(members, _PoolStatus(self._connected))


class Listener(Actor):
    """Accepts connections of this user. The socket file exists exactly as long as this actor lives."""

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._count = 0
        self._socket: socket.socket | None = None

    def setup(self) -> None:
        """Bind; the process holds the path's lock."""
        try:
            self._socket = listen(self._options.socket)
        except OSError as error:
            why = f"the socket {self._options.socket} cannot be made: {error.strerror or error}"
            raise Refused("socket_refused", why) from None
        self._socket.setblocking(False)
        self._inode = self._options.socket.stat().st_ino
        self.watch(self._socket, self._accept)

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            sock, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError:  # out of descriptors, most likely: the client waits in the backlog
            self.unwatch(self._socket)
            self.after(ACCEPT_PAUSE.value, None)
            return
        connections = whereis(CONNECTIONS)
        if peer_uid(sock) != os.getuid() or connections is None:
            sock.close()
            return
        self._count += 1
        try:
            connections.tell(_Accepted(sock, self._count))
        except Refused:
            sock.close()

    @on(Tick)
    def _accept_again(self, _: Tick) -> None:
        self.watch(self._socket, self._accept)

    def teardown(self, exit: Exit) -> None:
        """Take the socket away; one that is not ours any more stays."""
        if self._socket is None:
            return
        self._socket.close()
        with suppress(FileNotFoundError):
            if self._options.socket.stat().st_ino == self._inode:
                self._options.socket.unlink()


def serve(options: PoolOptions, say: Callable[[str], None]) -> int:
    """Run a pool in this process until it is stopped; its exit code. ``say`` gets lines for whoever started it.

    0: stopped, idle, or another pool has the socket already; 4: it could not start; 1: it broke.
    """
    try:
        lock = Lock(options.socket)
        if not lock.take():
            say(f"another pool (process {holder(options.socket)}) has {options.socket} already")
            return 0
    except OSError as error:
        say(f"the lock beside {options.socket} cannot be taken: {error.strerror}")
        return 4
    _raise_descriptor_limit()
    os.chdir("/")
    root = launch(_tree(options), POOL)
    _stop_on_signals(root)
    for model in options.load:
        say(f"loading {model.name}")
    root.started.wait()
    up = root.exit is None
    if up:
        say(f"ready on {options.socket} (process {os.getpid()})")
    root.gone.wait()
    assert root.exit is not None
    if not root.exit.abnormal:
        say(f"stopped: {root.exit.detail or root.exit.kind}")
        return 0
    say(root.refusal.message if root.refusal is not None else root.exit.detail.strip().rpartition("\n")[2])
    return 1 if up else 4


def _tree(options: PoolOptions) -> Supervisor:
    patience = MEMBER_LOAD.value * (len(LADDER) + 2) * (len(options.load) + 1)
    return Supervisor(
        [
            ChildSpec(MEMBERS, lambda: Members(options), grace_s=None, start_timeout_s=patience),
            ChildSpec(CONNECTIONS, lambda: Connections(options), grace_s=None),
            ChildSpec("listener", lambda: Listener(options)),
        ],
        strategy="rest_for_one",
    )


def _stop_on_signals(root: Ref) -> None:
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, lambda number, _: root.stop(signal.Signals(number).name))


def _raise_descriptor_limit() -> None:
    """A connection takes three descriptors; the usual soft limit would end at a few hundred."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
