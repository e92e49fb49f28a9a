"""Line ends: which ones a file has, and a text made to have the same."""

import re

_GIVEN = re.compile(r"\r?\n")
_NEAR = 65_536  # characters around a place in which its line end is looked for


def pattern(text: str) -> str:
    """What ends a line of this text. A lone carriage return does only where there is no line feed at all."""
    return r"\r?\n" if "\n" in text or "\r" not in text else r"\r"


def at(text: str, start: int, end: int) -> str | None:
    """The line end in a region, else the next one behind it, else the last one before it; None where none is near."""
    ends = re.compile(pattern(text))
    found = ends.search(text, start, end) or ends.search(text, end, end + _NEAR)
    if found:
        return found.group()
    before = ends.findall(text, max(0, start - _NEAR), start)
    return before[-1] if before else None


def convert(text: str, line_end: str | None) -> str:
    """The text with other line ends; None leaves them."""
    return text if line_end is None else _GIVEN.sub(lambda _: line_end, text)


def split(text: str) -> list[str]:
    """A given text's lines without their ends; the last one is empty where the text ends with a line end."""
    return _GIVEN.split(text)


def line_of(text: str, place: int) -> int:
    """The number of the line, from 1, at a place."""
    return 1 + sum(1 for _ in re.compile(pattern(text)).finditer(text, 0, place))
