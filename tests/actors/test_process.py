"""Child processes and their owners, with real processes: calls, deaths of every kind, and nothing left behind."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aerix.actors import (
    Call,
    ChildSpec,
    Exit,
    FindChild,
    ManualClock,
    Ref,
    Refused,
    Reply,
    StartFailed,
    Supervisor,
    launch,
    on,
    start,
)
from aerix.actors.bounds import CHILD_CREDIT, CHILD_PING, CHILD_PINGS_MISSED, CHILD_PROGRESS
from aerix.actors.log import configure
from aerix.actors.mailbox import Slot
from aerix.actors.process import ProcessActor
from aerix.actors.wire import Plain
from tests.actors.bodies import CODEC, PATIENCE, Asker, Blob, Do, Echo, Gate, Ping, Run, refusal, running

BODIES = "tests.actors.bodies:"


class Owner(ProcessActor):
    """A ProcessActor with small graces that keeps what its child told about itself."""

    def __init__(self, body: str = "serve", args: dict[str, Any] | None = None, **options: Any) -> None:
        options = dict[str, Any](guard="kill", window=4, stop_s=PATIENCE, term_s=PATIENCE) | options
        super().__init__(BODIES + body, args or {}, CODEC, **options)
        self.info: Plain = {}

    def ready(self, info: Plain) -> None:
        self.info = info


@contextmanager
def owning(owner: Owner, name: str = "owner") -> Iterator[tuple[Ref, Asker]]:
    """The child's owner and somebody who asks it, for the length of a block."""
    asker = Asker()
    with running(asker, f"{name}'s asker"), running(owner, name) as ref:
        yield ref, asker


def ended(pid: int) -> bool:
    """Whether there is no such process any more, or only its zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def until_ended(pid: int) -> None:
    """Wait on the process itself."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(PATIENCE * 1000), f"{pid} lives on"
    finally:
        os.close(pidfd)


def exit_of(ref: Ref) -> Exit:
    exit = ref.join(PATIENCE)
    assert exit is not None
    return exit


# --- whether it lives, and how fast it may talk ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Answered when everything before it was handled; with ``ping``, after the child was sent one more."""

    ping: bool = False


class Timed(Owner):
    """An owner on a clock that the test turns."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.clock = ManualClock()
        self.pongs = threading.Semaphore(0)

    def _heard(self, steps: int) -> None:
        super()._heard(steps)
        self.pongs.release()

    def turn(self, times: int = 1) -> None:
        """Turn the clock by one ping, and wait until its tick was handled."""
        for _ in range(times):
            self.clock.advance(CHILD_PING.value)
            self.ref.ask(Ask(), PATIENCE)

    @on(Ask)
    def _asked(self, message: Ask) -> None:
        if message.ping:
            self._send({"t": "ping"})


@pytest.mark.rule("process.ping")
def test_a_child_that_misses_three_pings_is_killed() -> None:
    owner = Timed("serve")
    with owning(owner) as (ref, asker):
        asker.sends(ref, Do("hang"))
        asker.until(lambda a: a.pieces)
        owner.turn(CHILD_PINGS_MISSED.count)
        assert ref.alive
        owner.clock.advance(CHILD_PING.value)
        asker.until(lambda a: a.replies)
        error = asker.replies[0].error
        assert error is not None
        assert error.code == "worker_died"
        assert "signal SIGKILL: it answered none of 3 pings, 10 s apart" in error.message
    assert exit_of(ref).kind == "lost"


@pytest.mark.rule("process.progress")
def test_a_child_that_answers_pings_and_gets_nowhere_is_killed_and_a_slow_one_is_not(tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    os.mkfifo(steps)
    owner = Timed("computes", {"steps": str(steps)})
    with steps.open("r+b", buffering=0) as step, owning(owner) as (ref, asker):
        asker.sends(ref, Echo("for ever"))
        a_time = int(CHILD_PROGRESS.value / CHILD_PING.value)
        for n in range(2 * a_time):  # twice as long as it may stand still, with a step now and then
            if n % (a_time // 2) == 0:
                step.write(b".")
                until_step(owner)
            owner.turn()
            assert owner.pongs.acquire(timeout=PATIENCE)
        assert ref.alive
        owner.clock.advance(CHILD_PROGRESS.value)
        asker.until(lambda a: a.replies)
        assert "it made no progress for 600 s" in str(asker.replies[0].error)


def until_step(owner: Timed) -> None:
    """Ping until the child's count has moved: the step's byte may still be on its way."""
    before = owner._steps
    while owner._steps == before:
        owner.ref.ask(Ask(ping=True), PATIENCE)
        assert owner.pongs.acquire(timeout=PATIENCE)


@pytest.mark.rule("process.ping")
def test_a_child_with_nothing_to_do_is_left_alone() -> None:
    owner = Timed()
    with owning(owner) as (ref, _):
        assert ref.ask(Echo("hi"), PATIENCE) == Echo("hi")
        owner.turn()
        assert owner.clock.pending == 0, "an idle child costs no processor time"
        assert ref.ask(Echo("hi"), PATIENCE) == Echo("hi")
        assert owner.clock.pending == 1
        assert owner.pongs.acquire(blocking=False) is False


@pytest.mark.rule("process.credit")
def test_a_child_talks_no_faster_than_it_is_heard(tmp_path: Path) -> None:
    count = tmp_path / "count"
    asker, gate = Asker(), Gate()
    with running(asker, "slow"), running(Timed("streams", {"count": str(count)}), "owner") as ref:
        many = 50 * CHILD_CREDIT.count
        call = asker.sends(ref, Echo("all", many))
        asker.until(lambda a: len(a.pieces) > CHILD_CREDIT.count)
        gate.hold(asker.ref)
        assert len(asker.pieces) < many
        while asker.ref.queued < CHILD_CREDIT.count / 2:
            ref.ask(Ask(), PATIENCE)
        for _ in range(20):
            ref.ask(Ask(), PATIENCE)
            assert asker.ref.queued <= CHILD_CREDIT.count, "what nobody takes must not pile up"
        gate.free.set()
        asker.until(lambda a: a.replies)
        assert call.result() == Echo("all", many)
        assert len(asker.pieces) == many
    assert count.read_text() == str(many)


@pytest.mark.rule("process.credit")
def test_a_call_that_is_paused_gets_what_is_on_its_way_and_the_rest_when_it_goes_on(tmp_path: Path) -> None:
    with owning(Owner("streams", {"count": str(tmp_path / "count")})) as (ref, asker):
        many = 5 * CHILD_CREDIT.count
        call: Call = asker.ref.ask(Run(lambda me: paused(me, ref, many)), PATIENCE)
        asker.until(lambda a: len(a.pieces) == CHILD_CREDIT.count)
        assert not call.done
        asker.ref.ask(Run(lambda _: call.resume()), PATIENCE)
        asker.until(lambda a: a.replies)
        assert len(asker.pieces) == many


def paused(asker: Asker, ref: Ref, pieces: int) -> Call:
    call = asker.request(ref, Echo("all", pieces))
    call.pause()
    return call


@pytest.mark.rule("process.credit")
def test_a_cancel_reaches_a_child_that_waits_to_be_heard(tmp_path: Path) -> None:
    count = tmp_path / "count"
    asker = Asker()
    with running(Owner("streams", {"count": str(count)}), "owner") as ref:
        with running(asker, "asker"):
            asker.ref.ask(Run(lambda me: paused(me, ref, 100 * CHILD_CREDIT.count)), PATIENCE)
            asker.until(lambda a: len(a.pieces) == CHILD_CREDIT.count)
        # The asker has ended, which cancels its call: the rest is sent to nobody.
        assert ref.ask(Echo("next"), PATIENCE) == Echo("next")


# --- calls --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("process.forwarded")
@pytest.mark.rule("process.ready-first")
def test_a_call_is_answered_by_the_child_with_pieces_before() -> None:
    owner = Owner()
    with owning(owner) as (ref, asker):
        assert owner.info == {"pid": owner.pid}
        assert ref.ask(Echo("hi"), PATIENCE) == Echo("hi")
        asker.sends(ref, Echo("x", 3))
        asker.until(lambda a: a.replies)
        assert asker.pieces == [Echo("x0"), Echo("x1"), Echo("x2")]
        assert asker.replies[0].value == Echo("x", 3)
        assert owner.open_calls == 0
    assert ended(owner.pid)


def test_an_orderly_stop_is_a_shutdown() -> None:
    ref = start(Owner(), "owner")
    ref.stop("enough")
    assert exit_of(ref) == Exit("shutdown", "enough")


@pytest.mark.rule("process.forwarded")
def test_a_refusal_of_the_child_reaches_the_asker() -> None:
    with owning(Owner()) as (ref, _):
        refused = refusal(ref, Do("refuse", "it is late"))
    assert (refused.code, refused.message) == ("no_way", "it is late")


@pytest.mark.rule("actors.unknown-refused")
def test_what_the_child_does_not_speak_is_refused() -> None:
    with owning(Owner()) as (ref, _):
        assert refusal(ref, Ping()).code == "unknown_message"


@pytest.mark.rule("process.window")
@pytest.mark.rule("process.cancel")
def test_calls_over_the_window_are_refused_and_a_cancel_frees_their_place() -> None:
    with owning(Owner(window=2)) as (ref, asker):
        calls = [asker.sends(ref, Do("until_cancelled")) for _ in range(2)]
        asker.until(lambda a: len(a.pieces) == 2)
        refused = refusal(ref, Echo("one too many"))
        assert (refused.code, refused.message) == ("busy", "owner works on 2 calls and takes no more")
        calls[1].cancel()
        asker.until(lambda a: a.replies)
        assert (calls[1].result(), calls[0].done) == (Echo("cancelled"), False)
        assert ref.ask(Echo("there is room"), PATIENCE) == Echo("there is room")


@pytest.mark.rule("process.cancel")
def test_the_death_of_whoever_asked_cancels_the_call_in_the_child() -> None:
    with owning(Owner(window=1)) as (ref, _):
        mortal = Asker()
        asking = start(mortal, "mortal")
        mortal.sends(ref, Do("until_cancelled"))
        mortal.until(lambda a: a.pieces)
        asking.stop()
        assert asking.join(PATIENCE)
        until_free(ref)


def until_free(ref: Ref) -> None:
    while True:
        with suppress(Refused):
            assert ref.ask(Echo("free"), PATIENCE) == Echo("free")
            return


@pytest.mark.bound("wire.frame")
def test_a_message_that_fits_in_no_frame_is_refused_and_the_child_lives_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AERIX_BOUND_WIRE_FRAME", "10000")
    with owning(Owner()) as (ref, _):
        assert refusal(ref, Blob(b"x" * 10_000)).code == "frame_too_large"
        assert refusal(ref, Blob(object())).code == "not_plain"
        assert refusal(ref, Do("too_much", "10000")).code == "frame_too_large"
        assert ref.ask(Blob(b"x" * 9000), PATIENCE) == Blob(9000)


def test_a_message_of_many_reads_goes_there_and_back() -> None:
    with owning(Owner()) as (ref, _):
        assert ref.ask(Blob(b"x" * 5_000_000), PATIENCE) == Blob(5_000_000)
        assert len(ref.ask(Do("too_much", "5000000"), PATIENCE).data) == 5_000_000


def test_a_child_with_a_reader_thread_is_served_too() -> None:
    with owning(Owner("with_reader")) as (ref, _):
        assert [ref.ask(Echo("x"), PATIENCE) for _ in range(2)] == [Echo("1"), Echo("2")]


# --- death --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("process.death-refuses")
@pytest.mark.rule("process.pidfd")
def test_a_child_that_is_killed_in_a_call_is_lost_and_its_calls_are_refused() -> None:
    owner = Owner(args={"noise": "the last thing it said\n"})
    with owning(owner) as (ref, asker):
        for _ in range(3):
            asker.sends(ref, Do("until_cancelled"))
        asker.until(lambda a: len(a.pieces) == 3)
        os.kill(owner.pid, signal.SIGKILL)
        assert exit_of(ref) == Exit("lost", "signal SIGKILL: the last thing it said")
        asker.until(lambda a: len(a.replies) == 3)
    errors = [reply.error for reply in asker.replies if reply.error]
    assert [error.code for error in errors] == ["worker_died"] * 3
    assert errors[0].message == "owner ended: signal SIGKILL: the last thing it said"


@pytest.mark.rule("process.pidfd")
@pytest.mark.rule("process.group-killed")
@pytest.mark.parametrize("where", ["beside", "apart"])
def test_a_death_is_seen_while_a_grandchild_holds_the_channel_and_the_group_goes_with_its_leader(
    where: str,
) -> None:
    owner = Owner()
    with owning(owner) as (ref, _):
        heir = int(ref.ask(Do("heir", where), PATIENCE).text)
        os.kill(owner.pid, signal.SIGKILL)
        assert exit_of(ref) == Exit("lost", "signal SIGKILL")
        if where == "apart":  # it is in no group of ours: a worker starts nothing
            assert not ended(heir)
            os.kill(heir, signal.SIGKILL)
    until_ended(heir)


@pytest.mark.rule("process.never-adopted")
def test_an_owner_that_is_started_again_has_a_child_of_its_own() -> None:
    owners: list[Owner] = []

    def build() -> Owner:
        owners.append(Owner())
        return owners[-1]

    with running(Supervisor([ChildSpec("owner", build)]), "tree") as tree:
        os.kill(owners[0].pid, signal.SIGKILL)
        assert exit_of(owners[0].ref).kind == "lost"
        while (again := tree.ask(FindChild("owner"), PATIENCE)) is owners[0].ref:
            pass
        assert again.ask(Echo("hi"), PATIENCE) == Echo("hi")
        assert len({owner.pid for owner in owners}) == len(owners) == 2
        assert ended(owners[0].pid)


@pytest.mark.rule("process.uncaught")
def test_a_child_that_crashes_is_in_the_log_with_what_it_died_of(tmp_path: Path) -> None:
    path = tmp_path / "log"
    configure(path)
    owner = Owner()
    with owning(owner) as (ref, _):
        refusal(ref, Do("crash", "the disk is full"))
        assert exit_of(ref).kind == "lost"
    told = [json.loads(line) for line in path.read_text().splitlines()]
    (crash,) = [line for line in told if line["event"] == "child.crashed"]
    assert (crash["pid"], crash["body"]) == (owner.pid, "tests.actors.bodies:serve")
    assert crash["error"].strip().endswith("ValueError: the disk is full")


@pytest.mark.rule("process.uncaught")
def test_a_child_that_crashes_tells_of_what() -> None:
    with owning(Owner()) as (ref, _):
        refused = refusal(ref, Do("crash", "the disk is full"))
        exit = exit_of(ref)
    assert refused.code == "worker_died"
    assert exit.kind == "lost"
    assert exit.detail.startswith("exit 70: Traceback")
    assert exit.detail.strip().endswith("ValueError: the disk is full")


@pytest.mark.rule("process.uncaught")
def test_a_child_that_crashes_on_a_long_sentence_tells_the_end_of_it() -> None:
    with owning(Owner()) as (ref, _):
        refusal(ref, Do("crash", "x" * 20_000 + " the end"))
        exit = exit_of(ref)
    assert exit.detail.strip().endswith("x the end")
    assert len(exit.detail) < 5000


@pytest.mark.rule("process.last-words")
def test_the_last_4_kib_of_the_standard_error_are_in_the_exit() -> None:
    noise = "".join(f"line {n}\n" for n in range(2000))
    with owning(Owner(args={"noise": noise})) as (ref, _):
        refusal(ref, Do("leave", "3"))
        exit = exit_of(ref)
    assert exit.kind == "lost"
    assert exit.detail == "exit 3: " + (noise + "last words")[-4096:].strip()


def test_a_child_that_ends_well_by_itself_ends_its_owner_as_normal() -> None:
    with owning(Owner()) as (ref, _):
        assert refusal(ref, Do("leave", "0")).code == "worker_died"
        assert exit_of(ref) == Exit("normal")


@pytest.mark.rule("process.last-frame-heard")
@pytest.mark.parametrize("size", [10, 150_000])
def test_an_answer_sent_just_before_death_is_heard(size: int) -> None:
    with owning(Owner()) as (ref, _):
        assert len(ref.ask(Do("last_reply", str(size)), PATIENCE).data) == size
        assert exit_of(ref) == Exit("lost", "exit 3")


@pytest.mark.rule("wire.garbage")
@pytest.mark.parametrize(
    ("garbage", "said"),
    [
        (b"\0\0\0\1\xff", "bad_frame: a frame is not CBOR of plain values"),
        (b"\xff\xff\xff\xff", "frame_too_large: a frame of 4294967295 bytes is over the limit of 16777216"),
        (b"\0\0\0\1\xa0", "sent a frame that is none: KeyError('t')"),
        (b"\0\0\0\x06" + b"\xa1\x61t\x62" + b"xx", "sent a frame that is none: KeyError('id')"),
        (b"\0\0\0\x0d{\"t\":\"reply\"}", "sent a frame that is none: KeyError('id')"),
        (b"\0\0\0\x15{\"t\":\"reply\",\"id\":[1]}", "sent a frame that is none: TypeError"),
        (b"\0\0\0\x1c{\"t\":\"reply\",\"id\":1,\"m\":{}}", "sent a frame that is none: WireError"),
        (b"\0\0\0\x14{\"t\":\"error\",\"id\":1}", "sent a frame that is none: KeyError('code')"),
    ],
)  # fmt: skip
def test_a_child_that_sends_garbage_is_killed_and_its_call_refused(garbage: bytes, said: str) -> None:
    length = len(garbage) - 4
    if garbage[:3] == b"\0\0\0":
        garbage = length.to_bytes(4, "big") + garbage[4:]
    with owning(Owner()) as (ref, _):
        assert refusal(ref, Do("garbage", garbage.hex())).code == "worker_died"
        exit = exit_of(ref)
    assert exit.kind == "lost"
    assert exit.detail.startswith(f"signal SIGKILL: {said}")


@pytest.mark.rule("wire.cut-anywhere")
def test_half_a_frame_and_death_is_a_death() -> None:
    with owning(Owner()) as (ref, asker):
        asker.sends(ref, Do("half_a_frame"))
        assert exit_of(ref) == Exit("lost", "exit 9")
        asker.until(lambda a: a.replies)
        assert asker.pieces == [Echo("whole")]
        assert asker.replies[0].error is not None
        assert asker.replies[0].error.code == "worker_died"


def test_a_child_that_closes_its_channel_and_lives_on_is_ended() -> None:
    with owning(Owner(stop_s=0.0)) as (ref, _):
        assert refusal(ref, Do("mute")).code == "worker_died"
        assert exit_of(ref) == Exit("lost", "signal SIGTERM")


@pytest.mark.rule("process.write-buffer")
def test_a_child_that_never_reads_is_killed_and_its_owner_still_hears_a_cancel() -> None:
    owner = Owner(window=100)
    with owning(owner) as (ref, asker):
        asker.sends(ref, Do("hang"))
        asker.until(lambda a: a.pieces)
        for _ in range(8):
            asker.sends(ref, Blob(b"x" * 100_000))
        with_room = asker.sends(ref, Echo("x"))
        with_room.cancel()
        for _ in range(8):
            asker.sends(ref, Blob(b"x" * 100_000))
        exit = exit_of(ref)
        asker.until(lambda a: len(a.replies) == 18)
    assert exit.kind == "lost"
    assert exit.detail.startswith("signal SIGKILL: peer_stuck: the peer has not read ")


def test_a_child_that_never_reads_can_be_stopped() -> None:
    owner = Owner(window=100, stop_s=0.0)
    with owning(owner) as (ref, asker):
        asker.sends(ref, Do("hang"))
        asker.until(lambda a: a.pieces)
        for _ in range(8):
            asker.sends(ref, Blob(b"x" * 100_000))
        ref.stop()
        assert exit_of(ref) == Exit("shutdown", "shutdown")


# --- the end, asked for -------------------------------------------------------------------------------------------


@pytest.mark.rule("process.ladder-of-end")
@pytest.mark.rule("process.group-killed")
def test_a_child_that_ignores_everything_is_killed_with_its_grandchildren() -> None:
    owner = Owner(args={"deaf": True}, stop_s=0.01, term_s=0.01)
    with owning(owner) as (ref, asker):
        grandchild = int(ref.ask(Do("grandchild"), PATIENCE).text)
        asker.sends(ref, Do("hang"))
        asker.until(lambda a: a.pieces)
        ref.stop()
        assert exit_of(ref) == Exit("shutdown", "shutdown")
        asker.until(lambda a: a.replies)
        assert refusal_of(asker.replies).code == "worker_died"
    until_ended(grandchild)
    assert ended(owner.pid)


def refusal_of(replies: list[Reply]) -> Refused:
    (error,) = [reply.error for reply in replies if reply.error is not None]
    return error


@pytest.mark.rule("process.ladder-of-end")
def test_a_child_that_hears_term_needs_no_kill() -> None:
    with owning(Owner(stop_s=0.01)) as (ref, asker):  # term_s is long
        asker.sends(ref, Do("hang"))
        asker.until(lambda a: a.pieces)
        ref.stop()
        assert exit_of(ref) == Exit("shutdown", "shutdown")


@pytest.mark.rule("process.term-at-once")
def test_a_worker_that_computes_in_native_code_ends_at_term() -> None:
    with owning(Owner(stop_s=0.01, term_s=2 * PATIENCE)) as (ref, asker):
        asker.sends(ref, Do("native"))
        asker.until(lambda a: a.pieces)
        ref.stop()
        assert exit_of(ref) == Exit("shutdown", "shutdown")


@pytest.mark.rule("supervisor.grace")
def test_a_stop_by_force_kills_at_once() -> None:
    with owning(Owner(args={"deaf": True})) as (ref, asker):
        asker.sends(ref, Do("hang"))
        asker.until(lambda a: a.pieces)
        ref.stop()
        ref.stop("over its grace", force=True)
        assert exit_of(ref) == Exit("shutdown", "shutdown")


def test_a_stopping_child_takes_no_new_call() -> None:
    with owning(Owner()) as (ref, asker):
        asker.sends(ref, Do("hang"))
        asker.until(lambda a: a.pieces)
        ref.stop()
        assert refusal(ref, Echo("late")).code == "stopping"
        ref.stop(force=True)


@pytest.mark.rule("process.start-timeout")
def test_a_child_that_is_not_ready_in_time_is_ended(tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    owner = Owner("never_ready", {"pidfile": str(pidfile)})
    with pytest.raises(StartFailed, match=r"owner was not up in 0\.01 s"):
        start(owner, "owner", start_timeout_s=0.01)
    assert exit_of(owner.ref).kind == "shutdown"
    assert ended(owner.pid)


@pytest.mark.parametrize("when", ["at once", "in its body"])
def test_a_stop_while_it_starts_is_quick(tmp_path: Path, when: str) -> None:
    pidfile = tmp_path / "pid"
    owner = Owner("never_ready", {"pidfile": str(pidfile)})  # its graces are long
    ref = launch(owner, "owner")
    while when == "in its body" and not (pidfile.exists() and pidfile.read_text()):
        assert ref.alive
    ref.stop()
    assert exit_of(ref) == Exit("shutdown", "shutdown")


def test_a_kill_while_it_starts_reaches_a_child_without_a_group() -> None:
    class Impatient(Owner):
        def setup(self) -> None:
            super().setup()
            self.kill("changed its mind")

    with pytest.raises(StartFailed, match="owner did not start: signal SIGKILL: changed its mind"):
        start(Impatient("never_ready"), "owner")


def test_a_kill_before_there_is_a_child_kills_nobody() -> None:
    owner = Owner()
    owner.kill("too early")
    assert owner.pid == 0


def test_an_owner_that_crashes_while_its_child_starts_ends_the_child() -> None:
    class Clumsy(Owner):
        def setup(self) -> None:
            super().setup()
            raise ValueError("clumsy")

    clumsy = Clumsy("never_ready")
    with pytest.raises(StartFailed, match="clumsy"):
        start(clumsy, "owner")
    assert ended(clumsy.pid)


def test_an_owner_that_crashes_ends_its_child_and_refuses_its_calls() -> None:
    class Clumsy(Owner):
        def ready(self, info: Plain) -> None:
            if self.ref.started.is_set():
                raise ValueError
            super().ready(info)

    clumsy = Clumsy()
    with owning(clumsy) as (ref, asker):
        asker.sends(ref, Do("until_cancelled"))
        asker.until(lambda a: a.pieces)
        clumsy._codec = None  # type: ignore[assignment]  # the next message breaks it
        assert refusal(ref, Echo("x")).code == "crashed"
        assert exit_of(ref).kind == "crash"
        asker.until(lambda a: a.replies)
    assert refusal_of(asker.replies).code == "worker_died"
    assert ended(clumsy.pid)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("breaks", "RuntimeError: no disk"),
        ("too_short", "exit 0"),
        (
            "no_such_function",
            "AttributeError: module 'tests.actors.bodies' has no attribute 'no_such_function'",
        ),
    ],
)
def test_a_child_that_does_not_come_up_is_a_start_error(body: str, said: str) -> None:
    with pytest.raises(StartFailed) as failed:
        start(Owner(body), "owner")
    assert str(failed.value) == f"owner did not start: {said}"


def test_arguments_that_cannot_be_sent_are_a_start_error() -> None:
    with pytest.raises(StartFailed, match="pickle"):
        start(Owner(args={"lambda": lambda: 0}), "owner")


# --- no orphans ---------------------------------------------------------------------------------------------------


@contextmanager
def owner_process(*args: str) -> Iterator[tuple["subprocess.Popen[str]", int, str]]:
    """Another Python as the owner: its process, its child's pid, and what the child told."""
    command = [sys.executable, "-m", "tests.actors.owner", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            pid, _, told = process.stdout.readline().strip().partition(" ")
            yield process, int(pid), told
        finally:
            process.kill()


@pytest.mark.rule("process.dies-with-owner")
@pytest.mark.parametrize("guard", ["kill", "term"])
def test_a_child_ends_when_its_owner_is_killed(guard: str) -> None:
    with owner_process(guard, BODIES + "serve", "{}") as (process, pid, _):
        process.kill()
        until_ended(pid)


@pytest.mark.rule("process.owner-thread")
def test_a_child_is_started_by_its_actors_thread_which_outlives_the_one_that_asked_for_it() -> None:
    """The signal of the parent's death is that of the thread which started the child."""
    threads: list[str] = []

    class Watched(Owner):
        def setup(self) -> None:
            threads.append(threading.current_thread().name)
            super().setup()
            threads.append(threading.current_thread().name)

    owner = Watched()
    launcher = threading.Thread(target=lambda: start(owner, "owner"))
    launcher.start()
    launcher.join()
    assert owner.ref.ask(Echo("hi"), PATIENCE) == Echo("hi")  # the launcher has ended, and the child lives
    assert threads == ["owner", "owner"]
    owner.ref.stop()
    assert exit_of(owner.ref).kind == "shutdown"
    assert ended(owner.pid)


@pytest.mark.rule("process.dies-with-owner")
def test_a_worker_that_reads_nothing_and_ignores_term_ends_with_its_owner() -> None:
    args = json.dumps({"deaf": True, "hang": True})
    with owner_process("kill", BODIES + "serve", args) as (process, pid, _):
        os.kill(pid, signal.SIGSTOP)
        process.kill()
        until_ended(pid)


@pytest.mark.rule("process.stopped-runner")
def test_a_runner_that_was_stopped_ends_with_its_killed_owner() -> None:
    with owner_process("term", BODIES + "serve", "{}") as (process, pid, _):
        os.kill(pid, signal.SIGSTOP)
        process.kill()
        until_ended(pid)


@pytest.mark.rule("process.escapee-killed")
def test_what_a_killed_runner_leaves_in_another_session_is_found_by_its_mark_and_killed() -> None:
    owner = Owner(guard="term")
    with owning(owner) as (ref, _):
        apart = int(ref.ask(Do("grandchild", "apart"), PATIENCE).text)
        beside = int(ref.ask(Do("grandchild"), PATIENCE).text)
        assert os.getsid(apart) == apart
        os.kill(owner.pid, signal.SIGKILL)
        assert exit_of(ref).detail == "signal SIGKILL"
        assert ended(apart)
        until_ended(beside)


@pytest.mark.rule("process.escapee-killed")
@pytest.mark.rule("process.subreaper")
def test_what_left_a_runner_and_bears_no_mark_ends_before_the_runner_that_is_killed() -> None:
    owner = Owner(guard="term")
    with owning(owner) as (ref, _):
        orphan = int(ref.ask(Do("orphan"), PATIENCE).text)
        assert os.getsid(orphan) == orphan
        ref.stop(force=True)
        assert exit_of(ref) == Exit("shutdown", "shutdown")
        until_ended(orphan)


def test_the_mark_of_one_runner_is_not_anothers() -> None:
    one, other = Owner(guard="term"), Owner(guard="term")
    with owning(one, "one") as (ref, _), owning(other, "other") as (other_ref, _):
        theirs = int(other_ref.ask(Do("grandchild", "apart"), PATIENCE).text)
        os.kill(one.pid, signal.SIGKILL)
        assert exit_of(ref).kind == "lost"
        assert not ended(theirs)
        os.kill(other.pid, signal.SIGKILL)
        assert exit_of(other_ref).kind == "lost"
        assert ended(theirs)


@pytest.mark.rule("process.sigint-blocked")
def test_ctrl_c_while_a_child_starts_does_not_end_it_half_born(tmp_path: Path) -> None:
    """The whole group of the owner gets SIGINT, again and again, until the child is up."""
    program = (
        "import os, signal, sys, threading\n"
        "from aerix.actors import start\n"
        "from tests.actors.test_process import Owner\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        "print('begun', flush=True)\n"
        "ref = start(Owner(), 'owner')\n"
        "print('up', flush=True)\n"
        "ref.stop(); print(ref.join(30).kind, flush=True)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        up = threading.Event()

        def interrupt() -> None:
            while not up.wait(0.001):
                os.killpg(process.pid, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        said = process.stdout.readline()
        up.set()
        thread.join()
        assert (said, process.stdout.readline()) == ("up\n", "shutdown\n")


@pytest.mark.rule("process.own-modules")
def test_neither_a_child_nor_its_helper_imports_from_the_working_directory(tmp_path: Path) -> None:
    repository, program = tmp_path / "repository", tmp_path / "program/main.py"
    for folder in (repository, program.parent):
        folder.mkdir()
    for module in ("struct", "signal", "tempfile", "socket", "_weakrefset"):
        (repository / f"{module}.py").write_text(
            f"import os; os.mkdir({str(tmp_path / module)!r}); os.abort()"
        )
    program.write_text(
        "if __name__ == '__main__':\n"
        "    from aerix.actors import start\n"
        "    from tests.actors.test_process import Owner\n"
        "    ref = start(Owner(), 'owner')\n"
        "    ref.stop()\n"
        "    print(ref.join(30).kind)\n"
    )
    ended = subprocess.run(
        [sys.executable, str(program)], cwd=repository, capture_output=True, text=True, check=False
    )
    assert (ended.stdout, ended.stderr) == ("shutdown\n", "")
    assert {at.name for at in tmp_path.iterdir()} == {"repository", "program"}


@pytest.mark.rule("process.one-reaper")
def test_many_children_at_once_die_with_the_right_status_and_leave_nothing() -> None:
    """multiprocessing reaps finished children whenever another is started: not ours."""
    Slot().wait(0)  # so that the poller which asks keep is there before and after
    before = len(list(Path("/proc/self/fd").iterdir()))
    owners = [Owner() for _ in range(6)]
    for turn in range(2):
        refs = [launch(owner, f"owner{n}") for n, owner in enumerate(owners)]
        for ref in refs:
            assert ref.started.wait(PATIENCE)
        asker = Asker()
        with running(asker, "asker"):
            for n, ref in enumerate(refs):
                asker.sends(ref, Do("leave", str(n + 1)))
            assert [exit_of(ref).detail.partition(":")[0] for ref in refs] == [
                f"exit {n + 1}" for n in range(6)
            ]
        assert all(ended(owner.pid) for owner in owners)
        owners = [Owner() for _ in range(6)] if turn == 0 else []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_exit_status_that_somebody_else_took_is_no_good_end() -> None:
    class Robbed(Owner):
        def _ended(self) -> None:
            os.waitpid(self.pid, 0)
            super()._ended()

    owner = Robbed()
    with owning(owner) as (ref, _):
        os.kill(owner.pid, signal.SIGKILL)
        assert exit_of(ref) == Exit("lost", "ended, and its exit status was taken by somebody else")
