"""Getting connected: find the pool that answers, or start one and wait for it, and shake hands."""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from aerix.actors import Actor, Refused, Timer
from aerix.actors.log import log
from aerix.actors.os_linux import peer_uid
from aerix.actors.wire import Plain, WireError
from aerix.pool.address import connect, default_start_log, holder
from aerix.pool.bounds import AUTOSTART, AUTOSTART_EVERY, CONNECTIONS, CONTROL, STARTS
from aerix.pool.line import Line, Listener
from aerix.pool.protocol import VERSION, Error, Hello, Ok, PoolStatus, Status, StopPool, Welcome
from aerix.pool.starter import Starter, default_command, start_daemon


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Which pool, and how to start one. Times are seconds."""

    socket: Path
    load: tuple[str, ...] = ()
    """Model references of a pool that has to be started."""
    flags: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    """The program that has ``pool`` as a command; empty: this one."""
    start_timeout_s: float = field(default_factory=lambda: AUTOSTART.value)
    """For a pool to answer, and for a member to load."""
    start_log: Path | None = None
    max_connections: int = field(default_factory=lambda: CONNECTIONS.count)
    """Generations at once."""
    autostart: bool = True
    release: str = ""
    """This program's: a pool of an older one that nobody uses is replaced by its own; empty: none is."""

    @property
    def log(self) -> Path:
        """Where a started pool writes."""
        return self.start_log or default_start_log()

    def start_command(self) -> list[str]:
        """What starts a pool: the specification's line."""
        loads = [part for ref in self.load for part in ("--load", ref)]
        return [
            *(self.command or default_command()),
            "pool",
            "--socket",
            str(self.socket),
            *loads,
            *self.flags,
        ]


@dataclass(frozen=True, slots=True)
class Connect:
    """Ask a PoolLink to find or start the pool; answered by ``Welcome``."""


@dataclass(frozen=True, slots=True)
class Starting:
    """A piece of every waiting request's answer: a pool is being started, or another client's start is awaited."""

    pid: int
    log: str


class Waiter(Protocol):
    """Who wants a connection."""

    def greeted(self, line: Line, welcome: Welcome) -> None:
        """The control connection is up; the line's listener is still the dialler."""

    def unreachable(self, why: Refused) -> None:
        """It is given up."""

    def nobody(self) -> bool:
        """Nobody answers; whether a pool is to be started."""

    def starting(self, pid: int, log: Path) -> None:
        """A pool is being started."""

    def may_replace(self) -> bool:
        """Whether an older pool that nobody uses may be ended and another one started."""


class Dialler:
    """The way to the control connection, taken again after each loss. Belongs to ``actor``.

    Its timers come to the actor as ``Tick((function, argument))``, to be called.
    """

    def __init__(self, actor: Actor, settings: PoolSettings, waiter: Waiter) -> None:
        self._actor = actor
        self._settings = settings
        self._waiter = waiter
        self._state: Literal["idle", "dialling", "greeting"] = "idle"
        self._line: Line | None = None
        self._starter: Starter | None = None
        self._timer: Timer | None = None
        self._starts = self._lost = 0
        self._since = 0.0
        self._older: Welcome | None = None
        """What a pool of an older release said, while it is asked whether anybody uses it."""
        self._replaced = False

    def begin(self) -> None:
        """Get a connection; the waiter is told."""
        self._since = self._actor.clock.now()
        self._starts = self._lost = 0
        self._dial()

    def give_up(self) -> None:
        """Stop trying; nothing is told."""
        self._state = "idle"
        if self._line is not None:
            self._line.close()
            self._line = None

    def drop(self) -> None:
        """Let go of everything in the actor's ``teardown``; a daemon that was started lives on."""
        if self._line is not None:
            self._line.drop()
        if self._starter is not None:
            self._starter.close()

    def open(self, listener: Listener) -> Line:
        """One more connection. Raises OSError; BlockingIOError says that the pool lives but has a full backlog."""
        sock = connect(self._settings.socket)
        if (owner := peer_uid(sock)) != os.getuid():
            sock.close()
            raise PermissionError(1, f"it belongs to the user with the id {owner}")
        return Line(self._actor, sock, listener)

    def _dial_again(self, _: None) -> None:
        if self._state == "dialling":
            self._dial()

    def _check_greeting(self, line: Line) -> None:
        if line is self._line and self._state == "greeting":
            why = f"the pool on {self._settings.socket} did not answer Hello in {CONTROL.value:g} s"
            self._fail("pool_silent", f"{why}; `aerix pool stop` ends it")

    # --- trying the socket

    def _dial(self) -> None:
        self._state = "dialling"
        try:
            line = self.open(self)
        except (FileNotFoundError, ConnectionRefusedError):
            self._nobody()
        except BlockingIOError:
            self._dial_later()
        except OSError as error:
            why = error.strerror or str(error)
            self._fail("socket_refused", f"the pool's socket {self._settings.socket} cannot be used: {why}")
        else:
            self._state, self._line = "greeting", line
            self._actor.after(CONTROL.value, (self._check_greeting, line))
            line.send(Hello(VERSION, client_name()))

    def _dial_later(self) -> None:
        limit = self._settings.start_timeout_s
        if self._actor.clock.now() - self._since < limit:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._actor.after(AUTOSTART_EVERY.value, (self._dial_again, None))
            return
        if (starter := self._forget_starter()) is not None:
            starter.end()
            starter.close()
        why = f"the pool did not answer on {self._settings.socket} in {limit:g} s (pool.start_timeout_secs)"
        self._fail("pool_start_timeout", f"{why}; see {self._settings.log}")

    def _fail(self, code: str, sentence: str) -> None:
        self.give_up()
        self._waiter.unreachable(Refused(code, sentence))

    # --- starting a pool

    def _nobody(self) -> None:
        if not self._waiter.nobody():
            self.give_up()
        elif self._starter is not None or self._find_starter():
            self._dial_later()

    def _find_starter(self) -> bool:
        """Watch the daemon that is coming up already, or start one; False when it was given up."""
        try:
            pid = holder(self._settings.socket)
            if pid is not None:
                with suppress(ProcessLookupError):  # it ended between the two looks: the next try will tell
                    self._watch(Starter(pid))
                return True
            if self._starts >= STARTS.count:
                why = f"the pool was started {self._starts} times and never answered"
                self._fail("pool_exited", f"{why}: see {self._settings.log}")
                return False
            self._starts += 1
            self._watch(self._start_daemon())
        except OSError as error:
            what = error.filename or self._settings.start_command()[0]
            self._fail("pool_exited", f"the pool could not be started: {what}: {error.strerror}")
            return False
        return True

    def _start_daemon(self) -> Starter:
        settings = self._settings
        return start_daemon(settings.start_command(), settings.log, settings.start_timeout_s)

    def _watch(self, starter: Starter) -> None:
        self._starter = starter
        self._actor.watch(starter, self._starter_ended)
        self._waiter.starting(starter.pid, self._settings.log)

    def _starter_ended(self) -> None:
        starter = self._forget_starter()
        assert starter is not None
        status = starter.reap()
        starter.close()
        if self._state != "dialling":
            return
        if not status or starter.answered:
            self._dial()
            return
        how = f"exit {status}" if status > 0 else f"signal {-status}"
        said = starter.last_words().removeprefix("aerix pool: ").removeprefix("aerix: ")
        self._fail("pool_exited", f"the pool ended while it started ({how}): {said} (log: {starter.log})")

    def _forget_starter(self) -> Starter | None:
        starter, self._starter = self._starter, None
        if starter is not None:
            self._actor.unwatch(starter)
        return starter

    # --- shaking hands

    def take(self, line: Line, message: Any) -> None:
        """The answer to Hello; and of an older pool, whether anybody uses it."""
        match message:
            case Welcome() if self._is_older(message.pool):
                self._older = message
                line.send(Status(0))
            case Welcome():
                self._greeted(line, message)
            case PoolStatus() if self._older is not None and _is_idle(message):
                log("pool.replaced", release=message.pool, by=self._settings.release)
                self._replaced = True
                line.send(StopPool(0))
            case Ok():
                pass  # it stops: its end comes next
            case _ if self._older is not None:
                self._greeted(line, self._older)
            case Error():
                self._fail(message.code, message.message)

    def _greeted(self, line: Line, welcome: Welcome) -> None:
        self._state, self._line, self._older = "idle", None, None
        if self._starter is not None:
            self._starter.answered = True
        self._waiter.greeted(line, welcome)

    def _is_older(self, release: str) -> bool:
        """Whether the pool's release is older than ours, and to be replaced; only once, whatever is started then."""
        theirs, ours = _numbers(release), _numbers(self._settings.release)
        older = theirs is not None and ours is not None and theirs < ours
        return older and not self._replaced and self._waiter.may_replace()

    def misread(self, line: Line, plain: Plain, error: WireError) -> None:
        """What answers is no pool."""
        self.ended(line, error)

    def ended(self, line: Line, error: WireError | None) -> None:
        """Gone during the handshake: a daemon that was just going, most likely; its successor may answer."""
        line.close()
        self._line = self._older = None
        if self._lost < STARTS.count:
            self._lost += 1
            self._state = "dialling"
            self._dial_later()
        else:
            why = error.message if error else "it closed the connection"
            self._fail("connection_lost", f"the pool on {self._settings.socket} did not say Welcome: {why}")


def _is_idle(status: PoolStatus) -> bool:
    """Whether nobody but who asks uses the pool."""
    return status.connections <= 1 and not any(
        member.contexts or member.running or member.waiting for member in status.members
    )


def _numbers(release: str) -> tuple[int, ...] | None:
    """A release to compare; None for what is none."""
    parts = release.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else None


def client_name() -> str:
    """How this process calls itself in Hello."""
    return f"aerix {os.getpid()}"
