"""A GGUF file's header: what a model needs, read before anything loads it.

The file is somebody else's: every count in it is checked against a bound and against the file's size, and what is not
asked for is skipped, not read. Nothing heavy is imported, and the file is not mapped: one that shrinks meanwhile ends
in a sentence, not in a signal.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeGuard

from aerix.actors import Refused
from aerix.pool.bounds import HEADER_BYTES, HEADER_ENTRIES
from aerix.pool.models import check_head

_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_KEPT_TEXT = 4096
_KEPT_ARRAY = 4096
_KEY = 65_535
_DIMENSIONS = 4
_BUFFER = 1 << 20
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip

_Value = str | int | float | bool | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of its model. A number that it does not say is 0."""

    architecture: str
    name: str
    quantization: str
    """As people call it, ``Q4_K_M``; empty where it is unknown."""
    trained: int
    """The window that the model was trained for, in tokens."""
    layers: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: tuple[int, ...]
    """The heads of keys and values by layer: one for each, or one for all."""
    key_length: int
    value_length: int
    vocabulary: int
    sliding_window: int
    recurrent: int
    """Numbers that a recurrent layer keeps for each sequence."""
    template: bool
    """Whether the file brings a chat template."""
    splits: int
    """How many files the model is cut into; 0 or 1 where it is not."""

    @property
    def head_numbers(self) -> int:
        """Numbers that the keys and values of one token take, all layers together."""
        heads = sum(self.kv_heads) * (self.layers if len(self.kv_heads) == 1 else 1)
        return heads * (self.key_length + self.value_length)


def read_header(path: Path) -> Header:
    """The header of a GGUF file. Raises Refused: ``model_missing``, ``model_not_gguf``, ``model_broken_file``."""
    try:
        with path.open("rb", _BUFFER) as file:
            return _Reader(file, path).header()
    except OSError as error:
        raise Refused("model_missing", f"model file {path} cannot be read: {error.strerror}") from None


class _Reader:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._size = file.seek(0, 2)
        self._left = 0
        """Entries of arrays that may still be walked."""
        file.seek(0)

    def header(self) -> Header:
        """Read to the end of the header, the places of the tensors included."""
        check_head(self._path, self._file.read(8))
        tensors, keys = self._count("tensors"), self._count("values")
        self._left = HEADER_ENTRIES.count
        values: dict[str, _Value] = {}
        for _ in range(keys):
            key = self._text(_KEY)
            value = self._value(self._number("I"), key)
            if value is not None:
                values[key] = value
        self._check_tensors(tensors, values)
        return _header(values)

    def _check_tensors(self, count: int, values: dict[str, _Value]) -> None:
        """Every tensor must begin inside the file: a download that was cut off is told here."""
        last = 0
        for _ in range(count):
            self._text(_KEY)
            dimensions = self._number("I")
            if dimensions > _DIMENSIONS:
                raise self._broken(f"a tensor has {dimensions:,} dimensions")
            self._skip(8 * dimensions + 4)
            last = max(last, self._number("Q"))
        unit = values.get("general.alignment")
        unit = unit if type(unit) is int and 0 < unit <= _BUFFER else 32
        begin = -(-self._file.tell() // unit) * unit
        if count and begin + last >= self._size:
            raise self._broken(f"it ends at byte {self._size:,}, before its tensors do: it was cut off")

    # --- values

    def _value(self, kind: int, key: str) -> _Value:
        """A value; None for one that is only skipped."""
        if kind == _STRING:
            return self._kept_text()
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _FIXED:
            raise self._broken(f"{key[:64]!r} has a type that does not exist ({kind})")
        number: int | float | bool = self._number(_FIXED[kind])
        return number

    def _kept_text(self) -> str:
        """A text; of a long one only that it is there."""
        length = self._length()
        if length <= _KEPT_TEXT:
            return self._take(length).decode("utf-8", "replace")
        self._skip(length)
        return "…"

    def _array(self, key: str) -> _Value:
        """Its numbers, where they are few whole ones; else how many entries there are."""
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            self._skip_texts(count, key)
        elif kind in _FIXED:
            code = _FIXED[kind]
            if count <= _KEPT_ARRAY and code in "BbHhIiQq?":
                raw = self._take(count * struct.calcsize(f"<{code}"))
                return tuple(int(one) for one in struct.unpack(f"<{count}{code}", raw))
            self._skip(count * struct.calcsize(f"<{code}"))
        else:
            raise self._broken(f"{key[:64]!r} is a list of a type that does not exist ({kind})")
        return int(count)

    def _skip_texts(self, count: int, key: str) -> None:
        self._left -= count
        if self._left < 0:
            raise self._broken(f"{key[:64]!r} is a list of {count:,} texts")
        length_at = struct.Struct("<Q").unpack_from
        while count:
            chunk = self._file.read(_BUFFER)
            at, last = 0, len(chunk) - 8
            while count and at <= last:
                at += 8 + length_at(chunk, at)[0]
                count -= 1
            if at == 0:
                raise self._cut()
            self._file.seek(-len(chunk), 1)
            self._skip(at)

    # --- bytes

    def _count(self, what: str) -> int:
        """A number of things that follow, each of some bytes: more than the file could hold is a lie."""
        count: int = self._number("Q")
        if count > min(HEADER_ENTRIES.count, self._size // 8):
            raise self._broken(f"it claims to have {count:,} {what}")
        return count

    def _length(self) -> int:
        length: int = self._number("Q")
        return length

    def _text(self, most: int) -> str:
        length = self._length()
        if length > most:
            raise self._broken(f"a name in it is {length:,} bytes long")
        return self._take(length).decode("utf-8", "replace")

    def _number(self, code: str) -> int:
        value: int = struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))[0]
        return value

    def _take(self, length: int) -> bytes:
        raw = self._file.read(length)
        if len(raw) < length:
            raise self._cut()
        return raw

    def _skip(self, length: int) -> None:
        """Onwards, within the file and within the bound."""
        if length > self._size - self._file.tell():
            raise self._cut()
        at = self._file.seek(length, 1)
        if at > HEADER_BYTES.count:
            raise self._broken(f"its header is longer than {HEADER_BYTES.count:,} bytes")

    def _cut(self) -> Refused:
        return self._broken(f"it ends at byte {self._size:,}, inside its header: it was cut off")

    def _broken(self, why: str) -> Refused:
        return Refused("model_broken_file", f"{self._path} is a damaged GGUF file: {why}; fetch it again")


# --- what the values mean -----------------------------------------------------------------------------------------


def _header(values: dict[str, _Value]) -> Header:
    arch = _text_of(values, "general.architecture")

    def number(key: str) -> int:
        value = values.get(f"{arch}.{key}")
        return max(value) if isinstance(value, tuple) and value else value if _whole(value) else 0

    embedding, heads = number("embedding_length"), number("attention.head_count")
    plain = embedding // heads if heads else 0
    tokens = values.get("tokenizer.ggml.tokens")
    kind = values.get("general.file_type")
    return Header(
        architecture=arch,
        name=_text_of(values, "general.name"),
        quantization=_FILE_TYPES.get(kind, "") if _whole(kind) else "",
        trained=number("context_length"),
        layers=number("block_count"),
        embedding=embedding,
        feed_forward=number("feed_forward_length"),
        heads=heads,
        kv_heads=_kv_heads(values.get(f"{arch}.attention.head_count_kv"), heads),
        key_length=number("attention.key_length") or plain,
        value_length=number("attention.value_length") or plain,
        vocabulary=number("vocab_size") or (tokens if _whole(tokens) else 0),
        sliding_window=number("attention.sliding_window"),
        recurrent=_recurrent(number),
        template="tokenizer.chat_template" in values,
        splits=split if _whole(split := values.get("split.count")) else 0,
    )


def _recurrent(number: Callable[[str], int]) -> int:
    """Of a Mamba-like layer: the state, and what its convolution looks back on."""
    inner, state, groups = number("ssm.inner_size"), number("ssm.state_size"), number("ssm.group_count")
    back = max(number("ssm.conv_kernel") - 1, 0)
    return inner * state + back * (inner + 2 * groups * state)


def _kv_heads(value: _Value, heads: int) -> tuple[int, ...]:
    if isinstance(value, tuple):
        return tuple(max(one, 0) for one in value)
    return (value if _whole(value) else heads,)


def _text_of(values: dict[str, _Value], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""


def _whole(value: _Value) -> TypeGuard[int]:
    """A whole number that a size may be."""
    return type(value) is int and value >= 0
