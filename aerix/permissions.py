"""Permissions as plain data: what the settings and the command line say of calls that may run, must be asked about, may not.

What it means for a call is decided in ``aerix.tools.permissions``; asking is ``aerix.agent.consent``.
"""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["ask", "auto-edit", "auto"]
MODES: tuple[Mode, ...] = ("ask", "auto-edit", "auto")
"""From the strictest to the one that asks least."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """``[permissions]``, and what a session adds to it. Rules are texts such as ``bash(git push *)``."""

    mode: Mode = "auto"
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders beside the working tree that may be written in (``--add-dir``), absolute."""
    granted: tuple[str, ...] = ()
    """Rules that the user has granted in this session: they lift a question, never a denial."""
