"""Reading a turn while it is written: its thought and its final as text, the tools of its calls by name. Pure.

What is shown while a model writes is never its JSON. A text that is no turn's JSON gives nothing: what it was is known
when it has ended.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["thought", "final", "tool"]

_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LOST = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Piece:
    """The next part of the thought or of the final; or a tool's whole name."""

    kind: Kind
    text: str


class TurnStream:
    """Reads one turn; ``feed`` it what comes, cut wherever it is."""

    def __init__(self) -> None:
        self._inside: list[str] = []
        """The objects and lists around what comes next, by their first character."""
        self._keys: list[str] = []
        """The key that stands before what comes next, in each of them; empty in a list."""
        self._over = False
        self._wants_key = False
        self._string: str | None = None
        """What the string consists of so far; None outside one."""
        self._is_key = False
        self._escape: str | None = None
        """What came of an escape, behind its backslash; None outside one."""
        self._half = ""
        """The first half of a surrogate pair."""
        self._found: list[Piece] = []

    def feed(self, text: str) -> list[Piece]:
        """What that adds. Neighbours of one kind are one piece."""
        self._found = []
        for letter in text:
            if self._over:
                break
            if self._string is None:
                self._outside(letter)
            elif self._escape is not None:
                self._in_escape(letter)
            else:
                self._in_string(letter)
        return self._found

    def _outside(self, letter: str) -> None:
        match letter:
            case "{" | "[":
                self._over = not self._inside and letter == "["
                self._inside.append(letter)
                self._keys.append("")
                self._wants_key = letter == "{"
            case "}" | "]" if self._inside:
                self._inside.pop()
                self._keys.pop()
                self._over = not self._inside
                self._wants_key = False
            case ",":
                self._wants_key = self._inside[-1:] == ["{"]
            case ":":
                self._wants_key = False
            case '"' if self._inside:
                self._string, self._is_key = "", self._wants_key
            case _ if not self._inside and not letter.isspace():
                self._over = True

    def _in_string(self, letter: str) -> None:
        match letter:
            case "\\":
                self._escape = ""
            case '"':
                self._end_string()
            case _:
                self._say(letter)

    def _in_escape(self, letter: str) -> None:
        assert self._escape is not None
        self._escape += letter
        if self._escape[0] != "u":
            self._say(_ESCAPES.get(letter, _LOST))
        elif len(self._escape) < 5:
            return
        else:
            self._say_code(self._escape[1:])
        self._escape = None

    def _say_code(self, digits: str) -> None:
        """A character by its number; one that takes two of them waits for the second."""
        try:
            code = int(digits, 16)
        except ValueError:
            code = 0xFFFD
        if 0xDC00 <= code <= 0xDFFF and self._half:
            whole = (self._half + chr(code)).encode("utf-16", "surrogatepass").decode("utf-16")
            self._half = ""
            self._say(whole)
        elif 0xD800 <= code <= 0xDFFF:
            self._lose_half()
            self._half = chr(code) if code < 0xDC00 else ""
            if not self._half:
                self._say(_LOST)
        else:
            self._say(chr(code))

    def _lose_half(self) -> None:
        if self._half:
            self._half = ""
            self._say(_LOST)

    def _say(self, text: str) -> None:
        self._lose_half()
        assert self._string is not None
        kind = None if self._is_key else self._kind()
        if self._is_key or kind == "tool":
            self._string += text
        elif kind is not None:
            self._add(kind, text)

    def _end_string(self) -> None:
        self._lose_half()
        assert self._string is not None
        if self._is_key:
            self._keys[-1] = self._string
        elif self._kind() == "tool":
            self._found.append(Piece("tool", self._string))
        self._string = None

    def _kind(self) -> Kind | None:
        match self._keys:
            case ["thought"]:
                return "thought"
            case ["final"]:
                return "final"
            case ["calls", "", "tool"]:
                return "tool"
        return None

    def _add(self, kind: Kind, text: str) -> None:
        if self._found and self._found[-1].kind == kind:
            text = self._found.pop().text + text
        self._found.append(Piece(kind, text))
