"""Where a runner's tools work, what they remember of files, and how a tool reads its input and gives its output."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerix.bounds import SEEN_FILES
from aerix.tools.guard import Guard, NotPermitted

_NO_CHARACTER = re.compile("[\ud800-\udfff]")


class ToolError(Exception):
    """A call that failed: its text is the result's sentence, without the leading ``head`` and a colon."""

    head = "error"


class RefusedError(ToolError):
    """A call that is not permitted."""

    head = "refused"


Stamp = tuple[int, int]
"""A file's time of change in ns, and its size."""


def stamp(status: os.stat_result) -> Stamp:
    """The stamp in a file's status."""
    return status.st_mtime_ns, status.st_size


@dataclass(slots=True)
class Workspace:
    """The working directory of a runner, and the state of files as its tools last saw or left them."""

    root: Path
    cwd: Path
    guard: Guard = field(default_factory=Guard)
    _seen: dict[str, Stamp] = field(default_factory=dict)

    def resolve(self, path: str) -> Path:
        """A path of a call, absolute: relative ones begin at the working directory, ``~/`` at the home folder."""
        if "\0" in path:
            raise ToolError("the path has a zero byte in it.")
        return self.cwd / (Path(path).expanduser() if path.startswith("~/") else path)

    def check(self, path: Path, touched: str | Path | None = None) -> None:
        """Raises RefusedError where what a path leads to, ``touched`` if that is known, is not what was permitted."""
        try:
            self.guard.check(touched or path)
        except NotPermitted:
            raise RefusedError(
                f"{self.shown(path)} leads elsewhere now than when it was permitted."
            ) from None

    def shown(self, path: Path) -> str:
        """A path as a model should write it: relative where it is below the working directory."""
        plain = os.path.normpath(path)
        below = os.path.relpath(plain, self.cwd) if Path(plain).is_relative_to(self.cwd) else plain
        return clean(below)

    def saw(self, path: Path, status: os.stat_result) -> None:
        """Remember a file as it is now."""
        key = os.path.realpath(path)
        self._seen.pop(key, None)
        self._seen[key] = stamp(status)
        while len(self._seen) > SEEN_FILES.count:
            del self._seen[next(iter(self._seen))]

    def changed_since(self, path: Path, status: os.stat_result) -> bool:
        """Whether a file is another than the one a tool saw or left last."""
        last = self._seen.get(os.path.realpath(path))
        return last is not None and last != stamp(status)


@dataclass(frozen=True, slots=True)
class Given:
    """A call's input, read with types; ``room`` is how many bytes the result may have."""

    values: dict[str, Any]
    room: int

    def text(self, name: str) -> str:
        """A string that must be there."""
        if name not in self.values:
            raise ToolError(f"`{name}` is missing.")
        return str(self._of(name, str, "a string"))

    def optional(self, name: str) -> str | None:
        """A string, or None."""
        return self.text(name) if self.values.get(name) is not None else None

    def number(self, name: str, default: int) -> int:
        """An integer."""
        return int(self._of(name, int, "an integer")) if self.values.get(name) is not None else default

    def flag(self, name: str) -> bool:
        """True or false; false when absent."""
        return bool(self._of(name, bool, "true or false")) if self.values.get(name) is not None else False

    def _of(self, name: str, kind: type, word: str) -> Any:
        value = self.values[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ToolError(f"`{name}` must be {word}.")
        return value


@dataclass(frozen=True, slots=True)
class Output:
    """What a tool gave, before caps. ``paths`` are the files it wrote; each is a change."""

    text: str
    paths: tuple[Path, ...] = ()


def clean(text: str) -> str:
    """The text with what is no character (bytes of odd file names) replaced, so that every encoder takes it."""
    return text if text.isascii() else _NO_CHARACTER.sub("\ufffd", text)


def sentence(error: OSError, doing: str) -> ToolError:
    """An operating-system error as a result: ``doing`` says what could not be done, to what."""
    return ToolError(f"cannot {doing}: {(error.strerror or str(error)).lower()}.")
