"""What every actor may send or get: exit reasons, system messages, refusals."""

from dataclasses import dataclass
from typing import Any, Literal

ExitKind = Literal["normal", "shutdown", "crash", "killed", "lost"]


@dataclass(frozen=True, slots=True)
class Exit:
    """Why an actor ended: by itself, by a stop, by an exception, by force, or because its process vanished."""

    kind: ExitKind
    detail: str = ""

    @property
    def abnormal(self) -> bool:
        """Whether a ``transient`` child is restarted after it."""
        return self.kind not in ("normal", "shutdown")

    @property
    def why(self) -> str:
        """In a line: the last one of what it died of, or the kind of its end."""
        return self.detail.strip().rpartition("\n")[2] or self.kind


class Refused(Exception):
    """The answer "no": a stable code and a sentence. Raised in a handler, it reaches the asker; it is no crash."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Gone(Refused):
    """The actor that was asked has ended, or ended before it handled the message; by a failure, it says which."""

    def __init__(self, name: str, exit: Exit | None = None) -> None:
        why = f": {exit.why}" if exit is not None and exit.abnormal else ""
        super().__init__("gone", f"{name} has ended{why}")


class DeadlineExceeded(Exception):
    """An answer did not come in the time that was given for it."""


class StartFailed(Exception):
    """An actor's ``setup`` raised, or did not end in time."""


class Cancelled(BaseException):
    """Raised by ``Actor.wait`` when the actor is cancelled or stopped; ends the handler, unless it is caught."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class GivenUp(Cancelled):
    """Raised by ``Actor.wait`` when whoever asked no longer wants the answer; ends the handler, and not the actor."""


class System:
    """A message of the system lane: it overtakes user messages, and no bound refuses it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Stop(System):
    """End after the handler that is running. ``force``: a grace has run out; who owns a process kills it."""

    reason: str = "shutdown"
    force: bool = False


@dataclass(frozen=True, slots=True)
class Cancel(System):
    """Give up what you do: ``wait`` raises Cancelled. An actor that waits for nothing ends."""

    reason: str = "cancelled"


@dataclass(frozen=True, slots=True)
class Started(System):
    """A monitored actor is up."""

    name: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Down(System):
    """A monitored actor has ended. ``started`` is false when it never came up."""

    name: str
    incarnation: int
    exit: Exit
    started: bool = True


@dataclass(frozen=True, slots=True)
class Tick(System):
    """A timer ran out."""

    token: object


@dataclass(frozen=True, slots=True)
class Piece(System):
    """A part of the answer to the request ``token``; more will come."""

    token: int
    value: Any


@dataclass(frozen=True, slots=True)
class Reply(System):
    """The answer to the request ``token``: a value, or the refusal."""

    token: int
    value: Any = None
    error: Refused | None = None


@dataclass(frozen=True, slots=True)
class Taken(System):
    """To whom sends the pieces of the request ``token``: so many more were handled (where ``Answer.credit`` is set)."""

    token: int
    count: int


@dataclass(frozen=True, slots=True)
class CallCancelled(System):
    """The caller of the request ``token`` does not want it any more; it must still be answered."""

    token: int
