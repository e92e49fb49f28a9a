"""What a command says: kept in memory up to the cap, its end too, the whole of it in the spool.

A command that prints without end costs neither memory nor more disk than the spool's bound.
"""

import codecs
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from aerix.bounds import SPOOL
from aerix.tools.caps import DROPPED, Capped, head, not_kept, pointer, private_file, tail

_LEAST = 200  # bytes below which a cut result is the pointer alone
_COPY = 1024 * 1024


def _question(error: UnicodeError) -> tuple[str, int]:
    """A question mark for each byte that is no text: unlike the usual sign, it takes no more room than the byte."""
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error("aerix.question", _question)


class Stream:
    """One of a command's two streams."""

    def __init__(self, limit: int, part: Path) -> None:
        """``limit`` is how many bytes may be shown; ``part`` is the file that takes all of them when there are more."""
        self.start = bytearray()
        self.end = bytearray()
        self.total = 0
        self._limit = limit
        self._part = part
        self._file: BinaryIO | None = None
        self.failed: OSError | None = None
        """Why the whole could not be kept."""

    def add(self, data: bytes) -> None:
        """Take what was read."""
        self.total += len(data)
        if self.total > self._limit and self._file is None and self.failed is None:
            self._open()
        self._spool(data)
        self.start += data[: max(0, self._limit - len(self.start))]
        self.end += data
        del self.end[: -self._limit or None]

    def _open(self) -> None:
        try:
            self._file = private_file(self._part)
            self._file.write(self.start)
        except OSError as error:
            self.failed = error

    def _spool(self, data: bytes) -> None:
        if self._file is None or self.failed is not None:
            return
        room = SPOOL.count - (self.total - len(data))
        try:
            self._file.write(data[: max(0, room)])
        except OSError as error:
            self.failed = error

    def give(self, to: BinaryIO) -> None:
        """Write the whole of it, as far as it was kept, to a file."""
        if self._file is None:
            to.write(self.start)
            return
        self._file.flush()
        with self._part.open("rb") as part:
            while data := part.read(_COPY):
                to.write(data)
        if self.total > SPOOL.count:
            to.write(DROPPED)

    def close(self) -> None:
        """Forget what was kept."""
        if self._file is not None:
            with suppress(OSError):  # a full disk: it was told already
                self._file.close()
            self._part.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Capture:
    """Both streams of a command, and the spool file of its call."""

    out: Stream
    err: Stream
    limit: int
    spool: Path

    @classmethod
    def begin(cls, limit: int, spool: Path) -> "Capture":
        """For a result of at most ``limit`` bytes."""
        limit = max(1, limit)
        out, err = (Stream(limit, spool.with_name(f".{spool.name}.{name}")) for name in ("out", "err"))
        return cls(out, err, limit, spool)

    def result(self, status: str) -> Capped:
        """Standard output, then standard error, then ``status`` on a line of its own; from the middle cut to the cap."""
        gap = b"\n" if self.out.total and self.err.total and not self.out.end.endswith(b"\n") else b""
        size = self.out.total + len(gap) + self.err.total
        try:
            if size + len(status) + 1 <= self.limit:
                return Capped(_lines(_text(bytes(self.out.start) + gap + bytes(self.err.start)), status))
            return self._cut(gap, size, status)
        finally:
            self.out.close()
            self.err.close()

    def _cut(self, gap: bytes, size: int, status: str) -> Capped:
        error = self._keep(gap, status)
        spool = self.spool if error is None else None
        line = pointer(size, self.spool) if error is None else not_kept(size, error)
        room = self.limit - len(line) - len(status) - 3
        if room < _LEAST:
            return Capped(_lines(line, status), spool)
        first, last = head(self._first(gap), room // 2), tail(self._last(gap), room - room // 2)
        if error is None:
            line = pointer(size - len(first) - len(last), self.spool)
        return Capped(_lines(_text(first), line, _text(last), status), spool)

    def _keep(self, gap: bytes, status: str) -> OSError | None:
        """Write the spool file; why not, where that fails."""
        if failed := self.out.failed or self.err.failed:
            return failed
        try:
            with private_file(self.spool) as file:
                self.out.give(file)
                file.write(gap)
                self.err.give(file)
                file.write(f"\n{status}\n".encode() if status else b"")
        except OSError as error:
            return error
        return None

    def _first(self, gap: bytes) -> bytes:
        whole = self.out.total == len(self.out.start)
        return bytes(self.out.start + gap + self.err.start) if whole else bytes(self.out.start)

    def _last(self, gap: bytes) -> bytes:
        whole = self.err.total == len(self.err.end)
        return bytes(self.out.end + gap + self.err.end) if whole else bytes(self.err.end)


def _text(data: bytes) -> str:
    """As text, never longer in bytes than it was."""
    return data.decode("utf-8", "aerix.question")


def _lines(*parts: str) -> str:
    return "\n".join(part.removesuffix("\n") for part in parts if part)
