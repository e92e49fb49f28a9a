"""Where a text to be replaced stands in a file: exactly, else with one of three differences that do no harm.

They are tried in this order, each with the ones before it: line ends, trailing blanks, one uniform shift of the
indentation. Nothing else is tried: a guess that is wrong damages a file (DESIGN section 5, "Edits").
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from aerix.tools import lineends

How = Literal["exact", "line ends", "trailing blanks", "indentation"]

_BLANKS = " \t"


@dataclass(frozen=True, slots=True)
class Found:
    """A place of the text, ``start`` to ``end``, and how the given text differs from it."""

    start: int
    end: int
    added: str = ""
    """The indentation that the file's lines have and the given ones lack."""
    taken: str = ""
    """The indentation that the given lines have and the file's lack."""
    unended: bool = False
    """The given text ends with a line end, and the file's last line, where it was found, has none."""


def find(text: str, old: str) -> tuple[How, list[Found]]:
    """Every place of ``old`` that the first kind of match finds which finds any; they do not overlap."""
    exact = list(_exact(text, old))
    if exact or not old.strip():
        return "exact", exact
    lines = lineends.split(old)
    if found := _search(text, lines, _line_ends(text, lines)):
        return "line ends", found
    if found := _search(text, lines, _trailing_blanks(text, lines)):
        return "trailing blanks", found
    return "indentation", list(_shifted(text, lines))


def replacement(text: str, found: Found, new: str) -> str | None:
    """``new`` as it must stand there: with the place's line ends and indentation; None where it cannot be shifted."""
    lines = lineends.split(new)
    if found.unended and lines[-1] == "":
        lines.pop()
    if any(line.strip(_BLANKS) and not line.startswith(found.taken) for line in lines):
        return None
    shifted = (found.added + line[len(found.taken) :] if line.strip(_BLANKS) else line for line in lines)
    line_end = lineends.at(text, found.start, found.end) or ("\r\n" if "\r\n" in new else "\n")
    return line_end.join(shifted)


def _exact(text: str, old: str) -> Iterator[Found]:
    place = text.find(old)
    while place >= 0:
        yield Found(place, place + len(old))
        place = text.find(old, place + len(old))


def _search(text: str, lines: list[str], pattern: str) -> list[Found]:
    ended = lines[-1] == ""
    return [
        Found(m.start(), m.end(), unended=ended and not m.group().endswith(("\n", "\r")))
        for m in re.finditer(pattern, text)
    ]


def _line_ends(text: str, lines: list[str]) -> str:
    end = lineends.pattern(text)
    ends = [end] * (len(lines) - 1)
    if ends and lines[-1] == "":
        ends[-1] = rf"(?:{end}|\Z)"
    return _woven(list(map(re.escape, lines)), ends)


def _trailing_blanks(text: str, lines: list[str]) -> str:
    """The lines up to their last word, then any blanks. A first line of blanks alone must be a whole line."""
    end = lineends.pattern(text)
    words = [re.escape(line.rstrip(_BLANKS)) for line in lines]
    ends = [rf"[ \t]*{end}"] * (len(lines) - 1)
    if ends and lines[0] == "":
        ends[0] = end
    if ends and lines[-1] == "":
        ends[-1] = rf"[ \t]*(?:{end}|\Z)"
    start = r"(?:(?<=[\r\n])|\A)" if lines[0] and not words[0] else ""
    finish = rf"[ \t]*(?={end}|\Z)" if lines[-1].endswith(tuple(_BLANKS)) else ""
    return start + _woven(words, ends) + finish


def _woven(words: list[str], ends: list[str]) -> str:
    return "".join(word + end for word, end in zip(words, [*ends, ""], strict=True))


def _shifted(text: str, lines: list[str]) -> Iterator[Found]:
    """Whole lines that are the given ones, all shifted by the same indentation."""
    ended = lines[-1] == ""
    given = lines[:-1] if ended else lines
    file = _file_lines(text)
    key = next(i for i, line in enumerate(given) if line.strip(_BLANKS))
    word = given[key].strip(_BLANKS)
    last = -1
    for at, (line, _, _) in enumerate(file):
        first = at - key
        if line.strip(_BLANKS) != word or first <= last or first + len(given) > len(file):
            continue
        window = file[first : first + len(given)]
        shift = _shift_of([line for line, _, _ in window], given)
        if shift is not None:
            last = first + len(given) - 1
            end, after = window[-1][1] + len(window[-1][0]), window[-1][2]
            yield Found(window[0][1], after if ended else end, *shift, unended=ended and end == after)


def _file_lines(text: str) -> list[tuple[str, int, int]]:
    """Each line without its end, where it begins, and where the next one does."""
    found, start = [], 0
    for end in re.finditer(lineends.pattern(text), text):
        found.append((text[start : end.start()], start, end.end()))
        start = end.end()
    return [*found, (text[start:], start, len(text))]


def _shift_of(file: list[str], given: list[str]) -> tuple[str, str] | None:
    shifts = set()
    for line, wanted in zip(file, given, strict=True):
        if line.strip(_BLANKS) != wanted.strip(_BLANKS):
            return None
        if line.strip(_BLANKS):
            shifts.add(_difference(_indent(line), _indent(wanted)))
    return shifts.pop() if len(shifts) == 1 else None


def _difference(line: str, wanted: str) -> tuple[str, str] | None:
    if line.endswith(wanted):
        return line[: len(line) - len(wanted)], ""
    return ("", wanted[: len(wanted) - len(line)]) if wanted.endswith(line) else None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(_BLANKS))]
