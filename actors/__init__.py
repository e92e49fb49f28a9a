"""The runtime: mailboxes, child processes, supervision, bounds. Knows no agent, no model, no hook.

Read ``messages`` and ``actor`` first, then ``supervisor``, then ``process`` and ``child``.
"""

from aerix.actors.actor import Actor, Answer, Call, Ref, launch, on, start, whereis
from aerix.actors.bounds import Bound, Outcome
from aerix.actors.clock import Clock, ManualClock, Timer
from aerix.actors.messages import (
    CallCancelled,
    Cancel,
    Cancelled,
    DeadlineExceeded,
    Down,
    Exit,
    Gone,
    Piece,
    Refused,
    Reply,
    Started,
    StartFailed,
    Stop,
    System,
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
    "DeadlineExceeded", "Down", "Exit", "FindChild", "Gone", "Intensity", "ManualClock", "Outcome", "Piece", "Ref", "Refused",
    "Reply", "RestartWindow", "StartChild", "StartFailed", "Started", "Stop", "StopChild", "Supervisor", "System",
    "Tick", "Timer", "launch", "on", "start", "whereis",
]  # fmt: skip
