import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerix.actors import Actor, Ref, Refused, Reply, on, start
from aerix.actors.dump import actor_records
from aerix.tools.messages import RunTool, ToolResult
from aerix.tools.workspace import Workspace
from tests.tools.waiting import a_second, is_gone, pid_in, until

Run = Callable[..., ToolResult]


@pytest.fixture
def short_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little time from TERM to KILL; to be named before the runner, which has it from its start."""
    monkeypatch.setenv("AERIX_BOUND_BASH_TERM", "0.3")


@pytest.fixture
def few_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pipes are held; to be named before the runner."""
    monkeypatch.setenv("AERIX_BOUND_BASH_PIPES", "2")


@pytest.mark.rule("tools.bash-output")
@pytest.mark.parametrize(
    ("command", "text", "exit_status", "error"),
    [
        ("echo out; echo err >&2; echo out2", "out\nout2\nerr\n[exit 0]", 0, False),
        ("exit 3", "[exit 3]", 3, True),
        ("kill -SEGV $$", "[signal 11]", -11, True),
        ("kill -INT $$", "[signal 2]", -2, True),
        ("printf no-newline", "no-newline\n[exit 0]", 0, False),
    ],
)
def test_output_errors_and_how_it_ended(
    run: Run, command: str, text: str, exit_status: int, error: bool
) -> None:
    result = run("bash", command=command)
    assert (result.text, result.exit, result.error) == (text, exit_status, error)
    assert not result.changed


@pytest.mark.rule("agent.repeat-not-run")
def test_a_command_tells_whether_it_changed_a_file(run: Run) -> None:
    commands = ["true", "echo x >> f", "cat f", "echo x >> f", "rm f", "rm -f f"]
    assert [run("bash", command=one).changed for one in commands] == [False, True, False, True, True, False]
    assert run("write", path="g", content="x").changed
    assert not run("bash", command="cat g").changed


@pytest.mark.rule("tools.bash-shell")
def test_it_runs_in_the_working_folder_without_input_or_terminal(run: Run, ws: Workspace) -> None:
    assert run("bash", command="pwd").text == f"{ws.cwd}\n[exit 0]"
    assert run("bash", command="cat").text == "[exit 0]"
    assert "No such device" in run("bash", command="echo x > /dev/tty").text


@pytest.mark.rule("tools.bash-shell")
def test_it_is_bash_where_there_is_one(run: Run) -> None:
    assert run("bash", command='[[ a == a ]] && echo "${BASH_VERSION:+bash}"').text == "bash\n[exit 0]"


@pytest.fixture
def no_bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH with a sh and no bash; to be named before the runner."""
    (tmp_path / "bin").mkdir()
    for name in ("sh", "cat"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.mark.rule("tools.bash-shell")
def test_it_is_sh_where_there_is_no_bash(no_bash: None, run: Run) -> None:
    assert run("bash", command="cat /proc/$$/cmdline").text.startswith(f"{os.environ['PATH']}/sh")


@pytest.mark.rule("tools.bash-shell")
def test_signals_are_a_programs_usual_ones(run: Run) -> None:
    """An ignored INT or PIPE would be inherited by every program."""
    lines = run("bash", command="grep -E '^Sig(Blk|Ign)' /proc/self/status").text.splitlines()
    assert lines[:2] == ["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"]
    assert run("bash", command="yes | head -1").text == "y\n[exit 0]"


def test_a_command_that_cannot_be_started_is_a_sentence(run: Run, ws: Workspace) -> None:
    assert run("bash", command="a\0b").text == "error: the command has a zero byte in it."
    result = run("bash", command="true " + "x" * 300_000)
    assert (result.text, result.error) == ("error: cannot start the shell: argument list too long.", True)
    assert run("bash", command="echo still here").text == "still here\n[exit 0]"


@pytest.mark.rule("tools.bash-timeout")
@pytest.mark.rule("bounds.bash")
def test_a_command_over_its_time_is_ended(run: Run) -> None:
    began = time.monotonic()
    result = run("bash", command="echo begun; sleep 100", timeout_secs=1)
    assert (result.text, result.error) == ("begun\n[timeout after 1s]", True)
    assert 1 < time.monotonic() - began < 1 + a_second()


@pytest.mark.bound("bash.term")
@pytest.mark.rule("tools.bash-timeout")
@pytest.mark.rule("bounds.bash")
def test_what_ignores_term_is_killed_with_its_whole_tree(short_term: None, run: Run, ws: Workspace) -> None:
    command = (
        "trap '' TERM; (trap '' TERM; echo $BASHPID > inner; sleep 100) & "
        "setsid sh -c 'trap \"\" TERM; echo $$ > escaped; sleep 100' & "
        "sleep 100; sleep 100; sleep 100"
    )
    result = run("bash", command=command, timeout_secs=3)
    assert result.text == "[timeout after 3s]"
    assert is_gone(pid_in(ws.cwd / "inner"), 10)
    assert is_gone(pid_in(ws.cwd / "escaped"), 10)


@pytest.mark.rule("bounds.bash")
def test_a_timeout_is_at_most_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RunTool("c1", "bash", {}, 1).time_s == 120
    assert RunTool("c1", "bash", {"timeout_secs": 5}, 1).time_s == 5
    assert RunTool("c1", "bash", {"timeout_secs": 10_000}, 1).time_s == 600
    assert RunTool("c1", "bash", {"timeout_secs": 5}, 1, deadline_s=2).time_s == 2
    assert RunTool("c1", "grep", {}, 1).time_s == 120
    call = RunTool("c1", "bash", {"timeout_secs": 5}, 1)
    assert call.time_s < call.kill_s < call.limit_s


def test_a_program_that_ends_on_term_may_clean_up(run: Run) -> None:
    result = run("bash", command="trap 'echo cleaned; exit 7' TERM; sleep 100 & wait", deadline=2)
    assert result.text == "cleaned\n[timeout after 2s]"


@pytest.mark.rule("tools.bash-leftovers")
def test_what_it_leaves_running_does_not_hold_up_the_result(run: Run, ws: Workspace) -> None:
    began = time.monotonic()
    result = run("bash", command="sleep 100 & echo $! > pid; setsid sleep 100 & echo done")
    assert result.text == "done\n[2 processes still running]\n[exit 0]"
    assert time.monotonic() - began < a_second()
    assert not is_gone(pid_in(ws.cwd / "pid"), 0)


@pytest.mark.rule("tools.bash-leftovers")
def test_what_it_leaves_running_may_go_on_writing(run: Run, ws: Workspace) -> None:
    run("bash", command="(while echo x; do :; done; echo ended > ended) & echo $! > pid")
    pid = pid_in(ws.cwd / "pid")
    assert run("bash", command="echo next").text == "next\n[exit 0]"
    assert not is_gone(pid, 0.2)
    assert not (ws.cwd / "ended").exists()
    assert run("bash", command=f"kill {pid}").exit == 0


@pytest.mark.bound("bash.pipes")
@pytest.mark.rule("tools.bash-leftovers")
def test_only_so_many_pipes_of_what_was_left_are_held(few_pipes: None, run: Run) -> None:
    def pipes() -> int:
        return int(run("bash", command="ls -l /proc/$PPID/fd | grep -c pipe:").text.split()[0])

    before = pipes()
    for _ in range(4):
        run("bash", command="sleep 100 &")
    assert pipes() == before + 2


@pytest.mark.rule("tools.bash-leftovers")
def test_a_timeout_leaves_earlier_commands_processes_alone(run: Run, ws: Workspace) -> None:
    run("bash", command="setsid sleep 100 & echo $! > pid")
    run("bash", command="sleep 100", deadline=0.1)
    assert not is_gone(pid_in(ws.cwd / "pid"), 0)


@pytest.mark.rule("tools.bash-flood")
def test_a_flood_costs_bounded_memory(run: Run, runner: Ref, ws: Workspace) -> None:
    result = run("bash", command="head -c 200000000 /dev/zero | tr '\\0' x; echo; echo the end", room=2000)
    assert result.text.endswith("the end\n[exit 0]")
    assert len(result.text.encode()) <= 2000
    assert result.spool is not None
    assert 60_000_000 < Path(result.spool).stat().st_size < 70_000_000
    (peak,) = [
        line
        for line in run("bash", command="grep VmHWM /proc/$PPID/status").text.splitlines()
        if "VmHWM" in line
    ]
    assert int(peak.split()[1]) < 100_000


@dataclass(frozen=True, slots=True)
class _GiveUp:
    """Cancel the call."""


class _Asker(Actor):
    """Asks a runner and cancels, as an agent does."""

    def __init__(self, runner: Ref) -> None:
        self._runner = runner

    @on(RunTool)
    def ask(self, message: RunTool) -> None:
        self._asked_by = self.later()
        self._call = self.request(self._runner, message)

    @on(Reply)
    def answered(self, message: Reply) -> None:
        if message.error is not None:
            self._asked_by.refuse(message.error)
        else:
            self._asked_by.reply(message.value)

    @on(_GiveUp)
    def cancel(self, _message: _GiveUp) -> None:
        self._call.cancel()


@pytest.fixture
def asker(runner: Ref) -> Iterator[Ref]:
    ref = start(_Asker(runner), "asker")
    yield ref
    ref.stop()
    ref.join(30)


def cancelled(asker: Ref, message: RunTool, when: Callable[[], object]) -> tuple[ToolResult, float]:
    """The result of a call that is cancelled once ``when`` returns, and the seconds from the cancel to it."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(asker.ask, message, 20)
        when()
        began = time.monotonic()
        asker.tell(_GiveUp())
        return asked.result(20), time.monotonic() - began


@pytest.mark.rule("tools.bash-cancel")
def test_a_cancelled_command_ends_within_a_second(asker: Ref, ws: Workspace) -> None:
    command = "trap '' TERM; echo begun; echo $$ > pid; sleep 100; sleep 100; sleep 100"
    result, took = cancelled(
        asker, RunTool("c1", "bash", {"command": command}, 1000), lambda: pid_in(ws.cwd / "pid")
    )
    assert (result.text, result.error) == ("begun\n[cancelled]", True)
    assert took < a_second()
    assert is_gone(pid_in(ws.cwd / "pid"), 10)


@pytest.mark.rule("tools.bash-cancel")
def test_a_cancel_that_comes_with_its_call_is_heard(asker: Ref, runner: Ref, run: Run, ws: Workspace) -> None:
    """Both wait in the socket when the runner looks."""
    pid = int(run("bash", command="echo $PPID").text.split()[0])
    os.kill(pid, signal.SIGSTOP)

    def on_its_way() -> None:
        until(lambda: any(one.child_calls for one in actor_records()))
        threading.Timer(0.1, os.kill, (pid, signal.SIGCONT)).start()

    result, took = cancelled(asker, RunTool("c1", "bash", {"command": "sleep 100"}, 1000), on_its_way)
    assert (result.text, took < a_second()) == ("[cancelled]", True)


@pytest.mark.rule("tools.grep-bad-pattern")
def test_a_pattern_that_would_never_end_is_cancelled(asker: Ref, runner: Ref, ws: Workspace) -> None:
    (ws.cwd / "a").write_text("a" * 60 + "b\n")
    message = RunTool("c1", "grep", {"pattern": "(a+)+$"}, 1000)
    result, took = cancelled(asker, message, lambda: time.sleep(0.3))
    assert (result.text, result.error) == ("[cancelled]", True)
    assert took < a_second()
    assert runner.alive


@pytest.mark.rule("tools.grep-bad-pattern")
@pytest.mark.rule("tools.in-a-child")
def test_a_pattern_that_would_never_end_is_given_up_at_the_deadline(
    run: Run, runner: Ref, ws: Workspace
) -> None:
    (ws.cwd / "a").write_text("a" * 60 + "b\n")
    result = run("grep", deadline=0.3, pattern="(a+)+$")
    assert (result.text, result.error) == ("error: it took too long; narrow it down.", True)
    assert run("grep", pattern="^a").text.startswith("a:1:aaa")


@pytest.mark.rule("tools.bash-timeout")
def test_a_stop_ends_the_running_command(runner: Ref, ws: Workspace) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            runner.ask,
            RunTool("c1", "bash", {"command": "trap '' TERM; echo $$ > pid; sleep 100; sleep 100"}, 1000),
            20,
        )
        pid = pid_in(ws.cwd / "pid")
        began = time.monotonic()
        runner.stop()
        exit_ = runner.join(30)
        with pytest.raises(Refused, match=r"a1\.tools ended"):
            asked.result(30)
    assert exit_ is not None
    assert exit_.kind == "shutdown"
    assert time.monotonic() - began < a_second()
    assert is_gone(pid, 10)


@pytest.mark.rule("tools.in-a-child")
def test_signals_to_the_runner_leave_nothing_behind(runner: Ref, run: Run, ws: Workspace) -> None:
    result = run("bash", command="setsid sleep 100 & echo $! > pid; echo $PPID")
    os.kill(int(result.text.split()[0]), signal.SIGTERM)
    exit_ = runner.join(30)
    assert exit_ is not None
    assert (exit_.kind, exit_.detail) == ("lost", "signal SIGTERM")
    assert is_gone(pid_in(ws.cwd / "pid"), 10)


@pytest.fixture
def short_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little time to answer a cancel."""
    monkeypatch.setenv("AERIX_BOUND_TOOLS_CANCEL", "0.2")


@pytest.mark.bound("tools.cancel")
@pytest.mark.rule("tools.in-a-child")
def test_a_runner_that_does_not_answer_a_cancel_is_killed(
    short_cancel: None, asker: Ref, run: Run, runner: Ref, ws: Workspace
) -> None:
    pid = int(run("bash", command="echo $PPID").text.split()[0])
    command = f"touch on; kill -STOP {pid}; sleep 100"
    with pytest.raises(Refused, match="SIGKILL: bash did not answer a cancel"):
        cancelled(
            asker, RunTool("c1", "bash", {"command": command}, 1000), lambda: until((ws.cwd / "on").exists)
        )
    assert runner.join(30) is not None
