"""A server's answer: the bytes of an event stream, or of one JSON object, to what was said in them. Pure.

What a server sends is data: it is bounded, and whatever is not as it should be is ``Garbled`` or ``Told``.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aerix.pool.bounds import REMOTE_LINE

_SHOWN = 300
"""Characters of a server's own words that are quoted."""


class Garbled(Exception):
    """What came is no answer; the text says what it is instead."""


class Told(Exception):
    """The server said in its own words, which are the text, why there is no answer. ``code`` is its own name for it."""

    def __init__(self, words: str, code: str = "") -> None:
        super().__init__(words)
        self.code = code


@dataclass(frozen=True, slots=True)
class Text:
    """Some of the answer, or of what the model thinks before it."""

    text: str
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is whole; ``reason`` is the server's word for why it ends."""

    reason: str


@dataclass(frozen=True, slots=True)
class Spent:
    """What the server counted."""

    prompt: int
    completion: int
    cached: int
    thinking: int


Said = Text | Finished | Spent


class Events:
    """Takes the bytes of a stream of server-sent events as they come, gives what they say."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[str] = []
        self.done = False
        """The server has said that nothing more comes; some keep the stream open all the same."""

    def feed(self, data: bytes) -> Iterator[Said]:
        """What these bytes complete. Raises Garbled, Told."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._rest += line
            self._check()
            whole, self._rest = bytes(self._rest), bytearray()
            yield from self._line(whole.rstrip(b"\r").decode("utf-8", "replace"))
        self._rest += rest
        self._check()

    def _check(self) -> None:
        if len(self._rest) + sum(map(len, self._data)) > REMOTE_LINE.count:
            raise Garbled(f"a line of more than {REMOTE_LINE.count} bytes")

    def _line(self, line: str) -> Iterator[Said]:
        field, _, value = line.partition(":")
        if field in ("data", "error"):  # llama.cpp once put its errors into a field of their own
            self._data.append(value.removeprefix(" "))
        elif not line and self._data:
            data, self._data = "\n".join(self._data), []
            if data.strip() == "[DONE]":
                self.done = True
                yield Finished("")
            else:
                yield from said(data)


def said(data: str | bytes) -> Iterator[Said]:
    """What one JSON object of an answer says, a part of it or all. Raises Garbled, Told."""
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        raise Garbled(f"{quoted(data)!r}, which is no JSON") from None
    if not isinstance(plain, dict):
        raise Garbled(f"{quoted(data)!r}, which is no JSON object")
    if plain.get("error") or ("choices" not in plain and "message" in plain):
        raise told(plain)
    choices = plain.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if isinstance(choice, dict):
        yield from _choice(choice)
    elif choices != [] and not isinstance(plain.get("usage"), dict):
        raise Garbled(f"{quoted(data)!r}, which is no part of an answer")
    if isinstance(usage := plain.get("usage"), dict):
        yield _spent(usage)


def told(plain: object) -> Told:
    """The server's own words in the JSON of an error."""
    error = plain.get("error") or plain if isinstance(plain, dict) else plain
    if not isinstance(error, dict):
        return Told(quoted(str(error)))
    words = error.get("message") or error.get("detail") or json.dumps(error, ensure_ascii=False)
    return Told(quoted(str(words)), f"{error.get('type')} {error.get('code')}")


def quoted(text: str | bytes) -> str:
    """The beginning of a text in one line, without what a terminal would act on."""
    text = text[: 4 * _SHOWN]
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


def _choice(choice: dict[str, Any]) -> Iterator[Said]:
    message = choice.get("delta") or choice.get("message")
    if isinstance(message, dict):
        if thought := _text(message, "reasoning_content") or _text(message, "reasoning"):
            yield Text(thought, thinking=True)
        if text := _text(message, "content"):
            yield Text(text)
    if reason := _text(choice, "finish_reason"):
        yield Finished(reason)


def _text(plain: dict[str, Any], name: str) -> str:
    """A text that can be passed on: JSON may hold halves of a character."""
    value = plain.get(name)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _spent(usage: dict[str, Any]) -> Spent:
    return Spent(
        number(usage, "prompt_tokens"),
        number(usage, "completion_tokens"),
        number(usage.get("prompt_tokens_details"), "cached_tokens"),
        number(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def number(plain: object, name: str) -> int:
    """A number of tokens in what a server says; 0 where there is none."""
    value = plain.get(name) if isinstance(plain, dict) else None
    return value if isinstance(value, int) and 0 <= value < 2**31 else 0
