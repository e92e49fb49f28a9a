"""The runner as a process: what becomes of it, of its calls and of what it started, whoever is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from aerix.actors import ChildSpec, Ref, Refused, StartChild, Supervisor, start, whereis
from aerix.tools import RUN_BY_RUNNER, TOOLS
from aerix.tools.messages import RunTool, ToolResult
from aerix.tools.runner import ToolRunner
from aerix.tools.workspace import Workspace
from tests.tools.waiting import ends, is_gone, pid_in, until

Run = Callable[..., ToolResult]


def spec(ws: Workspace, tmp_path: Path) -> ChildSpec:
    return ChildSpec(
        "a1.tools", lambda: ToolRunner(ws.root, ws.cwd, tmp_path / "spool", {}), restart="transient"
    )


def test_every_tool_has_a_flat_schema_with_a_sentence() -> None:
    by_runner = ["read", "write", "edit", "bash", "glob", "grep", "repo_map"]
    assert list(TOOLS) == [*by_runner, "plan", "context", "agent"]
    assert set(by_runner) == RUN_BY_RUNNER
    for tool in TOOLS.values():
        properties, required = tool.input["properties"], tool.input["required"]
        assert isinstance(properties, dict)
        assert isinstance(required, list)
        assert tool.input["additionalProperties"] is False
        assert list(properties)[: len(required)] == required
        assert tool.description.endswith(".")


@pytest.mark.rule("tools.reserved-names")
def test_the_web_tools_are_not_among_them() -> None:
    assert not {"web_fetch", "web_search"} & set(TOOLS)


@pytest.mark.rule("tools.in-a-child")
def test_a_whole_piece_of_work(run: Run, ws: Workspace, tmp_path: Path) -> None:
    made = run("write", path="src/a.py", content="print('hi')\n")
    assert (made.text, made.changed, made.paths) == ("created src/a.py (1 line).", True, ["src/a.py"])
    seen = run("read", path="src/a.py")
    assert (seen.text, seen.changed, seen.paths, seen.error) == ("1\tprint('hi')", False, [], False)
    assert run("edit", path="src/a.py", old="hi", new="ho").paths == ["src/a.py"]
    assert run("bash", command=f"{sys.executable} src/a.py").text == "ho\n[exit 0]"
    assert run("grep", pattern="ho").text == "src/a.py:1:print('ho')"
    assert run("glob", pattern="*.py").text == "src/a.py"


@pytest.mark.rule("tools.refused-names")
def test_an_unknown_tool_is_refused_with_the_names_of_those_there_are(run: Run) -> None:
    result = run("fly", to="the moon")
    assert result.error
    assert (
        result.text
        == "error: there is no tool 'fly'; there are bash, edit, glob, grep, read, repo_map, write."
    )


def test_an_error_is_a_result(run: Run) -> None:
    result = run("read", path="missing")
    assert (result.text, result.error, result.changed) == ("error: no such file: missing.", True, False)


@pytest.mark.rule("tools.capped")
@pytest.mark.rule("tools.cap-by-window")
def test_a_result_is_capped_at_the_smaller_of_its_setting_and_its_room(run: Run, tmp_path: Path) -> None:
    by_room = run("bash", command="seq 10000", room=1000)
    by_setting = run("bash", command="seq 20000")
    assert 3900 < len(by_setting.text.encode()) <= 4000
    assert 900 < len(by_room.text.encode()) <= 1000
    assert by_room.spool == str(tmp_path / "spool/c1.txt")
    assert by_setting.spool == str(tmp_path / "spool/c1.2.txt")
    assert Path(by_room.spool).read_text() == "".join(f"{n}\n" for n in range(1, 10001)) + "\n[exit 0]\n"
    assert "[truncated: " in by_room.text
    assert f'read with read(path="{by_room.spool}", offset=1)]' in by_room.text
    assert run("read", path=by_room.spool, limit=2).text.startswith("1\t1\n2\t2\n")


@pytest.mark.rule("tools.capped")
def test_a_long_list_of_files_goes_to_the_spool(run: Run, ws: Workspace, tmp_path: Path) -> None:
    for n in range(300):
        (ws.cwd / f"a rather long name of a file number {n}").write_text("")
    result = run("glob", pattern="*", room=1000)
    assert result.spool == str(tmp_path / "spool/c1.txt")
    assert result.text.splitlines()[-1].startswith("[truncated: ")
    assert len(Path(result.spool).read_text().splitlines()) == 300


def test_odd_bytes_in_names_and_output_reach_the_agent_as_text(run: Run, ws: Workspace) -> None:
    (ws.cwd / os.fsdecode(b"\xff.txt")).write_text("x")
    assert run("glob", pattern="*").text == "\ufffd.txt"
    assert run("grep", pattern="x").text == "\ufffd.txt:1:x"
    assert run("bash", command="ls").text == "?.txt\n[exit 0]"


def test_a_fault_of_a_tool_is_a_result_and_the_runner_lives(run: Run, runner: Ref, ws: Workspace) -> None:
    (ws.cwd / "a").write_text("x" * 10)
    assert run("grep", pattern="x", max_matches=1e999).error
    assert run("grep", pattern="x").text == "a:1:xxxxxxxxxx"
    assert runner.alive


@pytest.mark.rule("tools.runner-dies")
def test_a_call_whose_runner_is_killed_is_refused_and_not_run_again(ws: Workspace, tmp_path: Path) -> None:
    supervisor = start(Supervisor([]), "request")
    first = supervisor.ask(StartChild(spec(ws, tmp_path)), 30)
    with pytest.raises(Refused) as refused:
        first.ask(RunTool("c1", "bash", {"command": "echo run >> log; kill -9 $PPID; sleep 5"}, 1000), 20)
    assert refused.value.code == "worker_died"
    assert "signal SIGKILL" in refused.value.message
    first.join(30)
    until(lambda: whereis("a1.tools") not in (None, first))
    second = whereis("a1.tools")
    assert second is not None
    result = second.ask(RunTool("c2", "bash", {"command": "cat log"}, 1000), 20)
    assert result.text == "run\n[exit 0]"
    supervisor.stop()
    supervisor.join(10)


@pytest.mark.bound("tools.grace")
@pytest.mark.rule("tools.in-a-child")
def test_a_runner_that_misses_its_deadline_is_killed(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_TOOLS_GRACE", "0.2")
    monkeypatch.setenv("AERIX_BOUND_BASH_TERM", "0.1")
    runner = start(ToolRunner(ws.root, ws.cwd, tmp_path / "spool", {}), "a1.tools")
    pid = int(
        runner.ask(RunTool("c1", "bash", {"command": "sleep 100 & echo $PPID"}, 1000), 20).text.split()[0]
    )
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Refused) as refused:
        runner.ask(RunTool("c2", "grep", {"pattern": "x"}, 1000, deadline_s=0.1), 20)
    assert refused.value.code == "worker_died"
    assert refused.value.message == "a1.tools ended: signal SIGKILL: grep did not end in 0.1 s"
    exit_ = runner.join(30)
    assert exit_ is not None
    assert exit_.kind == "lost"


@pytest.mark.rule("tools.in-a-child")
def test_one_call_runs_at_a_time(runner: Ref, ws: Workspace) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(runner.ask, RunTool("c1", "bash", {"command": "touch on; sleep 0.5"}, 1000), 20)
        until((ws.cwd / "on").exists)
        with pytest.raises(Refused, match="works on 1 calls"):
            runner.ask(RunTool("c2", "read", {"path": "."}, 1000), 20)
        assert asked.result().exit == 0


OWNER = """
import os, sys
from pathlib import Path
from aerix.actors import start
from aerix.tools.messages import RunTool
from aerix.tools.runner import ToolRunner

if __name__ == "__main__":
    cwd = Path(sys.argv[1])
    runner = start(ToolRunner(cwd, cwd, cwd / "spool", {}), "a1.tools")
    runner.ask(RunTool("c1", "bash", {"command": sys.argv[2]}, 1000), 20)
    runner.tell(RunTool("c2", sys.argv[3], eval(sys.argv[4]), 1000))
    print("ready", flush=True)
    sys.stdin.read()
"""

LEFT = (
    "sleep 1001 & echo $! > background; "
    "setsid sh -c 'echo $$ > session; exec sleep 1002' & "
    '(setsid sh -c \'(trap "" TERM HUP; sh -c "echo \\$PPID > deaf; sleep 1003; sleep 1003") &\' &) ; '
    "env -i setsid sh -c 'echo $$ > clean; exec sleep 1004' & "
    "echo $PPID > runner; while ! [ -s deaf -a -s clean -a -s session ]; do :; done"
)


@pytest.mark.rule("jobs.no-orphan")
@pytest.mark.parametrize(
    ("tool", "values"),
    [
        ("bash", {"command": "trap '' TERM; echo $$ > foreground; sleep 1005; sleep 1005"}),
        ("grep", {"pattern": "(a+)+$", "path": "evil"}),
        ("read", {"path": "."}),
    ],
)
def test_when_the_owner_is_killed_nothing_is_left(tmp_path: Path, tool: str, values: dict[str, str]) -> None:
    """kill -9, with children in the background, in sessions of their own, deaf to TERM, and without their mark."""
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    work = tmp_path / "work"
    work.mkdir()
    (work / "evil").write_text("a" * 60 + "b\n")
    owner = subprocess.Popen(
        [sys.executable, str(script), str(work), LEFT, tool, repr(values)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        names = ["background", "session", "deaf", "clean", "runner"] + ["foreground"] * (tool == "bash")
        pids = {name: pid_in(work / name) for name in names}
        handles = {name: os.pidfd_open(pid) for name, pid in pids.items()}
        owner.kill()
    left = [name for name, fd in handles.items() if not ends(fd, 3)]
    for fd in handles.values():
        os.close(fd)
    assert left == []


TERM_AT_THE_END = """
import signal, subprocess
from aerix.actors.child import ChannelClosed
from aerix.tools import bash

def ignore(number, handler, setting=signal.signal):
    if handler is signal.SIG_IGN:
        signal.signal = setting
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    return setting(number, handler)

with bash.nothing_left():
    print(subprocess.Popen(["sleep", "1006"], stdout=subprocess.DEVNULL).pid, flush=True)
    signal.signal = ignore
    raise ChannelClosed("the owner is gone")
"""


@pytest.mark.rule("jobs.no-orphan")
def test_a_term_that_comes_just_as_the_runner_ends_by_itself_does_not_keep_it_from_ending_its_processes() -> (
    None
):
    """An owner that dies closes its sockets first, and its runner's TERM comes a moment later."""
    ended = subprocess.run(
        [sys.executable, "-c", TERM_AT_THE_END], check=False, stdout=subprocess.PIPE, timeout=20
    )
    pid = int(ended.stdout)
    try:
        assert is_gone(pid, 0)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
