"""Rows of the limits of the tools, driven to their end; what a runner does, in a real runner."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from aerix.actors import Ref, Refused, start
from aerix.actors.dump import actor_records
from aerix.tools.glob import glob
from aerix.tools.grep import grep
from aerix.tools.messages import RunTool, ToolResult
from aerix.tools.read import read
from aerix.tools.runner import ToolRunner
from aerix.tools.workspace import ToolError, Workspace
from tests.conftest import Limit
from tests.tools.test_bash import _Asker, cancelled
from tests.tools.waiting import is_gone, pid_in, until

Call = Callable[..., str]
HANGS = {"pattern": "(a+)+$"}
"""Of a search that would never end."""


@contextmanager
def a_runner(ws: Workspace) -> Iterator[Ref]:
    """One that was started with the limits of now."""
    ref = start(ToolRunner(ws.root, ws.cwd, ws.root.parent / "spool", {}), "a1.tools")
    yield ref
    ref.stop()
    assert ref.join(10) is not None


def ran(ws: Workspace, tool: str, **values: object) -> ToolResult:
    with a_runner(ws) as runner:
        message = RunTool("c1", tool, values, 1000)
        result: ToolResult = runner.ask(message, message.limit_s)
        return result


# --- functions ----------------------------------------------------------------------------------------------------


@pytest.mark.bound("read.lines")
@pytest.mark.bound("read.chars")
def test_lines_and_characters_over_the_limit_are_left_to_the_next_call(
    limit: Limit, ws: Workspace, call: Call
) -> None:
    limit("read.lines", 2)
    limit("read.chars", 5)
    (ws.cwd / "a").write_text("1234567\nx\nx\n")
    first, second, pointer = call(read, path="a").splitlines()
    assert (first, second) == ("1\t12345… [3 more bytes in this line]", "2\tx")
    assert pointer.endswith('read(path="a", offset=3)]')


@pytest.mark.bound("grep.chars")
@pytest.mark.bound("grep.matches")
def test_matches_and_characters_over_the_limit_are_left_out(limit: Limit, ws: Workspace, call: Call) -> None:
    limit("grep.chars", 5)
    limit("grep.matches", 1)
    (ws.cwd / "a").write_text("1234567\n1\n")
    assert call(grep, pattern="1") == "a:1:12345…\n[stopped at 1 match]"


@pytest.mark.bound("glob.forms")
def test_a_pattern_of_too_many_alternatives_is_refused(limit: Limit, call: Call) -> None:
    limit("glob.forms", 2)
    with pytest.raises(ToolError, match="the pattern has over 2 alternatives; give fewer"):
        call(glob, pattern="{a,b,c}")


# --- commands -----------------------------------------------------------------------------------------------------


@pytest.mark.bound("bash.timeout")
def test_a_command_that_asks_for_no_time_has_the_usual_one(limit: Limit, ws: Workspace) -> None:
    limit("bash.timeout", 0.1)
    result = ran(ws, "bash", command="sleep 60")
    assert (result.text, result.error) == ("[timeout after 0.1s]", True)


@pytest.mark.bound("bash.longest")
def test_a_command_that_asks_for_more_has_the_longest_time(limit: Limit, ws: Workspace) -> None:
    limit("bash.longest", 0.1)
    result = ran(ws, "bash", command="sleep 60", timeout_secs=1000)
    assert (result.text, result.error) == ("[timeout after 0.1s]", True)


@pytest.mark.bound("bash.cancel")
def test_a_cancelled_command_that_ignores_term_is_killed(limit: Limit, ws: Workspace) -> None:
    limit("bash.cancel", 1)
    limit("tools.cancel", 60)
    message = RunTool(
        "c1", "bash", {"command": "trap '' TERM; echo $$ > pid; while :; do sleep 60; done"}, 1000
    )
    with a_runner(ws) as runner, asking(runner) as asker:
        result, took = cancelled(asker, message, lambda: pid_in(ws.cwd / "pid"))
    assert (result.text, took >= 1) == ("[cancelled]", True)
    assert is_gone(pid_in(ws.cwd / "pid"), 10)


@contextmanager
def asking(runner: Ref) -> Iterator[Ref]:
    asker = start(_Asker(runner), "asker")
    yield asker
    asker.stop()
    asker.join(30)


@pytest.mark.bound("bash.drain")
def test_what_holds_the_output_is_waited_for_so_long_after_the_shells_end(
    limit: Limit, ws: Workspace
) -> None:
    limit("bash.drain", 0)
    command = "(sleep 0.15; echo late) & echo done"
    assert " still running]\n[exit 0]" in ran(ws, "bash", command=command).text
    limit("bash.drain", 20)
    assert ran(ws, "bash", command=command).text == "done\nlate\n[exit 0]"


# --- every other tool ---------------------------------------------------------------------------------------------


@pytest.mark.bound("tools.time")
def test_a_tool_that_takes_too_long_gives_up(limit: Limit, ws: Workspace) -> None:
    limit("tools.time", 0.1)
    (ws.cwd / "a").write_text("a" * 60 + "b\n")
    result = ran(ws, "grep", **HANGS)
    assert (result.text, result.error) == ("error: it took too long; narrow it down.", True)


@pytest.mark.bound("tools.watch")
def test_a_tool_looks_for_a_cancel_so_often(limit: Limit, ws: Workspace) -> None:
    (ws.cwd / "a").write_text("a" * 60 + "b\n")
    search = RunTool("c1", "grep", HANGS, 1000)
    limit("tools.watch", 0.01)
    with a_runner(ws) as runner, asking(runner) as asker:
        result, _ = cancelled(asker, search, until_it_searches)
        assert (result.text, result.error) == ("[cancelled]", True)
    limit("tools.watch", 60)
    limit("tools.cancel", 0.1)
    with (
        a_runner(ws) as runner,
        asking(runner) as asker,
        pytest.raises(Refused, match="grep did not answer a cancel"),
    ):
        cancelled(asker, search, until_it_searches)


def until_it_searches() -> None:
    until(lambda: any(one.child_calls for one in actor_records()))
