"""The child's end: what a channel hears and says, and what a child is at birth."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aerix.actors import start
from aerix.actors.child import Channel, ChannelClosed, IncomingCall, IncomingCancel
from aerix.actors.process import ProcessActor
from aerix.actors.wire import FrameReader, Plain, pack
from tests.actors.bodies import CODEC, PATIENCE, Blob, Echo


class Ends:
    """A channel, and the owner's end of it as a plain socket."""

    def __init__(self) -> None:
        theirs, self.owner = socket.socketpair()
        self.owner.settimeout(PATIENCE)
        self.channel = Channel(theirs)
        self.channel.codec = CODEC
        self._theirs = theirs
        self._reader = FrameReader()

    def say(self, plain: Plain) -> None:
        self.owner.sendall(pack(plain))

    def heard(self, count: int = 1) -> list[Plain]:
        frames: list[Plain] = []
        while len(frames) < count:
            frames += self._reader.feed(self.owner.recv(65536))
        return frames

    def close(self) -> None:
        self.owner.close()
        self._theirs.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


CALL = {"t": "call", "id": 7, "m": {"type": "Echo", "text": "hi"}}


def call(number: int, credit: int) -> Plain:
    """A call whose pieces somebody wants, so many at once."""
    return {**CALL, "id": number, "credit": credit}


def test_calls_and_cancels_come_in_order(ends: Ends) -> None:
    ends.say(CALL)
    ends.say({"t": "cancel", "id": 7})
    assert ends.channel.receive() == IncomingCall(7, Echo("hi"))
    assert ends.channel.receive(0) == IncomingCancel(7)
    assert ends.channel.receive(0) is None
    assert ends.channel.receive(0.001) is None


def test_what_a_later_owner_may_say_is_passed_over(ends: Ends) -> None:
    ends.say({"t": "what comes later", "n": 5})
    ends.say({"t": "credit", "id": 99, "n": 5})
    ends.say(CALL)
    assert ends.channel.receive() == IncomingCall(7, Echo("hi"))


@pytest.mark.rule("wire.cut-anywhere")
def test_half_a_call_is_not_waited_for_longer_than_was_said(ends: Ends) -> None:
    data = pack(CALL)
    ends.owner.sendall(data[:10])
    assert ends.channel.receive(0) is None
    assert ends.channel.receive(0.001) is None
    ends.owner.sendall(data[10:])
    assert ends.channel.receive(0) == IncomingCall(7, Echo("hi"))


def test_a_stop_and_a_lost_owner_close_the_channel(ends: Ends) -> None:
    ends.say({"t": "stop"})
    with pytest.raises(ChannelClosed, match="stop"):
        ends.channel.receive()
    ends.owner.close()
    with pytest.raises(ChannelClosed, match="stop"):
        ends.channel.receive()
    with pytest.raises(ChannelClosed, match="the owner is gone"):
        ends.channel.reply(1, Echo("x"))


def test_an_owner_that_died_with_unread_words_is_gone_too(ends: Ends) -> None:
    ends.channel.reply(1, Echo("never read"))
    ends.owner.close()
    with pytest.raises(ChannelClosed, match="the owner is gone"):
        ends.channel.receive()


@pytest.mark.rule("wire.typed")
def test_a_call_that_cannot_be_read_is_refused_to_the_owner(ends: Ends) -> None:
    ends.say({"t": "call", "id": 3, "m": {"type": "Nothing"}})
    ends.say({"t": "call", "id": 4, "m": {"type": "Echo"}})
    assert ends.channel.receive(0) is None
    told = ends.heard(2)
    assert [(frame["t"], frame["id"], frame["code"]) for frame in told] == [
        ("error", 3, "unknown_message"),
        ("error", 4, "bad_message"),
    ]


def test_everything_a_child_can_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_WIRE_FRAME", "200")
    ends = Ends()
    ends.channel.ready()
    ends.channel.ready({"pid": 1})
    ends.say(call(1, credit=1))
    ends.channel.receive()
    ends.channel.piece(1, Echo("a"))
    ends.channel.reply(1, Blob([1, None]))
    ends.channel.refuse(2, "no", "not now")
    ends.channel.crashed("boom")
    ends.channel.reply(3, Blob(b"x" * 300))
    told = ends.heard(7)
    ends.close()
    assert told[:6] == [
        {"t": "ready", "info": {}},
        {"t": "ready", "info": {"pid": 1}},
        {"t": "piece", "id": 1, "m": {"type": "Echo", "text": "a", "pieces": 0}},
        {"t": "reply", "id": 1, "m": {"type": "Blob", "data": [1, None]}},
        {"t": "error", "id": 2, "code": "no", "text": "not now"},
        {"t": "crash", "text": "boom"},
    ]


def test_what_many_threads_say_at_once_comes_whole(ends: Ends) -> None:
    def say(call: int) -> None:
        for _ in range(50):
            ends.channel.piece(call, Blob(bytes([call]) * 20_000))

    for n in range(4):
        ends.say(call(n, credit=50))
        ends.channel.receive()
    threads = [threading.Thread(target=say, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    frames = ends.heard(200)
    for thread in threads:
        thread.join()
    assert all(frame["m"]["data"] == bytes([frame["id"]]) * 20_000 for frame in frames)


@pytest.mark.rule("process.credit")
def test_pieces_go_out_as_far_as_their_credit_and_no_further(ends: Ends) -> None:
    ends.say(call(7, credit=2))
    ends.channel.receive()
    assert [ends.channel.offer(7, Echo(text)) for text in "abc"] == [True, True, False]
    ends.say({"t": "credit", "id": 7, "n": 1})
    assert ends.channel.receive(0) is None
    assert [ends.channel.offer(7, Echo(text)) for text in "cd"] == [True, False]
    ends.say({"t": "cancel", "id": 7})
    assert ends.channel.receive() == IncomingCancel(7)
    ends.channel.piece(7, Echo("unwanted"))
    assert ends.channel.offer(7, Echo("last"), last=True)
    ends.channel.reply(7, Echo("end"))
    assert [frame["m"]["text"] for frame in ends.heard(5)] == ["a", "b", "c", "last", "end"]


@pytest.mark.rule("process.credit")
def test_pieces_that_nobody_gets_are_not_sent(ends: Ends) -> None:
    ends.say(CALL)
    ends.channel.receive()
    ends.channel.piece(7, Echo("for nobody"))
    ends.channel.reply(7, Echo("end"))
    assert [frame["t"] for frame in ends.heard()] == ["reply"]


@pytest.mark.rule("process.credit")
@pytest.mark.parametrize("apart", [False, True], ids=["one thread", "reader apart"])
@pytest.mark.parametrize("end", ["credit", "cancel", "stop", "gone"])
def test_a_piece_without_credit_waits_for_it_or_for_the_end(ends: Ends, end: str, apart: bool) -> None:
    heard, over = threading.Event(), threading.Event()
    ends.say(call(7, credit=0))
    if apart:
        ends.channel.start_reader(lambda incoming: (heard if incoming else over).set())
        assert heard.wait(PATIENCE)
    else:
        ends.channel.receive()
    closed: list[ChannelClosed] = []

    def send() -> None:
        try:
            ends.channel.piece(7, Echo("a"))
        except ChannelClosed as error:
            closed.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    if end == "gone":
        ends.owner.close()
    else:
        ends.say({"t": end, "id": 7, "n": 1})
    sender.join(PATIENCE)
    assert not sender.is_alive()
    assert bool(closed) == (end in ("stop", "gone"))
    if end != "gone":
        assert [frame["m"]["text"] for frame in ends.heard()] == ["a"] if end == "credit" else True
        ends.owner.close()
    assert not apart or over.wait(PATIENCE)


@pytest.mark.rule("process.ping")
@pytest.mark.rule("process.progress")
def test_a_pong_counts_the_steps_of_whoever_computes(ends: Ends) -> None:
    over = threading.Event()
    ends.channel.start_reader(lambda incoming: None if incoming else over.set())
    ends.say({"t": "ping"})
    ends.say({"t": "ping"})
    assert ends.heard(2) == [{"t": "pong", "steps": 0}] * 2
    ends.channel.progress()
    ends.say({"t": "ping"})
    assert ends.heard() == [{"t": "pong", "steps": 1}]
    ends.owner.close()
    assert over.wait(PATIENCE)


@pytest.mark.rule("process.ping")
@pytest.mark.rule("process.progress")
def test_a_child_of_one_thread_answers_pings_as_it_gets_on_and_keeps_calls_for_later(ends: Ends) -> None:
    ends.say(CALL)
    ends.say({"t": "ping"})
    ends.channel.progress()
    assert ends.heard() == [{"t": "pong", "steps": 2}]
    ends.say({"t": "stop"})
    ends.channel.progress()
    assert ends.channel.receive(0) == IncomingCall(7, Echo("hi"))
    with pytest.raises(ChannelClosed, match="stop"):
        ends.channel.receive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", ["stop", "gone", "garbage", "crash"])
def test_a_reader_thread_tells_the_end_whatever_it_was(ends: Ends, end: str) -> None:
    took: list[Any] = []
    first, over = threading.Event(), threading.Event()

    def take(incoming: Any) -> None:
        took.append(incoming)
        first.set()
        if incoming is None:
            over.set()
        elif end == "crash":
            raise SystemExit

    ends.channel.start_reader(take)
    ends.say(CALL)
    assert first.wait(PATIENCE)
    if end == "stop":
        ends.say({"t": "stop"})
    elif end == "gone":
        ends.owner.shutdown(socket.SHUT_WR)
    elif end == "garbage":
        ends.owner.sendall(b"\0\0\0\1\xff")
    assert over.wait(PATIENCE)
    assert took == [IncomingCall(7, Echo("hi")), None]


@pytest.mark.rule("process.no-terminal")
@pytest.mark.rule("process.spawned")
@pytest.mark.rule("process.closed-descriptors")
def test_a_child_is_born_in_a_session_of_its_own_deaf_to_ctrl_c_and_light() -> None:
    told: dict[str, Any] = {}

    class Owner(ProcessActor):
        def ready(self, info: Plain) -> None:
            told.update(info)

    body = "tests.actors.bodies:says_where"
    secret, other = socket.socketpair()
    os.set_inheritable(secret.fileno(), True)
    ref = start(Owner(body, {}, CODEC, guard="kill", window=1), "owner")
    ref.stop()
    assert ref.join(PATIENCE)
    secret.close()
    other.close()
    assert told["group"] == told["session"]
    assert (told["sigint"], told["blocked"], told["stdin"]) == (str(signal.SIG_IGN), [], "/dev/null")
    # What an exec in the child would inherit: a pipe or two that multiprocessing gave it, and not its channel.
    assert told["channel"] not in told["inheritable"]
    assert len(told["inheritable"]) <= 2
