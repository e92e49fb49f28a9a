"""Rows of the runtime's limits, driven to their end with real actors and real children."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from aerix.actors import ChildSpec, DeadlineExceeded, Exit, Refused, StartFailed, Supervisor, start, whereis
from aerix.actors.dump import actor_records
from aerix.actors.log import configure, log
from aerix.actors.wire import pack
from tests.actors.bodies import (
    PATIENCE,
    Asker,
    Blob,
    Do,
    Echo,
    Gate,
    Ping,
    Puppet,
    Run,
    refusal,
    running,
)
from tests.actors.test_process import Owner, ended, exit_of, owning, paused
from tests.actors.test_supervisor import Grove, child, end
from tests.conftest import Limit


def owner(body: str = "serve", guard: Literal["kill", "term"] = "kill", **args: object) -> Owner:
    """One whose graces are the table's."""
    return Owner(body, args, guard=guard, window=100, stop_s=None, term_s=None)


@pytest.fixture
def grove() -> Grove:
    return Grove()


@pytest.mark.bound("actor.mailbox")
def test_a_message_to_a_full_mailbox_is_refused(limit: Limit) -> None:
    limit("actor.mailbox", 2)
    gate = Gate()
    with running(Puppet(), "actor") as ref:
        gate.hold(ref)
        for n in range(2):
            ref.tell(Ping(n))
        with pytest.raises(Refused, match="actor has 2 messages waiting and takes no more") as refused:
            ref.tell(Ping(3))
        gate.free.set()
    assert refused.value.code == "mailbox_full"


# --- connections --------------------------------------------------------------------------------------------------


@pytest.mark.bound("wire.write-buffer")
def test_a_child_that_does_not_read_what_waits_for_it_is_killed(limit: Limit) -> None:
    limit("wire.write-buffer", 1000)
    with owning(owner()) as (ref, asker):
        asker.sends(ref, Do("hang"))
        asker.until(lambda a: a.pieces)
        for _ in range(8):
            asker.sends(ref, Blob(b"x" * 100_000))
        exit = exit_of(ref)
    assert exit.kind == "lost"
    assert exit.detail.startswith("signal SIGKILL: peer_stuck: the peer has not read ")


@pytest.mark.bound("wire.depth")
def test_a_child_whose_frame_is_nested_too_deep_is_killed(limit: Limit) -> None:
    limit("wire.depth", 6)
    with owning(owner()) as (ref, _):
        assert ref.ask(Blob([[[1]]]), PATIENCE) == Blob(1)
        deep = pack({"t": "reply", "id": 2, "m": {"type": "Blob", "data": [[[[[[1]]]]]]}})
        assert refusal(ref, Do("garbage", deep.hex())).code == "worker_died"
        assert exit_of(ref).detail.startswith("signal SIGKILL: bad_frame: ")


# --- supervision: the clock is turned by hand ---------------------------------------------------------------------


@pytest.mark.bound("supervisor.restarts")
@pytest.mark.bound("supervisor.window")
def test_a_window_of_restarts_that_is_used_up_ends_the_tree(limit: Limit, grove: Grove) -> None:
    limit("supervisor.restarts", 1)
    limit("supervisor.window", 20)
    tree = start(grove.tree(grove.spec("a")), "tree")
    for times in (2, 3):
        end("a")
        grove.history.until_seen("up a", times)
        grove.turn(tree, 21)
    end("a")
    grove.history.until_seen("up a", 4)
    grove.turn(tree, 19)
    end("a")
    assert tree.join(PATIENCE) == Exit("crash", "restart limit: a ended again: ValueError: no luck")


@pytest.mark.bound("supervisor.delay")
def test_a_restart_waits_no_longer_than_the_longest_delay(limit: Limit, grove: Grove) -> None:
    limit("supervisor.delay", 0.15)
    limit("supervisor.restarts", 9)
    with running(grove.tree(grove.spec("a")), "tree") as tree:
        for times, delay in ((2, 0), (3, 0.1), (4, 0.15), (5, 0.15)):
            end("a")
            grove.history.until_seen("down a", times - 1)
            if delay:
                grove.turn(tree, delay - 0.01)
                assert grove.state(tree, "a") == "delayed"
            grove.turn(tree, 0.01)
            grove.history.until_seen("up a", times)


@pytest.mark.bound("actor.grace")
def test_a_thread_over_its_grace_is_abandoned_and_a_process_killed(limit: Limit) -> None:
    limit("actor.grace", 0.05)
    gate, process = Gate(), owner(deaf=True)
    specs = ChildSpec("thread", Puppet), ChildSpec("process", lambda: process)
    tree = start(Supervisor(specs), "tree")
    thread = child("thread")
    gate.hold(thread)
    process.ref.tell(Do("hang"))
    tree.stop()
    assert tree.join(PATIENCE) == Exit("shutdown", "shutdown")
    assert ended(process.pid)
    assert (thread.abandoned, thread.alive) == (True, True)
    gate.free.set()
    assert thread.join(PATIENCE)


@pytest.mark.bound("actor.start")
def test_whoever_is_not_up_in_time_did_not_start(limit: Limit, tmp_path: Path) -> None:
    limit("actor.start", 0.05)
    slow = owner("never_ready", pidfile=str(tmp_path / "pid"))
    with pytest.raises(StartFailed, match=r"slow was not up in 0\.05 s"):
        start(slow, "slow")
    assert whereis("slow") is None
    assert slow.ref.join(PATIENCE)
    assert ended(slow.pid)


# --- children -----------------------------------------------------------------------------------------------------


@pytest.mark.bound("child.stop")
@pytest.mark.bound("child.term")
@pytest.mark.parametrize(("deaf", "ends"), [(False, "SIGTERM"), (True, "SIGKILL: did not stop")])
def test_a_child_that_does_not_end_is_told_by_signals(limit: Limit, *, deaf: bool, ends: str) -> None:
    limit("child.stop", 0.01)
    limit("child.term", 0.01 if deaf else PATIENCE)
    with owning(owner(deaf=deaf)) as (ref, _):
        assert refusal(ref, Do("mute")).code == "worker_died"
        assert exit_of(ref) == Exit("lost", f"signal {ends}")


@pytest.mark.bound("child.ping")
@pytest.mark.bound("child.pings-missed")
def test_a_child_that_answers_no_ping_is_killed(limit: Limit) -> None:
    limit("child.ping", 0.02)
    limit("child.pings-missed", 2)
    with owning(owner()) as (ref, _):
        assert "it answered none of 2 pings, 0.02 s apart" in refusal(ref, Do("hang")).message
        assert exit_of(ref).detail.startswith("signal SIGKILL: it answered none")


@pytest.mark.bound("child.progress")
def test_a_child_that_gets_nowhere_is_killed(limit: Limit, tmp_path: Path) -> None:
    limit("child.ping", 0.02)
    limit("child.progress", 0.1)
    steps = tmp_path / "steps"
    os.mkfifo(steps)
    with steps.open("r+b", buffering=0), owning(owner("computes", steps=str(steps))) as (ref, _):
        assert "it made no progress for 0.1 s" in refusal(ref, Echo("for ever")).message


@pytest.mark.bound("child.credit")
def test_a_child_waits_until_its_pieces_were_taken(limit: Limit, tmp_path: Path) -> None:
    limit("child.credit", 2)
    with owning(owner("streams", count=str(tmp_path / "count"))) as (ref, asker):
        call = asker.ref.ask(Run(lambda me: paused(me, ref, 30)), PATIENCE)
        asker.until(lambda a: len(a.pieces) == 2)
        with pytest.raises(DeadlineExceeded):
            ref.ask(Echo("next"), 0.1)  # the child waits, and serves nobody else
        assert len(asker.pieces) == 2
        asker.ref.ask(Run(lambda _: call.resume()), PATIENCE)
        asker.until(lambda a: a.replies)
        assert len(asker.pieces) == 30


@pytest.mark.bound("child.sweeps")
def test_processes_of_a_killed_runner_that_the_last_round_still_found_are_logged(
    limit: Limit, tmp_path: Path
) -> None:
    limit("child.sweeps", 1)
    path = tmp_path / "log"
    configure(path)
    runner = owner(guard="term")
    with owning(runner) as (ref, _):
        apart = int(ref.ask(Do("grandchild", "apart"), PATIENCE).text)
        os.kill(runner.pid, signal.SIGKILL)
        assert exit_of(ref).detail == "signal SIGKILL"
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["pids"] for line in told if line["event"] == "child.outlived"] == [[apart]]


@pytest.mark.bound("child.sweeps")
def test_whom_the_last_round_of_a_sweep_still_found_is_logged(limit: Limit, tmp_path: Path) -> None:
    limit("child.sweeps", 1)
    path = tmp_path / "log"
    configure(path)
    program = (
        "import subprocess; from aerix.actors.os_linux import sweep\n"
        "child = subprocess.Popen(['sleep', '600']); print(child.pid, sweep())"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    (line,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (line["event"], said) == ("child.outlived", f"{line['pids'][0]} {line['pids']}\n")


# --- the dump and the log -----------------------------------------------------------------------------------------


@pytest.mark.bound("dump.actors")
@pytest.mark.bound("dump.calls")
def test_a_dump_shows_the_busy_first_and_so_many_of_their_calls(limit: Limit) -> None:
    limit("dump.actors", 1)
    limit("dump.calls", 2)
    gate = Gate()
    with running(Puppet(), "a-idle"), running(Puppet(), "slow") as slow, running(Asker(), "z-asker") as asker:
        gate.hold(slow)
        assert [one.name for one in actor_records()] == ["slow"]
        asker.ask(Run(lambda me: [me.request(slow, Ping(n)) for n in range(5)] and None), PATIENCE)
        limit("dump.actors", 9)
        found = {one.name: one for one in actor_records()}
        assert (found["z-asker"].open, len(found["z-asker"].calls)) == (5, 2)
        gate.free.set()


@pytest.mark.bound("log.file")
def test_a_log_over_its_size_is_put_aside(limit: Limit, tmp_path: Path) -> None:
    limit("log.file", 10)
    path = tmp_path / "log"
    path.write_text("an old log\n")
    configure(path)
    log("news")
    assert (tmp_path / "log.1").read_text() == "an old log\n"
    assert "news" in path.read_text()
