"""No sequence of frames brings the daemon down, blocks another client or leaks a descriptor."""

import dataclasses
import struct
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cbor2
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aerix.actors.wire import pack, pack_json
from aerix.pool import protocol as p
from tests.pool.daemons import Daemons, Scripts, Wire
from tests.pool.test_daemon import descriptors
from tests.pool.test_line import resident
from tests.tools.waiting import until

Open = Callable[..., Wire]
FRAMES = 6  # of a sequence, about
MIB = 1024 * 1024

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.floats() | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
names = st.sampled_from(["CONTEXT", "MEMBER", "", "x", "scripted:/dev/zero", "/dev/zero", "/", "hf:a/b"])
texts = names | st.sampled_from(["u", "{}", "\x00", "<|im_start|>", "é" * 100]) | st.text(max_size=30)
numbers = st.integers(-2, 9) | st.sampled_from([2**31, 2**63, -(2**63), 2**64 - 1])


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, the odd ones among them."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return messages(typing.cast("type", hint))
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(st.none() if arg is type(None) else values(arg) for arg in args))
    if origin is list:
        return st.lists(values(args[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(st.text(max_size=8), plain, max_size=3)
    by_type: dict[type, st.SearchStrategy[Any]] = {
        str: texts, int: numbers, float: st.floats(), bool: st.booleans(), bytes: st.binary(max_size=9)
    }  # fmt: skip
    return by_type[hint]


def messages(cls: type) -> st.SearchStrategy[dict[str, Any]]:
    """Maps of a message's fields, some left out."""
    hints = typing.get_type_hints(cls)
    required = {f.name: values(hints[f.name]) for f in dataclasses.fields(cls)}
    whole = st.fixed_dictionaries(required)
    return whole | st.fixed_dictionaries({}, optional=required)


def request(cls: type) -> st.SearchStrategy[dict[str, Any]]:
    mistyped = st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(cls)]), plain, max_size=1)
    return st.builds(
        lambda one, other: {"type": cls.__name__, **one, **other}, messages(cls), st.just({}) | mistyped
    )


# StopPool is left out: it does what it says.
requests = st.one_of(*(request(cls) for cls in (*p.REQUESTS, *p.ANSWERS) if cls is not p.StopPool))
maps = requests | st.dictionaries(st.text(max_size=6), plain, max_size=4).filter(
    lambda one: one.get("type") != "StopPool"
)


@st.composite
def raw(draw: st.DrawFn) -> bytes:
    """Bytes that are no frame, or not a whole one, or one of what is not plain."""
    body: bytes = draw(
        st.binary(max_size=60)
        | st.builds(cbor2.dumps, plain)
        | st.builds(lambda tag, one: cbor2.dumps(cbor2.CBORTag(tag, one)), st.integers(0, 300), plain)
        | st.builds(lambda depth: b"\x81" * depth + b"\x00", st.integers(60, 5000))
        | st.builds(lambda depth: b'{"a":' * depth + b"}" * depth, st.integers(1, 5000))
    )
    length = draw(st.just(len(body)) | st.integers(0, 2**32 - 1))
    return struct.pack(">I", length) + body


GREETED = {"type": "Hello", "version": p.VERSION, "client": "fuzz"}


@st.composite
def sequences(draw: st.DrawFn) -> list[dict[str, Any] | bytes]:
    """What one connection sends: mostly a greeting first, so that the rest is heard."""
    frames = draw(st.lists(maps | maps | maps | raw(), min_size=1, max_size=2 * FRAMES))
    return [GREETED, *frames] if draw(st.integers(0, 5)) else frames


class Fuzzed:
    """A daemon with one client that works, beside those that send anything."""

    def __init__(self, pool: Daemons, script: Scripts, wire: Open) -> None:
        self.member = script({"text": "fine", "match": "^hi$"}, {"text": "x" * 30}, window=500)
        self.daemon = pool(self.member, POOL_HELLO=1)
        self.path = self.daemon.socket
        self.good = wire(self.path)
        self.good.hello()
        self.context = self.good.create(self.member)
        self.sent = 0
        self.descriptors = descriptors(self.daemon.process.pid)
        self.memory = resident(self.daemon.process.pid)

    def send(self, frames: list[dict[str, Any] | bytes], *, as_json: bool, read: bool) -> None:
        one = Wire(self.path)
        one.sock.settimeout(0.05)
        context = ""
        for frame in frames:
            self.sent += 1
            with suppress(OSError):  # the daemon has closed it, or reads no more
                one.sock.sendall(self.packed(frame, context, as_json=as_json))
                if frame is GREETED:
                    one.get()
                    one.send("ContextCreate", id=1, member=self.member, segments=[])
                    context = (one.get() or {}).get("context", "")
        if read:
            with suppress(OSError):
                one.get()
        one.close()

    def packed(self, frame: dict[str, Any] | bytes, context: str, *, as_json: bool) -> bytes:
        if isinstance(frame, bytes):
            return frame
        known = {"CONTEXT": context, "MEMBER": self.member}
        named = {
            key: known.get(value, value) if isinstance(value, str) else value for key, value in frame.items()
        }
        if as_json:
            with suppress(Exception):
                return pack_json(named)
        return pack(named)

    def check(self) -> None:
        """The good client is served as before."""
        done = self.good.ask("Generate", context=self.context, max_tokens=20)
        assert done.get("text") == "fine", done

    def settled(self) -> None:
        """Nothing of the others is left."""
        while self.good.ask("Status")["connections"] > 1:
            pass
        while (
            (info := self.good.ask("MemberList")["members"][0])["contexts"] > 1
            or info["running"]
            or info["waiting"]
        ):
            pass
        assert info["restarts"] == 0
        until(lambda: descriptors(self.daemon.process.pid) <= self.descriptors)
        assert resident(self.daemon.process.pid) < self.memory + 32 * MIB
        assert self.daemon.process.poll() is None


def fuzz(fuzzed: Fuzzed, examples: int) -> None:
    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(frames=sequences(), as_json=st.booleans(), read=st.booleans())
    def run(frames: list[dict[str, Any] | bytes], as_json: bool, read: bool) -> None:
        fuzzed.send(frames, as_json=as_json, read=read)
        fuzzed.check()

    run()
    fuzzed.settled()


@pytest.mark.rule("protocol.fuzzed")
def test_a_few_hundred_frames_of_anything_harm_nobody(pool: Daemons, script: Scripts, wire: Open) -> None:
    fuzzed = Fuzzed(pool, script, wire)
    fuzz(fuzzed, 60)
    assert fuzzed.sent > 200


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.rule("protocol.fuzzed")
def test_twenty_thousand_frames_of_anything_harm_nobody(pool: Daemons, script: Scripts, wire: Open) -> None:
    fuzzed = Fuzzed(pool, script, wire)
    while fuzzed.sent < 20_000:
        fuzz(fuzzed, 500)
