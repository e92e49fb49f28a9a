"""What every actor of this process does right now, for somebody who looks at a hang.

It only reads: nobody is asked and no lock is taken that an actor holds while it works, so that it tells the truth while
actors hang, and within a signal's handler. What it reads changes meanwhile: two lines may be a moment apart.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING

from aerix.actors.bounds import DUMP, DUMP_ACTORS, DUMP_CALLS
from aerix.actors.log import log

if TYPE_CHECKING:
    from aerix.actors.actor import Actor, Call

IDLE, SETUP, TEARDOWN = "idle", "setup", "teardown"
"""What an actor does that handles no message."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A request that an actor has sent and that is not answered: its class, who works on it now, and since when."""

    message: str
    to: str
    secs: float


@dataclass(frozen=True, slots=True)
class ActorRecord:
    """One living actor, as it was when it was looked at."""

    name: str
    incarnation: int
    kind: str
    """Its class."""
    does: str
    """The class of the message it handles, ``setup``, ``teardown`` or ``idle``; ``Ready`` is a descriptor's."""
    secs: float
    """Since when; for one that waits, since when it waits."""
    waits: bool
    """Whether it is blocked in ``wait`` until one of ``calls`` is answered."""
    calls: list[OpenCall]
    """Those it is blocked on, else all that are open; the oldest first, and not all where they are many."""
    open: int
    """Its requests that nobody has answered."""
    owed: int
    """The answers that it has taken over and not given."""
    system: int
    """Messages in its mailbox, in the lane of the system, and in that of users."""
    user: int
    up: bool = True
    """Whether it has come up."""
    abandoned: bool = False
    """Whether it did not end in its grace, or come up in its time, and was given up: its thread runs on."""
    pid: int = 0
    """The child process of a process actor."""
    child_calls: int = 0
    """How many calls that child works on."""


def actor_records() -> list[ActorRecord]:
    """Every living actor: the busy ones first, who has been at it longest before the others; then the idle, by name."""
    from aerix.actors.actor import living

    now = monotonic()
    records = [_record(actor, now) for actor in living()]
    records.sort(key=lambda one: (0.0, one.name) if one.does == IDLE else (-1.0 - one.secs, one.name))
    return records[: DUMP_ACTORS.count]


def _record(actor: "Actor", now: float) -> ActorRecord:
    from aerix.actors.process import ProcessActor

    life, ref = actor._life, actor.ref  # noqa: SLF001  # the one private thing of an actor
    doing, waited = life.doing, life.waited
    since = life.mailbox.idle_since if doing is None else life.since
    child = actor if isinstance(actor, ProcessActor) else None
    system, user = life.mailbox.lengths
    return ActorRecord(
        name=ref.name,
        incarnation=ref.incarnation,
        kind=type(actor).__name__,
        does=IDLE if doing is None else doing if isinstance(doing, str) else type(doing).__name__,
        secs=_secs(since if waited is None else waited[1], now),
        waits=waited is not None,
        calls=_open_calls(list(life.calls.values()) if waited is None else waited[0], now),
        open=len(life.calls),
        owed=len(life.owed),
        system=system,
        user=user,
        up=ref.up,
        abandoned=ref.abandoned,
        pid=0 if child is None else child.pid,
        child_calls=0 if child is None else child.open_calls,
    )


def _open_calls(calls: "Sequence[Call]", now: float) -> list[OpenCall]:
    left = [call for call in calls if not call.done][: DUMP_CALLS.count]
    return [OpenCall(call.asks, call.holder, _secs(call.since, now)) for call in left]


def _secs(since: float, now: float) -> float:
    return round(max(0.0, now - since), 1)


# --- as text ------------------------------------------------------------------------------------------------------

_HEAD = ("secs", "actor", "class", "mailbox", "open", "owed", "does")


def actor_lines(records: list[ActorRecord]) -> list[str]:
    """A head, the names of the columns, and one line an actor. A mailbox is its system lane + its user lane."""
    given_up = sum(one.abandoned for one in records)
    rows = [_HEAD, *map(_row, records)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_HEAD) - 1)]
    right = {n for n, name in enumerate(_HEAD) if name in ("secs", "mailbox", "open", "owed")}
    lines = []
    for row in rows:
        cells = [row[n].rjust(w) if n in right else row[n].ljust(w) for n, w in enumerate(widths)]
        lines.append("  ".join([*cells, row[-1]]))
    return [f"actors: {len(records)}, abandoned threads: {given_up}", *lines]


def _row(one: ActorRecord) -> tuple[str, ...]:
    name = _plain(f"{one.name}#{one.incarnation}")
    mailbox = f"{one.system}+{one.user}"
    return (f"{one.secs:.1f}", name, one.kind, mailbox, str(one.open), str(one.owed), _deed(one))


def _deed(one: ActorRecord) -> str:
    words = [one.does]
    if one.calls:
        asked = ", ".join(f"{call.message} to {_plain(call.to)} ({call.secs:.1f} s)" for call in one.calls)
        words.append(f"{'waits for' if one.waits else 'has asked'} {asked}")
    if one.pid:
        words.append(f"its process {one.pid} works on {one.child_calls} calls")
    if not one.up:
        words.append("not up yet")
    if one.abandoned:
        words.append("abandoned")
    return "; ".join(words)


def _plain(name: str) -> str:
    """A name holds a path, maybe: whatever is in it, it stays in its line."""
    return name if name.isprintable() else ascii(name)[1:-1]


# --- on a signal --------------------------------------------------------------------------------------------------


def dump_on_signal() -> None:
    """SIGUSR1 writes down every actor and where every thread is: into the log, or to standard error where none is kept.

    Call it in the main thread: the handler runs there, as soon as it is in Python code or waits for a lock, for input
    or for time; not while it is inside native code.
    """
    import traceback  # noqa: F401  # so that the handler finds it loaded

    signal.signal(signal.SIGUSR1, lambda _, frame: write_dump(frame))


def write_dump(frame: FrameType | None = None) -> None:
    """Write the dump now. ``frame`` is where this thread was interrupted."""
    text = dump_text(frame)
    if not log("actors.dump", level="error", dump=text):
        left = text.encode("utf-8", "backslashreplace")
        with suppress(OSError):
            while left:
                left = left[os.write(2, left) :]


def dump_text(frame: FrameType | None = None) -> str:
    """The actors, then the threads with their tracebacks; what is beyond the bound is cut."""
    text = "\n".join([*actor_lines(actor_records()), "", *_threads(frame)]) + "\n"
    if len(text) > DUMP.count:
        text = text[: DUMP.count] + f"\n(cut: {len(text)} characters)\n"
    return text


def _threads(frame: FrameType | None) -> list[str]:
    import threading
    import traceback

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001  # the documented way, for all its name
    if frame is not None:
        frames[threading.get_ident()] = frame
    lines = []
    for ident, at in frames.items():
        lines.append(f"thread {_plain(names.get(ident, '?'))} ({ident}):")
        lines += [line for entry in traceback.format_stack(at) for line in entry.rstrip().splitlines()]
    return lines
