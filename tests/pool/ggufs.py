"""Small GGUF files, made to measure."""

import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Value = str | int | float | bool | Sequence[str] | Sequence[int] | array[int] | array[float]

LLAMA: "dict[str, Value]" = {
    "general.architecture": "llama",
    "general.name": "A test",
    "general.file_type": 15,
    "llama.context_length": 32768,
    "llama.block_count": 32,
    "llama.embedding_length": 4096,
    "llama.feed_forward_length": 11008,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.chat_template": "{{ messages }}",
}
"""The header of a model of seven billion numbers."""


def gguf(values: "Mapping[str, Value]" = LLAMA, *, data: int = 64) -> bytes:
    """A file with these values and one tensor of ``data`` bytes."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(values))
    body = head + b"".join(text(key) + value(one) for key, one in values.items())
    body += text("token_embd.weight") + struct.pack("<IQIQ", 1, data // 4, 0, 0)
    return body + bytes(-len(body) % 32) + bytes(data)


def text(one: str) -> bytes:
    raw = one.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(one: "Value") -> bytes:
    match one:
        case bool():
            return struct.pack("<I?", 7, one)
        case int():
            return struct.pack("<II", 4, one)
        case float():
            return struct.pack("<If", 6, one)
        case str():
            return struct.pack("<I", 8) + text(one)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(one)) + b"".join(text(str(part)) for part in one)
        case array():
            kind = {"i": 5, "f": 6}[one.typecode]
            return struct.pack("<IIQ", 9, kind, len(one)) + one.tobytes()
        case _:
            return struct.pack(f"<IIQ{len(one)}I", 9, 4, len(one), *one)
