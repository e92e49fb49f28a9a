"""Reading a session's log tolerantly: one event after the other, whatever else stands between them.

A log outlives kills, full disks, other versions of Aerix and editors. What is no event is passed over and counted;
never more than one line is held.
"""

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from aerix.bounds import LOG_LINE
from aerix.session import events

Line = dict[str, Any]

TYPES = frozenset(
    kind.type
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, events.Event) and "type" in vars(kind)
)
"""Every type of event that this version knows."""


class Reading:
    """The events of a log, in order. ``passed_over`` counts, while they are read, what is none, by what it is.

    Iterating raises OSError where the log cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.passed_over: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Line]:
        self.passed_over.clear()
        with _opened(self._path) as file:
            for data in self._whole(file):
                line = self._event(data)
                if line is not None:
                    yield line

    def said(self) -> str:
        """What was passed over, in words; empty where nothing was."""
        lines = self.passed_over.total()
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.passed_over.items()))
        return f"{lines} line{'s' * (lines != 1)} of its log passed over: {kinds}" if lines else ""

    def _whole(self, file: BinaryIO) -> Iterator[bytes]:
        """The lines that are not over their bound; of one that is, each part is forgotten before the next is read."""
        limit = LOG_LINE.count
        while data := file.readline(limit + 1):
            if len(data) <= limit or data.endswith(b"\n"):
                yield data
                continue
            self.passed_over["too long"] += 1
            while data and not data.endswith(b"\n"):
                data = file.readline(limit)

    def _event(self, data: bytes) -> Line | None:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            self.passed_over["not JSON" if data.endswith(b"\n") else "cut off"] += 1
            return None
        match found:
            case {"ts": str(), "type": str(kind), "agent": str()} if kind in TYPES:
                line: Line = found
                return line
            case {"ts": str(), "type": str(), "agent": str()}:
                self.passed_over["of a type that this version does not know"] += 1
            case _:
                self.passed_over["no event"] += 1
        return None


def _opened(path: Path) -> BinaryIO:
    """The log, which is a regular file: a pipe in its place would never be read to its end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(22, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")
