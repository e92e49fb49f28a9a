"""A real worker process, its owner, and what came of each request."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from aerix.actors import Actor, Call, Exit, Piece, Ref, Refused, Reply, launch, on
from aerix.actors.process import ProcessActor
from aerix.actors.wire import Packed, Plain, unpack
from aerix.pool import protocol as p
from aerix.pool.workerargs import WorkerArgs

PATIENCE = 60.0


@dataclass
class Asked:
    """A request under way."""

    message: Any
    paused: bool = False
    """Whether the pieces that come first are all it takes."""
    pieces: list[Any] = field(default_factory=list)
    call: Call | None = None
    over: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def result(self) -> Any:
        assert self.over.wait(PATIENCE), f"no answer to {self.message}"
        assert self.call is not None
        return self.call.result()

    def refusal(self) -> Refused:
        try:
            value = self.result()
        except Refused as refusal:
            return refusal
        raise AssertionError(f"it was not refused but answered {value}")

    def until(self, pieces: Callable[[list[Any]], bool]) -> None:
        """Wait for such pieces."""
        with self.changed:
            assert self.changed.wait_for(lambda: pieces(self.pieces), PATIENCE), (
                f"{self.pieces} of {self.message}"
            )


@dataclass(frozen=True)
class Send:
    asked: Asked


@dataclass(frozen=True)
class GiveUp:
    asked: Asked


class _Owner(Actor):
    def __init__(self, worker: Ref) -> None:
        self._worker = worker
        self._asked: dict[int, Asked] = {}

    @on(Send)
    def _send(self, message: Send) -> None:
        call = message.asked.call = self.request(self._worker, message.asked.message)
        self._asked[call.token] = message.asked
        if message.asked.paused:
            call.pause()

    @on(GiveUp)
    def _give_up(self, message: GiveUp) -> None:
        assert message.asked.call is not None
        message.asked.call.cancel()

    @on(Piece)
    def _piece(self, message: Piece) -> None:
        asked = self._asked[message.token]
        value = message.value
        if isinstance(value, Packed):
            value = p.CODEC.decode(unpack(value.body))
        with asked.changed:
            asked.pieces.append(value)
            asked.changed.notify_all()

    @on(Reply)
    def _reply(self, message: Reply) -> None:
        self._asked.pop(message.token).over.set()


class _Port(ProcessActor):
    def __init__(self, args: WorkerArgs) -> None:
        body = "aerix.pool.remote_worker:main" if args.remote else "aerix.pool.worker:main"
        super().__init__(body, args.to_dict(), p.WORKER_CODEC, guard="kill", window=256)
        self.info: Plain = {}

    def ready(self, info: Plain) -> None:
        self.info = info


class Owner:
    """Starts a worker; ``ask`` sends it a request without waiting."""

    def __init__(self, args: WorkerArgs) -> None:
        self._port = _Port(args)
        self.worker = launch(self._port, "worker", None)
        self.owner = launch(_Owner(self.worker), "owner", None)

    @property
    def info(self) -> Plain:
        """What the worker said when it was ready. Waits for that."""
        assert self.worker.started.wait(PATIENCE)
        return self._port.info

    @property
    def pid(self) -> int:
        assert self.info
        return self._port.pid

    def ask(self, message: Any, *, paused: bool = False) -> Asked:
        assert self.worker.started.wait(PATIENCE)
        asked = Asked(message, paused)
        self.owner.tell(Send(asked))
        return asked

    def cancel(self, asked: Asked) -> None:
        self.owner.tell(GiveUp(asked))

    def create(self, *segments: p.Segment) -> str:
        state = self.ask(p.ContextCreate(1, "m", list(segments))).result()
        assert isinstance(state, p.ContextState)
        return state.context

    def status(self, wanted: Callable[[p.MemberInfo], bool]) -> None:
        """Ask the worker how it is until it says so; it may not have taken up its next generation yet."""
        end = monotonic() + PATIENCE
        while True:
            (info,) = self.ask(p.MemberList(1)).result().members
            if wanted(info):
                return
            assert monotonic() < end, info

    def end(self) -> Exit:
        """How the worker ended. Waits for that."""
        exit = self.worker.join(PATIENCE)
        assert exit is not None
        return exit


@contextmanager
def worker(args: WorkerArgs) -> Iterator[Owner]:
    """A worker process that is stopped in the end."""
    owner = Owner(args)
    try:
        yield owner
    finally:
        owner.worker.stop()
        owner.end()
        owner.owner.stop()
        assert owner.owner.join(PATIENCE)
