"""The file behind ``scripted:FILE``: JSON lines, a header and steps, and which step plays when (docs/scripted.md).

Which step plays is a function of the context alone, so that a generation that was lost and asked for again goes on
with the same step.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aerix.actors import Refused
from aerix.pool.bounds import SCRIPT
from aerix.pool.protocol import Segment

_Keys = dict[str, tuple[type, ...]]

Fault = Literal["die", "hang", "cut", "error"]

_TURN = re.compile(r"t(\d+)(\.cut)?")
_FAULTS = ("die", "hang", "cut", "error")
_HEADER: _Keys = {
    "window": (int,),
    "tokenizer": (str,),
    "json": (bool,),
    "scores": (bool,),
    "thinks": (bool,),
}
_STEP: _Keys = {
    "match": (str,),
    "turn": (dict,),
    "text": (str,),
    "thinking": (str,),
    "delay": (int, float),
    "per_token_delay": (int, float),
    "fault": (str,),
}
_NAMES = {int: "a number", float: "a number", str: "a text", bool: "true or false", dict: "an object"}


@dataclass(frozen=True, slots=True)
class Header:
    """The first line."""

    window: int = 8192
    tokenizer: str = "bytes"
    """``bytes``, or a model file whose vocabulary is used: a path, relative to the script."""
    json: bool = True
    """Whether the member can be held to a schema."""
    scores: bool = True
    """Whether it scores the texts of a choice; else it answers a choice by a step, in its own words."""
    thinks: bool = False
    """Whether it thinks before each turn: then its template is a ChatML that opens a thinking stretch."""


@dataclass(frozen=True, slots=True)
class Step:
    """One further line: what is said, how fast, and what goes wrong. Delays are seconds."""

    line: int
    match: str | None
    text: str
    whole: bool
    """Whether it was given as a ``turn``: a fault then comes in its middle, else after the text."""
    delay: float
    per_token_delay: float
    fault: Fault | None
    thinking: str = ""
    """What is thought before it is said, by a script that thinks."""


@dataclass(frozen=True, slots=True)
class _Group:
    pattern: re.Pattern[str] | None
    steps: list[Step]

    def takes(self, text: str) -> bool:
        return self.pattern is None or self.pattern.search(text) is not None


class Script:
    """A script that was read and found good. Raises Refused ``bad_script``, with the line, otherwise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = _lines(path)
        number, first = lines[0]
        _shape(path, number, first, _HEADER)
        self.header = Header(**first)
        if self.header.window < 1:
            raise _bad(path, number, "`window` must be at least 1")
        self._groups = _groups(path, [_step(path, n, line) for n, line in lines[1:]])

    def step(self, segments: tuple[Segment, ...]) -> Step:
        """The step that answers the context. Raises Refused ``script_ended``."""
        text, index = _text(segments), _index(segments)
        for group in self._groups:
            if group.takes(text):
                if index < len(group.steps):
                    return group.steps[index]
                break
        raise Refused(
            "script_ended", f"The script {self.path} has no step for turn {index + 1} of this context."
        )

    def choice(self, segments: tuple[Segment, ...], texts: tuple[str, ...]) -> str:
        """The text that a step with a matching ``match`` chooses; the first where none does."""
        text, index = _text(segments), _index(segments)
        for group in self._groups:
            if group.pattern and group.takes(text) and index < len(group.steps):
                chosen = group.steps[index].text
                if chosen in texts:
                    return chosen
        return texts[0]


def _text(segments: tuple[Segment, ...]) -> str:
    return "\n".join(segment.text for segment in segments)


def _index(segments: tuple[Segment, ...]) -> int:
    """Turns before this one: those that stand there, and the notes in place of those that were taken out.

    An agent numbers its turns, and a compaction may have made one segment of several: then the number says how many.
    """
    before = [s for s in segments if s.role == "assistant" or (s.role == "user" and s.id.endswith(".cut"))]
    numbers = [int(found[1]) for s in before if (found := _TURN.fullmatch(s.id))]
    return max(len(before), *numbers) if numbers else len(before)


def _lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    lines = _text_of(path).split("\n")  # a text may have other line ends in it
    parsed = [(n, _object(path, n, line)) for n, line in enumerate(lines, 1) if line.strip()]
    if not parsed:
        raise Refused("bad_script", f"The script {path} is empty: its first line is a header like {{}}.")
    return parsed


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(SCRIPT.count + 1)
    except OSError as error:
        raise Refused("bad_script", f"The script {path} cannot be read: {error.strerror}.") from None
    if len(raw) > SCRIPT.count:
        raise Refused("bad_script", f"The script {path} is larger than {SCRIPT.count:,} bytes.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("bad_script", f"The script {path} is not UTF-8 text.") from None


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _bad(path, number, "it has half of a surrogate pair, which no model can say") from None
    except ValueError as error:
        raise _bad(path, number, f"no JSON ({error})") from None
    except RecursionError:
        raise _bad(path, number, "it is nested too deep") from None
    if not isinstance(value, dict):
        raise _bad(path, number, "a line is a JSON object")
    return value


def _shape(path: Path, number: int, line: dict[str, Any], allowed: _Keys) -> None:
    for key, value in line.items():
        types = allowed.get(key)
        if types is None:
            raise _bad(path, number, f"unknown key `{key}`; allowed are {', '.join(allowed)}")
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise _bad(path, number, f"`{key}` must be {_NAMES[types[0]]}")


def _step(path: Path, number: int, line: dict[str, Any]) -> Step:
    _shape(path, number, line, _STEP)
    fault = line.get("fault")
    if fault is not None and fault not in _FAULTS:
        raise _bad(path, number, f"`fault` must be one of {', '.join(_FAULTS)}")
    if ("turn" in line and "text" in line) or not {"turn", "text", "fault"} & line.keys():
        raise _bad(path, number, "a step has either `turn` or `text`")
    if min(line.get("delay", 0), line.get("per_token_delay", 0)) < 0:
        raise _bad(path, number, "a delay is at least 0 seconds")
    whole = "turn" in line
    text = (
        json.dumps(line["turn"], ensure_ascii=False, separators=(",", ":")) if whole else line.get("text", "")
    )
    return Step(
        number,
        line.get("match"),
        text,
        whole,
        line.get("delay", 0),
        line.get("per_token_delay", 0),
        fault,
        line.get("thinking", ""),
    )


def _groups(path: Path, steps: list[Step]) -> list[_Group]:
    """Steps by their pattern, in the file's order; those without one come last."""
    groups: dict[str | None, _Group] = {}
    for step in steps:
        if step.match not in groups:
            groups[step.match] = _Group(_pattern(path, step), [])
        groups[step.match].steps.append(step)
    return sorted(groups.values(), key=lambda group: group.pattern is None)


def _pattern(path: Path, step: Step) -> re.Pattern[str] | None:
    try:
        return None if step.match is None else re.compile(step.match)
    except re.error as error:
        raise _bad(path, step.line, f"`match` is no pattern ({error})") from None


def _bad(path: Path, number: int, why: str) -> Refused:
    return Refused("bad_script", f"{path}, line {number}: {why}.")
