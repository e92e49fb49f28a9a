"""What the actors of these tests run and say: messages, plain actors, and the bodies of child processes."""

import hashlib
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerix.actors import Actor, Call, Exit, Piece, Ref, Refused, Reply, on, start
from aerix.actors.child import Channel, ChannelClosed, IncomingCall, IncomingCancel
from aerix.actors.wire import Codec, pack

PATIENCE = 30.0
"""Seconds after which a test gives up; nothing waits for them to pass."""


# --- what children speak ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Echo:
    """Answered by itself, after ``pieces`` pieces."""

    text: str
    pieces: int = 0


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes, or any other value."""

    data: Any


@dataclass(frozen=True, slots=True)
class Do:
    """What a child is to do; see ``serve``."""

    what: str
    arg: str = ""


CODEC = Codec((Echo, Blob, Do))


def serve(channel: Channel, args: dict[str, Any]) -> None:
    """A child that does what it is told, one call at a time."""
    channel.codec = CODEC
    if args.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if noise := args.get("noise"):
        os.write(2, noise.encode())
    channel.ready({"pid": os.getpid()})
    while True:
        incoming = channel.receive()
        if isinstance(incoming, IncomingCall):
            answer(channel, incoming.id, incoming.message)


def answer(channel: Channel, call: int, message: Any) -> None:
    if isinstance(message, Echo):
        for n in range(message.pieces):
            channel.piece(call, Echo(f"{message.text}{n}"))
        channel.reply(call, message)
    elif isinstance(message, Blob):
        channel.reply(call, Blob(len(message.data)))
    else:
        DEEDS[message.what](channel, call, message.arg)


def refuse(channel: Channel, call: int, arg: str) -> None:
    channel.refuse(call, "no_way", arg)


def until_cancelled(channel: Channel, call: int, arg: str) -> None:
    channel.piece(call, Echo("begun"))
    while True:
        incoming = channel.receive()
        if isinstance(incoming, IncomingCall):
            answer(channel, incoming.id, incoming.message)
        elif isinstance(incoming, IncomingCancel) and incoming.id == call:
            channel.reply(call, Echo("cancelled"))
            return


def crash(channel: Channel, call: int, arg: str) -> None:
    raise ValueError(arg)


def leave(channel: Channel, call: int, arg: str) -> None:
    os.write(2, b"last words")
    os._exit(int(arg))


def die(channel: Channel, call: int, arg: str) -> None:
    """Die of a signal, and leave no core behind."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), int(arg))
    threading.Event().wait()


def dribble(channel: Channel, call: int, arg: str) -> None:
    """An answer that comes byte by byte."""
    for byte in pack({"t": "reply", "id": call, "m": CODEC.encode(Echo(arg))}):
        os.write(channel.fileno(), bytes([byte]))


def cut(channel: Channel, call: int, arg: str) -> None:
    """The first bytes of an answer, and death."""
    os.write(channel.fileno(), pack({"t": "reply", "id": call, "m": CODEC.encode(Echo("x"))})[: int(arg)])
    os._exit(9)


def hang(channel: Channel, call: int, arg: str) -> None:
    """Never read again: what the owner sends fills the socket."""
    channel.piece(call, Echo("begun"))
    threading.Event().wait()


def garbage(channel: Channel, call: int, arg: str) -> None:
    os.write(channel.fileno(), bytes.fromhex(arg))
    threading.Event().wait()


def half_a_frame(channel: Channel, call: int, arg: str) -> None:
    channel.piece(call, Echo("whole"))
    os.write(channel.fileno(), b"\0\0\1\0half")
    os._exit(9)


def last_reply(channel: Channel, call: int, arg: str) -> None:
    """A large answer, and death before anybody can have read it."""
    channel.reply(call, Blob(b"x" * int(arg)))
    os._exit(3)


def mute(channel: Channel, call: int, arg: str) -> None:
    """Live on without a channel."""
    os.close(channel.fileno())
    threading.Event().wait()


def too_much(channel: Channel, call: int, arg: str) -> None:
    channel.reply(call, Blob(b"x" * int(arg)))


def grandchild(channel: Channel, call: int, arg: str) -> None:
    """A program that ignores TERM; in a session of its own where ``arg`` says so. Answers with its pid."""
    program = "trap '' TERM; echo $$; exec sleep 600"
    child = subprocess.Popen(["sh", "-c", program], stdout=subprocess.PIPE, start_new_session=arg == "apart")
    assert child.stdout is not None
    channel.reply(call, Echo(child.stdout.readline().decode().strip()))


def heir(channel: Channel, call: int, arg: str) -> None:
    """A program that holds the channel open too; in a session of its own where ``arg`` says so. Answers with its pid."""
    program = ["sh", "-c", "echo $$; exec sleep 600"]
    child = subprocess.Popen(
        program, stdout=subprocess.PIPE, pass_fds=[channel.fileno()], start_new_session=arg == "apart"
    )
    assert child.stdout is not None
    channel.reply(call, Echo(child.stdout.readline().decode().strip()))


def orphan(channel: Channel, call: int, arg: str) -> None:
    """A program without a parent, in a session of its own, that bears no variable of ours. Answers with its pid."""
    program = ["sh", "-c", "env -i setsid sh -c 'echo $$; exec sleep 600' &"]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        pid = child.stdout.readline().decode().strip()
    channel.reply(call, Echo(pid))


def native(channel: Channel, call: int, arg: str) -> None:
    """Compute in native code, for longer than anybody waits."""
    channel.piece(call, Echo("begun"))
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)


DEEDS = {
    "refuse": refuse, "until_cancelled": until_cancelled, "crash": crash, "leave": leave, "die": die, "dribble": dribble, "cut": cut, "hang": hang,
    "garbage": garbage, "half_a_frame": half_a_frame, "last_reply": last_reply, "mute": mute, "too_much": too_much,
    "grandchild": grandchild, "heir": heir, "orphan": orphan, "native": native,
}  # fmt: skip


def never_ready(channel: Channel, args: dict[str, Any]) -> None:
    """A child that takes for ever to come up."""
    Path(args["pidfile"]).write_text(str(os.getpid()))
    threading.Event().wait()


def breaks(channel: Channel, args: dict[str, Any]) -> None:
    """A child that cannot come up."""
    raise RuntimeError("no disk")


def too_short(channel: Channel, args: dict[str, Any]) -> None:
    """A child that ends well before it was up."""


def says_where(channel: Channel, args: dict[str, Any]) -> None:
    """A child that tells about itself when it comes up."""
    channel.codec = CODEC
    channel.ready(
        {
            "group": os.getpgid(0),
            "session": os.getsid(0),
            "sigint": str(signal.getsignal(signal.SIGINT)),
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            "stdin": str(Path("/proc/self/fd/0").readlink()),
            "channel": channel.fileno(),
            "inheritable": [fd for fd in open_descriptors() if is_inheritable(fd)],
        }
    )
    with contextmanager(wait_for_stop)(channel):
        pass


def open_descriptors() -> list[int]:
    return [int(at.name) for at in Path("/proc/self/fd").iterdir()]


def is_inheritable(fd: int) -> bool:
    try:
        return fd > 2 and os.get_inheritable(fd)
    except OSError:
        return False


def wait_for_stop(channel: Channel) -> Iterator[None]:
    try:
        while True:
            channel.receive()
    except ChannelClosed:
        yield


def with_reader(channel: Channel, args: dict[str, Any]) -> None:
    """A worker: a thread receives, the main one computes."""
    channel.codec = CODEC
    gone, calls = threading.Event(), []

    def take(incoming: Any) -> None:
        if incoming is None:
            gone.set()
        else:
            calls.append(incoming)
            channel.reply(incoming.id, Echo(f"{len(calls)}"))

    channel.start_reader(take)
    channel.ready()
    gone.wait()


def computes(channel: Channel, args: dict[str, Any]) -> None:
    """A worker whose main thread takes a step whenever a byte comes through the pipe at ``steps``, and never answers."""
    channel.codec = CODEC
    steps = os.open(args["steps"], os.O_RDONLY)
    channel.start_reader(lambda incoming: None if incoming else os._exit(0))
    channel.ready()
    while os.read(steps, 1):
        channel.progress()
    threading.Event().wait()


def streams(channel: Channel, args: dict[str, Any]) -> None:
    """Answers an Echo with its pieces, and tells in a file at its end how many that were."""
    channel.codec = CODEC
    channel.ready()
    sent = 0
    try:
        while True:
            incoming = channel.receive()
            if isinstance(incoming, IncomingCall):
                for _ in range(incoming.message.pieces):
                    channel.piece(incoming.id, Echo("piece"))
                    sent += 1
                channel.reply(incoming.id, incoming.message)
    finally:
        Path(args["count"]).write_text(str(sent))


# --- plain actors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered with its own number."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """A function to be run in an actor's thread; what it gives is the answer."""

    do: Any


class Puppet(Actor):
    """Does in its own thread what a test says; keeps what came in."""

    def __init__(self) -> None:
        self.came: list[object] = []
        self.exits: list[Exit] = []

    @on(Ping)
    def _ping(self, message: Ping) -> int:
        self.came.append(message)
        return message.number

    @on(Run)
    def _run(self, message: Run) -> object:
        return message.do(self)

    def teardown(self, exit: Exit) -> None:
        self.exits.append(exit)


class Gate:
    """Something to run in an actor that tells when it has begun, and ends when it is let."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.free = threading.Event()

    def __call__(self, actor: Actor) -> None:
        self.begun.set()
        assert self.free.wait(PATIENCE)

    def hold(self, ref: Ref) -> None:
        ref.tell(Run(self))
        assert self.begun.wait(PATIENCE)


class Asker(Actor):
    """Sends requests and keeps what came back, for a test's thread to wait on."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.replies: list[Reply] = []
        self.changed = threading.Condition()

    @on(Run)
    def _run(self, message: Run) -> object:
        return message.do(self)

    @on(Piece)
    def _piece(self, message: Piece) -> None:
        with self.changed:
            self.pieces.append(message.value)
            self.changed.notify_all()

    @on(Reply)
    def _reply(self, message: Reply) -> None:
        with self.changed:
            self.replies.append(message)
            self.changed.notify_all()

    def until(self, what: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: what(self), PATIENCE), f"{self.pieces} {self.replies}"

    def sends(self, ref: Ref, message: object) -> Call:
        """Make the request in this actor's thread."""
        call: Call = self.ref.ask(Run(lambda me: me.request(ref, message)), PATIENCE)
        return call


@contextmanager
def running(actor: Actor, name: str = "actor", **options: Any) -> Iterator[Ref]:
    """Started for the length of a block, and gone after it."""
    ref = start(actor, name, **options)
    try:
        yield ref
    finally:
        ref.stop()
        assert ref.join(PATIENCE), f"{ref} did not end"


def refusal(ref: Ref, message: object) -> Refused:
    """What an ask is refused with."""
    try:
        value = ref.ask(message, PATIENCE)
    except Refused as refused:
        return refused
    raise AssertionError(f"it was not refused but answered {value!r}")
