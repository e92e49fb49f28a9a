"""The actors of an interactive session beside its live part: who works, and who speaks for the user.

The front's thread owns what is shown and what was said. These hand things over to it, as functions to run there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from aerix.actors import Actor, Answer, Cancel, Cancelled, DeadlineExceeded, Refused, StartFailed, on, whereis
from aerix.agent.ended import crash
from aerix.session.index import NoSession
from aerix.settings import SettingsError
from aerix.tools.messages import RunTool, ToolResult

Post = Callable[[Callable[[], object]], bool]
"""Has the front's thread run something; false where that thread has ended."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A job gave nothing; ``why`` is a sentence. ``cancelled``: because the user gave it up."""

    why: str
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Do:
    """Do a job, then have the front hear of what it gave, or of ``Failed``."""

    job: Callable[[Actor], object]
    done: Callable[[object], object]


class Worker(Actor):
    """The thread that blocks while a request runs: an edge, to which a live session belongs."""

    def __init__(self, post: Post) -> None:
        self._post = post

    @on(Do)
    def _do(self, message: Do) -> None:
        self._post(partial(message.done, self._tried(message.job)))

    def _tried(self, job: Callable[[Actor], object]) -> object:
        try:
            return job(self)
        except Cancelled:
            return Failed("cancelled", cancelled=True)
        except Refused as refused:
            return Failed(f"{refused.message} [{refused.code}]")
        except (SettingsError, NoSession, StartFailed, DeadlineExceeded, OSError) as error:
            return Failed(str(error))
        except Exception as error:  # noqa: BLE001  # the user is told, the log has the traceback, and the session goes on
            return Failed(crash("the session", error).reason)

    @on(Cancel)
    def _cancel(self, _message: Cancel) -> None:
        """What it was to give up is over."""


class User(Actor):
    """Speaks for the user: hands on all that it is told and asked, and whoever asked waits for the user's answer."""

    def __init__(self, post: Post, hear: Callable[[object, Answer], object]) -> None:
        self._post = post
        self._hear = hear

    def unhandled(self, message: object) -> object:
        """Everything is for the user."""
        answer = self.later()
        if not self._post(partial(self._hear, message, answer)):
            answer.refuse(Refused("stdout_closed", "the terminal is closed"))
        return None


@dataclass(frozen=True, slots=True)
class RunCommand:
    """Run a command of the user's, then have the front hear of its ``ToolResult``, or of ``Failed``."""

    command: str
    done: Callable[[object], object]


class Shell(Actor):
    """Runs the user's own commands, one after the other, in a runner process like an agent's."""

    def __init__(self, post: Post, runner: str, room_bytes: int) -> None:
        """``runner`` is its name; ``room_bytes`` of the output are shown, and told to the model."""
        self._post = post
        self._runner = runner
        self._room = room_bytes
        self._count = 0

    @on(RunCommand)
    def _run(self, message: RunCommand) -> None:
        self._post(partial(message.done, self._result(message.command)))

    def _result(self, command: str) -> ToolResult | Failed:
        self._count += 1
        call = RunTool(f"u{self._count}", "bash", {"command": command}, self._room)
        runner = whereis(self._runner)
        if runner is None:
            return Failed("the runner of commands is just being started again; try it once more")
        asked = self.request(runner, call)
        try:
            self.wait(asked, deadline_s=call.limit_s)
            result: ToolResult = asked.result()
        except Cancelled:
            asked.cancel()
            return Failed("cancelled", cancelled=True)
        except (Refused, DeadlineExceeded) as error:
            asked.cancel()
            return Failed(str(error))
        return result

    @on(Cancel)
    def _cancel(self, _message: Cancel) -> None:
        """What it was to give up is over."""
