"""The client's end of a pool: PoolLink, one actor for the control connection and every generation's.

Read ``PoolLink.unhandled`` first: a request waits until the dialler has a connection, is sent, and its answer goes
straight to the asker. ``context.PoolContext`` is what an agent uses.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aerix.pool.protocol as p
from aerix.actors import Actor, Answer, CallCancelled, Exit, Refused, Taken, Tick, Timer, on
from aerix.actors.bounds import CHILD_CREDIT
from aerix.actors.wire import Plain, WireError
from aerix.pool.address import holder
from aerix.pool.bounds import AUTOSTART_EVERY, CONTROL, FRAMES, LINK_QUEUE
from aerix.pool.context import PoolContext, Recreated, load_member
from aerix.pool.dial import Connect, Dialler, PoolSettings, Starting, client_name
from aerix.pool.line import Line

__all__ = [
    "POOL_UNREACHABLE", "Connect", "PoolContext", "PoolLink", "PoolSettings", "Recreated", "Starting", "load_member",
]  # fmt: skip

POOL_UNREACHABLE = frozenset({
    "no_pool", "pool_exited", "connection_lost", "pool_start_timeout", "pool_silent", "member_lost", "protocol_version", "socket_refused", "member_failed",
    "model_missing", "model_unknown", "model_ambiguous", "model_not_gguf", "model_broken_file", "no_memory", "model_pull_failed", "model_hash", "load_failed",
})  # fmt: skip
"""Refusals that mean: no pool or no model (exit code 4)."""

_REQUESTS = frozenset((*p.REQUESTS, Connect)) - {p.Hello, p.Cancel}
_NEVER_START = (p.Status, p.StopPool, p.MemberUnload)


@dataclass(slots=True, eq=False)
class _Asked:
    """A request on its way: where its answer goes, and how many seconds the pool may be silent about it."""

    message: Any
    answer: Answer
    silence_s: float
    id: int = 0
    line: Line | None = None
    heard: float = 0.0
    timer: Timer | None = None
    untaken: int = 0
    """Pieces that the asker has not handled yet."""
    unwanted: bool = False
    """Whether nobody waits any more; a context that is made all the same is dropped."""

    @property
    def generates(self) -> bool:
        return isinstance(self.message, p.Generate)


class PoolLink(Actor):
    """Sends the requests of this process's actors to the pool and hands on what comes back.

    A request is any of the protocol's, with id 0. Its answer is the protocol's answer; Token, Progress, Starting and
    what a Generate appended come as pieces; an Error, and every failure of the link, is a refusal with its code. Cancelling a Generate's call
    cancels the generation, whose Done still comes. The link connects when it is asked something, and again after a
    loss; Status and StopPool never start a pool.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self._dialler = Dialler(self, settings, self)
        self._dialling = False
        self._control: Line | None = None
        self._welcome: p.Welcome | None = None
        self._next_id = 1
        self._waiting: list[_Asked] = []
        self._asked: dict[int, _Asked] = {}
        self._idle: list[Line] = []
        """Connections of generations that have ended, for the next ones."""
        self._crowded = False
        self._loads: dict[str, p.MemberLoad] = {}
        self._to_load: deque[p.MemberLoad] = deque()
        self._loading: _Asked | None = None

    # --- requests come in

    def unhandled(self, message: object) -> object:
        """Take a request of the protocol."""
        if type(message) not in _REQUESTS:
            return super().unhandled(message)
        if len(self._waiting) >= LINK_QUEUE.count:
            raise Refused("pool_busy", f"{len(self._waiting)} requests wait for the pool already")
        self._waiting.append(_Asked(message, self.later(), self._patience(message)))
        self._go_on()
        return None

    def _patience(self, message: object) -> float:
        if isinstance(message, p.Generate):
            return FRAMES.value
        return self.settings.start_timeout_s if isinstance(message, p.MemberLoad) else CONTROL.value

    @on(CallCancelled)
    def _caller_gave_up(self, message: CallCancelled) -> None:
        token = message.token
        if asked := next((a for a in self._waiting if a.answer.token == token), None):
            self._waiting.remove(asked)
            asked.answer.refuse(Refused("cancelled", "cancelled before it was sent"))
        elif asked := next((a for a in self._asked.values() if a.answer.token == token), None):
            asked.unwanted = True
            if asked.generates and asked.line is not None:
                asked.line.send(p.Cancel(asked.id))
                asked.answer.credit = 0  # who has given up may take no piece, and the Done is behind them
                asked.line.hold(False)

    def _go_on(self) -> None:
        """Send what can be sent now; connect first where nothing is connected."""
        if not self._waiting or self._dialling:
            return
        if self._control is None:
            self._dialling = True
            self._dialler.begin()
            return
        while self._loading is None and (asked := next(filter(self._may_go, self._waiting), None)):
            self._waiting.remove(asked)
            self._send(asked)

    def _may_go(self, asked: _Asked) -> bool:
        if not asked.generates:
            return True
        running = sum(other.generates for other in self._asked.values())
        return running < self.settings.max_connections and not self._crowded

    def _send(self, asked: _Asked) -> None:
        if isinstance(asked.message, Connect):
            asked.answer.reply(self._welcome)
            return
        asked.id = self._next_id
        asked.message = replace(asked.message, id=asked.id)
        self._next_id += 1
        self._asked[asked.id] = asked
        asked.heard = self.clock.now()
        asked.timer = self.after(asked.silence_s, (self._check_silence, asked))
        if asked.generates:
            if asked.answer.takes_pieces:
                asked.answer.credit = CHILD_CREDIT.count
            self._send_apart(asked)
        elif self._control is not None:
            asked.line = self._control
            asked.line.send(asked.message)

    def _send_apart(self, asked: _Asked) -> None:
        """A generation has a connection of its own; on a new one, Hello and Generate go out together."""
        try:
            asked.line = self._idle.pop() if self._idle else self._greeting()
        except BlockingIOError:
            self._forget(asked)
            self._waiting.insert(0, asked)
            self._crowded = True
            self.after(AUTOSTART_EVERY.value, (self._less_crowded, None))
        except OSError as error:
            self.finish(asked, _lost(error.strerror or str(error)))
        else:
            asked.line.listener = _Apart(self, asked)
            asked.line.send(asked.message)

    def _greeting(self) -> Line:
        """A new connection, with its Hello on the way. Raises OSError."""
        assert self._welcome is not None
        line = self._dialler.open(self)
        line.send(p.Hello(p.VERSION, client_name(), self._welcome.owner))
        return line

    def _less_crowded(self, _: None) -> None:
        self._crowded = False
        self._go_on()

    @on(Tick)
    def _tick(self, message: Tick) -> None:
        assert isinstance(message.token, tuple)  # only the link and its dialler set timers here
        act, argument = message.token
        act(argument)

    def _check_silence(self, asked: _Asked) -> None:
        left = asked.heard + asked.silence_s - self.clock.now()
        if asked.id not in self._asked:
            return
        if left > 0:
            asked.timer = self.after(left, (self._check_silence, asked))
            return
        what = type(asked.message).__name__
        self.finish(
            asked, Refused("pool_silent", f"the pool said nothing about {what} for {asked.silence_s:g} s")
        )

    # --- answers go out

    def take(self, line: Line, message: Any) -> None:
        """An answer came, on whichever line."""
        asked = None if isinstance(message, p.Welcome) else self._asked.get(message.id)
        if asked is None:
            return
        asked.heard = self.clock.now()
        counted = asked.generates and isinstance(message, p.ContextState)  # what it appended, and it goes on
        if counted or isinstance(message, (p.Token, p.Progress)):
            asked.answer.piece(message)
            self._untaken(asked, 1)
            return
        if asked.generates and asked.line is not None:
            self._idle.append(asked.line)
            asked.line = None
        is_error = isinstance(message, p.Error)
        self.finish(asked, Refused(message.code, message.message) if is_error else message)

    @on(Taken)
    def _taken(self, message: Taken) -> None:
        if asked := next((a for a in self._asked.values() if a.answer.token == message.token), None):
            asked.heard = self.clock.now()
            self._untaken(asked, -message.count)

    def _untaken(self, asked: _Asked, pieces: int) -> None:
        """Read on only as fast as the asker handles what comes."""
        if asked.answer.credit and asked.line is not None:
            asked.untaken += pieces
            asked.line.hold(asked.untaken >= asked.answer.credit)

    def misread(self, line: Line, plain: Plain, error: WireError) -> None:
        """An answer came that cannot be read."""
        asked = self._asked.get(plain["id"]) if isinstance(plain.get("id"), int) else None
        if asked is not None:
            self.finish(asked, Refused(error.code, f"the pool's answer cannot be read: {error.message}"))

    def finish(self, asked: _Asked, outcome: Any) -> None:
        """Answer a request with a message or a refusal, and go on with the next."""
        self._forget(asked)
        if isinstance(outcome, Refused):
            asked.answer.refuse(outcome)
        else:
            self._note(asked, outcome)
            asked.answer.reply(outcome)
        if asked is self._loading:
            self._load_next()
        self._go_on()

    def _note(self, asked: _Asked, outcome: Any) -> None:
        if isinstance(outcome, p.MemberLoaded):
            self._loads[outcome.member.name] = replace(asked.message, id=0)
        elif isinstance(asked.message, p.MemberUnload):
            self._loads.pop(asked.message.member, None)
        elif asked.unwanted and isinstance(asked.message, (p.ContextCreate, p.ContextFork)) and self._control:
            self._control.send(p.ContextDrop(0, outcome.context))

    def _forget(self, asked: _Asked) -> None:
        self._asked.pop(asked.id, None)
        if asked.timer is not None:
            asked.timer.cancel()
        if asked.line is not None and asked.line is not self._control:
            asked.line.close()

    # --- the connection comes and goes

    def greeted(self, line: Line, welcome: p.Welcome) -> None:
        """Connected: what was loaded for us is loaded again first. Found loaded, it is ours to use again."""
        line.listener = self
        self._control, self._welcome, self._dialling = line, welcome, False
        self._to_load = deque(self._loads.values())
        self._load_next()
        self._go_on()

    def _load_next(self) -> None:
        self._loading = None
        if self._to_load and self._control is not None:
            load = self._to_load.popleft()
            self._loading = _Asked(load, Answer(None, None, self.ref), self._patience(load))
            self._send(self._loading)

    def nobody(self) -> bool:
        """Whether a pool is to be started: somebody waits who may cause that."""
        if not self.settings.autostart:
            self.unreachable(self._no_pool())
            return False
        patient = [a for a in self._waiting if not isinstance(a.message, _NEVER_START)]
        hasty = [a for a in self._waiting if a not in patient]
        self._waiting = patient
        self._refuse(hasty, self._no_pool())
        self._dialling = bool(patient)
        return self._dialling

    def _no_pool(self) -> Refused:
        socket, pid = self.settings.socket, holder(self.settings.socket)
        if pid is None:
            return Refused("no_pool", f"no pool answers on {socket}: run `aerix pool start`")
        return Refused(
            "no_pool", f"the pool on {socket} (process {pid}) has not finished loading, or is just ending"
        )

    def starting(self, pid: int, log: Path) -> None:
        """Tell everybody who waits that a pool is being started."""
        for asked in self._waiting:
            asked.answer.piece(Starting(pid, str(log)))

    def may_replace(self) -> bool:
        """Whether somebody waits who may start a pool."""
        patient = any(not isinstance(asked.message, _NEVER_START) for asked in self._waiting)
        return self.settings.autostart and patient

    def unreachable(self, why: Refused) -> None:
        """Refuse everybody who waits; the next request tries anew."""
        self._dialling = False
        waiting, self._waiting = self._waiting, []
        self._refuse(waiting, why)

    def ended(self, line: Line, error: WireError | None) -> None:
        """The control connection is lost, and with it every context: nothing that was asked will be answered."""
        line.close()
        for idle in self._idle:
            idle.close()
        self._idle.clear()
        self._control = self._loading = None
        self._refuse(list(self._asked.values()), _lost(error.message if error else "the pool closed it"))
        self._go_on()

    def forgot(self, line: Line) -> bool:
        """A generation's connection has ended; whether none was running on it."""
        if line not in self._idle:
            return False
        self._idle.remove(line)
        line.close()
        return True

    def _refuse(self, asked: Iterable[_Asked], why: Refused) -> None:
        for one in asked:
            self._forget(one)
            one.answer.refuse(why)

    def teardown(self, exit: Exit) -> None:
        """Close every connection; the pool drops this process's contexts, and stays."""
        self._dialler.drop()
        left = [*self._waiting, *self._asked.values()]
        for line in (self._control, *self._idle, *(asked.line for asked in left)):
            if line is not None:
                line.drop()
        self._refuse(left, _lost("the link to it has ended"))


class _Apart:
    """Listens to a generation's own line."""

    def __init__(self, link: PoolLink, asked: _Asked) -> None:
        self._link = link
        self._asked = asked
        self.take = link.take
        self.misread = link.misread

    def ended(self, line: Line, error: WireError | None) -> None:
        if not self._link.forgot(line):
            self._link.finish(self._asked, _lost(error.message if error else "the pool closed it"))


def _lost(why: str) -> Refused:
    return Refused("connection_lost", f"the connection to the pool was lost: {why}")
