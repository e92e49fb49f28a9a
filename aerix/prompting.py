"""Prompts: which prompt a headless run works on next, and how the whole run has ended."""

from typing import TYPE_CHECKING

from aerix.actors import ChildSpec, Ref, StartChild
from aerix.actors.bounds import START
from aerix.exits import CANCELS, USAGE
from aerix.live import WEEK_S
from aerix.output import complain
from aerix.session.events import SessionEnd

if TYPE_CHECKING:
    from aerix.steering import Given

INPUT = "input"
"""The name of the actor that reads messages from standard input."""


class Prompts:
    """Belongs to the main thread."""

    def __init__(self, root: Ref, first: str | None, *, streamed: bool) -> None:
        """``root`` is the supervisor of it all; ``streamed``: more come on standard input."""
        self._first = first
        self._cancelled = ""
        self.steering: Ref | None = None
        """Who reads them."""
        if streamed:
            from aerix.steering import Input

            child = ChildSpec(INPUT, lambda: Input(first), restart="temporary")
            self.steering = root.ask(StartChild(child), START.value)

    def next(self) -> str | None:
        """The next prompt; None where there is none."""
        if self.steering is None:
            text, self._first = self._first, None
            return text
        from aerix.steering import NextPrompt

        given: Given = self.steering.ask(NextPrompt(), WEEK_S)
        self._cancelled = given.cancelled
        return given.text

    def exit(self, end: SessionEnd | None) -> int:
        """The exit code: that of the last prompt, unless the user stopped before there was another one."""
        if self._cancelled:
            return CANCELS[self._cancelled]
        if end is None:
            complain(
                'there is no prompt: give one, or lines as {"text": "Explain this repository"} on standard input'
            )
            return USAGE
        return end.exit
