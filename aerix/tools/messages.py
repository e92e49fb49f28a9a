"""What goes between an agent and its tool runner."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from aerix.bounds import BASH_LONGEST, BASH_TERM, BASH_TIMEOUT, TOOL_GRACE, TOOL_TIME
from aerix.permissions import Permissions


@dataclass(frozen=True, slots=True)
class RunTool:
    """Run one call; answered by ``ToolResult``, whatever happens in it.

    ``call`` is the call's id and names its spool file. ``room_bytes`` is how much text the caller's context can take:
    the result is capped at the smaller of it and the tool's setting. ``deadline_s`` shortens the time that the tool
    has by itself.
    """

    call: str
    tool: str
    input: dict[str, Any]
    room_bytes: int
    deadline_s: float | None = None
    permissions: Permissions | None = None
    """What the call may touch beside ``permitted``: a search leaves the rest out; its folders are ``framed``. None:
    everything is open.
    """
    permitted: str | None = None
    """The path that it was permitted to work on, absolute and with its links followed, as ``framed``; None: any."""

    @property
    def time_s(self) -> float:
        """Seconds after which the tool ends itself: a command's own timeout, else the bound for all tools."""
        asked = self.input.get("timeout_secs") if self.tool == "bash" else None
        own = BASH_TIMEOUT.value if self.tool == "bash" else TOOL_TIME.value
        if isinstance(asked, int) and asked > 0:
            own = min(float(asked), BASH_LONGEST.value)
        return own if self.deadline_s is None else min(own, self.deadline_s)

    @property
    def kill_s(self) -> float:
        """Seconds after which a tool that did not end itself is killed together with its runner."""
        return self.time_s + BASH_TERM.value + TOOL_GRACE.value

    @property
    def limit_s(self) -> float:
        """Seconds in which an answer comes, whatever happens: how long to wait for it."""
        return self.kill_s + TOOL_GRACE.value


def framed(path: str) -> str:
    """A path as a text that every frame takes: its bytes may be none."""
    return os.fsencode(path).decode("latin-1")


def unframed(text: str) -> str:
    """The path again."""
    return os.fsdecode(text.encode("latin-1"))


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave, as the model reads it."""

    text: str
    error: bool = False
    """The call failed; ``text`` begins with ``error:``, or is a command's output that ends in how it was ended."""
    changed: bool = False
    """Files may have changed. Of a command this is known by looking at the project's files before and after it."""
    exit: int | None = None
    """A command's exit status, or minus the number of the signal that ended it."""
    spool: str | None = None
    """The file that holds the whole text, where it was cut."""
    paths: list[str] = field(default_factory=list)
    """The files that were written, relative to the working directory where they are below it."""


def with_folders(permissions: Permissions, spelled: Callable[[str], str]) -> Permissions:
    """The same, its folders ``framed`` or ``unframed``."""
    return replace(permissions, folders=tuple(map(spelled, permissions.folders)))
