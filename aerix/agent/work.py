"""Work: what an agent did that whoever reads its end wants to know: the files it wrote, the commands it ran. Pure."""

from dataclasses import dataclass, field

from aerix.tools.messages import ToolResult
from aerix.turn.parse import Call

_SHOWN = 200  # characters of a command


@dataclass(slots=True)
class Work:
    """Kept by one agent, as its calls end. Files are those of ``write`` and ``edit``; what a command wrote is not known."""

    _files: dict[str, None] = field(default_factory=dict)
    _commands: list[str] = field(default_factory=list)

    def note(self, call: Call, result: ToolResult) -> None:
        """A call has ended."""
        self._files |= dict.fromkeys(result.paths)
        if call.tool == "bash" and result.exit is not None:
            command = str(call.input.get("command", ""))
            shown = command if len(command) <= _SHOWN else command[: _SHOWN - 1] + "…"
            self._commands.append(f"{shown} [exit {result.exit}]")

    @property
    def files(self) -> tuple[str, ...]:
        """In the order in which they were first written."""
        return tuple(self._files)

    @property
    def commands(self) -> tuple[str, ...]:
        """In the order in which they ran, each with how it ended."""
        return tuple(self._commands)
