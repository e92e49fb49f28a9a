"""Member: a loaded model. Owns its worker process, starts it again when it dies, and passes requests on to it.

Requests and answers do not go through here twice: a request is forwarded, and the worker's pieces and answer go
straight to the connection that asked.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import aerix.pool.protocol as p
from aerix.actors import (
    Actor,
    Answer,
    CallCancelled,
    Down,
    Exit,
    Gone,
    Intensity,
    Ref,
    Refused,
    Reply,
    RestartWindow,
    Stop,
    System,
    Tick,
    launch,
    on,
    whereis,
)
from aerix.actors.process import ProcessActor
from aerix.actors.wire import Plain
from aerix.pool.bounds import (
    CANCEL_REACTION,
    HELD_PROGRESS,
    MEMBER_DELAY,
    MEMBER_HELD,
    MEMBER_LOAD,
    MEMBER_RESTARTS,
    MEMBER_WINDOW,
    STATUS_WAIT,
    WORKER_WINDOW,
)
from aerix.pool.connection import worker_actor
from aerix.pool.ladder import LADDER
from aerix.pool.models import ResolvedModel
from aerix.pool.permits import PERMITS, Ended, Rest, Want
from aerix.pool.workerargs import WorkerArgs

_CRASHES = tuple(f"signal {name}" for name in ("SIGSEGV", "SIGILL", "SIGBUS", "SIGABRT", "SIGFPE", "SIGTRAP"))
"""Ends that plainer settings may avoid; who was killed (short of memory, by a user) was not at fault."""
_ON_CONTEXTS = (
    p.ContextAppend, p.ContextReplace, p.ContextRemove, p.ContextFork, p.ContextDrop, p.ContextRead, p.Generate,
)  # fmt: skip
"""Requests on a context that a worker holds already: with the worker, it is gone."""


@dataclass(frozen=True, slots=True)
class WorkerReady(System):
    """The worker has loaded and tested its model; ``info`` is what it told."""

    info: Plain
    pid: int


class Worker(ProcessActor):
    """The worker process's actor; ``member`` is told when it is ready.

    One that computes (``args.leashed``) wants a permit while it loads, and while a generation is not answered.
    """

    def __init__(self, member: Ref, args: WorkerArgs) -> None:
        body = "aerix.pool.remote_worker:main" if args.remote else "aerix.pool.worker:main"
        super().__init__(body, args.to_dict(), p.WORKER_CODEC, guard="kill", window=WORKER_WINDOW.count)
        self._member = member
        self._permits = whereis(PERMITS) if args.leashed else None
        self._generating: set[int] = set()

    def setup(self) -> None:
        """Start the process; its self-test computes."""
        super().setup()
        self._tell_permits(Want)

    def ready(self, info: Plain) -> None:
        """Hand on what the worker told about itself."""
        self._member.tell_if_alive(WorkerReady(info, self.pid))
        self._tell_permits(Rest)

    def unhandled(self, message: object) -> object:
        """See ProcessActor; a generation is something to compute."""
        value = super().unhandled(message)
        if isinstance(message, p.Generate):
            self._generating.add(next(reversed(self._open)))
            if len(self._generating) == 1:
                self._tell_permits(Want)
        return value

    def _take_answer(self, frame: Plain) -> None:
        super()._take_answer(frame)
        if self._generating and frame["t"] in ("reply", "error"):
            self._generating.discard(frame["id"])
            if not self._generating:
                self._tell_permits(Rest)

    def _tell_permits(self, what: type[Want | Rest | Ended]) -> None:
        if self._permits is not None:
            self._permits.tell_if_alive(what(self.ref))

    def teardown(self, exit: Exit) -> None:
        """See ProcessActor; a process that is gone computes nothing."""
        super().teardown(exit)
        self._tell_permits(Ended)

    @on(CallCancelled)
    def _cancel(self, message: CallCancelled) -> None:
        """Pass the cancel on; a worker that does not react to it is stuck, and is ended for its member to restart."""
        super()._cancel(message)
        self.after(CANCEL_REACTION.value, message)

    @on(Tick)
    def _force(self, message: Tick) -> None:
        if not isinstance(message.token, CallCancelled):
            super()._force(message)
        elif any(answer.token == message.token.token for answer in self._open.values()):
            self.kill(f"it did not react to a cancel in {CANCEL_REACTION.value:g} s")


_State = Literal["loading", "ready", "restarting", "failed"]


class Member(Actor):
    """One model. Up when its worker is ready for the first time; ends when it cannot be loaded at all.

    A worker that dies later is started again, at most 3 times in 600 s; then the member stays, and answers
    ``member_failed`` with the reason until it is loaded again.
    """

    starts_later = True

    def __init__(self, name: str, model: ResolvedModel, flags: dict[str, Any]) -> None:
        """``flags`` are WorkerArgs' fields, checked."""
        self._args = WorkerArgs(model=str(model.path) if model.kind == "gguf" else model.name, **flags)
        self._computes = model.kind == "gguf"
        self._info = p.MemberInfo(name, "loading")
        self._worker: Ref | None = None
        self._window = _new_window()
        self._rung = 0
        self._held: deque[tuple[Answer, Any]] = deque()
        self._asked_status: dict[int, Answer] = {}
        self._stopped: str | None = None
        self._file = model.path
        self._stamp: tuple[int, ...] = ()
        self._renewing = False

    # --- requests

    def unhandled(self, message: object) -> object:
        """Pass a request on to the worker; hold it, or refuse it, while there is none."""
        if type(message) not in (p.ContextCreate, *_ON_CONTEXTS):
            return super().unhandled(message)
        if self._info.state == "ready" and self._worker is not None:
            try:
                self.forward(self._worker, message)
                return None
            except Gone:  # it has just died: its Down is on the way
                pass
        if isinstance(message, p.ContextDrop):
            return p.Ok(message.id)  # it went with the worker
        if self._info.state == "failed":
            raise Refused("member_failed", self._info.note)
        if isinstance(message, _ON_CONTEXTS):
            raise Refused(
                "member_restarted", f"{self._info.name} lost its contexts: {self._info.note or 'it restarts'}"
            )
        self._hold(message)
        return None

    def _hold(self, message: Any) -> None:
        if len(self._held) >= MEMBER_HELD.count:
            raise Refused("pool_busy", f"{len(self._held)} requests wait for {self._info.name} already")
        answer = self.later()
        self._held.append((answer, message))
        self._after(HELD_PROGRESS.value, lambda: self._sign_of_life(answer))

    def _sign_of_life(self, answer: Answer) -> None:
        """Whoever is held hears something before it gives up: progress of nothing known."""
        if any(answer is held for held, _ in self._held):
            answer.piece(p.Progress(0, 0, 0))
            self._after(HELD_PROGRESS.value, lambda: self._sign_of_life(answer))

    @on(CallCancelled)
    def _caller_gave_up(self, message: CallCancelled) -> None:
        for held in [held for held in self._held if held[0].token == message.token]:
            self._held.remove(held)
            held[0].refuse(Refused("cancelled", "cancelled while the member restarted"))

    @on(p.MemberLoad)
    def _load(self, message: p.MemberLoad) -> object:
        """Answer when ready; a member that had given up, or whose file is another one now, loads it anew."""
        if self._info.state == "ready" and self._stamp == _stamp(self._file):
            return p.MemberLoaded(0, self._info)
        if self._info.state == "ready" and self._worker is not None:
            self._info = replace(self._info, state="restarting", note="its file has changed")
            self._renewing = True
            self._worker.stop(self._info.note)
        if self._info.state == "failed":
            self._window = _new_window()
            self._start("restarting")
        self._hold(message)
        return None

    # --- status

    @on(p.MemberList)
    def _status(self, message: p.MemberList) -> object:
        """This member's MemberInfo, with the worker's own numbers where it answers."""
        if self._info.state != "ready" or self._worker is None:
            return self._info
        call = self.request(self._worker, message)
        self._asked_status[call.token] = self.later()
        self._after(STATUS_WAIT.value, lambda: self._answer_status(call.token))
        return None

    @on(Reply)
    def _told(self, message: Reply) -> None:
        if message.token in self._asked_status and isinstance(message.value, p.Members):
            told = message.value.members[0]
            self._info = replace(
                self._info,
                contexts=told.contexts,
                running=told.running,
                waiting=told.waiting,
                threads=told.threads,
                totals=told.totals,
                shelves=told.shelves,
            )
        self._answer_status(message.token)

    def _answer_status(self, token: int) -> None:
        if answer := self._asked_status.pop(token, None):
            answer.reply(self._info)

    # --- the bytes of its snapshots

    @on(p.Budget)
    def _set_budget(self, message: p.Budget) -> None:
        """Its part of what the pool's members keep together; a worker that starts later begins with it."""
        self._args = replace(self._args, context_budget=message.bytes)
        if self._info.state == "ready":
            self._tell_budget()

    def _tell_budget(self) -> None:
        if self._args.context_budget >= 0 and not self._args.remote and self._worker is not None:
            with suppress(Refused):  # it has just died
                self._worker.tell(p.Budget(self._args.context_budget))

    # --- the worker comes and goes

    def setup(self) -> None:
        """Start the first worker."""
        self._start("loading")

    def _start(self, state: _State) -> None:
        self._info = replace(self._info, state=state, pid=0)
        self._stamp = _stamp(self._file)
        leashed = self._computes and whereis(PERMITS) is not None
        args = replace(self._args, rung=self._rung, leashed=leashed)
        worker = launch(Worker(self.ref, args), worker_actor(self._info.name), self.ref)
        self._worker = worker
        self._after(MEMBER_LOAD.value, lambda: self._too_slow(worker))

    def _too_slow(self, worker: Ref) -> None:
        if worker is self._worker and self._info.state in ("loading", "restarting"):
            self._stopped = f"loading took more than {MEMBER_LOAD.value:g} s"
            worker.stop(self._stopped)

    @on(WorkerReady)
    def _ready(self, message: WorkerReady) -> None:
        known = {field.name for field in fields(p.MemberInfo)} - {
            "name",
            "state",
            "restarts",
            "settings",
            "pid",
        }
        told = {key: value for key, value in message.info.items() if key in known}
        self._info = replace(
            self._info, state="ready", note="", settings=LADDER[self._rung].sentence, pid=message.pid
        )
        self._info = replace(
            self._info, contexts=0, running=0, waiting=0, totals=p.Totals(), shelves=[], **told
        )
        self._renewing = False
        self._tell_budget()
        self.declare_started()
        self._release()

    def _release(self) -> None:
        held, self._held = self._held, deque()
        for answer, message in held:
            if isinstance(message, p.MemberLoad):
                answer.reply(p.MemberLoaded(0, self._info))
                continue
            try:
                assert self._worker is not None
                self._worker.send(message, answer)
            except Refused as refusal:
                answer.refuse(Refused("member_restarted", refusal.message))

    @on(Down)
    def _worker_ended(self, message: Down) -> None:
        if self._worker is None or message.incarnation != self._worker.incarnation:
            return
        self._worker = None
        why = self._stopped or _reason(message.exit)
        self._stopped = None
        if self._ending:
            self.stop("shutdown", self._ending)
        elif self._renewing and message.started:
            self._start("restarting")
        elif message.started:
            self._restart(f"its worker ended: {why}")
        elif message.exit.detail.startswith(_CRASHES) and self._rung + 1 < len(LADDER):
            self._rung += 1
            self._start(self._info.state)
        elif self._renewing:
            self._renewing = False
            self._fail(
                Refused("load_failed", f"{self._info.name} has changed and could not be loaded: {why}")
            )
        elif self.ref.started.is_set():
            self._restart(f"its worker did not come up: {why}")
        else:
            self._give_up(f"{why}, on the plainest settings too" if self._rung + 1 == len(LADDER) else why)

    def _give_up(self, why: str) -> None:
        """The model cannot be loaded at all."""
        refusal = Refused("load_failed", f"{self._info.name} could not be loaded: {why}")
        self.ref.refusal = refusal
        self._refuse_held(refusal)
        self.stop("lost", why)

    def _restart(self, why: str) -> None:
        delay = self._window.record(self.clock.now())
        if delay is None:
            limit = f"{MEMBER_RESTARTS.count} restarts in {MEMBER_WINDOW.value:g} s were not enough"
            self._fail(Refused("member_failed", f"{limit}: {why}"))
            return
        restarts = self._info.restarts + 1
        self._info = replace(
            self._info, state="restarting", restarts=restarts, note=why, restarted=why, pid=0
        )
        if delay:
            self._after(delay, self._start_again)
        else:
            self._start_again()

    def _fail(self, why: Refused) -> None:
        """Stay, and answer why, until it is loaded again."""
        self._info = replace(
            self._info, state="failed", pid=0, note=why.message, contexts=0, running=0, waiting=0
        )
        self._refuse_held(why)

    def _start_again(self) -> None:
        if self._worker is None and self._info.state == "restarting" and not self._ending:
            self._start("restarting")

    def _refuse_held(self, why: Refused) -> None:
        held, self._held = self._held, deque()
        for answer, _ in held:
            answer.refuse(why)

    # --- the end

    _ending: str = ""

    @on(Stop)
    def _stop_worker(self, message: Stop) -> None:
        """End the worker first."""
        self._ending = message.reason or "shutdown"
        if self._worker is None:
            self.stop("shutdown", self._ending)
        else:
            self._worker.stop(self._ending)

    def teardown(self, exit: Exit) -> None:
        """Leave no worker behind (this actor crashed), and nobody waiting."""
        if self._worker is not None:
            self._worker.stop(exit.kind)
        self._refuse_held(Refused("member_restarted", f"{self._info.name} ended: {exit.detail or exit.kind}"))

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self.after(seconds, act)

    @on(Tick)
    def _tick(self, message: Tick) -> None:
        message.token()  # type: ignore[operator]  # only _after sets timers here


def _stamp(path: Path) -> tuple[int, ...]:
    """Changes when the file does; empty where there is none, as for a model on a server."""
    try:
        told = path.stat() if path.name else None
    except OSError:
        return ()
    return (told.st_ino, told.st_size, told.st_mtime_ns) if told else ()


def _new_window() -> RestartWindow:
    return RestartWindow(Intensity(MEMBER_RESTARTS.count, MEMBER_WINDOW.value, MEMBER_DELAY.value))


def _reason(exit: Exit) -> str:
    """A worker's end in one line: a refusal's own sentence, else how it ended and its last line."""
    how, _, detail = exit.detail.partition(": ")
    last = detail.strip().rpartition("\n")[2].strip()
    kind, _, sentence = last.partition(": ")
    if kind.rpartition(".")[2] == "Refused" and sentence:
        return sentence
    if exit.detail == "signal SIGKILL":
        return "it was killed by another program, or by the kernel for lack of memory"
    return f"{how}: {last}" if last else how or exit.kind
