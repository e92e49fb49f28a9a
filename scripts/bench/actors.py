"""What the actors cost, each figure beside the bare primitive, taken in turns in one run; see ``actors_sides``.

Prints one JSON line of medians. Everything runs on one core, as Pykka's own benchmarks do: free on several, the hops
between threads cost what the kernel's placing of them happens to cost. ``--quick`` takes so few that only the keys mean
something. This file holds what a child process needs, and imports nothing heavy: a spawned child imports it again.
"""

import argparse
import json
import os
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2

from aerix.actors.child import Channel, IncomingCall
from aerix.actors.wire import Codec

LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Echo:
    """Answered by itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Stream:
    """Answered after so many pieces."""

    pieces: int


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the size of a token's frame."""

    ids: list[int]
    data: bytes


CODEC = Codec((Echo, Stream, Token))


def serve(channel: Channel, args: dict[str, Any]) -> None:
    """The child of both sides of the token frames, and of the actor's side of the round trip."""
    channel.codec = CODEC
    channel.ready()
    while True:
        incoming = channel.receive()
        if isinstance(incoming, IncomingCall):
            if isinstance(incoming.message, Stream):
                for _ in range(incoming.message.pieces):
                    channel.piece(incoming.id, Token([7], b" word"))
            channel.reply(incoming.id, incoming.message)


def serve_alone(sock: socket.socket) -> None:
    """The same child, of nobody's actor."""
    serve(Channel(sock), {})


def echo(sock: socket.socket) -> None:
    """The other end of a bare round trip: what a frame holds is read and written, and nothing more."""
    while data := sock.recv(65536):
        body = cbor2.dumps(cbor2.loads(data[LENGTH.size :]))
        sock.sendall(LENGTH.pack(len(body)) + body)


def say(sock: socket.socket) -> None:
    """A bare child that is up."""
    sock.sendall(b"up")
    sock.recv(1)


def main() -> None:
    """Measure everything, in one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds of few")
    root = str(Path(__file__).parents[2])
    sys.path.insert(0, root)
    os.environ["PYTHONPATH"] = root  # the children's
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from scripts.bench import actors_sides as sides

    print(json.dumps({"bench": "actors", **sides.measure(quick=parser.parse_args().quick)}))


if __name__ == "__main__":
    main()
