"""Prompts: which prompt a headless run works on next, and how the whole run has ended."""

from typing import TYPE_CHECKING

from aerix.actors import ChildSpec, Ref, StartChild, StopChild, Supervisor
from aerix.actors.bounds import START
from aerix.exits import CANCELS, USAGE
from aerix.output import complain
from aerix.session.events import SessionEnd

if TYPE_CHECKING:
    from aerix.steering import Given

INPUT = "input"
"""The name of the actor that reads messages from standard input."""
_WEEK_S = 7 * 86_400.0  # a user takes the time that a user takes
_STOP_S = 10.0


def request_supervisor() -> ChildSpec:
    """What a request's agents and runners live under; a new one for each request."""
    return ChildSpec("request", Supervisor, restart="temporary", grace_s=None)


class Prompts:
    """Belongs to the main thread. ``earlier`` are the prompts that were worked on, each with its answer."""

    def __init__(self, root: Ref, first: str | None, *, streamed: bool) -> None:
        """``root`` is the supervisor of it all; ``streamed``: more come on standard input."""
        self._root = root
        self._first = first
        self._asked = ""
        self._cancelled = ""
        self.earlier: tuple[tuple[str, str], ...] = ()
        self.steering: Ref | None = None
        """Who reads them."""
        if streamed:
            from aerix.steering import Input

            child = ChildSpec(INPUT, lambda: Input(first), restart="temporary")
            self.steering = root.ask(StartChild(child), START.value)

    def next(self, end: SessionEnd | None) -> str | None:
        """The prompt behind the one that ended so; None where there is none. Nothing of that one is left running."""
        if end is not None:
            self.earlier += ((self._asked, end.text),)
        if self.steering is None:
            return self._first if end is None else None
        text = self._given(self.steering)
        if text is not None and end is not None:
            self._root.ask(StopChild("request"), _STOP_S)
            self._root.ask(StartChild(request_supervisor()), START.value)
        self._asked = text or ""
        return text

    def _given(self, steering: Ref) -> str | None:
        from aerix.steering import NextPrompt

        given: Given = steering.ask(NextPrompt(), _WEEK_S)
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
