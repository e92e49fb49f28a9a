"""A real daemon on a real socket, a client of bare frames, and an actor that runs a test's steps."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Actor, Ref, on, start
from aerix.actors.wire import pack, pack_json, unpack
from aerix.pool.address import connect
from aerix.pool.client import PoolLink, PoolSettings
from aerix.pool.protocol import VERSION, Segment

AERIX = (sys.executable, "-m", "aerix")
PATIENCE = 30.0  # seconds after which something that should have come is missed
TEXT = "The quick brown fox jumps over the lazy dog."


# --- scripted models ----------------------------------------------------------------------------------------------


class Scripts:
    """Writes scripted models; calling it gives the reference."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def __call__(self, *steps: dict[str, Any], window: int = 4096, **header: Any) -> str:
        self._count += 1
        path = self._folder / f"model{self._count}.jsonl"
        lines = [{"window": window, **header}, *(steps or ({"text": TEXT, "per_token_delay": 0.01},))]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return f"scripted:{path}"


@pytest.fixture
def script(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


# --- daemons ------------------------------------------------------------------------------------------------------


@dataclass
class Daemon:
    """A daemon process that a test has started."""

    process: "subprocess.Popen[str]"
    socket: Path
    lines: list[str] = field(default_factory=list)

    def read_until(self, word: str) -> str:
        """The next line of its output that holds ``word``; fails at its end."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if word in line:
                return self.lines[-1]
        raise AssertionError(f"the daemon ended without saying {word!r}: {self.lines}")

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        assert self.process.stderr is not None
        self.lines += self.process.stderr.read().splitlines()
        return self.process.wait(PATIENCE)

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(sig)
        return self.ended()


class Daemons:
    """Starts daemons; each is killed at the test's end, unless it ended before."""

    def __init__(self, socket_path: Path) -> None:
        self.socket = socket_path
        self.all: list[Daemon] = []

    def __call__(
        self,
        *loads: str,
        flags: tuple[str, ...] = (),
        socket: Path | None = None,
        wait: bool = True,
        **bounds: float,
    ) -> Daemon:
        """``bounds`` are rows of the table by their variable's end, as ``POOL_HELLO=0.1``."""
        at = socket or self.socket
        command = [*AERIX, "pool", "--socket", str(at), *flags]
        for ref in loads:
            command += ["--load", ref]
        env = os.environ | {f"AERIX_BOUND_{name}": str(value) for name, value in bounds.items()}
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=env
        )
        daemon = Daemon(process, at)
        self.all.append(daemon)
        if wait:
            daemon.read_until("ready on")
        return daemon

    def close(self) -> None:
        for daemon in self.all:
            if daemon.process.poll() is None:
                daemon.process.kill()
            daemon.process.wait()
            assert daemon.process.stderr is not None
            daemon.process.stderr.close()


@pytest.fixture
def pool(runtime_dir: Path) -> Iterator[Daemons]:
    daemons = Daemons(runtime_dir / "aerix" / "pool.sock")
    yield daemons
    daemons.close()


# --- a client of bare frames --------------------------------------------------------------------------------------


class Wire:
    """A connection that sends and gets plain maps."""

    def __init__(self, path: Path, *, as_json: bool = False) -> None:
        self.sock = connect(path)
        self.sock.settimeout(PATIENCE)
        self._pack = pack_json if as_json else pack
        self._ids = 0

    def send(self, type: str, **fields: Any) -> int:  # noqa: A002 - the wire's word
        """Send a message; the id that it was given."""
        self._ids += 1
        self.sock.sendall(self._pack({"type": type, "id": self._ids, **fields}))
        return int(fields.get("id", self._ids))

    def body(self) -> bytes | None:
        """The next frame's body; None at the end."""
        head = self._exactly(4)
        return None if head is None else self._exactly(struct.unpack(">I", head)[0])

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                piece = self.sock.recv(count - len(data))
            except ConnectionResetError:
                return None
            if not piece:
                return None
            data += piece
        return data

    def get(self) -> dict[str, Any] | None:
        body = self.body()
        return None if body is None else unpack(body)

    def ask(self, type: str, **fields: Any) -> dict[str, Any]:  # noqa: A002
        """Send, and the first answer that carries the id and is no piece."""
        id_ = self.send(type, **fields)
        while True:
            answer = self.get()
            assert answer is not None, f"the connection ended before {type} was answered"
            if answer.get("id") == id_ and answer["type"] not in ("Token", "Progress"):
                return answer

    def hello(self, owner: str | None = None, version: int = VERSION) -> dict[str, Any]:
        self.send("Hello", version=version, client="test", owner=owner)
        answer = self.get()
        assert answer is not None
        return answer

    def create(self, member: str, text: str = "hi") -> str:
        """A context of one user segment; its id."""
        answer = self.ask(
            "ContextCreate", member=member, segments=[{"id": "u", "role": "user", "text": text}]
        )
        assert answer["type"] == "ContextState", answer
        return str(answer["context"])

    def close(self) -> None:
        self.sock.close()


@pytest.fixture
def wire() -> Iterator[Callable[..., Wire]]:
    opened: list[Wire] = []

    def open_(path: Path, *, as_json: bool = False) -> Wire:
        opened.append(Wire(path, as_json=as_json))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


# --- the real client ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Do:
    """Run the function in the actor's thread; what it returns is the answer."""

    work: Callable[[Actor], object]


class Runner(Actor):
    """An actor that does what a test says."""

    @on(Do)
    def _do(self, message: Do) -> object:
        return message.work(self)


class Clients:
    """Starts links and runners, and stops them."""

    def __init__(self, socket_path: Path, log: Path) -> None:
        self._socket = socket_path
        self._log = log
        self._refs: list[Ref] = []
        self._count = 0

    def settings(self, **changes: Any) -> PoolSettings:
        plain: dict[str, Any] = {"socket": self._socket, "start_log": self._log, "autostart": False}
        return PoolSettings(**(plain | changes))

    def link(self, **changes: Any) -> Ref:
        return self._start(PoolLink(self.settings(**changes)), "link")

    def runner(self) -> Ref:
        return self._start(Runner(), "runner")

    def _start(self, actor: Actor, kind: str) -> Ref:
        self._count += 1
        self._refs.append(start(actor, f"{kind}{self._count}"))
        return self._refs[-1]

    def close(self) -> None:
        for ref in reversed(self._refs):
            ref.stop()
            ref.cancel()
        assert all(ref.join(PATIENCE) for ref in self._refs)


@pytest.fixture
def client(pool: Daemons, tmp_path: Path) -> Iterator[Clients]:
    clients = Clients(pool.socket, tmp_path / "pool-start.log")
    yield clients
    clients.close()


def user(text: str, id_: str = "u") -> Segment:
    return Segment(id_, "user", text)


def peer_pid(path: Path) -> int:
    """The process that listens at ``path``."""
    with connect(path) as sock:
        return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
