"""The job runner as a process: many commands at once, and none left of it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerix.actors import Ref, Refused, start
from aerix.tools.jobs import AwaitJob, JobEnd, JobRunner, StartJob
from tests.tools.waiting import is_gone, pid_in


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Ref]:
    ref = start(JobRunner(tmp_path), "jobs")
    yield ref
    ref.stop()
    assert ref.join(10) is not None


def begin(jobs: Ref, folder: Path, name: str, command: str, timeout_s: float = 30, limit: int = 1000) -> None:
    jobs.ask(StartJob(name, command, timeout_s, limit, str(folder / f"{name}.txt")), 10)


def test_jobs_run_side_by_side_and_each_end_is_told(jobs: Ref, tmp_path: Path) -> None:
    begin(jobs, tmp_path, "a", "until test -e go; do sleep 0.01; done; echo a")
    begin(jobs, tmp_path, "b", "touch go; echo b; exit 4")
    assert jobs.ask(AwaitJob("b"), 10) == JobEnd("b", 4, "ended")
    assert jobs.ask(AwaitJob("a"), 10) == JobEnd("a", 0, "ended")


def test_a_job_over_its_time_is_ended(jobs: Ref, tmp_path: Path) -> None:
    begin(jobs, tmp_path, "a", "echo said; sleep 60", timeout_s=0.1)
    end = jobs.ask(AwaitJob("a"), 10)
    assert (end.text, end.how) == ("said", "timeout")


def test_a_large_output_is_cut_and_kept_whole(jobs: Ref, tmp_path: Path) -> None:
    begin(jobs, tmp_path, "a", "seq 10000")
    end = jobs.ask(AwaitJob("a"), 10)
    assert len(end.text) <= 1000
    assert end.spool == str(tmp_path / "a.txt")
    assert Path(end.spool).read_text() == "".join(f"{n}\n" for n in range(1, 10001))


def test_what_a_job_leaves_running_is_counted_and_ends_with_the_runner(jobs: Ref, tmp_path: Path) -> None:
    begin(jobs, tmp_path, "a", "setsid sleep 60 & echo $! > pid")
    assert jobs.ask(AwaitJob("a"), 10).text == "[1 process still running]"
    jobs.stop()
    assert jobs.join(10)
    assert is_gone(pid_in(tmp_path / "pid"), 10)


def test_a_command_that_cannot_be_started_is_refused(jobs: Ref, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="the command has a zero byte in it"):
        begin(jobs, tmp_path, "a", "\0")
    with pytest.raises(Refused) as refused:
        jobs.ask(AwaitJob("a"), 10)
    assert refused.value.code == "no_job"


@pytest.mark.rule("jobs.no-orphan")
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_runner_that_is_killed(tmp_path: Path, sig: signal.Signals) -> None:
    ref = start(JobRunner(tmp_path), "jobs")
    begin(ref, tmp_path, "a", "echo $PPID > runner; setsid sleep 60 & echo $! > pid; wait")
    escaped = pid_in(tmp_path / "pid")
    os.kill(pid_in(tmp_path / "runner"), sig)
    assert ref.join(10)
    assert is_gone(escaped, 10)
