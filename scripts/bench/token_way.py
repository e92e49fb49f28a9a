"""The daemon's share of a token's way from worker to client, against a bare socket pair with the same frames.

A worker that stamps each token with the clock sends one every 2 ms; the client takes the difference. Prints one JSON
line with medians in milliseconds.
"""

import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from time import monotonic
from typing import Any

from aerix.actors.child import Channel
from aerix.actors.wire import FrameReader, pack
from aerix.pool.pieces import Pieces
from aerix.pool.protocol import (
    CODEC,
    VERSION,
    ContextCreate,
    ContextState,
    Done,
    Generate,
    Hello,
    Token,
    Usage,
)

COUNT = 2000
PAUSE_S = 0.002
_STAMP = struct.Struct("d")


def body(channel: Channel, _: dict[str, Any]) -> None:
    """The worker: answers every context request, and generates stamps."""
    channel.codec = CODEC
    channel.ready({"window": 8192})
    while (incoming := channel.receive()) is not None:
        message = getattr(incoming, "message", None)
        if isinstance(message, Generate):
            pieces = Pieces(channel, incoming.id)
            for _ in range(COUNT):
                pause()
                pieces.send(Token(message.id, [1], _STAMP.pack(monotonic())))
            channel.reply(incoming.id, Done(0, "stop", "", [], Usage(0, 0, 0, "none", 0, 0, 0), ""))
        elif isinstance(message, ContextCreate):
            channel.reply(incoming.id, ContextState(0, "c", [], 0, 0))


def pause() -> None:
    """Wait as a decode would."""
    threading.Event().wait(PAUSE_S)


def serve(path: str, script: str) -> None:
    """A daemon whose one member has that worker."""
    from aerix.pool import daemon, member
    from aerix.pool.models import resolve

    class Stamping(member.Worker):
        def __init__(self, owner: Any, args: Any) -> None:
            super().__init__(owner, args)
            self._spawn = ("scripts.bench.token_way:body", {})

    member.Worker = Stamping  # type: ignore[misc]  # the benchmark's own worker
    daemon.serve(daemon.PoolOptions(Path(path), (resolve(script),)), lambda line: print(line, flush=True))


def through_the_daemon() -> list[float]:
    """Seconds from the worker's clock to this client, a token."""
    with tempfile.TemporaryDirectory() as folder:
        path, script = f"{folder}/pool.sock", f"{folder}/empty.jsonl"
        Path(script).write_text("{}\n")
        command = [
            sys.executable,
            "-c",
            f"from scripts.bench.token_way import serve; serve({path!r}, 'scripted:{script}')",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pool:
            assert pool.stdout is not None
            while "ready on" not in pool.stdout.readline():
                pass
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(path)
                send(
                    sock,
                    Hello(VERSION, "bench"),
                    ContextCreate(1, f"scripted:{script}", []),
                    Generate(2, "c", COUNT),
                )
                ways = read_ways(sock)
            pool.terminate()
            pool.wait()
        return ways


def send(sock: socket.socket, *messages: Any) -> None:
    """Send, one after the other, each when the last was answered."""
    for message in messages[:-1]:
        sock.sendall(pack(CODEC.encode(message)))
        sock.recv(65536)
    sock.sendall(pack(CODEC.encode(messages[-1])))


def read_ways(sock: socket.socket) -> list[float]:
    """The way of each token until the Done."""
    reader, ways = FrameReader(), []
    while True:
        for plain in reader.feed(sock.recv(65536)):
            message = CODEC.decode(plain)
            if isinstance(message, Done):
                return ways
            ways.append(monotonic() - _STAMP.unpack(message.data)[0])


def over_a_pair() -> list[float]:
    """The same frames over a socket pair between two processes."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", f"from scripts.bench.token_way import stamp; stamp({theirs.fileno()})"]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()]):
        return read_ways(ours)


def stamp(fd: int) -> None:
    """The other process of the pair."""
    with socket.socket(fileno=fd) as sock:
        for _ in range(COUNT):
            pause()
            sock.sendall(pack(CODEC.encode(Token(1, [1], _STAMP.pack(monotonic())))))
        sock.sendall(pack(CODEC.encode(Done(1, "stop", "", [], Usage(0, 0, 0, "none", 0, 0, 0), ""))))


def main() -> None:
    """Measure both, in one run."""
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    bare, whole = statistics.median(over_a_pair()), statistics.median(through_the_daemon())
    figures = {"whole_ms": whole * 1e3, "bare_ms": bare * 1e3, "daemon_ms": (whole - bare) * 1e3}
    print(json.dumps({"bench": "token_way", **{key: round(value, 3) for key, value in figures.items()}}))


if __name__ == "__main__":
    main()
