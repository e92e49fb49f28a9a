"""Shell commands taken apart for permission rules. Pure.

Two readers, two directions to err in. Whoever allows must know each command that would run: ``sure`` says whether
``parts`` are all there is. Whoever denies takes every guess: ``forms`` are all the commands that a text seems to hold.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_DEEPEST = 8  # commands in commands that are looked into
_UNWRAPPED = 32  # words that are taken off a command to see what it runs in turn
_END = r"(?![^\s;|&()<>])"
_HARMLESS = re.compile(rf"(?:&>>?|[0-9]*>>?|[0-9]*<)[ \t]*/dev/null{_END}|[0-9]*>&(?:[0-9]+|-){_END}")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_FLAG_OR_NUMBER = re.compile(r"-.*|[0-9.]+[smhd]?|[A-Za-z_]\w*=.*")
_KEYWORDS = frozenset({"!", "{", "}", "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "for", "in", "case", "esac", "time", "coproc", "function"})  # fmt: skip
_WRAPPERS = frozenset(
    {
        "sudo",
        "doas",
        "env",
        "nohup",
        "timeout",
        "nice",
        "ionice",
        "setsid",
        "stdbuf",
        "command",
        "exec",
        "builtin",
        "xargs",
        "time",
    }
)
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_SHELL_TEXT = re.compile(r"-[a-z]*c[a-z]*")


@dataclass(frozen=True, slots=True)
class Commands:
    """What a text runs."""

    parts: tuple[str, ...]
    """Its simple commands as they are written, one blank between words."""
    sure: bool
    """Whether they are all that would run: no substitution, redirection to a file, here-document, group or comment."""
    lost: bool
    """Whether it could not be read to its end: a quote is open, or it is nested too deep."""
    forms: tuple[str, ...]
    """Every command that seems to be in it, without quotes: also behind ``sudo``, in ``sh -c`` and in substitutions."""


def split(text: str, depth: int = 0) -> Commands:
    """Take a command apart."""
    reader = _Reader(text, depth)
    reader.read()
    return Commands(tuple(reader.parts), reader.sure, reader.lost, tuple(dict.fromkeys(reader.forms)))


class _Reader:
    def __init__(self, text: str, depth: int) -> None:
        self.text, self.depth, self.at = text, depth, 0
        self.parts: list[str] = []
        self.forms: list[str] = []
        self.sure, self.lost = True, False
        self.written: list[str] = []
        """The words of the simple command that is being read, as written, and without quotes."""
        self.words: list[str] = []
        self.in_word = False

    def read(self) -> None:
        while self.at < len(self.text):
            self._step(self.text[self.at])
        self._end_part()

    def _step(self, char: str) -> None:
        if not self._skips_harmless():
            match char:
                case "\\":
                    self._escape()
                case "'":
                    self._single()
                case '"':
                    self._double()
                case "`" | "$":
                    self._dollar()
                case " " | "\t":
                    self._pass(ends_word=True)
                case ";" | "&" | "|" | "\n":
                    self._pass(ends_part=True)
                case "(" | ")":
                    self._pass(ends_part=True, sure=False)
                case "<" | ">":
                    self._pass(ends_word=True, sure=False)
                case "#" if not self.in_word:
                    self.sure = False
                    self.at = self._find("\n", len(self.text))
                case _:
                    self.sure = self.sure and char.isprintable()
                    self._take(1, char)

    # --- words

    def _take(self, length: int, meant: str) -> None:
        """So many characters belong to the word that is being read, and mean that."""
        if not self.in_word:
            self.in_word = True
            self.written.append("")
            self.words.append("")
        self.written[-1] += self.text[self.at : self.at + length]
        self.words[-1] += meant
        self.at += length

    def _pass(self, *, ends_word: bool = False, ends_part: bool = False, sure: bool = True) -> None:
        self.at += 1
        self.sure = self.sure and sure
        if ends_part:
            self._end_part()
        elif ends_word:
            self.in_word = False

    def _end_part(self) -> None:
        if self.written:
            self.parts.append(" ".join(self.written))
            self.forms += self._forms(self.words)
        self.written, self.words, self.in_word = [], [], False

    def _skips_harmless(self) -> bool:
        """A redirection that writes and reads no file is as if it were not there."""
        char = self.text[self.at]
        if char in "<>" or (not self.in_word and (char == "&" or char.isdigit())):
            found = _HARMLESS.match(self.text, self.at)
            if found:
                self.at, self.in_word = found.end(), False
            return found is not None
        return False

    def _find(self, what: str, otherwise: int) -> int:
        found = self.text.find(what, self.at + 1)
        return otherwise if found < 0 else found

    # --- quotes and substitutions

    def _escape(self) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if following == "\n":  # the line goes on
            self.at += 2
            return
        self._lose(when=not following)
        self._take(2, following)

    def _single(self) -> None:
        end = self._find("'", -1)
        self._lose(when=end < 0)
        end = len(self.text) if end < 0 else end
        self._take(end + 1 - self.at, self.text[self.at + 1 : end])

    def _double(self) -> None:
        self._take(1, "")
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                return self._take(1, "")
            if char == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                self._take(
                    2, following if following in '$`"\\' else "" if following == "\n" else char + following
                )
            elif char in "`$":
                self._dollar()
            else:
                self._take(1, char)
        return self._lose()

    def _dollar(self) -> None:
        """A substitution is read as a command of its own; a plain variable is a part of its word."""
        opening = self.text[self.at : self.at + 2]
        if opening[0] == "`":
            return self._substitute(self.at + 1, self._find("`", -1))
        if opening == "$(":
            return self._substitute(self.at + 2, self._closing(self.at + 2))
        if opening[1:] in ("{", "[", "'", '"') and opening != "$":
            self.sure = False
        return self._take(1, "" if opening in ("$'", '$"') else "$")

    def _substitute(self, start: int, end: int) -> None:
        self.sure = False
        self._lose(when=end < 0 or self.depth >= _DEEPEST)
        end = len(self.text) if end < 0 else end
        self._look_into(self.text[start:end])
        self._take(end + 1 - self.at, "")

    def _closing(self, start: int) -> int:
        level = 1
        for found in re.compile(r"[()]").finditer(self.text, start):
            level += 1 if found[0] == "(" else -1
            if level == 0:
                return found.start()
        return -1

    def _look_into(self, text: str) -> None:
        if self.depth < _DEEPEST:
            inside = split(text, self.depth + 1)
            self.forms += inside.forms
            self._lose(when=inside.lost)
        else:
            self._lose()

    def _lose(self, *, when: bool = True) -> None:
        if when:
            self.sure, self.lost = False, True

    # --- what a deny rule is compared with

    def _forms(self, words: list[str]) -> Iterator[str]:
        """The command, also without the flags in front, and those that it may run in turn, as far as that can be seen."""
        starts = [0]
        for start in starts:  # which grows: a command may run others
            mine = words[start:]
            name = mine[0].rpartition("/")[2]
            yield " ".join(mine)
            yield " ".join([name, *mine[1:]])
            if mine[1:] and mine[1].startswith("-"):
                yield from (" ".join([name, *mine[at:]]) for at in _after_flags(mine))
            inside = [start + at for at in self._inside(name, mine)]
            starts += [at for at in inside if at < len(words) and at not in starts]
            if len(starts) > _UNWRAPPED:
                return self._lose()

    def _inside(self, name: str, words: list[str]) -> tuple[int, ...]:
        """Where in a command the ones begin that it may run."""
        if name == "eval":
            self._look_into(" ".join(words[1:]))
        elif name in _SHELLS:
            texts = (text for flag, text in pairwise(words) if _SHELL_TEXT.fullmatch(flag))
            self._look_into(next(texts, ""))
        elif name in _WRAPPERS:
            return _after_flags(words)
        elif name in _KEYWORDS or _ASSIGNMENT.match(words[0]):
            return (1,)
        return ()


def _after_flags(words: list[str]) -> tuple[int, ...]:
    """Where what follows a command's flags may begin: the first word that is none may be the last flag's value."""
    plain = (n for n, word in enumerate(words) if n and not _FLAG_OR_NUMBER.fullmatch(word))
    first = next(plain, len(words))
    return (first, next(plain, len(words))) if words[first - 1].startswith("-") else (first,)
