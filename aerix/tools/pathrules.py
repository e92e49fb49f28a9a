"""Patterns of permission rules for paths, read as git reads those it ignores. Pure.

``*`` and ``?`` stay inside a name, ``**`` crosses folders, a pattern that fits a folder holds for all below it. A pattern
with a slash begins at the working tree, one without is a name at any depth.
"""

import fnmatch
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_WILD = ("*", "?", "[")
_Test = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Places:
    """Where patterns begin: real, absolute paths."""

    tree: str
    home: str


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A pattern that was read. ``matches`` takes absolute paths without ``..``."""

    names: tuple[tuple[str, _Test | None], ...]
    """The pattern's names with what tests one of a path's; of ``**`` it is None."""

    def matches(self, path: str, *, dots: bool = True) -> bool:
        """Whether a path fits. Without ``dots`` no wildcard stands for the dot that a name begins with."""
        return _fits(self.names, [name for name in path.split("/") if name], dots=dots)


def read_pattern(pattern: str, places: Places, *, claude: bool = False, loose: bool = False) -> PathPattern:
    """The pattern of a rule. With ``claude`` one that begins with a single slash begins at the working tree; ``loose``
    has a bare name fit anywhere, not only in the working tree.
    """
    absolute = _absolute(pattern, places, claude=claude, loose=loose)
    names = [name for name in os.path.normpath(absolute).split("/") if name]
    names.append("**")  # what holds for a folder holds for all below it
    return PathPattern(tuple((name, None if name == "**" else _test(name)) for name in names))


def pattern_of(path: str, places: Places) -> str:
    """The pattern that fits a real path, and what is below it, alone."""
    if path.startswith(f"{places.tree}/"):
        below = _literal(path[len(places.tree) + 1 :])
        return f"./{below}" if "/" not in below or below.startswith("~/") else below
    if path.startswith(f"{places.home}/"):
        return f"~{_literal(path[len(places.home) :])}"
    return f"/{_literal(path)}"


def _literal(path: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", path)


def _absolute(pattern: str, places: Places, *, claude: bool, loose: bool) -> str:
    if pattern == "~" or pattern.startswith("~/"):
        return _resolved(_literal(places.home) + pattern[1:])
    if pattern.startswith("//") or (pattern.startswith("/") and not claude):
        return _resolved("/" + pattern.lstrip("/"))
    plain = pattern.removeprefix("./").strip("/")
    anywhere = pattern.startswith("**/") or "/" not in pattern.rstrip("/")
    base = "" if loose and anywhere else _literal(places.tree)
    return f"{base}/**/{plain}" if anywhere else f"{base}/{plain}"


def _resolved(pattern: str) -> str:
    """The pattern with the links of its beginning followed, as paths are. One in the working tree is not: what the tree
    holds may be somebody else's.
    """
    names = os.path.normpath(pattern).split("/")
    plain = next((n for n, name in enumerate(names) if any(char in name for char in _WILD)), len(names))
    start = _literal(os.path.realpath("/".join(names[:plain]) or "/"))
    return "/".join([start.rstrip("/"), *names[plain:]])


def _test(name: str) -> _Test:
    if not any(char in name for char in _WILD):
        return name.__eq__
    return re.compile(fnmatch.translate(name)).match


def _fits(pattern: Sequence[tuple[str, _Test | None]], names: Sequence[str], *, dots: bool) -> bool:
    """Name by name; what follows the latest ``**`` is tried as early as it can be, so the time is that of both lengths."""
    at = here = 0
    again: tuple[int, int] | None = None
    while here < len(names):
        name = names[here]
        wild, test = pattern[at] if at < len(pattern) else ("", None)
        seen = dots or name[0] != "."
        if test is not None and (seen or wild[0] not in _WILD) and test(name):
            at, here = at + 1, here + 1
        elif wild == "**":
            again, at = (at, here), at + 1
        elif again is not None and (dots or names[again[1]][0] != "."):
            again = (again[0], again[1] + 1)
            at, here = again[0] + 1, again[1]
        else:
            return False
    return all(wild == "**" for wild, _ in pattern[at:])
