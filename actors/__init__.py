"""The runtime: mailboxes, child processes, supervision, bounds. Knows no agent, no model, no hook.

Read ``messages`` and ``actor`` first, then ``supervisor``, then ``process`` and ``child``. A name is imported when it is
first used: a child process speaks frames and needs neither actors nor Pykka (half of its start).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aerix.actors.actor import Actor, Answer, Call, Ref, launch, on, start, whereis
    from aerix.actors.bounds import Bound, Outcome
    from aerix.actors.clock import Clock, ManualClock, Timer
    from aerix.actors.ledger import Exhausted, Ledger, Left, Spent, replay
    from aerix.actors.messages import (
        CallCancelled,
        Cancel,
        Cancelled,
        DeadlineExceeded,
        Down,
        Exit,
        GivenUp,
        Gone,
        Piece,
        Refused,
        Reply,
        Started,
        StartFailed,
        Stop,
        System,
        Taken,
        Tick,
    )
    from aerix.actors.supervisor import (
        ChildSpec,
        FindChild,
        Intensity,
        RestartWindow,
        StartChild,
        StopChild,
        Supervisor,
    )

__all__ = [
    "Actor", "Answer", "Bound", "Call", "CallCancelled", "Cancel", "Cancelled", "ChildSpec", "Clock",
    "DeadlineExceeded", "Down", "Exhausted", "Exit", "FindChild", "GivenUp", "Gone", "Intensity", "Ledger",
    "Left", "ManualClock", "Outcome", "Piece", "Ref", "Refused", "Reply", "RestartWindow", "Spent",
    "StartChild", "StartFailed", "Started", "Stop", "StopChild", "Supervisor", "System", "Taken", "Tick", "Timer",
    "launch", "on", "replay", "start", "whereis",
]  # fmt: skip

_HOMES = {
    "actor": ("Actor", "Answer", "Call", "Ref", "launch", "on", "start", "whereis"),
    "bounds": ("Bound", "Outcome"),
    "clock": ("Clock", "ManualClock", "Timer"),
    "ledger": ("Exhausted", "Ledger", "Left", "Spent", "replay"),
    "supervisor": (
        "ChildSpec", "FindChild", "Intensity", "RestartWindow", "StartChild", "StopChild", "Supervisor",
    ),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no {name}")
    value = getattr(import_module(f"{__name__}.{_HOME.get(name, 'messages')}"), name)
    globals()[name] = value
    return value
