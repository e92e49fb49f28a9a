"""Permits: who computes, with how many threads, and what a worker does with them."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerix.actors import start
from aerix.actors.child import Channel, IncomingCall
from aerix.pool import protocol as p
from aerix.pool.leash import Door, Leash
from aerix.pool.permits import PERMITS, Permits, Shares, Want
from aerix.pool.rows import Aborted
from aerix.pool.workerargs import WorkerArgs
from tests.pool.daemons import PATIENCE, Daemons, Wire
from tests.pool.owner import worker

Open = Callable[..., Wire]


# --- the decisions ------------------------------------------------------------------------------------------------


def settle(shares: "Shares[str]") -> list[tuple[str, int]]:
    """Decide, and let everybody answer at once, until nothing is left to say."""
    said: list[tuple[str, int]] = []
    while orders := shares.decide():
        said += orders
        for key, _ in orders:
            shares.answered(key)
    return said


@pytest.mark.rule("pool.permits")
def test_one_that_computes_alone_has_all_cores_and_two_have_half_each() -> None:
    shares: Shares[str] = Shares(4)
    shares.want("a")
    assert settle(shares) == [("a", 4)]
    shares.want("b")
    assert shares.decide() == [("a", 2)]  # first a's step must end
    assert shares.decide() == []
    shares.answered("a")
    assert shares.decide() == [("b", 2)]


@pytest.mark.rule("pool.permits")
def test_one_that_rests_keeps_its_threads_until_another_wants_them() -> None:
    shares: Shares[str] = Shares(2)
    shares.want("a")
    settle(shares)
    shares.rest("a")
    assert settle(shares) == []
    shares.want("a")
    assert settle(shares) == []  # nothing to say: it has them
    shares.rest("a")
    shares.want("b")
    assert settle(shares) == [("a", 0), ("b", 2)]


@pytest.mark.rule("pool.permits")
def test_over_the_number_of_cores_they_take_turns() -> None:
    shares: Shares[str] = Shares(2)
    for key in "abc":
        shares.want(key)
    settle(shares)
    assert shares.crowded
    shares.rotate()
    assert settle(shares) == [("a", 0), ("c", 1)]
    shares.rest("b")
    assert settle(shares)[-1] == ("a", 1)
    shares.forget("c")
    assert settle(shares) == [("a", 2)] or settle(shares) == []
    assert shares.used == 2


def test_who_does_not_answer_holds_nobody_up_for_ever() -> None:
    shares: Shares[str] = Shares(2)
    shares.want("hung")
    settle(shares)
    shares.want("b")
    assert shares.decide() == [("hung", 1)]
    assert shares.decide() == []
    shares.overdue("hung")
    assert shares.decide() == [("b", 1)]
    shares.answered("hung")  # much later: nothing changes
    assert shares.decide() == []


@pytest.mark.rule("pool.permits")
@settings(max_examples=300, deadline=None)
@given(
    cores=st.integers(1, 8),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["want", "rest", "forget", "answered", "rotate"]), st.sampled_from("abcdef")
        ),
        max_size=60,
    ),
)
def test_threads_are_never_more_than_cores_and_all_who_want_are_served(
    cores: int, steps: list[tuple[str, str]]
) -> None:
    shares: Shares[str] = Shares(cores)
    wanting: list[str] = []
    for what, key in steps:
        if what == "rotate":
            if shares.crowded:
                shares.rotate()
        else:
            getattr(shares, what)(key)
        if what == "want" and key not in wanting:
            wanting.append(key)
        elif what in ("rest", "forget") and key in wanting:
            wanting.remove(key)
        shares.decide()
        assert shares.used <= cores
    for _ in range(20):
        for key in "abcdef":
            shares.answered(key)
        settle(shares)
    computing = min(len(wanting), cores)
    served = [key for key in wanting if shares._held[key].in_force]
    assert len(served) == computing
    if computing:
        assert all(shares._held[key].in_force == cores // computing for key in served)


# --- the worker's end ---------------------------------------------------------------------------------------------


class Answers(Channel):
    """A channel that keeps what was answered."""

    def __init__(self) -> None:
        self.answered: list[int] = []

    def reply(self, call: int, message: Any) -> None:
        self.answered.append(call)


@pytest.mark.rule("worker.threads-by-permit")
def test_a_step_waits_for_its_permit_and_a_permit_for_the_end_of_the_step() -> None:
    channel = Answers()
    leash = Leash(channel)
    steps: list[int] = []
    begun, end = threading.Event(), threading.Event()

    def step() -> None:
        with leash as threads:
            steps.append(threads)
            begun.set()
            end.wait(PATIENCE)

    thread = threading.Thread(target=step)
    thread.start()
    assert not steps
    leash.permit(1, 2)
    assert begun.wait(PATIENCE)
    assert (steps, channel.answered) == ([2], [1])
    leash.permit(2, 1)
    leash.permit(3, 0)
    assert channel.answered == [1]
    end.set()
    thread.join(PATIENCE)
    assert channel.answered == [1, 2, 3]
    leash.permit(4, 1)  # nothing runs: answered at once
    assert channel.answered == [1, 2, 3, 4]


def test_a_wait_for_a_permit_can_be_interrupted() -> None:
    leash = Leash(Answers())
    ended = threading.Event()

    def step() -> None:
        try:
            with leash:
                raise AssertionError
        except Aborted:
            ended.set()

    thread = threading.Thread(target=step)
    thread.start()
    leash.interrupt()
    thread.join(PATIENCE)
    assert ended.is_set()


def test_where_nobody_permits_a_step_takes_what_it_likes() -> None:
    with Leash() as threads:
        assert threads == 0


def test_what_comes_before_somebody_serves_is_kept_and_permits_are_not() -> None:
    channel = Answers()
    door, served = Door(Leash(channel)), list[Any]()
    early, late = IncomingCall(1, p.Status(1)), IncomingCall(3, p.Status(3))
    door.take(early)
    door.take(IncomingCall(2, p.Permit(1)))
    door.take(None)
    assert (served, channel.answered) == ([], [2])
    door.open(served.append)
    door.take(late)
    assert served == [early, None, late]


# --- real workers -------------------------------------------------------------------------------------------------


@pytest.mark.rule("worker.threads-by-permit")
def test_a_leashed_worker_computes_nothing_before_it_is_permitted(model_file: Path) -> None:
    with worker(WorkerArgs(str(model_file), window=512, cells=512, leashed=True)) as owner:
        assert not owner.worker.started.wait(0.5)  # its self-test waits
        assert owner.worker.ask(p.Permit(1), PATIENCE) == p.Ok(0)
        context = owner.create(p.Segment("u", "user", "Hi"))
        sampling = p.Sampling(temperature=0)
        first = owner.ask(p.Generate(1, context, 8, sampling=sampling)).result()
        assert owner.worker.ask(p.Permit(0), PATIENCE) == p.Ok(0)
        second = owner.ask(p.Generate(2, context, 8, sampling=sampling))
        assert not second.over.wait(0.3)
        assert owner.worker.ask(p.Permit(2), PATIENCE) == p.Ok(0)
        assert second.result().tokens == first.tokens


@pytest.fixture
def one_core() -> Iterator[None]:
    """Processes that are started have one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.rule("pool.permits")
@pytest.mark.usefixtures("one_core")
def test_two_members_on_one_core_take_turns_and_one_that_is_killed_gives_its_turn_back(
    pool: Daemons, wire: Open, model_file: Path, tmp_path: Path
) -> None:
    models = [tmp_path / f"{name}.gguf" for name in "ab"]
    for model in models:
        model.symlink_to(model_file)
    small = ("--window", "512", "--cells", "512")
    daemon = pool(*map(str, models), flags=small, POOL_PERMIT_SLICE=0.05)
    one, two = wire(daemon.socket), wire(daemon.socket)
    contexts = []
    for conn, model in ((one, models[0]), (two, models[1])):
        conn.hello()
        contexts.append(conn.create(str(model), "Count to ten."))

    def generate(conn: Wire, context: str, count: int) -> int:
        return conn.send("Generate", context=context, max_tokens=count, sampling={"temperature": 0.0})

    def end(conn: Wire) -> dict[str, Any]:
        while (frame := conn.get()) and frame["type"] in ("Token", "Progress"):
            pass
        assert frame is not None
        return frame

    for conn, context in zip((one, two), contexts, strict=True):
        generate(conn, context, 12)
    assert end(one)["text"] == end(two)["text"]
    worker = {member["name"]: member["pid"] for member in two.ask("MemberList")["members"]}[str(models[0])]
    generate(one, contexts[0], 400)
    assert one.get()
    os.kill(worker, signal.SIGSTOP)  # it holds the core, and answers nothing
    generate(two, contexts[1], 4)
    os.kill(worker, signal.SIGKILL)
    assert end(two)["type"] == "Done"
    assert end(one)["code"] == "member_restarted"


def test_without_workers_the_permits_do_nothing() -> None:
    permits = start(Permits(2), PERMITS)
    permits.tell(Want(permits))  # one that refuses its orders, as a worker that has ended does
    permits.stop()
    assert permits.join(PATIENCE)
