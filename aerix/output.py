"""Output: the actor that owns standard output and standard error of a headless run.

Standard output carries what was asked for and nothing else: the answer and the diff, one JSON object, or the events
as lines. Notes, calls and reasons go to standard error.
"""

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Literal

from aerix.actors import Actor, Refused, on
from aerix.session.events import (
    ROOT,
    Compaction,
    Event,
    Job,
    Message,
    Note,
    Reading,
    Segment,
    SessionEnd,
    Token,
    line,
)
from aerix.session.show import Show
from aerix.shown import clean, one_line, why_failed

Format = Literal["text", "json", "stream-json"]

_STDOUT, _STDERR = 1, 2
_MARK, _NEXT = "aerix: ", "\n"
_UNDER = " " * len(_MARK)  # a name with a line end in it cannot begin a line as Aerix does
_END_FIELDS = ("session", "outcome", "reason", "text", "diff", "untracked", "usage", "turns", "exit")
_SHOWN_INPUT = 120  # characters of a call's input on its line
_SHOWN_WHY = 400  # of why it failed: a refusal ends with the rule that would allow the call
READING_EVERY_S = 2.0
"""Seconds between two notes about a prompt that is being read."""


class Output(Actor):
    """Shows events in the form that was asked for. A reader that has gone is refused with ``stdout_closed``."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._read = monotonic()

    @on(Show)
    def _show(self, message: Show) -> None:
        for event in filter(None, map(self._told, message.events)):
            if self._form == "stream-json":
                _write(line(event))
            else:
                self._tell(event)
            if isinstance(event, SessionEnd) and event.outcome != "done":
                complain(f"{event.outcome}: {event.reason}")

    def _told(self, event: Event) -> Event | None:
        """What is told of an event: reading is a note, where nothing else was told for a while."""
        now = monotonic()
        if isinstance(event, Reading):
            if now - self._read < READING_EVERY_S:
                return None
            event = Note(agent=event.agent, text=event.sentence)
        self._read = now
        return None if isinstance(event, Token) and not event.text else event

    def _tell(self, event: Event) -> None:
        match event:
            case Note():
                complain(event.text)
            case Message() if event.tool is not None:
                name = event.call or event.id  # a job of an earlier run has no call here
                complain(f"{_whose(event)}{name} {event.tool} {_shown(event.input)}{_why(event)}")
            case Message() if not event.kept:
                length = len(event.tokens or ()) or (event.usage or {}).get("completion_tokens", 0)
                complain(f"{_whose(event)}the turn was cut at {length} tokens and is asked again")
            case Compaction():
                complain(f"{_whose(event)}compacted: {event.before:,} -> {event.after:,} tokens")
            case Job(state="killed"):
                complain(f"[job {event.id} {event.how}]")
            case SessionEnd() if self._form == "json":
                _write(json.dumps({name: getattr(event, name) for name in _END_FIELDS}).encode() + b"\n")
            case SessionEnd():
                self._print_answer(event)
            case Segment() | Token():
                pass

    def _print_answer(self, end: SessionEnd) -> None:
        """The answer, then the diff, and what the diff leaves out. A terminal gets nothing that it would obey."""
        text, diff, untracked = end.text, end.diff, end.untracked
        if os.isatty(_STDOUT):
            text, diff, untracked = clean(text), clean(diff), [one_line(path) for path in untracked]
        if text:
            _write(text.encode("utf-8", "replace").rstrip(b"\n") + b"\n")
        if diff:
            _write(b"\n" * bool(text) + diff.encode("utf-8", "surrogateescape").rstrip(b"\n") + b"\n")
        for path in untracked:
            _write(f"untracked: {path}\n".encode("utf-8", "surrogateescape"))


_teller: Callable[[str], object] | None = None


def tell_to(teller: Callable[[str], object] | None) -> None:
    """Have ``complain`` tell somebody who owns the terminal; None: it is standard error's again. For the whole process."""
    global _teller  # noqa: PLW0603 - standard error is the process's, too
    _teller = teller


def complain(text: str) -> None:
    """Say something on standard error, or to the owner of the terminal; that nobody reads it stops nothing."""
    if _teller is not None:
        _teller(text)
        return
    with suppress(OSError):
        os.write(_STDERR, f"{_MARK}{clean(text).replace(_NEXT, _NEXT + _UNDER)}\n".encode("utf-8", "replace"))


def _whose(event: Event) -> str:
    """The agent, where it is not the root."""
    return "" if event.agent == ROOT else f"{event.agent}: "


def _why(event: Message) -> str:
    """Why a call failed."""
    if not event.error:
        return ""
    line = why_failed(event.text)
    return f" — {_cut(line, _SHOWN_WHY)}"


def _shown(value: object) -> str:
    return _cut(json.dumps(value, ensure_ascii=False), _SHOWN_INPUT)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def fill_standard_descriptors() -> None:
    """Put something where standard input, output or error is closed: else a log or a socket would be opened there.

    What is put there takes no output: writing to it fails as writing to a closed descriptor does.
    """
    for fd in (0, _STDOUT, _STDERR):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(
                os.open(os.devnull, os.O_RDONLY), True
            )  # it gets the lowest free number: this one


def _write(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(_STDOUT, data) :]
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.EBADF):
            raise Refused("stdout_closed", "standard output was closed") from None
        failure = f"standard output cannot be written: {error.strerror}"
        complain(failure)  # the reason would have gone where nothing goes any more
        raise Refused("stdout_failed", failure) from None
