"""The exit codes of ``aerix`` (DESIGN section 6)."""

DONE = 0
"""A final answer."""
FAILED = 1
"""Failed, killed, refused or a loop; the reason is on standard error. Of `aerix doctor`: something is wrong."""
BUDGET = 2
"""A budget was spent."""
USAGE = 3
"""Settings or usage."""
NO_POOL = 4
"""No pool or no model."""
BLOCKED = 5
"""A hook blocked the request."""
STORAGE = 6
"""The session is locked, or its storage failed."""
INTERRUPTED = 130
"""Ctrl-C."""
STDOUT_CLOSED = 141
"""Standard output was closed."""
TERMINATED = 143
"""TERM."""

CANCELS = {"interrupted": INTERRUPTED, "terminated": TERMINATED}
"""By the reason of a user's cancel."""
