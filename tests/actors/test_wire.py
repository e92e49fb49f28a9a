"""Frames: messages out and in again, cut anywhere, and every way in which bytes from outside can be wrong."""

import dataclasses
import json
import socket
import struct
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal

import cbor2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aerix.actors.wire import (
    Codec,
    FrameReader,
    FrameSocket,
    Packed,
    Plain,
    WireError,
    pack,
    pack_json,
    unpack,
)
from aerix.pool import protocol

MIB = 1024 * 1024
TEXT = st.text(st.characters(codec="utf-8"))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXT, st.binary()
)
PLAIN = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=10)
MAPS = st.dictionaries(TEXT, PLAIN)


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    name: str
    size: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    id: int
    kind: Literal["small", "large"]
    parts: list[Part]
    price: float = 1.0
    note: str | None = None
    first: Part | None = None
    pair: tuple[int, ...] = ()
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    either: int | str = 0


CODEC = Codec((Order,))
ORDER: Plain = {"type": "Order", "id": 1, "kind": "small", "parts": [{"name": "bolt"}]}


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def error_of(act: Callable[[], object]) -> WireError:
    with pytest.raises(WireError) as error:
        act()
    return error.value


# --- messages -----------------------------------------------------------------------------------------------------


BY_TYPE: dict[object, st.SearchStrategy[Any]] = {
    str: TEXT,
    bytes: st.binary(),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    type(None): st.none(),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type; for a message class, any message."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {field.name: values_of(hints[field.name]) for field in dataclasses.fields(hint)}
        return st.builds(typing.cast("type", hint), **fields)
    if origin is Literal:
        return st.sampled_from(args)
    if origin is list:
        return st.lists(values_of(args[0]), max_size=5)
    if origin is dict:
        return MAPS
    return st.one_of([values_of(arg) for arg in args]) if args else BY_TYPE[hint]


@pytest.mark.rule("wire.round-trip")
@pytest.mark.parametrize("cls", [*protocol.REQUESTS, *protocol.ANSWERS], ids=lambda cls: cls.__name__)
def test_every_message_of_the_pool_survives_the_way_out_and_in(cls: type) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(values_of(cls))
    def there_and_back(message: Any) -> None:
        (plain,) = FrameReader().feed(pack(protocol.CODEC.encode(message)))
        assert protocol.CODEC.decode(plain) == message

    there_and_back()


@pytest.mark.rule("wire.round-trip")
@settings(max_examples=50)
@given(MAPS)
def test_every_plain_map_survives_the_way_out_and_in(plain: Plain) -> None:
    assert FrameReader().feed(pack(plain)) == [plain]


@pytest.mark.rule("wire.frame")
@settings(max_examples=30)
@given(
    st.dictionaries(
        TEXT, st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**63) | TEXT, st.lists)
    )
)
def test_a_json_frame_is_taken_too_and_remembered(plain: Plain) -> None:
    reader = FrameReader()
    assert reader.feed(pack_json(plain)) == [plain]
    assert reader.json
    assert reader.feed(pack({"a": 1})) == [{"a": 1}]
    assert not reader.json


def test_bytes_become_text_in_a_json_frame() -> None:
    assert FrameReader().feed(pack_json({"data": "gr\u00fc\u00df".encode()[:-1]})) == [{"data": "grü\ufffd"}]


def test_every_kind_of_field_is_encoded_and_decoded() -> None:
    order = Order(
        1, "large", [Part("a"), Part("b", 2)], 2.5, "hi", Part("c"), (1, 2), {"x": [None, b"y"]}, "z"
    )
    plain = CODEC.encode(order)
    assert plain["parts"] == [{"name": "a", "size": 0}, {"name": "b", "size": 2}]
    assert plain["first"] == {"name": "c", "size": 0}
    assert CODEC.decode(unpack(cbor2.dumps(plain))) == order
    assert CODEC.decode(ORDER) == Order(1, "small", [Part("bolt")])
    assert CODEC.decode({**ORDER, "price": 3}).price == 3.0


@pytest.mark.rule("wire.typed")
def test_an_unknown_field_is_passed_over() -> None:
    assert CODEC.decode({**ORDER, "newer": 1, "parts": [{"name": "x", "newer": 2}]}).parts == [Part("x")]


@pytest.mark.rule("wire.typed")
@pytest.mark.parametrize("name", ["Nothing", None, 7, ["Order"], "x" * 1000])
def test_an_unknown_message_is_refused_by_name(name: object) -> None:
    error = error_of(lambda: CODEC.decode({"type": name}))
    assert error.code == "unknown_message"
    assert f"{name!r}"[:60] in error.message
    assert len(error.message) < 120


@pytest.mark.rule("wire.typed")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "1"}, "Order.id is not int but str"),
        ({"id": True}, "Order.id is not int but bool"),
        ({"id": None}, "Order.id is not int but NoneType"),
        ({"kind": "huge"}, "Order.kind is 'huge', not one of small, large"),
        ({"kind": []}, "Order.kind is [], not one of small, large"),
        ({"parts": {}}, "Order.parts is not a list but dict"),
        ({"parts": [1]}, "Order.parts is not a map but int"),
        ({"parts": [{}]}, "Part lacks its field 'name'"),
        ({"parts": [{"name": b"x"}]}, "Part.name is not str but bytes"),
        ({"price": "1"}, "Order.price is not float but str"),
        ({"note": 1}, "Order.note is not str but int"),
        ({"first": []}, "Order.first is not a map but list"),
        ({"pair": [1, "2"]}, "Order.pair is not int but str"),
        ({"extra": []}, "Order.extra is not a map but list"),
        ({"extra": {1: 2}}, "Order.extra has a key of int"),
        ({"extra": {"x": {1, 2}}}, "Order.extra holds set, which is no plain value"),
        ({"extra": {"x": [cbor2.undefined]}}, "Order.extra holds CBORUndefinedType"),
        ({"either": 1.5}, "Order.either is not str but float"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_by_name(change: Plain, said: str) -> None:
    error = error_of(lambda: CODEC.decode({**ORDER, **change}))
    assert error.code == "bad_message"
    if "Undefined" in said:
        said = "Order.extra holds "
    assert error.message.startswith(said)


@pytest.mark.rule("wire.typed")
@pytest.mark.parametrize("name", ["id", "kind", "parts"])
def test_a_missing_field_is_refused_by_name(name: str) -> None:
    error = error_of(lambda: CODEC.decode({key: value for key, value in ORDER.items() if key != name}))
    assert (error.code, error.message) == ("bad_message", f"Order lacks its field '{name}'")


# --- bytes --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("wire.cut-anywhere")
@pytest.mark.parametrize("make", [pack, pack_json])
def test_frames_cut_at_any_byte_are_put_together(make: Callable[[Plain], bytes]) -> None:
    plains: list[Plain] = [{"a": "x" * 30}, {}, {"b": [1, 2, {"c": None}]}]
    data = b"".join(map(make, plains))
    for at in range(len(data) + 1):
        reader = FrameReader()
        first = reader.feed(data[:at])
        assert reader.partial < at + 1
        assert [*first, *reader.feed(data[at:])] == plains
        assert reader.partial == 0
    reader = FrameReader()
    assert [plain for byte in data for plain in reader.feed(bytes([byte]))] == plains


@pytest.mark.rule("wire.frame-limit")
def test_a_frame_over_the_limit_is_refused_before_it_is_read() -> None:
    assert FrameReader().feed(struct.pack(">I", 16 * MIB)) == []
    error = error_of(lambda: FrameReader().feed(struct.pack(">I", 16 * MIB + 1)))
    assert (error.code, error.message) == (
        "frame_too_large",
        "a frame of 16777217 bytes is over the limit of 16777216",
    )


@pytest.mark.rule("wire.frame-limit")
@pytest.mark.parametrize("make", [pack, pack_json])
def test_a_message_over_the_limit_is_not_sent(
    make: Callable[[Plain], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_WIRE_FRAME", "100")
    assert make({"a": "x" * 50})
    assert error_of(lambda: make({"a": "x" * 100})).code == "frame_too_large"


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (pack, object()), (pack, lambda: 0), (pack, "\ud800"), (pack_json, object()), (pack_json, {1, 2}),
    ],
)  # fmt: skip
def test_what_no_frame_can_hold_is_a_named_error(make: Callable[[Plain], bytes], value: object) -> None:
    assert error_of(lambda: make({"a": value})).code == "not_plain"


@pytest.mark.parametrize("make", [pack, pack_json])
def test_a_map_that_holds_itself_is_a_named_error(make: Callable[[Plain], bytes]) -> None:
    plain: Plain = {}
    plain["self"] = plain
    assert error_of(lambda: make(plain)).code == "not_plain"


def nested(depth: int) -> bytes:
    """A map and so many lists in each other below it."""
    return b"\xa1\x61a" + b"\x81" * (depth - 1) + b"\x80"


@pytest.mark.rule("wire.plain-values")
def test_nesting_is_taken_to_its_limit_and_no_further() -> None:
    assert unpack(nested(63))
    assert error_of(lambda: unpack(nested(64))).code == "bad_frame"
    assert unpack(b'{"a":' + b"[" * 63 + b"]" * 63 + b"}")
    for depth in (64, 1000, 100_000):
        assert error_of(lambda d=depth: unpack(nested(d))).code == "bad_frame"  # type: ignore[misc]
        body = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
        assert error_of(lambda b=body: unpack(b)).code == "bad_frame"  # type: ignore[misc]


@pytest.mark.rule("wire.plain-values")
@pytest.mark.parametrize("inner", [b"\x01", b"\x61a", b"\x41a", b"\x82\x01\x02", b"\xa0"], ids=bytes.hex)
def test_every_tag_is_refused(inner: bytes) -> None:
    """Those that the library decodes by itself too, all of which are below 65,536 (there is no list of them to ask)."""
    said = set()
    for tag in (*range(2000), 43000, 55799, 2**32, 2**64 - 1):
        head = b"\xdb" + struct.pack(">Q", tag)
        error = error_of(lambda h=head: unpack(b"\xa1\x61a" + h + inner))  # type: ignore[misc]
        said.add((error.code, error.message))
    assert said == {("bad_frame", "a frame holds a CBOR tag; only plain values are taken")}


@pytest.mark.rule("wire.plain-values")
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\xa2\x61a\x01\x61a\x02", id="a key twice"),
        pytest.param(b"\xa1\x61a\xa2\x61b\x01\x61b\x02", id="a key twice, deeper"),
        pytest.param(b"\xa1\x01\x02", id="a number for a key"),
        pytest.param(b"\xa1\x41a\x02", id="bytes for a key"),
        pytest.param(b"\xa1\x61a\xa1\x01\x02", id="a number for a key, deeper"),
        pytest.param(b"\xa1\x80\x02", id="a list for a key"),
        pytest.param(b"\xa1\x61a\xf7", id="undefined"),
        pytest.param(b"\xa1\x61a\x81\xf7", id="undefined, deeper"),
        pytest.param(b"\xa1\x61a\xe0", id="a simple value"),
        pytest.param(b"\xa1\x61a\x81\xf8\x20", id="a simple value of two bytes"),
        pytest.param(b"\xa1\x61a\xff", id="a break where none may be"),
        pytest.param(b"\xa1\x61a\xc2\x49" + b"\xff" * 9, id="a bignum"),
        pytest.param(b"\xa1\x61a\x62\xc3\x28", id="text that is no UTF-8"),
        pytest.param(b"\xa1\x61a\x63\xed\xa0\x80", id="half a surrogate pair"),
        pytest.param(b"\x80", id="a list"),
        pytest.param(b"\x01", id="a number"),
        pytest.param(b"\xf7", id="undefined alone"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xa1\x61a", id="a map cut short"),
        pytest.param(b"\xa1\x61a\x5b" + b"\xff" * 8, id="bytes of an impossible length"),
        pytest.param(b"\xbb" + b"\xff" * 8, id="a map of an impossible length"),
        pytest.param(b"{", id="half JSON"),
        pytest.param(b'{"a":1,"a":2}', id="JSON with a key twice"),
        pytest.param(b'{"a":1} x', id="JSON and more"),
        pytest.param(b'{"a":' + b"9" * 5000 + b"}", id="a JSON number without end"),
        pytest.param(b'{"a":' + b"9" * 400 + b"}", id="a JSON number over 64 bits"),
        pytest.param(b'{"a":[%d]}' % 2**64, id="the first JSON number over 64 bits"),
        pytest.param(b'{"a":[%d]}' % (-(2**64) - 1), id="the first JSON number under them"),
        pytest.param(b'{"a":"\\ud800"}', id="half a surrogate pair in JSON"),
        pytest.param(b'{"\\udfff":0}', id="half a surrogate pair for a JSON key"),
        pytest.param(b'{"a":"\xff"}', id="JSON that is no UTF-8"),
        pytest.param(b'{"a":"\xed\xa0\x80"}', id="half a surrogate pair in UTF-8"),
        pytest.param(b"{\0}\0", id="JSON in UTF-16"),
    ],
)
def test_whatever_is_not_plain_is_refused(body: bytes) -> None:
    assert error_of(lambda: unpack(body)).code == "bad_frame"


@pytest.mark.rule("wire.plain-values")
@pytest.mark.parametrize("make", [pack, pack_json])
def test_a_whole_number_may_be_as_large_as_a_frame_can_say_without_a_tag(
    make: Callable[[Plain], bytes],
) -> None:
    plain: Plain = {"a": 2**64 - 1, "b": [-(2**64)]}
    assert FrameReader().feed(make(plain)) == [plain]


@pytest.mark.rule("wire.garbage")
@settings(max_examples=500, deadline=None)
@example(b"\xd8\x1c\x81\xd8\x1d\x00")  # a list that holds itself
@example(b"\xa1\x61a\xd8\x23\x61(")  # a pattern to compile
@given(st.binary(max_size=200))
def test_any_bytes_are_a_map_or_a_wire_error(body: bytes) -> None:
    for form in (body, b"\xa1\x61a" + body, b"{" + body):
        try:
            assert type(unpack(form)) is dict
        except WireError as error:
            assert error.code == "bad_frame"


@pytest.mark.rule("wire.garbage")
@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=50)))
def test_any_bytes_on_a_connection_are_frames_or_a_wire_error(chunks: list[bytes]) -> None:
    reader = FrameReader()
    try:
        for chunk in chunks:
            for plain in reader.feed(chunk):
                assert type(plain) is dict
    except WireError as error:
        assert error.code in ("bad_frame", "frame_too_large")


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["type", *(f.name for f in dataclasses.fields(Order))]), PLAIN))
def test_any_map_is_a_message_or_a_wire_error(plain: Plain) -> None:
    for form in (plain, {**ORDER, **plain, "type": "Order"}):
        try:
            assert type(CODEC.decode(form)) is Order
        except WireError as error:
            assert error.code in ("unknown_message", "bad_message")


# --- sockets ------------------------------------------------------------------------------------------------------


class End:
    """A FrameSocket, its peer, and whether it wants to hear of writability."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        self.peer.settimeout(10)
        self.wants: list[bool] = []
        self.frames = FrameSocket(ours, self.wants.append)

    def close(self) -> None:
        self.frames.close()
        self.peer.close()

    def read_all(self) -> list[Plain]:
        """What the peer gets, while what waits is flushed."""
        reader, plains = FrameReader(), []
        while self.frames.waiting:
            plains += reader.feed(self.peer.recv(MIB))
            self.frames.flush()
        self.frames.sock.shutdown(socket.SHUT_WR)
        while data := self.peer.recv(MIB):
            plains += reader.feed(data)
        return plains


@pytest.fixture
def end() -> Iterator[End]:
    end = End()
    yield end
    end.close()


def test_a_message_that_fits_is_sent_at_once(end: End) -> None:
    end.frames.send({"a": 1})
    assert (end.frames.waiting, end.wants) == (0, [])
    assert end.read_all() == [{"a": 1}]


@pytest.mark.rule("process.write-buffer")
def test_what_a_peer_does_not_read_waits_in_order_and_is_bounded(end: End) -> None:
    sent: list[Plain] = []
    with pytest.raises(WireError, match=r"the peer has not read \d+ bytes that wait for it") as error:
        while True:
            plain = {"n": len(sent), "data": b"x" * 100_000}
            end.frames.send(plain)
            sent.append(plain)
    assert error.value.code == "peer_stuck"
    assert MIB < end.frames.waiting < MIB + 200_000
    assert end.wants == [True]
    assert end.read_all() == sent
    assert end.wants == [True, False]


def test_one_message_of_the_largest_size_goes_out_in_parts(end: End) -> None:
    plain = {"data": b"x" * (16 * MIB - 20)}
    end.frames.send(plain)
    assert end.frames.waiting > 15 * MIB
    assert end.read_all() == [plain]


def test_frames_come_in_as_they_are_read_and_the_end_is_none(end: End) -> None:
    assert end.frames.receive() == []
    end.peer.send(pack({"a": 1}) + pack({"b": 2})[:3])
    assert end.frames.receive() == [{"a": 1}]
    end.peer.send(pack({"b": 2})[3:])
    assert end.frames.receive() == [{"b": 2}]
    end.peer.close()
    assert end.frames.receive() is None


def test_a_peer_that_reset_the_connection_has_ended(end: End) -> None:
    end.frames.send({"never": "read"})
    end.peer.close()
    assert end.frames.receive() is None
    with pytest.raises(OSError, match="Broken pipe"):
        end.frames.send({"a": 1})


def test_answers_take_the_form_of_the_questions(end: End) -> None:
    end.peer.send(pack_json({"a": 1}))
    assert end.frames.receive() == [{"a": 1}]
    end.frames.send({"b": b"bytes"})
    assert json.loads(end.peer.recv(100)[4:]) == {"b": "bytes"}


@pytest.mark.rule("protocol.passed-on")
def test_a_packed_message_goes_out_as_it_is_but_for_a_peer_that_speaks_json(end: End) -> None:
    plain = {"type": "Token", "id": 7, "tokens": [1], "data": b" a", "thinking": False}
    end.frames.send(Packed(pack(plain)[4:]))
    assert end.peer.recv(1000) == pack(plain)
    end.peer.sendall(pack_json({"type": "Status", "id": 1}))
    assert end.frames.receive()
    end.frames.send(Packed.of(plain))
    assert end.peer.recv(1000) == pack_json(plain)


@pytest.mark.rule("process.last-frame-heard")
def test_what_an_ended_peer_left_is_drained_past_what_one_read_takes(end: End) -> None:
    end.peer.setblocking(False)
    data = pack({"data": b"x" * 50_000})
    count = 0
    try:
        while end.peer.send(data) == len(data):
            count += 1
    except BlockingIOError:
        pass
    assert count > 1
    assert len(list(end.frames.drain())) == count  # and it does not wait for more
    end.peer.close()
    assert list(end.frames.drain()) == []


@pytest.mark.rule("wire.garbage")
def test_garbage_on_a_socket_is_a_wire_error(end: End) -> None:
    end.peer.send(framed(b"\xff"))
    assert error_of(end.frames.receive).code == "bad_frame"
