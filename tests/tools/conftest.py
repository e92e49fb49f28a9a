"""What the tools' tests stand on: a workspace in a folder of the test's own, and a tool called as a runner calls it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Ref, start
from aerix.tools.messages import RunTool, ToolResult
from aerix.tools.runner import ToolRunner
from aerix.tools.workspace import Given, Output, Workspace

Tool = Callable[[Workspace, Given], Output]


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    folder = tmp_path / "work"
    folder.mkdir()
    return Workspace(folder, folder)


@pytest.fixture
def call(ws: Workspace) -> Callable[..., str]:
    """Call a tool with an input; gives the result's text."""

    def run(tool: Tool, room: int = 16384, **values: Any) -> str:
        return tool(ws, Given(values, room)).text

    return run


@pytest.fixture
def runner(ws: Workspace, tmp_path: Path) -> Iterator[Ref]:
    """A real tool runner with its process."""
    ref = start(ToolRunner(ws.root, ws.cwd, tmp_path / "spool", {"bash": 4000, "read": 4000}), "a1.tools")
    yield ref
    ref.stop()
    assert ref.join(10) is not None


@pytest.fixture
def run(runner: Ref) -> Callable[..., ToolResult]:
    """Run one call in the runner, as an agent does."""

    def ask(tool: str, room: int = 100_000, deadline: float | None = None, **values: Any) -> ToolResult:
        message = RunTool("c1", tool, values, room, deadline)
        result: ToolResult = runner.ask(message, message.limit_s)
        return result

    return ask
