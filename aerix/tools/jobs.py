"""JobRunner: a request's end of the process that runs all its background commands, and what is said to it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aerix.actors.process import ProcessActor
from aerix.actors.wire import Codec
from aerix.bounds import JOBS
from aerix.tools.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start a command; answered by ``JobStarted`` at once. Refused with ``not_started``, or with ``too_many_jobs``.

    ``job`` is a name that no other job of the request has, ``spool`` the file for the whole of an output that is over
    ``limit`` bytes. After ``timeout_s`` it is ended.
    """

    job: str
    command: str
    timeout_s: float
    limit: int
    spool: str


@dataclass(frozen=True, slots=True)
class JobStarted:
    """It runs."""


@dataclass(frozen=True, slots=True)
class AwaitJob:
    """Answered by ``JobEnd`` when the job has ended. Cancelling it ends the job, and it is answered then."""

    job: str


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended, and its output under its limit; ``exit`` is minus the signal's number where one ended it."""

    text: str
    exit: int
    how: Literal["ended", "timeout", "cancelled"]
    spool: str | None = None


CODEC = Codec((StartJob, JobStarted, AwaitJob, JobEnd))


class JobRunner(ProcessActor):
    """Owns the process. Where it dies its jobs die with it, and whoever awaits one is refused with ``worker_died``."""

    def __init__(self, cwd: Path, sandbox: Sandbox | None = None) -> None:
        """``cwd`` is where commands run, absolute; None: without a sandbox."""
        args = {"cwd": str(cwd), "sandbox": sandbox and sandbox.plain()}
        super().__init__("aerix.tools.jobchild:main", args, CODEC, guard="term", window=2 * JOBS.count)
