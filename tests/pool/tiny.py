"""Tiny models with random weights: one with attention alone, and a recurrent and a hybrid one, whose memory cannot be cut."""

import struct
from pathlib import Path
from typing import Any

import numpy as np

from aerix.pool.builtin import CHATML
from tests.pool.ggufs import text, value

EMBEDDING, INNER, STATE, RANK, LAYERS, KERNEL = 32, 64, 8, 4, 2, 4
_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
_TYPES = [2, 3, 3, *(6 for _ in range(256))]


def recurrent(path: Path) -> Path:
    """A Mamba."""
    arrays = _Arrays()
    arrays.add("token_embd.weight", len(_TOKENS), EMBEDDING)
    arrays.ones("output_norm.weight", EMBEDDING)
    for layer in range(LAYERS):
        name = f"blk.{layer}."
        arrays.ones(name + "attn_norm.weight", EMBEDDING)
        arrays.add(name + "ssm_in.weight", 2 * INNER, EMBEDDING)
        arrays.add(name + "ssm_conv1d.weight", INNER, KERNEL)
        arrays.add(name + "ssm_conv1d.bias", INNER)
        arrays.add(name + "ssm_x.weight", RANK + 2 * STATE, INNER)
        arrays.add(name + "ssm_dt.weight", INNER, RANK)
        arrays.add(name + "ssm_dt.bias", INNER)
        arrays.found[name + "ssm_a"] = -np.tile(np.arange(1, STATE + 1, dtype=np.float32), (INNER, 1))
        arrays.ones(name + "ssm_d", INNER)
        arrays.add(name + "ssm_out.weight", EMBEDDING, INNER)
    return _write(
        path,
        _common("mamba")
        | {
            "mamba.feed_forward_length": 0,
            "mamba.attention.head_count": 0,
            "mamba.ssm.conv_kernel": KERNEL,
            "mamba.ssm.inner_size": INNER,
            "mamba.ssm.state_size": STATE,
            "mamba.ssm.time_step_rank": RANK,
        },
        arrays.found,
    )


def attentive(path: Path) -> Path:
    """A Llama."""
    arrays = _Arrays()
    arrays.add("token_embd.weight", len(_TOKENS), EMBEDDING)
    arrays.ones("output_norm.weight", EMBEDDING)
    for layer in range(LAYERS):
        arrays.feed_forward(layer)
        arrays.attention(layer)
    return _write(
        path,
        _common("llama")
        | {
            "llama.feed_forward_length": INNER,
            "llama.attention.head_count": 2,
            "llama.attention.head_count_kv": 2,
            "llama.rope.dimension_count": EMBEDDING // 2,
            "llama.vocab_size": len(_TOKENS),
        },
        arrays.found,
    )


def hybrid(path: Path) -> Path:
    """An LFM2: one layer with a short convolution, one with attention."""
    arrays = _Arrays()
    arrays.add("token_embd.weight", len(_TOKENS), EMBEDDING)
    arrays.ones("token_embd_norm.weight", EMBEDDING)
    for layer in range(LAYERS):
        arrays.feed_forward(layer)
    arrays.add("blk.0.shortconv.conv.weight", EMBEDDING, KERNEL)
    arrays.add("blk.0.shortconv.in_proj.weight", 3 * EMBEDDING, EMBEDDING)
    arrays.add("blk.0.shortconv.out_proj.weight", EMBEDDING, EMBEDDING)
    arrays.attention(1)
    arrays.ones("blk.1.attn_q_norm.weight", EMBEDDING // 2)
    arrays.ones("blk.1.attn_k_norm.weight", EMBEDDING // 2)
    return _write(
        path,
        _common("lfm2")
        | {
            "lfm2.feed_forward_length": INNER,
            "lfm2.attention.head_count": 2,
            "lfm2.attention.head_count_kv": [0, 2],
            "lfm2.shortconv.l_cache": KERNEL,
            "lfm2.vocab_size": len(_TOKENS),
            "lfm2.rope.freq_base": 10000.0,
        },
        arrays.found,
    )


class _Arrays:
    def __init__(self) -> None:
        self._random = np.random.default_rng(7)
        self.found: dict[str, Any] = {}

    def add(self, name: str, *shape: int) -> None:
        self.found[name] = (self._random.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)

    def ones(self, name: str, *shape: int) -> None:
        self.found[name] = np.ones(shape, dtype=np.float32)

    def feed_forward(self, layer: int) -> None:
        name = f"blk.{layer}."
        self.ones(name + "attn_norm.weight", EMBEDDING)
        self.ones(name + "ffn_norm.weight", EMBEDDING)
        self.add(name + "ffn_gate.weight", INNER, EMBEDDING)
        self.add(name + "ffn_down.weight", EMBEDDING, INNER)
        self.add(name + "ffn_up.weight", INNER, EMBEDDING)

    def attention(self, layer: int) -> None:
        for part in ("q", "k", "v", "output"):
            self.add(f"blk.{layer}.attn_{part}.weight", EMBEDDING, EMBEDDING)


def _common(architecture: str) -> dict[str, Any]:
    return {
        "general.architecture": architecture,
        f"{architecture}.context_length": 4096,
        f"{architecture}.embedding_length": EMBEDDING,
        f"{architecture}.block_count": LAYERS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.chat_template": CHATML,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": _TOKENS,
        "tokenizer.ggml.scores": [0.0] * len(_TOKENS),
        "tokenizer.ggml.token_type": _TYPES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }


def _write(path: Path, values: dict[str, Any], arrays: dict[str, Any]) -> Path:
    body = b"GGUF" + struct.pack("<IQQ", 3, len(arrays), len(values))
    body += b"".join(text(key) + _value(one) for key, one in values.items())
    at, data = 0, b""
    for name, array in arrays.items():
        shape = array.shape[::-1]
        body += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, at)
        raw = array.tobytes()
        data += raw + bytes(-len(raw) % 32)
        at = len(data)
    path.write_bytes(body + bytes(-len(body) % 32) + data)
    return path


def _value(one: Any) -> bytes:
    """As ``ggufs.value``; lists of numbers as llama.cpp wants them: of floats, or of signed integers."""
    match one:
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(one)}f", 9, 6, len(one), *one)
        case [int(), *_]:
            return struct.pack(f"<IIQ{len(one)}i", 9, 5, len(one), *one)
        case _:
            return value(one)
