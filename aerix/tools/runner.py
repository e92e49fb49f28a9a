"""ToolRunner: an agent's end of its tool runner process."""

from dataclasses import dataclass
from pathlib import Path

from aerix.actors import CallCancelled, Tick, on
from aerix.actors.process import ProcessActor
from aerix.actors.wire import Codec
from aerix.bounds import CANCEL_GRACE
from aerix.tools.messages import RunTool, ToolResult
from aerix.tools.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class _Late:
    """A timer's token: the call that must have been answered by then, by its number."""

    number: int
    why: str


class ToolRunner(ProcessActor):
    """Owns a runner process; asked with ``RunTool``, one call at a time, it answers ``ToolResult``.

    A tool ends itself at its deadline. Where it does not, or does not answer a cancel, the process is killed: the call
    is refused with ``worker_died``, and the next one needs a new runner, which remembers nothing of files read.
    """

    def __init__(
        self, root: Path, cwd: Path, spool: Path, caps: dict[str, int], sandbox: Sandbox | None = None
    ) -> None:
        """``root`` is the project's folder, ``caps`` are the bytes of a result by tool; all paths are absolute. Commands run
        in the sandbox, where there is one.
        """
        args = {
            "root": str(root),
            "cwd": str(cwd),
            "spool": str(spool),
            "caps": caps,
            "sandbox": sandbox and sandbox.plain(),
        }
        codec = Codec((RunTool, ToolResult))
        super().__init__("aerix.tools.child:main", args, codec, guard="term", window=1)
        self._number = 0
        self._what = ""

    @on(RunTool)
    def run(self, message: RunTool) -> object:
        """Pass the call on, and see to it that it is answered."""
        answer = super().unhandled(message)
        self._number += 1
        self._what = message.tool
        self.after(message.kill_s, _Late(self._number, f"did not end in {message.time_s:g} s"))
        return answer

    @on(CallCancelled)
    def _cancel_call(self, message: CallCancelled) -> None:
        self._cancel(message)
        if any(answer.token == message.token for answer in self._open.values()):
            self.after(CANCEL_GRACE.value, _Late(self._number, "did not answer a cancel"))

    @on(Tick)
    def _tick(self, message: Tick) -> None:
        late = message.token
        if not isinstance(late, _Late):
            self._force(message)
        elif late.number == self._number and self.open_calls:
            self.kill(f"{self._what} {late.why}")
