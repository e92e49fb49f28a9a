"""What a row of the loop-bounds table is, and the runtime's own rows (spec/actors.md 3.4).

Each package declares its rows; ``aerix bounds`` prints them all. A row can be set small for a test, in every process
of a tree, by ``AERIX_BOUND_<NAME>`` in the environment.
"""

import os
from dataclasses import dataclass
from typing import Literal

OutcomeKind = Literal["done", "budget", "failed", "killed", "cancelled", "refused"]
Policy = Literal["wait", "refuse", "cut", "retry", "kill", "stop", "restart"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How something ended: the kind, and the reason as a sentence for the log and the user."""

    kind: OutcomeKind
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit with a name: who owns it, what happens when it is reached, and how that end is called."""

    name: str
    default: float
    unit: str
    owner: str
    policy: Policy
    outcome: str
    setting: str = ""
    """The setting or flag that changes it; empty where none does."""
    built: bool = True

    @property
    def value(self) -> float:
        """The limit in force: the default, unless the environment sets another."""
        text = os.environ.get(self.variable)
        return self.default if text is None else float(text)

    @property
    def count(self) -> int:
        """The limit in force, where it counts things."""
        return int(self.value)

    @property
    def variable(self) -> str:
        """The environment variable that sets this row."""
        return "AERIX_BOUND_" + self.name.upper().replace(".", "_").replace("-", "_")


MAILBOX = Bound("actor.mailbox", 1000, "messages", "every actor", "refuse", "refused: mailbox full")
FRAME = Bound(
    "wire.frame", 16 * 1024 * 1024, "bytes", "every connection", "refuse", "refused: frame_too_large"
)
WRITE_BUFFER = Bound(
    "wire.write-buffer", 1024 * 1024, "bytes", "every connection", "kill", "failed: peer_stuck"
)
DEPTH = Bound("wire.depth", 64, "levels", "every connection", "refuse", "refused: bad_frame")
RESTARTS = Bound("supervisor.restarts", 3, "restarts a window", "supervisor", "stop", "failed: restart limit")
RESTART_WINDOW = Bound("supervisor.window", 60, "seconds", "supervisor", "stop", "failed: restart limit")
RESTART_DELAY = Bound("supervisor.delay", 60, "seconds at most", "supervisor", "wait", "a restart waits")
GRACE = Bound("actor.grace", 2, "seconds", "supervisor", "kill", "a thread is abandoned, a process killed")
START = Bound("actor.start", 30, "seconds", "supervisor", "kill", "failed: did not start")
CHILD_STOP = Bound("child.stop", 2, "seconds to TERM", "process actor", "kill", "killed: SIGTERM")
CHILD_TERM = Bound("child.term", 2, "seconds to KILL", "process actor", "kill", "killed: SIGKILL")
CHILD_STDERR = Bound("child.stderr", 4096, "bytes kept", "process actor", "cut", "the last bytes, in Down")
CHILD_PING = Bound(
    "child.ping", 10, "seconds", "process actor", "kill", "killed: no answer to pings", built=False
)
CHILD_PINGS_MISSED = Bound(
    "child.pings-missed", 3, "pings", "process actor", "kill", "killed: no answer to pings", built=False
)
SWEEPS = Bound("child.sweeps", 20, "rounds", "process actor", "stop", "a process outlived its runner")
LOG_FILE = Bound("log.file", 16 * 1024 * 1024, "bytes", "every program", "cut", "the old log is put aside")

ROWS = (
    MAILBOX, FRAME, WRITE_BUFFER, DEPTH, RESTARTS, RESTART_WINDOW, RESTART_DELAY, GRACE, START, CHILD_STOP, CHILD_TERM,
    CHILD_STDERR, CHILD_PING, CHILD_PINGS_MISSED, SWEEPS, LOG_FILE,
)  # fmt: skip
