"""The rows of the hooks of the loop-bounds table (spec/actors.md 3.4)."""

from aerix.actors.bounds import Bound

HANDLER = Bound(
    "hooks.handler",
    600,
    "seconds",
    "hook handler",
    "kill",
    "hook timeout",
    "a handler's timeout",
    built=False,
)
HANDLER_SHORT = Bound(
    "hooks.handler-short",
    30,
    "seconds, of UserPromptSubmit and SessionEnd",
    "hook handler",
    "kill",
    "hook timeout",
    "a handler's timeout",
    built=False,
)
HANDLER_TERM = Bound(
    "hooks.handler-term", 2, "seconds from TERM to KILL", "hook handler", "kill", "hook timeout", built=False
)

ROWS = (HANDLER, HANDLER_SHORT, HANDLER_TERM)
