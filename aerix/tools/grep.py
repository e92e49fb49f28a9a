"""grep: lines of files that match a regular expression."""

import os
import re
import stat
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aerix.bounds import GREP_CHARS, GREP_FILE, GREP_MATCHES
from aerix.tools import patterns
from aerix.tools.glob import folder_of, left_out, listed
from aerix.tools.textfile import decode
from aerix.tools.workspace import Given, Output, ToolError, Workspace

_BEFORE = 100  # characters shown before a match that stands far to the right


@dataclass(slots=True)
class _Search:
    """A search as it goes: what is looked for, and what was passed over."""

    pattern: re.Pattern[str]
    too_large: int = 0
    hidden: int = 0

    def paths(self, ws: Workspace, given: Given) -> Iterable[Path]:
        """The files to look in."""
        name = given.optional("path")
        if name is not None and ws.resolve(name).is_file():
            path = Path(os.path.realpath(ws.resolve(name)))
            ws.check(path)
            return [path]
        folder = folder_of(ws, name)
        ws.check(folder)
        wanted = given.optional("glob")
        matches = patterns.matcher(wanted) if wanted else None
        found = [path for path in listed(folder) if matches is None or matches(path)]
        shown = ws.guard.shown(folder, found)
        self.hidden = len(found) - len(shown)
        return (folder / path for path in shown)

    def lines(self, path: Path) -> Iterator[tuple[int, str]]:
        """The matching lines of a file, with their numbers."""
        data = self._content(path)
        text = decode(data) if data is not None else None
        if text is None:
            return
        for number, line in enumerate(text.text.split("\n"), 1):
            if found := self.pattern.search(line):
                yield number, _cut(line.rstrip("\r"), found.start())

    def _content(self, path: Path) -> bytes | None:
        """None for what is no regular file, cannot be read, is binary or too large."""
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                return None
            if status.st_size > GREP_FILE.count:
                self.too_large += 1
                return None
            return path.read_bytes()
        except OSError:
            return None


def grep(ws: Workspace, given: Given) -> Output:
    """The tool: ``pattern``, ``path`` (a folder or a file), ``glob`` (which files), ``max_matches``."""
    search = _Search(_compiled(given.text("pattern")))
    limit = max(1, given.number("max_matches", GREP_MATCHES.count))
    found: list[str] = []
    for path in search.paths(ws, given):
        for number, line in search.lines(path):
            if len(found) == limit:
                return Output("\n".join([*found, f"[stopped at {limit} match{'es' * (limit != 1)}]"]))
            found.append(f"{ws.shown(path)}:{number}:{line}")
    notes = [_skipped(search.too_large)] if search.too_large else []
    notes += [left_out(search.hidden)] if search.hidden else []
    return Output("\n".join([*(found or ["no matches."]), *notes]))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(
            f"the pattern is no regular expression: {error}. Put \\ before a character meant as it is."
        ) from None


def _cut(line: str, match: int) -> str:
    """At most so many characters of a line as the bound says, the beginning of the match among them."""
    limit = GREP_CHARS.count
    if len(line) <= limit:
        return line
    start = 0 if match + _BEFORE < limit else max(0, match - _BEFORE)
    return ("…" if start else "") + line[start : start + limit] + ("…" if start + limit < len(line) else "")


def _skipped(count: int) -> str:
    return f"[{count} file{'' if count == 1 else 's'} over {GREP_FILE.count:,} bytes skipped]"
