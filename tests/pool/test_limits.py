"""Rows of the pool's limits, driven to their end: real daemons, real workers on scripts, and the parts of a worker."""

import fcntl
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Actor, Refused, on, start
from aerix.pool import protocol as p
from aerix.pool.client import Connect
from aerix.pool.fetching import alone
from aerix.pool.permits import Permits, Want
from aerix.pool.rendering import Apart
from aerix.pool.shelf_disk import HeadFiles, Kind
from aerix.pool.workerargs import WorkerArgs
from tests.conftest import Limit
from tests.pool.daemons import PATIENCE, TEXT, Clients, Daemons, Scripts, Wire
from tests.pool.desk import Scripts as Desks
from tests.pool.owner import worker
from tests.pool.remote_server import Fake, says
from tests.pool.test_client import until
from tests.pool.test_member import greeted, info_of
from tests.pool.test_remote_faults import server, turn  # noqa: F401  # the fixture
from tests.pool.test_rendering import HI, apart  # noqa: F401  # the fixture
from tests.pool.test_shelf_disk import KIND, TOKENS, closed, lines, open_heads, write  # noqa: F401  # fixtures

Open = Callable[..., Wire]
MIB = 2**20


# --- fetching -----------------------------------------------------------------------------------------------------


@pytest.mark.bound("models.pull-lock")
def test_a_pull_that_waits_too_long_for_another_is_refused(limit: Limit, tmp_path: Path) -> None:
    limit("models.pull-lock", 0.05)
    told: list[str] = []
    with (tmp_path / ".pull.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (
            pytest.raises(Refused, match=r"another process has held .*pull.lock for 0.05 s"),
            alone(tmp_path, "m", told.append, lambda why: Refused("model_pull_failed", why)),
        ):
            pass
    assert told == ["another aerix is fetching m; waiting for it"]


# --- the client ---------------------------------------------------------------------------------------------------


@pytest.mark.bound("pool.autostart")
def test_a_pool_that_does_not_come_up_in_its_time_is_a_named_failure(limit: Limit, client: Clients) -> None:
    limit("pool.autostart", 0.3)
    link = client.link(autostart=True, command=(sys.executable, "-c", "import time; time.sleep(3600)"))
    with pytest.raises(Refused, match=r"did not answer on .* in 0.3 s") as refused:
        link.ask(Connect(), PATIENCE)
    assert refused.value.code == "pool_start_timeout"


@pytest.mark.bound("pool.starts")
def test_a_pool_that_ends_at_once_is_started_so_often_and_no_more(limit: Limit, client: Clients) -> None:
    limit("pool.starts", 2)
    limit("pool.autostart-every", 0.01)
    link = client.link(autostart=True, command=(sys.executable, "-c", ""))
    with pytest.raises(Refused, match="started 2 times and never answered") as refused:
        link.ask(Connect(), PATIENCE)
    assert refused.value.code == "pool_exited"


@pytest.mark.bound("pool.start-log")
def test_a_long_log_of_starts_is_begun_anew(limit: Limit, client: Clients, tmp_path: Path) -> None:
    limit("pool.start-log", 10)
    log = tmp_path / "pool-start.log"
    log.write_text("what a start said long ago\n")
    link = client.link(autostart=True, command=("sh", "-c", "echo no luck >&2; exit 3"))
    with pytest.raises(Refused, match="no luck"):
        link.ask(Connect(), PATIENCE)
    assert log.read_text() == "no luck\n"


# --- the daemon ---------------------------------------------------------------------------------------------------


@pytest.mark.bound("pool.idle")
def test_a_pool_without_a_connection_ends(pool: Daemons) -> None:
    daemon = pool(POOL_IDLE=0.1)
    assert daemon.ended() == 0
    assert "stopped: idle" in daemon.lines[-1]


@pytest.mark.bound("pool.accept-pause")
def test_out_of_descriptors_a_client_waits_in_the_backlog(pool: Daemons, wire: Open) -> None:
    daemon = pool(POOL_ACCEPT_PAUSE=0.05)
    pid = daemon.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    one = wire(daemon.socket)
    one.send("Hello", version=p.VERSION, client="test")
    one.sock.settimeout(0.2)
    with pytest.raises(TimeoutError):
        one.get()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    one.sock.settimeout(PATIENCE)
    answer = one.get()
    assert answer is not None
    assert answer["type"] == "Welcome"


@pytest.mark.bound("pool.member-restarts")
def test_a_worker_that_dies_once_more_than_it_may_fails_its_member(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script({"text": "fine"})
    one = greeted(wire, pool(ref, POOL_MEMBER_RESTARTS=1).socket)
    for state in ("ready", "failed"):
        dies(one, state)
    refused = one.ask("ContextCreate", member=ref, segments=[])
    assert refused["code"] == "member_failed"
    assert "1 restarts in 600 s were not enough: its worker ended:" in refused["message"]


@pytest.mark.bound("pool.member-window")
def test_a_restart_of_an_earlier_window_is_not_counted(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script({"text": "fine"})
    one = greeted(wire, pool(ref, POOL_MEMBER_RESTARTS=1, POOL_MEMBER_WINDOW=0).socket)
    for _ in range(3):
        dies(one, "ready")
    assert one.create(ref)


def dies(one: Wire, state: str) -> None:
    """Kill the worker, and wait until its member has seen it and come to a state."""
    worker = info_of(one)["pid"]
    os.kill(worker, signal.SIGKILL)
    while (info := info_of(one))["state"] != state or (state == "ready" and info["pid"] == worker):
        pass


@pytest.mark.bound("pool.worker-window")
def test_calls_over_a_workers_window_are_refused(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script({"text": TEXT, "delay": 3600})
    one = greeted(wire, pool(ref, POOL_WORKER_WINDOW=3).socket)
    context = one.create(ref)
    for _ in range(6):  # the pool itself may ask the worker something meanwhile
        one.send("Generate", context=context, max_tokens=9)
    refused = one.ask("ContextCreate", member=ref, segments=[])
    assert (refused["type"], refused["code"]) == ("Error", "pool_busy")


# --- permits ------------------------------------------------------------------------------------------------------


@contextmanager
def permitted(*workers: "Computes") -> Iterator[None]:
    """Workers that all want the one core there is."""
    refs = [start(worker, f"worker{n}") for n, worker in enumerate(workers)]
    refs.append(start(Permits(cores=1), "permits"))
    for ref in refs[:-1]:
        refs[-1].tell(Want(ref))
    yield
    for ref in reversed(refs):
        ref.stop()
        assert ref.join(PATIENCE)


class Computes(Actor):
    """A worker as the permits see it; ``answers`` says whether it gives threads back."""

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.shares: list[int] = []

    @on(p.Permit)
    def _permit(self, message: p.Permit) -> object:
        self.shares.append(message.threads)
        return p.Ok(0) if self.answers or message.threads else self.later()


@pytest.mark.bound("pool.permit-slice")
def test_whoever_waits_is_the_next_after_a_slice(limit: Limit) -> None:
    limit("pool.permit-slice", 0.02)
    one, two = Computes(), Computes()
    with permitted(one, two):
        until(lambda: len(one.shares) > 2 and len(two.shares) > 2)
        assert (one.shares[:3], two.shares[:3]) == ([1, 0, 1], [1, 0, 1])


@pytest.mark.bound("pool.permit-recall")
def test_a_worker_that_gives_nothing_back_holds_the_next_up_no_longer_than_this(limit: Limit) -> None:
    limit("pool.permit-slice", 0.02)
    limit("pool.permit-recall", 0.02)
    one, two = Computes(answers=False), Computes()
    with permitted(one, two):
        until(lambda: two.shares)
        assert (one.shares[:2], two.shares[0]) == ([1, 0], 1)


# --- templates ----------------------------------------------------------------------------------------------------


@pytest.mark.bound("worker.template-start")
def test_a_rendering_process_that_does_not_come_up_is_a_refusal(
    limit: Limit,
    apart: Callable[[str], Apart],  # noqa: F811
) -> None:
    limit("worker.template-start", 0)
    assert "did not start" in refusal(lambda: apart("x")(HI))


@pytest.mark.bound("worker.template-text")
def test_a_template_that_writes_too_much_is_a_refusal(
    limit: Limit,
    apart: Callable[[str], Apart],  # noqa: F811
) -> None:
    limit("worker.template-text", 100)
    assert "it writes more than 100 characters" in refusal(lambda: apart("{{ 'a' * 101 }}")(HI))


@pytest.mark.bound("worker.template-memory")
def test_a_template_that_takes_too_much_memory_is_a_refusal(
    limit: Limit,
    apart: Callable[[str], Apart],  # noqa: F811
) -> None:
    source = "{{ ('a' * 2 * 10**8) | length }}"
    assert apart(source)(HI) == "200000000"
    limit("worker.template-memory", 200 * MIB)
    assert "it takes too much memory" in refusal(lambda: apart(source)(HI))


def refusal(render: Callable[[], object]) -> str:
    with pytest.raises(Refused) as refused:
        render()
    assert refused.value.code == "bad_template"
    return refused.value.message


# --- the worker ---------------------------------------------------------------------------------------------------


@pytest.mark.bound("worker.thinking")
def test_a_worker_closes_a_thinking_that_takes_too_long(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script({"thinking": "So long a thought", "text": "fine"}, thinks=True)
    one = greeted(wire, pool(ref, WORKER_THINKING=7).socket)
    done = one.ask("Generate", context=one.create(ref), max_tokens=99)
    assert (done["thinking"], done["text"]) == ("So long", "fine")


@pytest.mark.bound("worker.texts")
def test_more_texts_to_choose_from_are_refused(limit: Limit, scripts: Desks, user: Any) -> None:
    limit("worker.texts", 2)
    with worker(WorkerArgs(f"scripted:{scripts.write({}, {'text': 'a'})}")) as owner:
        constraint = p.Constraint(texts=["a", "b", "c"])
        refused = owner.ask(p.Generate(1, owner.create(user("Which?")), 9, constraint=constraint)).refusal()
    assert (refused.code, refused.message) == (
        "bad_constraint",
        "3 texts to choose from are more than 2.",
    )


@pytest.mark.bound("worker.unscored")
def test_an_answer_that_is_not_scored_and_too_long_is_no_choice(
    limit: Limit,
    server: Fake,  # noqa: F811
) -> None:
    limit("worker.unscored", 3)
    done = turn(server, says("I would", finish="length"), constraint=p.Constraint(texts=["answer", "edit"]))
    assert (done.choice, done.stop, server.chats()[0]["max_tokens"]) == (None, "length", 3)


@pytest.mark.bound("worker.sequences")
def test_over_the_sequences_of_the_cache_the_least_recently_used_goes(
    limit: Limit, scripts: Desks, user: Any
) -> None:
    limit("worker.sequences", 2)
    desk = scripts.desk({}, *[{"text": "a"}] * 5)
    starts = {}
    for name in ("one", "two", "three", "three again", "one again"):
        desk.create(user(name[:3] * 100))
        starts[name] = desk.generate().usage.recomputed_from
    assert starts["three again"] > 300
    assert starts["one again"] < 100


# --- what it keeps ------------------------------------------------------------------------------------------------


@pytest.fixture
def crowded(limit: Limit, scripts: Desks, user: Any) -> Callable[..., list[p.ShelfInfo]]:
    """What a worker with room for one sequence tells of its shelves after two prompts."""

    def told(**rows: int) -> list[p.ShelfInfo]:
        limit("worker.sequences", 1)
        for name, value in rows.items():
            limit(f"prefix.{name}", value)
        with worker(WorkerArgs(f"scripted:{scripts.write({}, {'match': '.', 'text': 'yes'})}")) as owner:
            for text in ("a" * 100, "b" * 100):
                owner.ask(p.Generate(1, owner.create(user(text)), 10)).result()
            (info,) = owner.ask(p.MemberList(1)).result().members
        return list(info.shelves)

    return told


@pytest.mark.bound("prefix.chunk")
def test_rows_over_a_snapshots_are_in_more_snapshots(crowded: Callable[..., list[p.ShelfInfo]]) -> None:
    assert crowded(chunk=500)[1].entries == 1
    assert crowded(chunk=20)[1].entries > 5


@pytest.mark.bound("prefix.snapshots")
def test_snapshots_over_their_bytes_go(crowded: Callable[..., list[p.ShelfInfo]]) -> None:
    kept, cut = crowded(chunk=20)[1], crowded(chunk=20, snapshots=300)[1]
    assert kept.bytes > 300 >= cut.bytes > 0
    assert kept.entries > cut.entries


@pytest.mark.bound("prefix.disk-header")
def test_a_head_with_a_header_that_is_too_long_is_passed_over(
    limit: Limit,
    tmp_path: Path,
    lines: Callable[[], list[dict[str, str]]],  # noqa: F811
) -> None:
    write(open_heads(tmp_path))
    assert open_heads(tmp_path).entries == 1
    limit("prefix.disk-header", 20)
    assert open_heads(tmp_path).entries == 0
    assert lines()[-1]["event"] == "prefix.passed_over"


@pytest.mark.bound("prefix.disk-queue")
@pytest.mark.bound("prefix.disk-close")
def test_a_head_over_the_queue_is_not_written_and_the_end_waits_no_longer_than_this(
    limit: Limit, tmp_path: Path
) -> None:
    limit("prefix.disk-queue", 1)
    limit("prefix.disk-close", 0.01)
    free = threading.Event()

    def kind() -> Kind:
        assert free.wait(PATIENCE)
        return KIND

    heads = HeadFiles(tmp_path / "prefixes", kind, known=False)
    assert heads.lacks(TOKENS)
    heads.write(TOKENS, [(0, 10, memoryview(bytes(TOKENS)))])
    writer = heads._writer
    assert not heads.lacks([99] * 10), "it is not asked for"
    heads.close()
    assert list(tmp_path.glob("prefixes/*/*")) == []
    free.set()
    assert writer is not None
    assert writer.join(PATIENCE)
