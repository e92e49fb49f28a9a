"""The dump: what every actor does, waits for and since when, read while they hang; and what SIGUSR1 writes."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Actor, Call, ChildSpec, StartFailed, Supervisor, launch, start, whereis
from aerix.actors.dump import ActorRecord, actor_lines, actor_records, dump_text
from aerix.actors.process import ProcessActor
from tests.actors.bodies import CODEC, PATIENCE, Asker, Do, Gate, Ping, Puppet, Run, running
from tests.conftest import ROOT


def record(name: str) -> ActorRecord:
    (found,) = [one for one in actor_records() if one.name == name]
    return found


def line(name: str) -> str:
    (found,) = [text for text in actor_lines(actor_records()) if f" {name}#" in text]
    return found


@pytest.mark.rule("actors.dump")
def test_of_an_actor_that_waits_for_one_that_hangs_the_dump_names_both_what_and_since_when() -> None:
    gate, waits = Gate(), threading.Event()

    def wait_for_it(me: Any) -> None:
        call = me.request(stuck, Ping())
        waits.set()
        me.wait(call, deadline_s=PATIENCE)

    with running(Puppet(), "stuck") as stuck, running(Puppet(), "waiting") as waiting:
        gate.hold(stuck)
        waiting.tell(Run(wait_for_it))
        waiting.tell(Ping())
        assert waits.wait(PATIENCE)
        while not record("waiting").waits:
            pass
        hung, blocked = record("stuck"), record("waiting")
        text = actor_lines(actor_records())
        gate.free.set()
    assert (hung.kind, hung.does, hung.waits, hung.calls) == ("Puppet", "Run", False, [])
    assert (hung.system, hung.user) == (0, 1), "the ping of the one that waits"
    assert (blocked.does, blocked.open, blocked.user) == ("Run", 1, 1)
    assert [(call.message, call.to) for call in blocked.calls] == [("Ping", "stuck")]
    assert 0 <= blocked.secs <= hung.secs < PATIENCE
    assert text[0].startswith("actors: ")
    first, second = text[2:4]
    assert "stuck#" in first, "who is at it longest comes first"
    assert first.endswith(" Run")
    assert "waiting#" in second
    assert " Run; waits for Ping to stuck (0." in second


@pytest.mark.rule("actors.dump")
def test_since_when_grows_while_it_hangs_and_begins_anew_with_the_next_message() -> None:
    first, second = Gate(), Gate()
    with running(Puppet(), "actor") as ref:
        first.hold(ref)
        threading.Event().wait(0.2)
        assert record("actor").secs >= 0.2
        ref.tell(Run(second))
        first.free.set()
        assert second.begun.wait(PATIENCE)
        assert record("actor").secs < 0.2
        second.free.set()


def test_an_idle_actor_is_idle_since_its_last_message_and_comes_last() -> None:
    with running(Puppet(), "a-idle") as idle, running(Puppet(), "z-busy") as busy:
        gate = Gate()
        gate.hold(busy)
        idle.ask(Ping(), PATIENCE)
        while record("a-idle").does != "idle":
            pass
        names = [one.name for one in actor_records()]
        assert names.index("z-busy") < names.index("a-idle")
        assert record("a-idle").secs < PATIENCE
        assert line("a-idle").endswith("  idle")
        gate.free.set()


def test_an_actor_that_does_not_block_for_its_answers_shows_whom_it_has_asked_and_what_it_owes() -> None:
    gate = Gate()
    with running(Asker(), "asker") as asker, running(Puppet(), "slow") as slow:
        gate.hold(slow)
        asker.ask(Run(lambda me: me.request(slow, Ping())), PATIENCE)
        owed = asker.ask(Run(lambda me: me.request(asker, Run(lambda too: too.later()))), PATIENCE)
        assert isinstance(owed, Call)
        while record("asker").owed == 0 or record("asker").does != "idle":
            pass
        one = record("asker")
        assert (one.does, one.waits, one.open, one.owed) == ("idle", False, 2, 1)
        assert [(call.message, call.to) for call in one.calls] == [("Ping", "slow"), ("Run", "asker")]
        assert "idle; has asked Ping to slow (0." in line("asker")
        gate.free.set()


def test_a_message_that_was_handed_on_is_shown_with_who_has_it_now() -> None:
    gate = Gate()
    with (
        running(Asker(), "asker") as asker,
        running(Puppet(), "broker") as broker,
        running(Puppet(), "slow") as slow,
    ):
        gate.hold(slow)
        asker.ask(Run(lambda me: me.request(broker, Run(lambda too: too.forward(slow, Ping())))), PATIENCE)
        broker.ask(Ping(), PATIENCE)
        assert [call.to for call in record("asker").calls] == ["slow"]
        gate.free.set()


def test_set_up_and_clean_up_that_hang_are_shown() -> None:
    begun, free = threading.Event(), threading.Event()

    class Slow(Actor):
        def setup(self) -> None:
            assert free.wait(PATIENCE)

        def teardown(self, exit: object) -> None:
            begun.set()
            assert free.wait(PATIENCE)

    actor = Slow()
    with pytest.raises(StartFailed):
        start(actor, "slow", start_timeout_s=0.01)
    assert (record("slow").does, record("slow").up, record("slow").abandoned) == ("setup", False, True)
    assert line("slow").endswith("setup; not up yet; abandoned")
    free.set()
    assert begun.wait(PATIENCE)
    assert actor.ref.join(PATIENCE)
    free.clear()
    begun.clear()
    ref = start(Puppet(), "other")
    ref.stop()
    assert ref.join(PATIENCE)
    assert all(one.name != "other" for one in actor_records()), "who has ended is not shown"


@pytest.mark.rule("actors.dump")
def test_a_thread_that_its_supervisor_gave_up_is_counted_and_its_successor_shown_beside_it() -> None:
    gate = Gate()
    specs = [ChildSpec("worker", Puppet, grace_s=0.01)]
    with running(Supervisor(specs), "root"):
        first = whereis("worker")
        assert first is not None
        gate.hold(first)
        first_supervisor = whereis("root")
        assert first_supervisor is not None
        first_supervisor.stop()
        assert first_supervisor.join(PATIENCE)
        found = record("worker")
        assert (found.does, found.abandoned, found.incarnation) == ("Run", True, first.incarnation)
        assert actor_lines(actor_records())[0].endswith("abandoned threads: 1")
        gate.free.set()
        assert first.join(PATIENCE)


def test_a_process_actor_shows_its_child_and_what_that_works_on() -> None:
    actor = child()
    with running(actor, "owner") as ref, running(Asker(), "asker") as asker:
        probe = asker.ask(Run(lambda me: me), PATIENCE)
        probe.sends(ref, Do("until_cancelled"))
        probe.until(lambda me: me.pieces)
        one = record("owner")
        assert (one.kind, one.pid, one.child_calls, one.owed) == ("ProcessActor", actor.pid, 1, 1)
        assert f"its process {actor.pid} works on 1 calls" in line("owner")


def test_a_name_with_a_line_break_stays_in_its_line_and_many_calls_are_cut() -> None:
    gate = Gate()
    with running(Asker(), "two\nlines") as asker, running(Puppet(), "slow") as slow:
        gate.hold(slow)
        asker.ask(Run(lambda me: [me.request(slow, Ping(n)) for n in range(20)] and None), PATIENCE)
        assert " two\\nlines#" in "\n".join(actor_lines(actor_records()))
        one = record("two\nlines")
        assert (one.open, len(one.calls)) == (20, 8)
        gate.free.set()


@pytest.mark.bound("dump.text")
@pytest.mark.rule("bounds.settable")
def test_the_dump_is_cut_at_its_bound_the_actors_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(Puppet(), "actor"):
        whole = dump_text()
        assert "in test_the_dump_is_cut_at_its_bound" in whole, "a traceback of each thread"
        assert "thread actor (" in whole
        monkeypatch.setenv("AERIX_BOUND_DUMP_TEXT", "200")
        text = dump_text()
    assert "actor#" in text
    assert len(text) < 250
    assert text.endswith(" characters)\n")


# --- the signal ---------------------------------------------------------------------------------------------------

PROGRAM = """
import os, threading
from aerix.actors import Actor, on, start
from aerix.actors.dump import dump_on_signal
from tests.actors.bodies import Gate, Puppet, Run

dump_on_signal()
ref = start(Puppet(), "stuck")
gate = Gate()
gate.hold(ref)

def tell_when_asked():
    while not ref.queued:
        pass
    os.write(1, b"hangs\\n")

threading.Thread(target=tell_when_asked).start()
ref.ask(Run(gate), 60)
"""


@contextmanager
def hanging(**env: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A program whose actor and main thread hang."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | env,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"hangs\n"
            yield process
        finally:
            process.kill()


@pytest.mark.rule("actors.dump")
def test_a_signal_writes_the_dump_to_standard_error_while_actors_and_the_main_thread_hang() -> None:
    with hanging() as process:
        process.send_signal(signal.SIGUSR1)
        assert process.stderr is not None
        said = [process.stderr.readline().decode() for _ in range(3)]
        while " in ask\n" not in (text := process.stderr.readline().decode()):
            assert text, "the main thread's traceback did not come"
    assert said[0] == "actors: 1, abandoned threads: 0\n"
    assert "stuck#" in said[2]
    assert said[2].endswith(" Run\n")


@pytest.mark.rule("actors.dump")
def test_a_signal_writes_one_line_into_the_log_where_one_is_kept_whatever_its_level(tmp_path: Path) -> None:
    path = tmp_path / "log"
    os.mkfifo(path)
    with (
        open(os.open(path, os.O_RDWR)) as lines,  # noqa: PTH123 - its writing end stays open: no end comes
        hanging(AERIX_LOG_FILE=str(path), AERIX_LOG_LEVEL="error") as process,
    ):
        process.send_signal(signal.SIGUSR1)
        told = json.loads(lines.readline())
        process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert told["event"] == "actors.dump"
    assert "stuck#" in told["dump"]
    assert "thread MainThread (" in told["dump"]
    assert "in ask" in told["dump"]


def child() -> ProcessActor:
    return ProcessActor("tests.actors.bodies:serve", {}, CODEC, guard="kill", window=4)


@pytest.mark.rule("actors.dump")
def test_a_signal_ends_no_child_which_writes_where_it_is_to_its_kept_standard_error() -> None:
    actor, asker = child(), Asker()
    with running(asker, "asker") as monitor:
        ref = start(actor, "owner", monitor)
        asker.sends(ref, Do("hang"))
        asker.until(lambda me: me.pieces)
        os.kill(actor.pid, signal.SIGUSR1)
        while b"in answer" not in actor._errors:
            pass
        assert ref.alive
        actor.kill("enough")
        exit = ref.join(PATIENCE)
        assert exit is not None
        assert exit.detail == "signal SIGKILL: enough"


def test_a_signal_does_not_end_a_child_that_is_being_born() -> None:
    actor = child()
    ref = launch(actor, "owner")
    while actor.pid == 0:
        pass
    os.kill(actor.pid, signal.SIGUSR1)
    assert ref.started.wait(PATIENCE)
    assert ref.up
    ref.stop()
    assert ref.join(PATIENCE)
