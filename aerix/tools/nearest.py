"""What to say of an edit that found nothing: why, and the region of the file that is nearest to what was wanted."""

import difflib
from collections import Counter
from dataclasses import dataclass

from aerix.bounds import EDIT_NEAREST
from aerix.tools import lineends

_AROUND = 2  # lines shown before and after the region
_SHOWN = 30  # lines shown at most
_CHARS = 200  # characters of a line shown
_ALIKE = 0.6  # how alike two lines must be, where none is the same
_TELLING = 8  # characters of a new text that is not in a file by accident


@dataclass(frozen=True, slots=True)
class Region:
    """Lines of a file, ``first`` to ``last`` from 0, and whether they differ from the wanted ones in blanks only."""

    first: int
    last: int
    blanks_only: bool


def explain(text: str, old: str, new: str, *, changed: bool) -> str:
    """Why ``old`` was not found, with the nearest region; ``changed``: the file is not as it was last read."""
    lines = text.splitlines()
    wanted = lineends.split(old)
    region = _nearest(lines, wanted)
    reasons = []
    if changed:
        reasons.append("the file changed since it was read")
    if (place := _applied(text, new)) is not None:
        reasons.append(f"it seems to be applied already: `new` is at line {lineends.line_of(text, place)}")
    elif region is not None and region.blanks_only:
        reasons.append("white space differs")
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return f"`old` was not found{why}. {_shown(lines, region)}"


def _applied(text: str, new: str) -> int | None:
    if len(new.strip()) < _TELLING:
        return None
    place = lineends.convert(text, "\n").find(lineends.convert(new, "\n"))
    return place if place >= 0 else None


def _shown(lines: list[str], region: Region | None) -> str:
    if region is None:
        return "Nothing in the file is like it; read the file again."
    first = max(0, region.first - _AROUND)
    last = min(len(lines), region.last + 1 + _AROUND, first + _SHOWN)
    body = "\n".join(f"{n + 1}\t{lines[n][:_CHARS]}" for n in range(first, last))
    return f"The nearest lines:\n{body}"


def _nearest(lines: list[str], wanted: list[str]) -> Region | None:
    """The window that shares most lines with the wanted ones; where none is the same, around the most alike one."""
    if len(lines) > EDIT_NEAREST.count:
        return None
    words = ["".join(line.split()) for line in wanted]
    first = _by_votes(["".join(line.split()) for line in lines], words)
    if first is None:
        first = _by_likeness(lines, wanted)
    if first is None:
        return None
    first = max(0, first)
    last = max(first, min(len(lines), first + len(wanted)) - 1)
    same = "".join("".join(lines[first : last + 1]).split()) == "".join(words)
    return Region(first, last, same)


def _by_votes(have: list[str], wanted: list[str]) -> int | None:
    """Each line that is the same but for blanks votes for the first line of its window; rare lines count more."""
    places: dict[str, list[int]] = {}
    for n, word in enumerate(have):
        places.setdefault(word, []).append(n)
    votes: Counter[int] = Counter()
    for n, word in enumerate(wanted):
        if word:
            found = places.get(word, [])
            for place in found:
                votes[place - n] += max(1, 1000 // len(found))
    return max(votes, key=lambda start: (votes[start], -start)) if votes else None


def _by_likeness(lines: list[str], wanted: list[str]) -> int | None:
    key = max(range(len(wanted)), key=lambda n: len(wanted[n].strip()))
    matcher = difflib.SequenceMatcher(b=wanted[key].strip()[:_CHARS], autojunk=False)
    best, at = _ALIKE, None
    for n, line in enumerate(lines):
        matcher.set_seq1(line.strip()[:_CHARS])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
            best, at = matcher.ratio(), n - key
    return at
