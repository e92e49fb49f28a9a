"""A vocabulary without a model: one token a byte, and ChatML's two control tokens. For scripts."""

import re
from functools import cached_property
from typing import TYPE_CHECKING

from aerix.pool.builtin import CHATML, CHATML_THINKING

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_START, _END = b"<|im_start|>", b"<|im_end|>"
_CONTROL = {_START: 256, _END: 257}
_SPLIT = re.compile(b"(<\\|im_start\\|>|<\\|im_end\\|>)")


class ByteVocabulary:
    """See Vocabulary. Its digest is a word: it never changes."""

    size = 258
    digest = "bytes"
    bos: int | None = None
    ends: tuple[int, ...] = (257,)
    architecture = ""
    bos_text = ""
    eos_text = _END.decode()

    def __init__(self, *, thinks: bool = False) -> None:
        """``thinks``: its template opens a thinking stretch."""
        self.chat_template: str | None = CHATML_THINKING if thinks else CHATML

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """See Vocabulary."""
        raw = text.encode("utf-8", "replace")
        if not special:
            return list(raw)
        parts = _SPLIT.split(raw)
        return [token for part in parts for token in ([_CONTROL[part]] if part in _CONTROL else part)]

    def piece(self, token: int) -> bytes:
        """See Vocabulary."""
        return bytes([token]) if token < 256 else b""

    def guide(self) -> "LLTokenizer":
        """See Vocabulary."""
        return self._guide

    @cached_property
    def _guide(self) -> "LLTokenizer":
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(_Bytes()))


class _Bytes:
    """What llguidance asks of a tokenizer."""

    eos_token_id = 257
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), _START, _END)
    special_token_ids = (256, 257)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)
