"""Models that think before they answer: how a template opens and closes the stretch, and the stretch itself. Pure.

A thinking stretch is generated freely, between the opening of the model's turn and the answer. It ends where the model
writes its closing mark, where its budget is spent, or where the model ends its turn; in the last two cases the mark is
written for it. The log keeps it; a context does not.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aerix.actors import Refused
from aerix.pool.rows import Vocabulary

_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<seed:think>", "</seed:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<mm:think>", "</mm:think>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
)
"""The pairs that public templates write around a thinking stretch."""
_STRETCH = re.compile(r"\s*(?:" + "|".join(re.escape(mark) for pair in _MARKS for mark in pair) + r")\s*")


@dataclass(frozen=True, slots=True)
class Closing:
    """How a thinking stretch ends, as texts."""

    lead: str
    """What stands before the mark where the model did not write it."""
    mark: str
    after: str
    """What stands between the mark and the answer."""
    marker: str = ""
    """The end of ``after`` that stands before every answer, thought or not."""

    @property
    def forced(self) -> str:
        """All of it."""
        return self.lead + self.mark + self.after


@dataclass(frozen=True, slots=True)
class Opening:
    """How the model's turn is opened, as texts. All begin with the end of the segment before."""

    answer: str
    """Where the answer follows at once."""
    kept: str
    """Before a turn that stands in a context."""
    thought: str = ""
    """Where a thinking stretch follows; empty: the model does not think first."""
    closing: Closing | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """A prompt that ends in the opening of a thinking stretch, as token ids, and how the stretch ends."""

    tokens: Sequence[int]
    mark: str
    mark_tokens: tuple[int, ...]
    after: tuple[int, ...]
    forced: tuple[int, ...]
    budget: int
    """Tokens it may take, the closing not counted."""


def opening(off: str, on: str, history: str) -> Opening:
    """From what a template writes with thinking off and on, and before an answer that stands in the past.

    Some templates let the model write the mark that opens the stretch, and write an empty stretch where it is
    switched off: then the mark is written here. ``history`` is ``off`` where the template does not tell.
    """
    pair = next((pair for pair in _MARKS if any(part in off or part in on for part in pair)), None)
    thought = _thought(off, on, pair) if pair else ""
    if pair is None or not thought:
        answer = history if history.startswith(off) else off
        return Opening(answer, answer)
    closing = _closing(off, thought, pair, _marker(thought, history, pair))
    if _is_open(off, pair):
        off += closing.forced
    elif history.startswith(off) and not _is_open(history, pair):
        off = history
    elif closing.marker and not off.endswith(closing.marker):
        off += closing.marker
    return Opening(off, history + closing.forced if _is_open(history, pair) else history, thought, closing)


def without_stretch(text: str) -> str:
    """A text without the marks of a thinking stretch, and without the white space around them."""
    return _STRETCH.sub("", text)


def _is_open(text: str, pair: tuple[str, str]) -> bool:
    return text.rfind(pair[0]) > text.rfind(pair[1])


def _thought(off: str, on: str, pair: tuple[str, str]) -> str:
    """The opening of a thinking stretch; empty where the template knows none."""
    for text in (on, off):
        if _is_open(text, pair):
            return text
    block = off.removeprefix(on).lstrip() if off.startswith(on) else ""
    if not block.startswith(pair[0]):
        return ""
    between = block.removeprefix(pair[0]).partition(pair[1])[0]
    return on + pair[0] + between[: (len(between) + 1) // 2]


def _marker(thought: str, history: str, pair: tuple[str, str]) -> str:
    """What stands between the role marker and an answer: some templates name the channel there."""
    role = thought[: thought.rfind(pair[0])]
    if not history.startswith(role):
        return ""
    return history[len(role) :].rpartition(pair[1])[2].lstrip("\n")


def _closing(off: str, thought: str, pair: tuple[str, str], marker: str) -> Closing:
    """As the template closes an empty stretch; else on a line of its own where it is opened so."""
    lead = "\n" if thought.endswith("\n") else ""
    if _is_open(off, pair) or pair[1] not in off:
        return Closing(lead, pair[1], lead * 2 + marker, marker)
    before, _, after = off.rpartition(pair[1])
    if pair[0] in before and not before.endswith("\n"):
        lead = ""
    return Closing(lead, pair[1], after if after.endswith(marker) else after + marker, marker)


class Thoughts:
    """A thinking stretch while it is generated. ``open`` until the answer may begin."""

    def __init__(self, thinking: Thinking, budget: int, vocabulary: Vocabulary) -> None:
        self.tokens: list[int] = []
        """All of it so far, the closing included."""
        self.open = True
        self._thinking = thinking
        self._budget = budget
        self._vocabulary = vocabulary
        self._said = b""
        self._mark = thinking.mark.encode()

    @property
    def text(self) -> str:
        """What was thought, without the closing."""
        return self._said.partition(self._mark)[0].decode("utf-8", "replace")

    @property
    def left(self) -> int:
        """Tokens that may still come before the answer, at most."""
        return max(self._budget - len(self.tokens), 0) + len(self._thinking.forced) if self.open else 0

    def take(self, token: int) -> None:
        """One more token of the model's."""
        self.tokens.append(token)
        self._said += self._vocabulary.piece(token)
        marks = self._thinking.mark_tokens
        _, written, rest = self._said.partition(self._mark)
        if written or tuple(self.tokens[-len(marks) :]) == marks:
            self._close(() if rest else self._thinking.after)
        elif len(self.tokens) >= self._budget:
            self.end()

    def end(self) -> None:
        """The model has ended its turn, or may not go on."""
        self._close(self._thinking.forced)

    def replay(self, start: list[int]) -> int:
        """Go on by the ids that a client holds; how many of them are thoughts. Raises Refused ``bad_start``."""
        taken = 0
        while taken < len(start) and self.open:
            self.take(start[taken])
            taken += 1
        owed = self.tokens[taken:]
        given = start[taken : taken + len(owed)]
        if given != owed[: len(given)]:
            raise Refused("bad_start", "The ids in `start` go on with thinking after its budget was spent.")
        return taken + len(given)

    def _close(self, closing: tuple[int, ...]) -> None:
        self.tokens += closing
        self.open = False
