"""The message to whoever shows a session: the screen, or the headless output."""

from dataclasses import dataclass

from aerix.session.events import Event

OUTPUT_LOST = frozenset({"stdout_closed", "stdout_failed"})
"""Codes of a refusal to show: there is nobody left to show anything to."""
STORAGE_LOST = frozenset({"session_storage", "session_locked"})
"""Codes of a refusal to log: nothing more can be done safely."""


@dataclass(frozen=True, slots=True)
class Show:
    """Show these events; answered when they are shown. Refused with ``stdout_closed`` when nobody reads any more."""

    events: tuple[Event, ...]
