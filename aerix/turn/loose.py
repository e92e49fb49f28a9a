"""JSON as models write it: single quotes, commas behind the last item, Python's words, line ends inside strings.

A reader for what a model said, so it is safe with whatever that is: it never raises anything but ``Unreadable``, takes
time in proportion to the text, and reads nothing that it would have to guess.
"""

import json
import re

from aerix.turn.parse import DEPTH

_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_STRINGS = {quote: re.compile(rf"{quote}((?:[^{quote}\\]|\\.)*){quote}", re.DOTALL) for quote in "\"'"}
_ESCAPE = re.compile(r"\\.|\"", re.DOTALL)
_WORDS: dict[str, object] = {
    "true": True, "false": False, "null": None, "True": True, "False": False, "None": None,
}  # fmt: skip


class Unreadable(ValueError):
    """It is no such value."""


class Reader:
    """Reads values from a place in a text on; ``at`` is that place."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    @property
    def over(self) -> bool:
        """Whether nothing but blanks is left."""
        self._skip()
        return self.at == len(self._text)

    def sees(self, mark: str) -> bool:
        """Whether that comes next; it is then behind the reader."""
        self._skip()
        found = self._text.startswith(mark, self.at)
        self.at += len(mark) * found
        return found

    def word(self) -> str:
        """The name that comes next; empty where none does."""
        self._skip()
        found = _WORD.match(self._text, self.at)
        self.at = found.end() if found else self.at
        return found.group() if found else ""

    def name_before(self, mark: str) -> str:
        """The name that comes next where that mark follows it; both are then behind the reader."""
        start, name = self.at, self.word()
        if name and self.sees(mark):
            return name
        self.at = start
        return ""

    def comma_before(self, end: str) -> None:
        """A comma is next, and then behind the reader; or that mark, which stays."""
        if not self.sees(",") and not self._text.startswith(end, self.at):
            raise Unreadable

    def value(self, depth: int = 0) -> object:
        """The value that comes next."""
        if depth > DEPTH:
            raise Unreadable
        if self.sees("{"):
            return self._object(depth)
        if self.sees("["):
            return self._list(depth)
        if self._text[self.at : self.at + 1] in _STRINGS:
            return self._string()
        if number := _NUMBER.match(self._text, self.at):
            self.at = number.end()
            return _load(number.group())
        word = self.word()
        if word not in _WORDS:
            raise Unreadable
        return _WORDS[word]

    def _object(self, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        while not self.sees("}"):
            key = self._string()
            if key in found or not self.sees(":"):
                raise Unreadable
            found[key] = self.value(depth + 1)
            self.comma_before("}")
        return found

    def _list(self, depth: int) -> list[object]:
        found: list[object] = []
        while not self.sees("]"):
            found.append(self.value(depth + 1))
            self.comma_before("]")
        return found

    def _string(self) -> str:
        quote = self._text[self.at : self.at + 1]
        found = _STRINGS[quote].match(self._text, self.at) if quote in _STRINGS else None
        if found is None:
            raise Unreadable
        self.at = found.end()
        body = found[1] if quote == '"' else _ESCAPE.sub(_double, found[1])
        return str(_load(f'"{body}"'))

    def _skip(self) -> None:
        found = _BLANK.match(self._text, self.at)
        assert found is not None
        self.at = found.end()


def whole(text: str) -> object:
    """The one value that a text is."""
    reader = Reader(text)
    value = reader.value()
    if not reader.over:
        raise Unreadable
    return value


def _double(found: re.Match[str]) -> str:
    """An escape of a single-quoted string as a double-quoted one has it."""
    mark = found.group()
    return "'" if mark == "\\'" else '\\"' if mark == '"' else mark


def _load(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except ValueError:
        raise Unreadable from None
