"""How many tokens a context takes: asked of the server where it can say so, else estimated from bytes.

An estimate is bytes / 3, corrected by what the server counted for the last prompt, and marked as one.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from math import ceil

from aerix.pool import protocol as p
from aerix.pool.remote_http import Server

_BYTES = 3
"""Of text to a token, where nothing better is known: few, for what does not fit is lost."""
_MARKER = 5
"""Tokens of a role marker, where nothing better is known."""
_KEPT = 4096
_ENOUGH = 256
"""Bytes of a prompt from which on its count tells something about text."""
_LEAST, _MOST = 0.3, 3.0


class Counts:
    """Counts texts for one member; remembers those of the texts it has seen."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._known: OrderedDict[bytes, int] = OrderedDict()
        """By the hash of a text: the texts themselves may be large."""
        self._correction = 1.0
        self.exact = False
        """Whether the server counts."""
        self.marker = _MARKER
        """Tokens of a role marker, and of the one that opens the model's turn."""

    async def try_server(self, texts: Sequence[str], prompt: int) -> None:
        """Find out whether the server counts, and how long its markers are: ``prompt`` is what it said of these."""
        counted = [await self._ask(text) for text in texts]
        known = [count for count in counted if count is not None]
        self.exact = len(known) == len(texts)
        if self.exact and prompt > sum(known):
            self.marker = ceil((prompt - sum(known)) / (len(texts) + 1))

    async def state(self, id: int, name: str, segments: Sequence[p.Segment]) -> p.ContextState:  # noqa: A002
        """What a context of these segments takes."""
        estimated = not self.exact
        counts = []
        for segment in segments:
            count = None if estimated else await self._count(segment.text)
            estimated = estimated or count is None
            counts.append(self.estimate(segment.text) if count is None else count)
        told = [p.SegmentCount(s.id, count + self.marker) for s, count in zip(segments, counts, strict=True)]
        opening = self.marker if segments else 0
        return p.ContextState(id, name, told, sum(one.tokens for one in told), opening, estimated=estimated)

    def estimate(self, text: str) -> int:
        """Tokens of a text, about."""
        return ceil(_size(text) / _BYTES * self._correction)

    def learn(self, segments: Sequence[p.Segment], prompt: int) -> None:
        """The server counted a prompt of these segments."""
        size = sum(_size(segment.text) for segment in segments)
        tokens = prompt - self.marker * (len(segments) + 1)
        if size >= _ENOUGH and tokens > 0:
            self._correction = min(max(tokens / (size / _BYTES), _LEAST), _MOST)

    async def _count(self, text: str) -> int | None:
        key = hashlib.sha256(text.encode()).digest()
        count = self._known.pop(key, None)
        if count is None:
            count = await self._ask(text)
        if count is not None:
            self._known[key] = count
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return count

    async def _ask(self, text: str) -> int | None:
        """llama.cpp takes ``content`` and answers ``tokens``; vLLM takes ``prompt`` and answers ``count`` too."""
        address = self._server.address
        body = {"model": address.model, "content": text, "prompt": text, "add_special": False}
        answer = await self._server.ask(f"{address.root}/tokenize", body | {"add_special_tokens": False})
        if not isinstance(answer, dict):
            return None
        count, tokens = answer.get("count"), answer.get("tokens")
        if isinstance(count, int) and count >= 0:
            return count
        return len(tokens) if isinstance(tokens, list) else None


def _size(text: str) -> int:
    return len(text.encode())
