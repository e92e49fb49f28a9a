"""Steering: what the user says, as JSON lines on standard input, while a headless run goes on.

A line is ``{"text": "…"}``, or with ``"steer": true`` as well. One that steers joins the running agent at its next turn;
any other waits as the next prompt. What steers when no agent runs, or came too late for it, is a prompt too.
"""

import json
import os
from collections import deque
from dataclasses import dataclass

from aerix.actors import Actor, Answer, Cancel, on
from aerix.bounds import PROMPTS, STDIN
from aerix.output import complain

_READ = 65_536
_NEWLINE = b"\n"


@dataclass(frozen=True, slots=True)
class NextPrompt:
    """Answered by ``Given`` when there is a prompt, or none will come any more. Whoever asks has no agent running."""


@dataclass(frozen=True, slots=True)
class Given:
    """The next prompt, or None at the end; ``cancelled`` is then the reason, where the user did not let it come."""

    text: str | None
    cancelled: str = ""


@dataclass(frozen=True, slots=True)
class TakeSteering:
    """Answered by ``Steering``: all that steers and was not taken yet."""


@dataclass(frozen=True, slots=True)
class Steering:
    """What the user said to the running agent, in order."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the user's."""

    text: str
    steer: bool = False


class BadLine(Exception):
    """A line is no message; the text says why."""


def said(line: bytes) -> Said:
    """A line's message. Raises BadLine. Claude Code's form of a user's message is taken too."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise BadLine("it is not JSON") from None
    if not isinstance(found, dict):
        raise BadLine('a message is an object, as {"text": "…"}')
    if (kind := found.get("type", "user")) != "user":
        raise BadLine(f'there is no message of the type {str(kind)[:40]!a}; "user" is one')
    text, steer = _text(found), found.get("steer", False)
    if not isinstance(steer, bool):
        raise BadLine("`steer` must be true or false")
    if text is None or not text.strip():
        raise BadLine("it has no `text`")
    return Said(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip(), steer)


def _text(found: dict[str, object]) -> str | None:
    """The text, or that of ``message.content``, which is a text or a list of blocks."""
    message = found.get("message")
    content = message.get("content") if isinstance(message, dict) else found.get("text")
    if isinstance(content, list):
        parts = [block.get("text") if isinstance(block, dict) else None for block in content]
        return "\n".join(parts) if all(isinstance(part, str) for part in parts) else None  # type: ignore[arg-type]  # they are
    return content if isinstance(content, str) else None


class Input(Actor):
    """Reads standard input as it comes. While too many messages wait it is not read: whoever writes has to wait."""

    def __init__(self, first: str | None, fd: int = 0) -> None:
        """``first`` is a prompt that goes before all others; ``fd`` is what is read."""
        self._fd = fd
        self._waiting = deque([Said(first)] if first else [])
        self._line = bytearray()
        self._number = 0
        self._too_long = False
        self._ended = False
        self._reading = False
        self._cancelled = ""
        self._asked: Answer | None = None

    def setup(self) -> None:
        """Begin to read."""
        self._read_on()

    @on(NextPrompt)
    def _next(self, _message: NextPrompt) -> None:
        self._asked = self.later()
        self._give()

    @on(TakeSteering)
    def _take(self, _message: TakeSteering) -> Steering:
        taken = [one.text for one in self._waiting if one.steer]
        self._waiting = deque(one for one in self._waiting if not one.steer)
        self._read_on()
        return Steering(tuple(taken))

    @on(Cancel)
    def _cancel(self, message: Cancel) -> None:
        """The user has no more to say."""
        self._waiting.clear()
        self._ended, self._cancelled = True, message.reason
        self._give()

    def _give(self) -> None:
        if self._asked is None or not (self._waiting or self._ended):
            return
        given = Given(self._waiting.popleft().text) if self._waiting else Given(None, self._cancelled)
        self._asked.reply(given)
        self._asked = None
        self._read_on()

    # --- reading

    def _read_on(self) -> None:
        """Read while there is room for what is read."""
        wanted = not self._ended and len(self._waiting) < PROMPTS.count
        if wanted and not self._reading:
            self.watch(self._fd, self._read)
        elif self._reading and not wanted:
            self.unwatch(self._fd)
        self._reading = wanted

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ)
        except OSError as error:
            complain(f"standard input cannot be read any more: {error.strerror}")
            data = b""
        *lines, rest = data.split(_NEWLINE)
        for line in lines:
            self._add(line)
            self._take_line()
        self._add(rest)
        if not data:
            self._ended = True
            self._take_line()
        self._give()
        self._read_on()

    def _add(self, part: bytes) -> None:
        self._too_long = self._too_long or len(self._line) + len(part) > STDIN.count
        self._line += b"" if self._too_long else part

    def _take_line(self) -> None:
        """The line that is whole now. What is no message is told, and left out."""
        line, too_long = bytes(self._line), self._too_long
        self._line.clear()
        self._number, self._too_long = self._number + 1, False
        try:
            if too_long:
                raise BadLine(f"it is longer than {STDIN.count:,} bytes")
            if line.strip():
                self._waiting.append(said(line))
        except BadLine as bad:
            complain(f"standard input, line {self._number}: {bad}; the line is left out")
