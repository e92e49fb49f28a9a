"""Ctrl-C and TERM: cancelled within a second, whatever is going on; a second one ends the program at once."""

import fcntl
import json
import os
import signal
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from aerix.pool.client import PoolSettings
from tests.conftest import ROOT
from tests.pool.daemons import AERIX, PATIENCE
from tests.runs import Aerix, Finished, Running, call, calls, daemon, final, of, play, session_log  # noqa: F401
from tests.tools.waiting import a_second, is_gone, pid_in, until

STUBBORN = "trap '' TERM INT; echo $$ > pid; while :; do sleep 0.05; done"

PLAYS: dict[str, list[dict[str, Any]]] = {
    "slow": [final("x" * 100, per_token_delay=0.1)],
    "stubborn": [calls(call("bash", command=STUBBORN)), final()],
    "stopped": [calls(call("bash", command="echo $$ > pid; kill -STOP $PPID; sleep 300")), final()],
    "read": [calls(call("read", path="README.md")), final()],
    "dumped": [final("x" * 20, per_token_delay=0.05)],
    "flood": [final("x" * 6000)],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=16384)


@pytest.fixture
def aerix(daemon: PoolSettings, model: str, git_repo: Path) -> Iterator[Aerix]:  # noqa: F811
    runs = Aerix(git_repo, daemon, model)
    yield runs
    runs.close()


def cancel(running: Running, sig: signal.Signals = signal.SIGINT) -> Finished:
    """Send the signal; the end comes within a second."""
    begun = monotonic()
    running.send(sig)
    done = running.end()
    took = monotonic() - begun
    assert took < a_second(), f"it took {took:.2f} s"
    assert "Traceback" not in done.err
    return done


def assert_cancelled(reason: str, code: int) -> None:
    ends = of(session_log(), "session.end")
    assert [(end["outcome"], end["reason"], end["exit"]) for end in ends] == [("cancelled", reason, code)]
    assert len(of(session_log(), "agent.end")) == len(of(session_log(), "agent.spawn"))


@pytest.mark.rule("headless.interrupt")
@pytest.mark.rule("headless.terminate")
@pytest.mark.rule("headless.exit-codes")
@pytest.mark.parametrize(
    ("sig", "reason", "code"),
    [
        (signal.SIGINT, "interrupted", 130),
        (signal.SIGTERM, "terminated", 143),
        (signal.SIGHUP, "terminated", 143),
    ],
)
def test_a_signal_in_a_generation_cancels(aerix: Aerix, sig: signal.Signals, reason: str, code: int) -> None:
    running = aerix.start("-p", "play slow", "--output-format", "stream-json")
    running.until_said("xx")
    done = cancel(running, sig)
    assert done.code == code
    assert running.seen[-1]["type"] == "session.end"
    assert done.err.splitlines()[-1] == f"aerix: cancelled: {reason}"
    assert_cancelled(reason, code)


@pytest.mark.rule("headless.interrupt")
@pytest.mark.rule("agent.cancel")
def test_a_signal_in_a_command_that_ignores_it_ends_the_command(aerix: Aerix) -> None:
    running = aerix.start("-p", "play stubborn", "--output-format", "json")
    pid = pid_in(aerix.cwd / "pid")
    done = cancel(running)
    assert (done.code, done.json["outcome"]) == (130, "cancelled")
    assert "b/pid" in done.json["diff"]
    assert is_gone(pid, 0)
    assert_cancelled("interrupted", 130)


@pytest.mark.rule("headless.interrupt")
@pytest.mark.rule("process.sigint-blocked")
def test_a_signal_while_the_tool_runner_starts_cancels(aerix: Aerix, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if '--multiprocessing-fork' in sys.orig_argv:\n"
        f"    open({str(tmp_path / 'runner')!r}, 'w').write(str(os.getpid()))\n"
        "    signal.pause()\n"
    )
    running = aerix.start("-p", "play read", PYTHONPATH=f"{site}:{ROOT}")
    pid = pid_in(tmp_path / "runner")
    assert cancel(running).code == 130
    assert is_gone(pid, 10)
    assert_cancelled("interrupted", 130)


@pytest.mark.rule("headless.interrupt")
def test_a_signal_while_the_pool_starts_cancels_and_the_pool_goes_on_starting(
    aerix: Aerix, runtime_dir: Path, tmp_path: Path
) -> None:
    slow = tmp_path / "slow-pool"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pool\nexec sleep 60\n")
    slow.chmod(0o755)
    aerix.options = [
        "-c",
        f"pool.command={json.dumps([str(slow)])}",
        "-c",
        f'pool.socket="{runtime_dir}/p.sock"',
    ]
    running = aerix.start("-p", "play slow")
    pid = pid_in(tmp_path / "pool")
    assert cancel(running).code == 130
    assert_cancelled("interrupted", 130)
    assert not is_gone(pid, 0)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.rule("headless.interrupt")
@pytest.mark.rule("cli.no-traceback")
@pytest.mark.parametrize("module", ["aerix.cli", "aerix.headless", "aerix.agent.request", "aerix.stdin"])
def test_a_signal_in_the_middle_of_an_import_is_130(aerix: Aerix, tmp_path: Path, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    done = aerix("-p", "play read", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (done.code, done.out, done.err) == (130, "", "")


@pytest.mark.rule("headless.interrupt")
def test_a_second_signal_ends_the_program_at_once(aerix: Aerix) -> None:
    running = aerix.start("-p", "play stubborn")
    pid = pid_in(aerix.cwd / "pid")
    running.send(signal.SIGINT)
    begun = monotonic()
    running.send(signal.SIGINT)
    assert running.end().code == 130
    assert monotonic() - begun < a_second()
    assert is_gone(pid, 10)  # its runner ends it
    assert session_log()  # whole lines


@pytest.mark.rule("headless.interrupt")
def test_a_reader_that_takes_nothing_does_not_hold_up_a_signal(aerix: Aerix) -> None:
    running = aerix.start("-p", "play flood", "--output-format", "stream-json")
    assert running.process.stdout is not None
    fcntl.fcntl(running.process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    until(lambda: waiting_in(running) > 4096 - 512)  # a line that does not fit is being written
    begun = monotonic()
    running.send(signal.SIGINT)
    assert running.process.wait(PATIENCE) == 130
    assert monotonic() - begun < a_second()
    assert_cancelled("interrupted", 130)


def waiting_in(running: Running) -> int:
    """Bytes that the program wrote and nobody read."""
    assert running.process.stdout is not None
    count = fcntl.ioctl(running.process.stdout, termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(count, sys.byteorder)


@pytest.mark.rule("headless.interrupt")
def test_a_signal_that_is_ignored_at_the_start_stays_ignored(aerix: Aerix) -> None:
    words = aerix.words("-p", "play slow", "--output-format", "stream-json")
    running = aerix.started(["bash", "-c", "trap '' HUP; exec \"$@\"", "bash", *AERIX, *words])
    running.until_said("xx")
    running.send(signal.SIGHUP)
    running.until("token")
    running.until("token")
    assert cancel(running).code == 130


@pytest.mark.rule("process.stopped-runner")
@pytest.mark.parametrize(
    ("sig", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_runner_that_was_stopped_does_not_outlive_the_program(
    aerix: Aerix, sig: signal.Signals, code: int
) -> None:
    running = aerix.start("-p", "play stopped")
    pid = pid_in(aerix.cwd / "pid")
    runner = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    until(lambda: Path(f"/proc/{runner}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    running.send(sig)
    assert running.end().code == code
    assert is_gone(pid, 10)
    assert is_gone(runner, 10)


@pytest.mark.rule("actors.dump")
def test_a_signal_writes_what_every_actor_does_into_the_log_and_disturbs_nothing(
    aerix: Aerix, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "log")
    # The log's writing end stays open here: no end comes.
    with open(os.open(tmp_path / "log", os.O_RDWR)) as log:  # noqa: PTH123 - it is a descriptor
        running = aerix.start(
            "-p", "play dumped", "--output-format", "stream-json", AERIX_LOG_FILE=str(tmp_path / "log")
        )
        running.until_said("xx")
        running.send(signal.SIGUSR1)
        told = next(line for line in map(json.loads, log) if line["event"] == "actors.dump")
        done = running.end()
    assert (done.code, done.notes, running.seen[-1]["type"]) == (0, [], "session.end")
    (agent,) = [line for line in told["dump"].splitlines() if "waits for Generate to pool-link" in line]
    assert " Agent " in agent
    assert "thread MainThread (" in told["dump"]
