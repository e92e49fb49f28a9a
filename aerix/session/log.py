"""SessionLog: the one writer of a session's log, an actor of its own.

A line is on its way to the disk before the agent goes on: writing is a request that is answered. Lines are appended
whole: one that cannot be written to its end is taken back.
"""

import errno
import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aerix.actors import Actor, Exit, Refused, Stop, on
from aerix.session.events import Event, line


@dataclass(frozen=True, slots=True)
class Write:
    """Append these events; answered when they are written. Refused with ``session_storage`` when they cannot be."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class _Close:
    """The end of the queue: a stop overtakes lines that wait, so it is put behind them."""


class SessionLog(Actor):
    """Owns the file: made with mode 0600 in folders of mode 0700, locked against a second writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._stop_waits = False

    def setup(self) -> None:
        """Open and lock the file. Raises Refused ``session_storage`` or ``session_locked``."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self.path, flags, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(self._fd).st_nlink:  # whoever held the lock has removed the session
                raise FileNotFoundError(errno.ENOENT, "it was removed")
            self._end_torn_line()
        except BlockingIOError:
            raise in_use(self.path) from None
        except OSError as error:
            raise unwritable(self.path, error) from None

    def _end_torn_line(self) -> None:
        """Whoever was killed in the middle of a line left it so; the next one does not join it."""
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    @on(Write)
    def _write(self, message: Write) -> None:
        if self._stop_waits:
            self._stop_waits = False
            self.ref.stop()
        data = b"".join(map(line, message.events))
        status = os.fstat(self._fd)
        if not status.st_nlink:  # what is written now, nobody would ever find
            raise Refused("session_storage", f"the session log {self.path} was removed; begin a new session")
        at = status.st_size
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                raise OSError(28, "No space left on device")
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._fd, at)
            raise unwritable(self.path, error) from None

    @on(Stop)
    def _stop(self, _message: Stop) -> None:
        try:
            self.ref.tell(_Close())
        except Refused:  # as many lines wait as may: behind the next one there is room
            self._stop_waits = True

    @on(_Close)
    def _close(self, _message: _Close) -> None:
        self.stop("shutdown")

    def teardown(self, exit: Exit) -> None:
        """Bring the lines to the disk and let go of the file."""
        if self._fd >= 0:
            with suppress(OSError):
                os.fsync(self._fd)
            os.close(self._fd)


def in_use(path: Path) -> Refused:
    """The refusal ``session_locked``, as a sentence."""
    return Refused(
        "session_locked", f"the session {path.stem} is open in another aerix; end that one, or start anew"
    )


def unreadable(path: Path, error: OSError) -> Refused:
    """The same of a log that is to be gone on with."""
    return Refused("session_storage", f"the session log {path} cannot be read: {error.strerror}")


def unwritable(path: Path, error: OSError) -> Refused:
    """The refusal ``session_storage``, as a sentence."""
    return Refused(
        "session_storage",
        f"the session log {path} cannot be written: {error.strerror}; free space or set XDG_DATA_HOME to another folder",
    )
