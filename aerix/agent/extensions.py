"""Extensions: what a request fires its hooks at and asks for its skills. The seam; nothing stands behind it yet."""

from collections.abc import Mapping
from typing import Protocol

from aerix.hooks.events import Hooks, NoHooks
from aerix.tools.messages import ToolResult


class Extensions(Hooks, Protocol):
    """Whatever was configured for a request. Each call is made in the thread of an actor, and may block it in ``wait``."""

    def prompt(self, text: str) -> str:
        """A prompt, its first line replaced where that names a skill."""
        ...

    def skill(self, given: Mapping[str, object]) -> ToolResult:
        """The result of a ``skill`` call."""
        ...


class NoExtensions(NoHooks):
    """Nothing is configured."""

    def prompt(self, text: str) -> str:
        """The prompt as it is."""
        return text

    def skill(self, given: Mapping[str, object]) -> ToolResult:  # the interface's
        """There is none."""
        return ToolResult("refused: there are no skills.", error=True)
