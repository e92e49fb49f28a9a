"""What the user has sent, kept in a file for the next sessions: one JSON string a line, for this user only, bounded."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import History

from aerix import folders, regular
from aerix.bounds import LINES_HISTORY, LINES_HISTORY_FILE

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class LinesHistory(History):
    """A file that cannot be read or written costs its history, and nothing else."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """The latest first. A file that has grown too long is cut to what is kept of it."""
        found = self._read()
        kept = found[-LINES_HISTORY.count :]
        if len(found) > len(kept):
            self._write(kept)
        return reversed(kept)

    def store_string(self, string: str) -> None:
        """Append what was sent; what begins with a blank is not kept."""
        if string.startswith(" "):
            return
        with suppress(OSError):
            folders.private(self._path.parent)
            fd = os.open(self._path, _FLAGS | os.O_APPEND, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(_line(string))

    def _read(self) -> list[str]:
        try:
            data = regular.read(self._path, LINES_HISTORY_FILE.count)
        except regular.NotRead:
            with suppress(OSError):
                self._path.replace(self._path.with_suffix(".old"))  # begun anew: it would never be read again
            return []
        except OSError:
            return []
        found = []
        for line in data.splitlines():
            with suppress(ValueError, RecursionError):
                if isinstance(text := json.loads(line), str):
                    found.append(text)
        return found

    def _write(self, kept: list[str]) -> None:
        scratch = self._path.with_suffix(".new")
        with suppress(OSError):
            with os.fdopen(os.open(scratch, _FLAGS | os.O_TRUNC, 0o600), "wb") as file:
                file.writelines(map(_line, kept))
            scratch.replace(self._path)


def _line(text: str) -> bytes:
    return json.dumps(text).encode() + b"\n"
