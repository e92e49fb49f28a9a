"""Messages to frames and back: dataclasses to plain maps, maps to CBOR (or JSON) behind a 4-byte length.

One format for the pool's socket and for every child process. A frame comes from outside: only plain maps, lists,
text, bytes, numbers, booleans and null are taken, nested at most 64 deep, in at most 16 MiB.
"""

import dataclasses
import json
import socket
import struct
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Union, get_args, get_origin

import cbor2

from aerix.actors.bounds import DEPTH, FRAME, WRITE_BUFFER

Plain = dict[str, Any]
"""A message as a map of plain values."""

_LARGEST = 2**64
_LENGTH = struct.Struct(">I")
_HEAD = _LENGTH.size
_READ = 65_536  # from 128 KiB on, the allocator maps fresh pages for every read


class WireError(Exception):
    """What came is no message: ``code`` is stable, the text says what is wrong with it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# --- dataclasses and maps -----------------------------------------------------------------------------------------

_Convert = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


class Codec:
    """Encodes and decodes the dataclasses it was given. The class name stands under ``type``.

    Unknown fields are ignored, so that a newer peer may say more; a missing or mistyped one is a WireError.
    """

    def __init__(self, classes: Iterable[type]) -> None:
        self.classes = {cls.__name__: cls for cls in classes}

    def __contains__(self, cls: type) -> bool:
        return self.classes.get(cls.__name__) is cls

    def encode(self, message: Any) -> Plain:
        """The message as a map."""
        plain: Plain = {"type": type(message).__name__}
        for name, convert, _, _, _ in _FIELDS[type(message)]:
            value = getattr(message, name)
            plain[name] = value if convert is _same else convert(value)
        return plain

    def decode(self, plain: Plain) -> Any:
        """The message that the map holds. Raises WireError."""
        name = plain.get("type")
        cls = self.classes.get(name) if isinstance(name, str) else None
        if cls is None:
            raise WireError("unknown_message", f"a message of the unknown type {name!r:.60} came")
        return _build(cls, plain)


def _build(cls: type, plain: Plain) -> Any:
    values = {}
    for name, _, exact, check, required in _FIELDS[cls]:
        value = plain.get(name, _ABSENT)
        if type(value) is exact:
            values[name] = value
        elif value is not _ABSENT:
            try:
                values[name] = check(value)
            except _MistypedError as error:
                raise WireError("bad_message", f"{cls.__name__}.{name}{error}") from None
        elif required:
            raise WireError("bad_message", f"{cls.__name__} lacks its field {name!r}")
    return cls(**values)


_ABSENT = object()


class _MistypedError(Exception):
    pass


_Field = tuple[str, _Convert, type | None, _Convert, bool]
"""Name, encoder, the scalar type whose values need no checker, checker, and whether it must be there."""


class _Fields(dict[type, list[_Field]]):
    """The fields of each class, looked up once."""

    def __missing__(self, cls: type) -> list[_Field]:
        hints = typing.get_type_hints(cls)
        self[cls] = fields = [
            (
                field.name,
                _encoder(hints[field.name]),
                hints[field.name] if hints[field.name] in _SCALARS else None,
                _checker(hints[field.name]),
                field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            )
            for field in dataclasses.fields(cls)
        ]
        return fields


_FIELDS = _Fields()


def _encoder(hint: Any) -> _Convert:
    if dataclasses.is_dataclass(hint):
        rows = _FIELDS[typing.cast("type", hint)]
        return lambda value: {name: convert(getattr(value, name)) for name, convert, *_ in rows}
    origin, args = get_origin(hint), get_args(hint)
    if origin in (list, tuple):
        inner = _encoder(args[0])
        return _same if inner is _same and origin is list else lambda value: [inner(item) for item in value]
    if origin in (Union, types.UnionType):
        inner = next((c for c in map(_encoder, args) if c is not _same), _same)
        return _same if inner is _same else lambda value: None if value is None else inner(value)
    return _same


def _checker(hint: Any) -> _Convert:
    """A function that gives the value, or raises _MistypedError."""
    if hint is Any:
        return _check_plain
    if dataclasses.is_dataclass(hint):
        return _check_nested(typing.cast("type", hint))
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _check_literal(args)
    if origin in (Union, types.UnionType):
        return _check_union(args)
    if origin in (list, tuple):
        return _check_list(args[0], origin)
    if origin is dict or hint is dict:
        return _check_dict
    return _check_scalar(hint)


def _check_nested(cls: type) -> _Convert:
    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise _MistypedError(f" is not a map but {_kind(value)}")
        return _build(cls, value)

    return check


def _check_literal(allowed: tuple[Any, ...]) -> _Convert:
    def check(value: Any) -> Any:
        if not isinstance(value, str) or value not in allowed:
            raise _MistypedError(f" is {value!r:.60}, not one of {', '.join(map(str, allowed))}")
        return value

    return check


def _check_union(args: tuple[Any, ...]) -> _Convert:
    inner = [_checker(arg) for arg in args if arg is not type(None)]
    optional = type(None) in args

    def check(value: Any) -> Any:
        if value is None and optional:
            return None
        for at, one in enumerate(inner):
            try:
                return one(value)
            except _MistypedError:
                if at == len(inner) - 1:
                    raise
        raise AssertionError

    return check


def _check_list(item: Any, origin: type) -> _Convert:
    inner = _checker(item)

    def check(value: Any) -> Any:
        if type(value) is not list:
            raise _MistypedError(f" is not a list but {_kind(value)}")
        return origin(value) if inner is _same else origin(inner(one) for one in value)

    return check


def _check_dict(value: Any) -> Any:
    if type(value) is not dict:
        raise _MistypedError(f" is not a map but {_kind(value)}")
    return _check_plain(value)


_SCALARS = frozenset({str, bytes, int, float, bool, type(None)})


def _check_plain(value: Any, levels: int | None = None) -> Any:
    """A value of no declared type: plain all the way down (CBOR's ``undefined`` and other simple values are not)."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    left = DEPTH.count if levels is None else levels
    if left == 0:
        raise _MistypedError(" is nested too deep")
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise _MistypedError(f" has a key of {_kind(key)}")
        items = value.values()
    elif kind is list:
        items = value
    else:
        raise _MistypedError(f" holds {_kind(value)}, which is no plain value")
    for item in items:
        if type(item) not in _SCALARS:
            _check_plain(item, left - 1)
    return value


def _check_scalar(cls: type) -> _Convert:
    def check(value: Any) -> Any:
        if type(value) is cls:
            return value
        if cls is float and type(value) is int:
            return float(value)
        raise _MistypedError(f" is not {cls.__name__} but {_kind(value)}")

    return check


def _kind(value: Any) -> str:
    return type(value).__name__


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """A message as the body of a CBOR frame. It is passed on as it is, and checked by whoever reads it."""

    body: bytes

    @classmethod
    def of(cls, plain: Plain) -> "Packed":
        """Pack a message's map."""
        return cls(cbor2.dumps(plain))


# --- maps and bytes -----------------------------------------------------------------------------------------------


def pack(plain: Plain, limit: int | None = None) -> bytes:
    """One CBOR frame. Raises WireError when it is over the limit (the bound), or holds what is no plain value."""
    try:
        body = cbor2.dumps(plain)
    except Exception as error:  # noqa: BLE001  # whatever the encoder does not take is the same answer
        raise WireError("not_plain", f"a message holds what no frame can: {str(error)[:200]}") from None
    return _framed(body, limit)


def pack_json(plain: Plain, limit: int | None = None) -> bytes:
    """One JSON frame; bytes become text (a cut character is replaced). Raises WireError like ``pack``."""
    try:
        body = json.dumps(plain, default=_text, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError("not_plain", f"a message holds what no frame can: {str(error)[:200]}") from None
    return _framed(body, limit)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    raise TypeError(f"{type(value).__name__} is not a plain value")


def _framed(body: bytes, limit: int | None) -> bytes:
    limit = FRAME.count if limit is None else limit
    if len(body) > limit:
        raise WireError("frame_too_large", f"a message of {len(body)} bytes is over the limit of {limit}")
    return _LENGTH.pack(len(body)) + body


def unpack(body: bytes, depth: int | None = None) -> Plain:
    """The map in a frame's body: JSON where it begins with a brace, else CBOR. Raises WireError."""
    depth = DEPTH.count if depth is None else depth
    value = _unpack_json(body) if body[:1] == b"{" else _unpack_cbor(body, depth)
    if type(value) is not dict:
        raise WireError("bad_frame", f"a frame holds no map but {_kind(value)}")
    try:
        _check_plain(value, depth)
    except _MistypedError as error:
        raise WireError("bad_frame", f"a frame{error}") from None
    return value


def _refuse_tag(_decoder: object, tag: object = None) -> Any:
    raise WireError("bad_frame", "a frame holds a CBOR tag; only plain values are taken")


# Tags that cbor2 decodes by itself (RFC 8949 and the registry), each refused; the hook refuses all others.
_TAGS = dict.fromkeys((
    *range(6), *range(21, 26), *range(28, 38), 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799,
), _refuse_tag)  # fmt: skip


def _unpack_cbor(body: bytes, depth: int) -> Any:
    try:
        return cbor2.loads(
            body,
            tag_hook=_refuse_tag,
            semantic_decoders=_TAGS,
            max_depth=depth,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        )
    except WireError:
        raise
    except Exception as error:  # noqa: BLE001  # every way a decoder fails on bytes from outside is the same answer
        if isinstance(error.__cause__, WireError):
            raise error.__cause__ from None
        raise WireError("bad_frame", f"a frame is not CBOR of plain values: {str(error)[:200]}") from None


def _unpack_json(body: bytes) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> Plain:
        plain = dict(pairs)
        if len(plain) != len(pairs):
            raise WireError("bad_frame", "a JSON frame names a key twice")
        return plain

    try:
        value = json.loads(body.decode(), object_pairs_hook=once, parse_int=_json_int)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
        return value
    except (ValueError, RecursionError) as error:
        raise WireError("bad_frame", f"a frame begins like JSON but is none: {str(error)[:200]}") from None


def _json_int(digits: str) -> int:
    """A whole number that a CBOR frame could hold too, where a larger one is a tag."""
    value = int(digits)
    if not -_LARGEST <= value < _LARGEST:
        raise WireError("bad_frame", "a frame holds a whole number of more than 64 bits")
    return value


class FrameReader:
    """Bytes in, maps out; keeps the piece of a frame that has not come whole."""

    def __init__(self) -> None:
        self._held = bytearray()
        # Looked up once: the environment costs as much as a small frame.
        self.limit, self._depth = FRAME.count, DEPTH.count
        self.json = False
        """Whether the last frame was JSON: answers take the same form."""

    def feed(self, data: bytes) -> list[Plain]:
        """The frames that are whole now. Raises WireError; the reader is of no use after that."""
        held, frames, at = self._held, [], 0
        came: bytes | bytearray = data
        if held:  # only a frame in pieces is put together; one that came whole is read where it is
            held += data
            came = held
        while len(came) - at >= _HEAD:
            (length,) = _LENGTH.unpack_from(came, at)
            if length > self.limit:
                raise WireError(
                    "frame_too_large", f"a frame of {length} bytes is over the limit of {self.limit}"
                )
            end = at + _HEAD + length
            if end > len(came):
                break
            body = bytes(came[at + _HEAD : end])
            self.json = body[:1] == b"{"
            frames.append(unpack(body, self._depth))
            at = end
        if came is held:
            del held[:at]
        else:
            held += came[at:]
        return frames

    @property
    def partial(self) -> int:
        """Bytes of a frame that is not whole."""
        return len(self._held)


class FrameSocket:
    """A non-blocking stream socket of frames, made for ``Actor.watch``.

    Owned by one actor, used in its thread only. What the peer does not take at once waits in a bounded buffer;
    ``on_writable`` is told whether write readiness is wanted.
    """

    def __init__(self, sock: socket.socket, on_writable: Callable[[bool], None]) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.reader = FrameReader()
        self._out = bytearray()
        self._on_writable = on_writable

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.sock.fileno()

    def send(self, message: Plain | Packed) -> None:
        """Send, or keep what does not fit. Raises WireError ``peer_stuck`` over the buffer's bound, OSError."""
        data = self._frame(message)
        if self._out:
            # One frame may always wait: it is bounded by itself.
            if len(self._out) > WRITE_BUFFER.count:
                raise WireError(
                    "peer_stuck", f"the peer has not read {len(self._out)} bytes that wait for it"
                )
            self._out += data
            return
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._out += memoryview(data)[sent:]
            self._on_writable(True)

    def _frame(self, message: Plain | Packed) -> bytes:
        if isinstance(message, Packed):
            if not self.reader.json:
                return _framed(message.body, self.reader.limit)
            message = unpack(message.body)
        return (pack_json if self.reader.json else pack)(message, self.reader.limit)

    def flush(self) -> None:
        """Write what waits; call it when the socket is writable."""
        while self._out:
            try:
                del self._out[: self.sock.send(self._out)]
            except BlockingIOError:
                return
        self._on_writable(False)

    def receive(self) -> list[Plain] | None:
        """The frames that came; None at the end of the stream. Raises WireError, OSError."""
        try:
            data = self.sock.recv(_READ)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            return None
        return self.reader.feed(data) if data else None

    def drain(self) -> Iterator[Plain]:
        """What a peer that has ended left to be read; at most one frame's limit of it. Raises WireError."""
        for _ in range(FRAME.count // _READ + 1):
            try:
                data = self.sock.recv(_READ)
            except OSError:
                return
            if not data:
                return
            yield from self.reader.feed(data)

    @property
    def waiting(self) -> int:
        """Bytes that the peer has not taken yet."""
        return len(self._out)

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
