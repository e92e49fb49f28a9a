"""What a row of the loop-bounds table is, and the runtime's own rows (spec/actors.md 3.4).

Each package declares its rows; ``aerix bounds`` prints them all. A row can be set small for a test, in every process
of a tree, by ``AERIX_BOUND_<NAME>`` in the environment.
"""

import os
import re
from dataclasses import dataclass
from functools import cache
from typing import Literal, cast, get_args

PREFIX = "AERIX_BOUND_"
"""How the variable of a row begins."""
_MOST_S = 1_000_000
"""Seconds: what no row exceeds. The system's own waits take no more than some weeks."""
_MOST = 2**40

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
    least: float = 0
    """The smallest value that makes sense."""
    per: str = ""
    """The row whose every unit counts this one anew (see ``ledger``); empty where it is counted once."""

    @property
    def value(self) -> float:
        """The limit in force: the default, unless the environment sets another. Raises ValueError, as ``read``."""
        text = os.environ.get(self.variable)
        return self.read(text) if text else self.default

    @property
    def count(self) -> int:
        """The limit in force, where it counts things."""
        return int(self.value)

    @property
    def variable(self) -> str:
        """The environment variable that sets this row."""
        return _variable(self.name)

    @property
    def whole(self) -> bool:
        """Whether it counts things: whatever is not measured in seconds."""
        return not self.unit.startswith("seconds")

    def read(self, text: str) -> float:
        """The limit that a text sets. Raises ValueError with a sentence that says what is allowed."""
        most = _MOST if self.whole else _MOST_S
        try:
            number = float(text)
        except ValueError:
            number = -1
        if not self.least <= number <= most or (self.whole and number != int(number)):
            kind = "a whole number" if self.whole else "a number"
            raise ValueError(
                f"{self.variable}={text}: {self.name} is {kind} from {self.least:g} to {most} ({self.unit})"
            )
        return number

    def end(self, limit: int) -> Outcome:
        """How who has spent ``limit`` units ends: the outcome, with the limit for the N in its reason."""
        kind, _, reason = self.outcome.partition(": ")
        assert kind in get_args(OutcomeKind), f"{self.name} ends nothing"
        return Outcome(cast("OutcomeKind", kind), re.sub(r"\bN\b", str(limit), reason))


@cache
def _variable(name: str) -> str:
    """Made once a row: limits are read with every frame."""
    return PREFIX + name.upper().replace(".", "_").replace("-", "_")


MAILBOX = Bound("actor.mailbox", 1000, "messages", "every actor", "refuse", "refused: mailbox_full", least=1)
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
START = Bound("actor.start", 30, "seconds", "supervisor", "kill", "failed: was not up in N s")
CHILD_STOP = Bound("child.stop", 2, "seconds to TERM", "process actor", "kill", "killed: SIGTERM")
CHILD_TERM = Bound("child.term", 2, "seconds to KILL", "process actor", "kill", "killed: SIGKILL")
CHILD_STDERR = Bound("child.stderr", 4096, "bytes kept", "process actor", "cut", "the last bytes, in Down")
CHILD_PING = Bound(
    "child.ping", 10, "seconds", "process actor", "kill", "killed: no answer to pings", least=0.001
)
CHILD_PINGS_MISSED = Bound(
    "child.pings-missed", 3, "pings", "process actor", "kill", "killed: no answer to pings", least=1
)
CHILD_PROGRESS = Bound("child.progress", 600, "seconds", "process actor", "kill", "killed: no progress")
CHILD_CREDIT = Bound(
    "child.credit", 64, "pieces of a call", "process actor", "wait", "the child waits", least=1
)
SWEEPS = Bound(
    "child.sweeps", 20, "rounds", "process actor", "stop", "a process outlived its runner", least=1
)
DUMP = Bound("dump.text", 256 * 1024, "characters", "every program", "cut", "the other threads are left out")
DUMP_ACTORS = Bound("dump.actors", 1000, "actors", "every program", "cut", "the idle are left out first")
DUMP_CALLS = Bound("dump.calls", 8, "calls of an actor", "every program", "cut", "the others are left out")
LOG_FILE = Bound("log.file", 16 * 1024 * 1024, "bytes", "every program", "cut", "the old log is put aside")

ROWS = (
    MAILBOX, FRAME, WRITE_BUFFER, DEPTH, RESTARTS, RESTART_WINDOW, RESTART_DELAY, GRACE, START, CHILD_STOP, CHILD_TERM,
    CHILD_STDERR, CHILD_PING, CHILD_PINGS_MISSED, CHILD_PROGRESS, CHILD_CREDIT, SWEEPS, DUMP,
    DUMP_ACTORS, DUMP_CALLS, LOG_FILE,
)  # fmt: skip
