"""Both sides of each figure of ``scripts/bench/actors.py``: an actor's, and that of the primitive under it."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import cbor2
import pykka

from aerix.actors import Actor, ChildSpec, Intensity, Piece, Ref, Reply, Supervisor, on, start
from aerix.actors.process import ProcessActor
from scripts.bench.actors import CODEC, LENGTH, Echo, Stream, echo, say, serve_alone

BODY = "scripts.bench.actors:serve"
PATIENCE = 60.0
IDLE = 500
SPAWN = get_context("spawn")

Side = Callable[[], float]
"""Takes one round; gives messages a second, or milliseconds, or bytes."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How much one round takes, and how many rounds there are."""

    rounds: int
    tells: int
    asks: int
    trips: int
    frames: int
    thread_restarts: int
    process_restarts: int
    memory_rounds: int


FULL = Counts(9, 20_000, 3_000, 1_000, 20_000, 200, 9, 3)
QUICK = Counts(1, 200, 20, 10, 100, 2, 1, 1)


def measure(*, quick: bool) -> dict[str, Any]:
    """All figures. A ``ratio`` is the actor's over the bare one's; what it should be stands in DESIGN section 8."""
    counts = QUICK if quick else FULL
    return {
        "tell": row("per_s", counts.rounds, tells(counts.tells)),
        "ask": row("us", counts.rounds, asks(counts.asks)),
        "process_round_trip": row("us", counts.rounds, trips(counts.trips)),
        "token_frames": row("per_s", counts.rounds, frames(counts.frames)),
        "restart_thread": row("ms", counts.thread_restarts, thread_restarts()),
        "restart_process": row("ms", counts.process_restarts, process_restarts()),
        "idle_500": row("MiB", counts.memory_rounds, idle()),
    }


def row(unit: str, rounds: int, sides: Any) -> dict[str, Any]:
    """One after the other, again and again, so that what else the machine does hits both; the medians."""
    with sides as (actor, bare):
        taken = [(actor(), bare()) for _ in range(rounds)]
    ours, theirs = (median(side) for side in zip(*taken, strict=True))
    ratio = median(one / other for one, other in taken)
    return {
        "unit": unit, "actor": round(ours, 3), "bare": round(theirs, 3), "ratio": round(ratio, 2), "rounds": rounds,
    }  # fmt: skip


def seconds(do: Callable[[], object]) -> float:
    begin = perf_counter()
    do()
    return perf_counter() - begin


@contextmanager
def running(actor: Actor, name: str) -> Iterator[Ref]:
    ref = start(actor, name)
    try:
        yield ref
    finally:
        ref.stop()
        ref.join(PATIENCE)


# --- threads ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Last:
    """Ends a round."""

    seen: threading.Event


class Answering(Actor):
    """Handles what the two first figures send."""

    mailbox_limit = FULL.tells + 1

    @on(Echo)
    def _echo(self, message: Echo) -> Echo:
        return message

    @on(Last)
    def _last(self, message: Last) -> None:
        message.seen.set()


@contextmanager
def tells(count: int) -> Iterator[tuple[Side, Side]]:
    """From the first message put to the last one handled, against a thread that takes them from a queue."""
    inbox: queue.Queue[Any] = queue.Queue()

    def take() -> None:
        while (message := inbox.get()) is not None:
            if type(message) is Last:
                message.seen.set()

    def rate(put: Callable[[object], object]) -> float:
        message, last = Echo("x"), Last(threading.Event())

        def send() -> None:
            for _ in range(count):
                put(message)
            put(last)
            last.seen.wait(PATIENCE)

        return count / seconds(send)

    thread = threading.Thread(target=take)
    thread.start()
    with running(Answering(), "answering") as ref:
        yield lambda: rate(ref.tell), lambda: rate(inbox.put)
    inbox.put(None)
    thread.join()


class Plain(pykka.ThreadingActor):
    """Pykka's own actor."""

    use_daemon_thread = True

    def on_receive(self, message: object) -> object:
        """Answer."""
        return message


@contextmanager
def asks(count: int) -> Iterator[tuple[Side, Side]]:
    """A question and its answer, against Pykka's."""
    message = Echo("x")

    def each(ask: Callable[[], object]) -> float:
        return seconds(lambda: [ask() for _ in range(count)]) / count * 1e6

    plain = Plain.start()
    with running(Answering(), "answering") as ref:
        yield (
            lambda: each(lambda: ref.ask(message, PATIENCE)),
            lambda: each(lambda: plain.ask(message, timeout=PATIENCE)),
        )
    plain.stop()


# --- processes ----------------------------------------------------------------------------------------------------


def owner() -> ProcessActor:
    return ProcessActor(BODY, {}, CODEC, guard="kill", window=4)


@contextmanager
def bare_child(body: Callable[[socket.socket], None]) -> Iterator[tuple[Any, socket.socket]]:
    """A spawned process and this end of its socket pair."""
    ours, theirs = socket.socketpair()
    process = SPAWN.Process(target=body, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    with ours:
        try:
            yield process, ours
        finally:
            process.kill()
            process.join()
            process.close()


@contextmanager
def trips(count: int) -> Iterator[tuple[Side, Side]]:
    """Caller, actor, child and back, against the same frames between two blocking ends."""
    message = Echo("x" * 32)
    plain = {"t": "call", "id": 1, "m": CODEC.encode(message)}

    def trip(sock: socket.socket) -> None:
        body = cbor2.dumps(plain)
        sock.sendall(LENGTH.pack(len(body)) + body)
        cbor2.loads(sock.recv(65536)[LENGTH.size :])

    def each(go: Callable[[], object]) -> float:
        return seconds(lambda: [go() for _ in range(count)]) / count * 1e6

    with bare_child(echo) as (_, sock), running(owner(), "owner") as ref:
        trip(sock)  # it is up
        yield lambda: each(lambda: ref.ask(message, PATIENCE)), lambda: each(lambda: trip(sock))


class Reader(Actor):
    """Asks for a stream of pieces, and tells when the answer is there."""

    def __init__(self, ref: Ref) -> None:
        self._from = ref
        self._done = threading.Event()

    @on(Last)
    def _begin(self, message: Last) -> None:
        self._done = message.seen

    @on(Stream)
    def _ask(self, message: Stream) -> None:
        self.request(self._from, message)

    @on(Piece)
    def _piece(self, message: Piece) -> None:
        """What a token costs to be got, and no more."""

    @on(Reply)
    def _reply(self, message: Reply) -> None:
        self._done.set()


@contextmanager
def frames(count: int) -> Iterator[tuple[Side, Side]]:
    """From the call to its answer, all pieces before it; against a loop that reads the same child's socket."""

    def stream(reader: Ref) -> None:
        done = threading.Event()
        reader.tell(Last(done))
        reader.tell(Stream(count))
        done.wait(PATIENCE)

    with ExitStack() as stack:
        _, sock = stack.enter_context(bare_child(serve_alone))
        reader = stack.enter_context(
            running(Reader(stack.enter_context(running(owner(), "owner"))), "reader")
        )
        yield (
            lambda: count / seconds(lambda: stream(reader)),
            lambda: count / seconds(lambda: read_stream(sock, count)),
        )


def read_stream(sock: socket.socket, count: int) -> None:
    """Ask for the pieces and read them all, and the answer."""
    call = {"t": "call", "id": 1, "m": CODEC.encode(Stream(count)), "credit": count}
    body = cbor2.dumps(call)
    sock.sendall(LENGTH.pack(len(body)) + body)
    held = b""
    while True:
        held += sock.recv(262_144)
        at = 0
        while len(held) - at >= LENGTH.size:
            end = at + LENGTH.size + LENGTH.unpack_from(held, at)[0]
            if end > len(held):
                break
            if cbor2.loads(held[at + LENGTH.size : end])["t"] == "reply":
                return
            at = end
        held = held[at:]


# --- restarts -----------------------------------------------------------------------------------------------------


class Keeper(Supervisor):
    """Restarts one child at once, however often, and tells when it is up."""

    def __init__(self, build: Callable[[], Actor]) -> None:
        super().__init__([ChildSpec("kept", build)], intensity=Intensity(1_000_000, 3600, 0.0))
        self.child = queue.SimpleQueue[Ref]()

    def child_up(self, name: str, ref: Ref) -> None:
        """Tell."""
        self.child.put(ref)


class Fragile(Actor):
    """Crashes when it is told anything."""

    def unhandled(self, message: object) -> object:
        """Crash."""
        raise ValueError


@contextmanager
def kept(build: Callable[[], Actor], crash: Callable[[Ref], object]) -> Iterator[Side]:
    """From a crash to the next one's being up, in milliseconds."""
    keeper = Keeper(build)
    with running(keeper, "keeper"):
        ref = keeper.child.get()

        def again() -> None:
            nonlocal ref
            crash(ref)
            ref = keeper.child.get()

        yield lambda: seconds(again) * 1e3


@contextmanager
def thread_restarts() -> Iterator[tuple[Side, Side]]:
    """Against the start of a bare thread, until it runs."""

    def bare() -> None:
        up = threading.Event()
        threading.Thread(target=up.set).start()
        up.wait(PATIENCE)

    with kept(Fragile, lambda ref: ref.tell(Echo("x"))) as again:
        yield again, lambda: seconds(bare) * 1e3


@contextmanager
def process_restarts() -> Iterator[tuple[Side, Side]]:
    """Killed until up again, against a bare spawn until it speaks, and the kill of it."""
    built: list[ProcessActor] = []

    def build() -> ProcessActor:
        built.append(owner())
        return built[-1]

    def bare() -> None:
        with bare_child(say) as (_, sock):
            sock.recv(2)

    with kept(build, lambda _: os.kill(built[-1].pid, signal.SIGKILL)) as again:
        yield again, lambda: seconds(bare) * 1e3


# --- memory -------------------------------------------------------------------------------------------------------

_SIDES = {
    "actor": "ends = [start(Actor(), str(n)) for n in range(IDLE)]",
    "bare": "ends = [idle_thread() for _ in range(IDLE)]",
}


@contextmanager
def idle() -> Iterator[tuple[Side, Side]]:
    """Memory of so many that do nothing, each side in a fresh interpreter; bare: a thread that waits on its queue."""
    yield lambda: grown("actor"), lambda: grown("bare")


def grown(side: str) -> float:
    program = (
        "import json, os\nfrom scripts.bench.actors_sides import *\nbefore = resident()\n"
        f"{_SIDES[side]}\nprint(json.dumps(resident() - before), flush=True)\nos._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)) / 2**20


def idle_thread() -> queue.Queue[object]:
    inbox: queue.Queue[object] = queue.Queue()
    threading.Thread(target=inbox.get, daemon=True).start()
    return inbox


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
