"""The daemon: one process that holds the members and serves a Unix socket. Nothing here polls.

The tree, in start order (rest_for_one): the permits, the members, the connections, and last the listener, so that the socket
appears only when every model that was asked for is loaded.
"""

import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import aerix.pool.protocol as p
from aerix.actors import (
    Actor,
    ChildSpec,
    Exit,
    Gone,
    Ref,
    Refused,
    StartChild,
    Supervisor,
    Tick,
    launch,
    on,
    whereis,
)
from aerix.actors.dump import dump_on_signal
from aerix.actors.os_linux import peer_uid
from aerix.actors.wire import pack
from aerix.pool.address import Lock, holder, listen
from aerix.pool.bounds import ACCEPT_PAUSE, MEMBER_LOAD, OPEN
from aerix.pool.connection import CONNECTIONS, MEMBERS, POOL, Connection
from aerix.pool.ladder import LADDER
from aerix.pool.members import Members, PoolOptions, StatusOf
from aerix.pool.permits import PERMITS, Permits


@dataclass(frozen=True, slots=True)
class _Accepted:
    sock: socket.socket
    number: int


class Connections(Supervisor):
    """The open connections; ends the pool when there was none for long enough."""

    def __init__(self, options: PoolOptions) -> None:
        super().__init__()
        self._options = options
        self._since = self.clock.now()
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
        sock, number, release, since = message.sock, message.number, self._options.version, self._since
        if self._connected >= OPEN.count:
            why = f"the pool has {self._connected} connections and takes no more"
            with suppress(OSError):
                sock.send(pack(p.CODEC.encode(p.Error(0, "too_many_connections", why))))
            sock.close()
            return
        self._add(
            StartChild(
                ChildSpec(
                    f"connection:{number}", lambda: Connection(sock, number, release, since), "temporary"
                )
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
        self.forward(members, StatusOf(self._connected))


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
    _heed_signals(root)
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
            ChildSpec(PERMITS, Permits),
            ChildSpec(MEMBERS, lambda: Members(options), grace_s=None, start_timeout_s=patience),
            ChildSpec(CONNECTIONS, lambda: Connections(options), grace_s=None),
            ChildSpec("listener", lambda: Listener(options)),
        ],
        strategy="rest_for_one",
    )


def _heed_signals(root: Ref) -> None:
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, lambda number, _: root.stop(signal.Signals(number).name))
    dump_on_signal()


def _raise_descriptor_limit() -> None:
    """A connection takes three descriptors; the usual soft limit would end at a few hundred."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
