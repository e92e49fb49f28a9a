"""Resumed: what the root agent of a request goes on with; ``resume.py`` reads it from a session's log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aerix.session.replay import Held

if TYPE_CHECKING:
    from aerix.turn.parse import Call


@dataclass(frozen=True, slots=True)
class LostJob:
    """A job that the agent started and was never told the end of; ``how`` is what the log says of that end, if it does."""

    id: str
    command: str
    how: str = ""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a root goes on with; all of it empty where a session begins."""

    held: tuple[Held, ...] = ()
    """Its context."""
    plan: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """By the letters of an id the highest number that was ever given: what comes later has no id of the past."""
    unanswered: "tuple[Call, ...]" = ()
    """Calls of the last turn whose results are not there."""
    jobs: tuple[LostJob, ...] = ()
    granted: tuple[str, ...] = ()
    """Permission rules that the user has granted in this session."""
    title: str = ""
    """The first line of the last prompt."""
    ended: str = ""
    """How its request ended, where it was not done; ``interrupted`` where it did not end."""
    reason: str = ""
    worked: bool = False
    """Whether its root had begun."""
    cwd: str = ""
    """Where a root worked last, and with which model."""
    model: str = ""
    window: int = 0
    """Tokens of the window that the context was begun for."""
    passed_over: str = ""
    """What of the log could not be read, in words."""

    def name(self, word: str) -> str:
        """An id that was never given: the word itself, later ones with a number."""
        last = self.numbers.get(word, 0)
        return f"{word}{last + 1}" if last else word

    def last(self, word: str) -> str:
        """The id of that word that stands last in the context; empty where none does."""
        return next((one.id for one in reversed(self.held) if one.id.rstrip("0123456789") == word), "")
