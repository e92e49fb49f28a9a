"""The client: one way back from every loss, autostart, deadlines, cancels."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from aerix.actors import Actor, DeadlineExceeded, Ref, Refused
from aerix.actors.bounds import CHILD_CREDIT
from aerix.pool import protocol as p
from aerix.pool import starter
from aerix.pool.client import Connect, PoolContext, Recreated, Starting, load_member
from tests.conftest import Limit
from tests.pool.daemons import PATIENCE, TEXT, Clients, Daemons, Do, Scripts, peer_pid, user

Use = Callable[[PoolContext], object]


def on_context(runner: Ref, link: Ref, member: str, use: Use, prompt: str = "hi") -> Any:
    """Run ``use`` in the runner's thread, on a context of one user segment."""

    def work(me: Actor) -> object:
        context = PoolContext(me, link, member)
        context.create([user(prompt)])
        return use(context)

    return runner.ask(Do(work), 2 * PATIENCE)


def status(link: Ref) -> p.PoolStatus:
    found = link.ask(p.Status(0), PATIENCE)
    assert isinstance(found, p.PoolStatus)
    return found


class At:
    """An event handler that acts once, at the n-th token, and keeps what it heard."""

    def __init__(self, count: int, act: Callable[[], object]) -> None:
        self._left = count
        self._act = act
        self.events: list[object] = []

    def __call__(self, event: object) -> None:
        self.events.append(event)
        if isinstance(event, p.Token) and self._left > 0:
            self._left -= len(event.tokens)  # several may come together
            if self._left <= 0:
                self._act()

    @property
    def text(self) -> str:
        return b"".join(event.data for event in self.events if isinstance(event, p.Token)).decode()

    @property
    def lost(self) -> list[str]:
        return [event.code for event in self.events if isinstance(event, Recreated)]


# --- contexts -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("contexts.create-append")
@pytest.mark.rule("contexts.counts-from-daemon")
@pytest.mark.rule("contexts.counts-add-up")
def test_a_context_mirrors_its_segments_and_the_pools_counts(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    ref = script({"text": "one"}, {"text": "two"})
    pool(ref)

    def use(context: PoolContext) -> object:
        done = context.generate(20)
        context.append(p.Segment("a", "assistant", done.text, tokens=done.tokens, vocab=done.vocab))
        context.append(user("more", "u2"), user("still more", "u3"))
        context.replace(user("less", "u3"))
        context.remove("u2")
        assert [segment.id for segment in context.segments] == ["u", "a", "u3"]
        assert set(context.counts) == {"u", "a", "u3"}
        assert sum(context.counts.values()) == context.tokens
        return done.text, context.generate(20).text, context.opening > 0

    link = client.link()
    assert on_context(client.runner(), link, ref, use) == ("one", "two", True)


@pytest.mark.rule("contexts.generate-appends")
@pytest.mark.parametrize("lost", ["never", "before it is asked", "when it is counted", "in its reply"])
def test_what_a_generation_appends_stands_there_once_whatever_is_lost(
    pool: Daemons, script: Scripts, client: Clients, lost: str
) -> None:
    ref = script({"text": "Yes?"}, {"text": TEXT, "per_token_delay": 0.002})
    pool(ref)
    link = client.link()

    def kill(when: str) -> None:
        if when == lost:
            os.kill(status(link).members[0].pid, signal.SIGKILL)

    def heard(event: object) -> None:
        at_tokens(event)
        if isinstance(event, p.ContextState):
            counted.append(event)
            kill("when it is counted")

    at_tokens = At(3, lambda: kill("in its reply"))
    counted: list[p.ContextState] = []

    def use(context: PoolContext) -> object:
        kill("before it is asked")
        more = [p.Segment("a", "assistant", "Yes?"), user("more", "u2")]
        text = context.generate(60, on_event=heard, append=more).text
        there = link.ask(p.ContextRead(0, context._id or ""), PATIENCE).segments
        assert list(context.segments) == there
        assert sum(context.counts.values()) == context.tokens
        return text, [segment.id for segment in there], len(counted)

    assert on_context(client.runner(), link, ref, use) == (TEXT, ["u", "a", "u2"], 1)
    assert len(at_tokens.lost) == (lost != "never")


@pytest.mark.rule("contexts.fork-drop")
def test_a_fork_holds_the_leading_segments_and_a_dropped_context_is_gone(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    ref = script()
    pool(ref)
    link = client.link()

    def use(context: PoolContext) -> object:
        context.append(user("b", "b"), user("c", "c"))
        twin = context.fork("b")
        whole = context.fork()
        context.drop()
        context.drop()
        return [s.id for s in twin.segments], twin.counts, [s.id for s in whole.segments]

    ids, counts, whole = on_context(client.runner(), link, ref, use)
    assert (ids, list(counts), whole) == (["u", "b"], ["u", "b"], ["u", "b", "c"])
    assert status(link).members[0].contexts == 2


# --- one way back -------------------------------------------------------------------------------------------------


@pytest.mark.rule("pool.one-way-back")
@pytest.mark.rule("pool.worker-restarted")
@pytest.mark.parametrize("at", [1, 7, len(TEXT)])
def test_a_killed_worker_costs_a_generation_nothing(
    pool: Daemons, script: Scripts, client: Clients, at: int
) -> None:
    ref = script({"text": TEXT, "per_token_delay": 0.02})
    pool(ref)
    link = client.link()
    heard = At(at, lambda: os.kill(status(link).members[0].pid, signal.SIGKILL))
    done = on_context(client.runner(), link, ref, lambda context: context.generate(100, on_event=heard))
    assert (done.text, done.stop) == (TEXT, "stop")
    assert heard.text == TEXT
    assert heard.lost == ["member_restarted"] or (at == len(TEXT) and not heard.lost)  # all was there in time
    assert bytes(done.tokens).decode() == TEXT
    until(lambda: (status(link).members[0].restarts, status(link).members[0].state) == (1, "ready"))


@pytest.mark.rule("pool.one-way-back")
@pytest.mark.rule("pool.autostart")
@pytest.mark.rule("pool.daemon-holds-nothing")
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_that_is_killed_or_stopped_costs_a_generation_nothing(
    pool: Daemons, script: Scripts, client: Clients, sig: signal.Signals
) -> None:
    ref = script({"text": TEXT, "per_token_delay": 0.02})
    daemon = pool(ref)
    link = client.link(autostart=True, load=(ref,))
    heard = At(7, lambda: daemon.stop(sig))
    done = on_context(client.runner(), link, ref, lambda context: context.generate(100, on_event=heard))
    assert done.text == heard.text == bytes(done.tokens).decode() == TEXT
    assert heard.lost == ["connection_lost"]
    assert any(isinstance(event, Starting) for event in heard.events)
    assert status(link).pid != daemon.process.pid
    stop(link)


def stop(link: Ref) -> None:
    """Stop an autostarted pool, and wait for its end: the links reap what they started."""
    link.ask(p.StopPool(0), PATIENCE)
    until(lambda: not starter.started)


def until(holds: Callable[[], object]) -> None:
    """Wait until something that nobody tells about has come true."""
    end = monotonic() + PATIENCE
    while not holds():
        assert monotonic() < end, "it did not come true"
        threading.Event().wait(0.005)


@pytest.mark.rule("pool.autostart")
def test_the_next_request_after_a_killed_daemon_starts_another(
    pool: Daemons, script: Scripts, client: Clients, tmp_path: Path
) -> None:
    ref = script({"text": "first"}, {"text": "second"})
    link = client.link(autostart=True, load=(ref,))
    pids = []

    def use(context: PoolContext) -> object:
        first = context.generate(20)
        pids.append(status(link).pid)
        os.kill(pids[0], signal.SIGKILL)
        context.append(p.Segment("a", "assistant", first.text, tokens=first.tokens, vocab=first.vocab))
        context.append(user("go on", "u2"))
        return first.text, context.generate(20).text

    assert on_context(client.runner(), link, ref, use) == ("first", "second")
    assert status(link).pid != pids[0]
    log = (tmp_path / "pool-start.log").read_text()
    assert log.count("ready on") == 2
    stop(link)


@pytest.mark.rule("pool.one-way-back")
def test_members_that_were_loaded_are_loaded_again_on_the_next_daemon(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    main, extra = script({"text": "main"}), script({"text": "extra"})
    daemon = pool(main)
    link = client.link(autostart=True, load=(main,))

    def work(me: Actor) -> object:
        info = load_member(me, link, extra)
        context = PoolContext(me, link, info.name)
        context.create([user("hi")])
        daemon.stop(signal.SIGKILL)
        return context.generate(20).text

    assert client.runner().ask(Do(work), PATIENCE) == "extra"
    stop(link)


@pytest.mark.rule("pool.daemon-holds-nothing")
def test_a_load_whose_daemon_dies_is_asked_of_the_next_one(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    main, extra = script({"text": "main"}), script({"text": "extra"})
    daemon = pool(main)
    link = client.link(autostart=True, load=(main,))
    link.ask(Connect(), PATIENCE)
    os.kill(daemon.process.pid, signal.SIGSTOP)  # it takes the request, and answers nothing

    def work(me: Actor) -> object:
        killer = threading.Timer(0.2, daemon.process.kill)
        killer.start()
        info = load_member(me, link, extra)
        killer.join()
        return info.name

    assert client.runner().ask(Do(work), PATIENCE) == extra
    stop(link)


@pytest.mark.rule("bounds.lost-twice")
@pytest.mark.bound("pool.lost-in-a-row")
def test_two_losses_in_a_row_without_a_new_token_are_a_named_failure(
    pool: Daemons, script: Scripts, client: Clients, limit: Limit
) -> None:
    ref = script({"text": "", "fault": "die"})
    pool(ref)
    link = client.link()
    with pytest.raises(Refused, match="lost 2 times in a row without a new token") as refusal:
        on_context(client.runner(), link, ref, lambda context: context.generate(100))
    assert refusal.value.code == "generation_lost"
    until(lambda: status(link).members[0].restarts == 2)  # it is told before its member has counted it
    limit("pool.lost-in-a-row", 1)
    with pytest.raises(Refused, match="lost 1 times in a row without a new token"):
        on_context(client.runner(), link, ref, lambda context: context.generate(100))


def test_an_edit_that_finds_the_context_lost_makes_it_anew(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    ref = script({"text": "fine"})
    pool(ref, POOL_MEMBER_DELAY=0.01)
    link = client.link()

    def use(context: PoolContext) -> object:
        def after_a_death(edit: Callable[[], object]) -> None:
            os.kill(status(link).members[0].pid, signal.SIGKILL)
            edit()

        after_a_death(lambda: context.append(user("b", "b"), user("c", "c")))
        after_a_death(lambda: context.replace(user("B", "b")))
        after_a_death(lambda: context.remove("c"))
        return [s.text for s in context.segments], context.generate(10).text

    assert on_context(client.runner(), link, ref, use) == (["hi", "B"], "fine")


def test_a_member_that_gave_up_ends_an_agents_request(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    ref = script({"text": "fine"})
    pool(ref, POOL_MEMBER_RESTARTS=0)
    link = client.link()

    def use(context: PoolContext) -> object:
        os.kill(status(link).members[0].pid, signal.SIGKILL)
        return context.generate(10)

    with pytest.raises(Refused, match="0 restarts in 600 s were not enough") as refusal:
        on_context(client.runner(), link, ref, use)
    assert refusal.value.code == "member_failed"


@pytest.mark.rule("models.unload")
def test_a_context_that_went_with_its_worker_holds_no_member(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    ref = script({"text": TEXT, "per_token_delay": 0.01})
    pool(ref)
    link = client.link()
    heard = At(3, lambda: os.kill(status(link).members[0].pid, signal.SIGKILL))

    def use(context: PoolContext) -> object:
        text = context.generate(60, on_event=heard).text
        context.drop()
        return text

    assert on_context(client.runner(), link, ref, use) == TEXT
    assert heard.lost == ["member_restarted"]
    assert isinstance(link.ask(p.MemberUnload(0, ref), PATIENCE), p.Ok)


def test_an_unknown_context_is_made_anew(pool: Daemons, script: Scripts, client: Clients) -> None:
    ref = script({"text": "fine"})
    pool(ref)
    link = client.link()
    heard = At(0, lambda: None)

    def use(context: PoolContext) -> object:
        link.ask(p.ContextDrop(0, context._id or ""), PATIENCE)
        return context.generate(10, on_event=heard).text

    assert on_context(client.runner(), link, ref, use) == "fine"
    assert heard.lost == ["unknown_context"]


# --- several at once, and cancels ---------------------------------------------------------------------------------


@pytest.mark.rule("process.credit")
def test_an_agent_that_does_not_listen_is_not_flooded_and_misses_nothing(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    text = "a" * 20_000
    ref = script({"text": text}, window=32_000)
    pool(ref)
    link, runner = client.link(), client.runner()

    def use(context: PoolContext) -> object:
        waiting: list[int] = []

        def listen(_: object) -> None:
            for _ in range(0 if waiting else 20):
                link.ask(p.Status(0), PATIENCE)  # by their answers, the pool had the time to send a lot
            waiting.append(runner.queued)

        done = context.generate(25_000, on_event=listen)
        return done.text, max(waiting)

    said, most = on_context(runner, link, ref, use)
    assert said == text
    assert most <= CHILD_CREDIT.count + 1, "what an agent has not handled must not pile up"


@pytest.mark.rule("process.credit")
def test_an_agent_that_gave_up_and_does_not_listen_holds_no_connection(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    ref = script({"text": "a" * 20_000}, window=32_000)
    pool(ref)
    link, runner = client.link(max_connections=1), client.runner()

    def break_off(_: object) -> None:
        while runner.queued < CHILD_CREDIT.count - 1:
            link.ask(p.Status(0), PATIENCE)
        raise KeyError("what was said")

    def use(context: PoolContext) -> object:
        with pytest.raises(KeyError):
            context.generate(25_000, on_event=break_off)
        return context.generate(10).text

    assert on_context(runner, link, ref, use) == "a" * 10


@pytest.mark.rule("pool.shared")
def test_two_clients_at_once_each_get_their_own(pool: Daemons, script: Scripts, client: Clients) -> None:
    ref = script({"match": "left", "text": "L" * 30}, {"match": "right", "text": "R" * 30})
    pool(ref)
    links = client.link(), client.link()
    texts: dict[str, str] = {}

    def one(link: Ref, runner: Ref, prompt: str) -> None:
        texts[prompt] = on_context(runner, link, ref, lambda context: context.generate(40).text, prompt)

    threads = [
        threading.Thread(target=one, args=(link, client.runner(), prompt))
        for link, prompt in zip(links, ("left", "right"), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert texts == {"left": "L" * 30, "right": "R" * 30}


@pytest.mark.bound("pool.max-connections")
@pytest.mark.rule("bounds.generations")
def test_generations_over_the_limit_wait_in_order(
    pool: Daemons, script: Scripts, client: Clients, limit: Limit
) -> None:
    ref = script({"text": TEXT, "per_token_delay": 0.005})
    pool(ref)
    limit("pool.max-connections", 1)
    link = client.link()

    def work(me: Actor) -> object:
        context = PoolContext(me, link, ref)
        context.create([user("hi")])
        calls = [me.request(link, p.Generate(0, context._id or "", 100)) for _ in range(3)]
        pieces: list[int] = []
        most = status(link).members[0]
        for call in calls:
            me.wait(call, deadline_s=PATIENCE, on_piece=lambda call, _: pieces.append(call.token))
        return [call.token for call in calls], pieces, most.running + most.waiting

    tokens, pieces, most = client.runner().ask(Do(work), PATIENCE)
    assert list(dict.fromkeys(pieces)) == tokens
    assert most <= 1


@pytest.mark.rule("protocol.reused-connection")
def test_generations_one_after_another_use_one_connection(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    ref = script({"text": "one"}, {"text": "two"}, {"text": "three"})
    pool(ref)
    link = client.link()

    def use(context: PoolContext) -> object:
        said = []
        for turn in range(3):
            done = context.generate(20)
            said.append(done.text)
            context.append(p.Segment(f"a{turn}", "assistant", done.text), user("more", f"u{turn}"))
            with pytest.raises(Refused, match="more than the window"):
                context.generate(10**6)
        return said

    assert on_context(client.runner(), link, ref, use) == ["one", "two", "three"]
    assert status(link).connections == 2


def test_a_cancelled_call_ends_with_a_done_that_says_so(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    ref = script({"text": "x" * 2000, "per_token_delay": 0.02})
    pool(ref)
    link = client.link()

    def work(me: Actor) -> object:
        context = PoolContext(me, link, ref)
        context.create([user("hi")])
        call = me.request(link, p.Generate(0, context._id or "", 2000))
        me.wait(call, deadline_s=PATIENCE, on_piece=lambda call, _: call.cancel())
        return call.result().stop

    assert client.runner().ask(Do(work), PATIENCE) == "cancelled"


def test_a_cancelled_agent_cancels_its_generation_in_the_pool(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    ref = script({"text": "x" * 2000, "per_token_delay": 0.02})
    pool(ref)
    link, runner = client.link(), client.runner()
    heard = At(3, lambda: runner.cancel("enough"))
    with pytest.raises(Refused, match="enough") as refusal:
        on_context(runner, link, ref, lambda context: context.generate(2000, on_event=heard))
    assert refusal.value.code == "cancelled"
    until(lambda: not status(link).members[0].running)


def test_a_request_can_be_cancelled_while_it_waits_for_the_pool(pool: Daemons, client: Clients) -> None:
    silent = listening(pool.socket)
    link = client.link()

    def work(me: Actor) -> object:
        call = me.request(link, p.MemberList(0))
        call.cancel()
        me.wait(call, deadline_s=PATIENCE)
        return call.error

    error = client.runner().ask(Do(work), PATIENCE)
    assert isinstance(error, Refused)
    assert error.code == "cancelled"
    silent.close()


def test_a_context_whose_maker_was_cancelled_is_dropped(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    ref = script()
    pool(ref)
    link = client.link()

    def work(me: Actor) -> object:
        for _ in range(20):
            me.request(link, p.ContextCreate(0, ref, [user("hi")])).cancel()
        return None

    client.runner().ask(Do(work), PATIENCE)
    until(lambda: not status(link).members[0].contexts)


# --- connecting ---------------------------------------------------------------------------------------------------


def listening(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen(8)
    return sock


@pytest.mark.rule("pool.autostart")
def test_a_pool_is_started_in_a_session_of_its_own_and_stays(
    pool: Daemons, script: Scripts, client: Clients, tmp_path: Path
) -> None:
    ref = script()
    link = client.link(autostart=True, load=(ref,), flags=("--idle-timeout", "60"))
    welcome = link.ask(Connect(), PATIENCE)
    assert os.getsid(welcome.pid) == welcome.pid
    assert f"loading {ref}" in (tmp_path / "pool-start.log").read_text()
    link.stop()
    assert link.join(PATIENCE)
    other = client.link()
    assert other.ask(Connect(), PATIENCE).pid == welcome.pid
    other.ask(p.StopPool(0), PATIENCE)
    os.waitpid(welcome.pid, 0)
    starter.started.discard(welcome.pid)


@pytest.mark.rule("bounds.load")
def test_a_pool_that_is_started_lets_a_model_load_as_long_as_its_starter_waits(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    link = client.link(autostart=True, start_timeout_s=77)
    welcome = link.ask(Connect(), PATIENCE)
    environment = Path(f"/proc/{welcome.pid}/environ").read_bytes().split(b"\0")
    link.stop()
    assert link.join(PATIENCE)
    client.link().ask(p.StopPool(0), PATIENCE)
    os.waitpid(welcome.pid, 0)
    starter.started.discard(welcome.pid)
    assert b"AERIX_BOUND_POOL_MEMBER_LOAD=77" in environment


@pytest.mark.rule("pool.one-daemon")
def test_two_clients_that_start_a_pool_at_once_end_with_one(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    ref = script()
    links = [client.link(autostart=True, load=(ref,)) for _ in range(4)]
    pids: list[int] = []
    threads = [
        threading.Thread(target=lambda x=link: pids.append(x.ask(Connect(), PATIENCE).pid)) for link in links
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(pids) == 4
    assert len(set(pids)) == 1
    assert peer_pid(pool.socket) == pids[0]
    stop(links[0])


@pytest.mark.rule("pool.early-exit-seen")
def test_a_pool_that_ends_while_it_starts_is_seen_at_once(client: Clients, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("nothing\n")
    (tmp_path / "pool-start.log").write_text("aerix pool: an older failure\n")
    link = client.link(autostart=True, load=(f"scripted:{tmp_path}/bad.jsonl",), start_timeout_s=600)
    with pytest.raises(Refused, match=r"\(exit 4\): .*bad.jsonl.*line 1.*pool-start.log") as refusal:
        link.ask(Connect(), PATIENCE)
    assert refusal.value.code == "pool_exited"
    assert "an older failure" not in refusal.value.message


@pytest.mark.rule("pool.early-exit-seen")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((sys.executable, "-c", "import os; os.abort()"), "signal 6"),
        ((sys.executable, "-c", "raise SystemExit('no luck')"), "no luck"),
        (("no-such-program-anywhere",), "No such file"),
    ],
)
def test_a_command_that_starts_no_pool_is_named(client: Clients, command: tuple[str, ...], said: str) -> None:
    link = client.link(autostart=True, command=command)
    with pytest.raises(Refused, match=said) as refusal:
        link.ask(Connect(), PATIENCE)
    assert refusal.value.code == "pool_exited"


@pytest.mark.bound("pool.autostart-every")
def test_a_command_that_ends_well_and_starts_nothing_is_not_tried_for_ever(
    client: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_POOL_AUTOSTART_EVERY", "0.01")
    link = client.link(autostart=True, command=(sys.executable, "-c", ""))
    with pytest.raises(Refused, match="started 3 times and never answered") as refusal:
        link.ask(Connect(), PATIENCE)
    assert refusal.value.code == "pool_exited"


@pytest.mark.rule("bounds.autostart")
def test_a_pool_that_never_answers_is_a_named_failure(
    client: Clients, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AERIX_BOUND_POOL_AUTOSTART_EVERY", "0.02")
    ended = tmp_path / "ended"
    child = (
        "import signal, sys, time, pathlib\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(ended)!r}).touch(), sys.exit()))\n"
        f"pathlib.Path({str(tmp_path / 'up')!r}).touch()\n"
        "time.sleep(3600)"
    )
    link = client.link(autostart=True, command=(sys.executable, "-c", child), start_timeout_s=0.5)
    with pytest.raises(Refused, match=r"did not answer on .* in 0.5 s .*see .*pool-start.log") as refusal:
        link.ask(Connect(), PATIENCE)
    assert refusal.value.code == "pool_start_timeout"
    assert ended.exists() or not (tmp_path / "up").exists()
    assert not starter.started


def test_a_start_that_does_not_heed_term_is_killed(client: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_POOL_AUTOSTART_EVERY", "0.02")
    monkeypatch.setenv("AERIX_BOUND_CHILD_TERM", "0.1")
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    link = client.link(autostart=True, command=(sys.executable, "-c", child), start_timeout_s=0.5)
    with pytest.raises(Refused, match="did not answer on"):
        link.ask(Connect(), PATIENCE)
    assert not starter.started


OLD = """
import sys
from pathlib import Path
from aerix.pool.daemon import serve
from aerix.pool.members import PoolOptions
sys.exit(serve(PoolOptions(Path(sys.argv[1]), version=sys.argv[2]), lambda text: print(text, flush=True)))
"""


@pytest.fixture
def other_release(pool: Daemons) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Starts a daemon that says it is of another release."""
    started: list[subprocess.Popen[str]] = []

    def begin(release: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", OLD, str(pool.socket), release]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        assert "ready" in started[-1].stdout.readline()
        return started[-1]

    yield begin
    for one in started:
        one.kill()
        one.wait()
        assert one.stdout is not None
        one.stdout.close()


@pytest.mark.rule("pool.upgrade")
def test_an_idle_pool_of_an_older_release_is_replaced(
    pool: Daemons, client: Clients, other_release: Callable[[str], "subprocess.Popen[str]"]
) -> None:
    old = other_release("0.9.3")
    link = client.link(autostart=True, release="0.10.0")
    welcome = link.ask(Connect(), PATIENCE)
    assert old.wait(PATIENCE) == 0
    assert welcome.pid != old.pid
    stop(link)


@pytest.mark.rule("pool.upgrade")
@pytest.mark.parametrize(
    ("theirs", "ours", "autostart"),
    [("0.10.0", "0.9.3", True), ("0.9.3", "0.9.3", True), ("0.9.3", "0.10.0", False), ("odd", "0.9.3", True)],
)
def test_a_pool_that_is_not_older_or_not_ours_to_replace_stays(
    client: Clients,
    other_release: Callable[[str], "subprocess.Popen[str]"],
    theirs: str,
    ours: str,
    autostart: bool,
) -> None:
    old = other_release(theirs)
    link = client.link(autostart=autostart, release=ours)
    assert link.ask(Connect(), PATIENCE).pid == old.pid
    assert link.ask(p.Status(0), PATIENCE).pid == old.pid


@pytest.mark.rule("pool.upgrade")
def test_an_older_pool_that_somebody_uses_stays_and_is_not_replaced_to_be_looked_at(
    client: Clients, other_release: Callable[[str], "subprocess.Popen[str]"]
) -> None:
    old = other_release("0.9.3")
    looks = client.link(autostart=True, release="0.10.0")
    assert looks.ask(p.Status(0), PATIENCE).pid == old.pid
    newer = client.link(autostart=True, release="0.10.0")
    assert newer.ask(Connect(), PATIENCE).pid == old.pid


def test_status_and_stop_start_no_pool(client: Clients) -> None:
    link = client.link(autostart=True)
    for request in (p.Status(0), p.StopPool(0)):
        with pytest.raises(Refused, match="no pool answers on") as refusal:
            link.ask(request, PATIENCE)
        assert refusal.value.code == "no_pool"


def test_without_autostart_nothing_is_started(client: Clients) -> None:
    with pytest.raises(Refused) as refusal:
        client.link().ask(p.MemberList(0), PATIENCE)
    assert refusal.value.code == "no_pool"


@pytest.mark.rule("bounds.control")
def test_a_socket_that_says_nothing_is_a_named_failure(
    pool: Daemons, client: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_POOL_CONTROL", "0.05")
    silent = listening(pool.socket)
    with pytest.raises(
        Refused, match=r"did not answer Hello in 0.05 s; `aerix pool stop` ends it"
    ) as refusal:
        client.link().ask(Connect(), PATIENCE)
    assert refusal.value.code == "pool_silent"
    silent.close()


@pytest.mark.bound("pool.frames")
@pytest.mark.rule("bounds.frames")
def test_a_generation_without_a_frame_for_too_long_is_given_up(
    pool: Daemons, script: Scripts, client: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = script({"text": TEXT, "fault": "hang"})
    pool(ref)
    monkeypatch.setenv("AERIX_BOUND_POOL_FRAMES", "0.2")
    link = client.link()
    with pytest.raises(Refused, match=r"the pool said nothing about Generate for 0.2 s") as refusal:
        on_context(client.runner(), link, ref, lambda context: context.generate(100))
    assert refusal.value.code == "pool_silent"


@pytest.mark.rule("protocol.mismatch")
def test_the_refusal_of_another_version_reaches_the_asker(
    pool: Daemons, client: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool()
    monkeypatch.setattr("aerix.pool.dial.VERSION", 4)
    with pytest.raises(Refused, match="run `aerix pool stop`, then run again") as refusal:
        client.link().ask(Connect(), PATIENCE)
    assert refusal.value.code == "protocol_version"


@pytest.mark.parametrize("folder", ["/", "/tmp"])
def test_a_folder_as_the_socket_is_named(client: Clients, folder: str) -> None:
    with pytest.raises(
        Refused, match=f"the pool's socket {folder} cannot be used: it is a folder"
    ) as refusal:
        client.link(socket=Path(folder), autostart=True).ask(Connect(), PATIENCE)
    assert refusal.value.code == "socket_refused"


def test_a_socket_that_cannot_be_used_is_named(client: Clients, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be used") as refusal:
        client.link(socket=tmp_path / "file" / "pool.sock").ask(Connect(), PATIENCE)
    assert refusal.value.code == "socket_refused"


@pytest.mark.rule("pool.socket-private")
def test_a_pool_of_another_user_is_not_spoken_to(
    pool: Daemons, client: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = listening(pool.socket)
    monkeypatch.setattr("aerix.pool.dial.peer_uid", lambda _: 4242)
    with pytest.raises(Refused, match="belongs to the user with the id 4242") as refusal:
        client.link().ask(Connect(), PATIENCE)
    assert refusal.value.code == "socket_refused"
    silent.close()


@pytest.mark.bound("pool.link-queue")
def test_requests_over_the_queues_bound_are_refused(
    pool: Daemons, client: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_POOL_LINK_QUEUE", "2")
    silent = listening(pool.socket)
    link = client.link()

    def work(me: Actor) -> object:
        calls = [me.request(link, p.MemberList(0)) for _ in range(3)]
        done = me.wait(*calls, deadline_s=PATIENCE)
        return done is calls[2] and done.error

    error = client.runner().ask(Do(work), PATIENCE)
    assert isinstance(error, Refused)
    assert error.code == "pool_busy"
    silent.close()


def test_a_link_that_ends_refuses_what_waits(pool: Daemons, client: Clients) -> None:
    silent = listening(pool.socket)
    link = client.link()

    def work(me: Actor) -> object:
        call = me.request(link, p.MemberList(0))
        link.stop()
        me.wait(call, deadline_s=PATIENCE)
        return call.error

    error = client.runner().ask(Do(work), PATIENCE)
    assert isinstance(error, Refused)
    assert error.code in ("connection_lost", "gone")
    silent.close()


@pytest.mark.bound("pool.generation")
def test_a_deadline_of_the_askers_cancels_the_request(
    pool: Daemons, script: Scripts, client: Clients
) -> None:
    ref = script({"text": "", "delay": 30})
    pool(ref)
    link = client.link()

    def use(context: PoolContext) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AERIX_BOUND_POOL_GENERATION", "0.1")
            with pytest.raises(DeadlineExceeded):
                context.generate(2000)
        return None

    on_context(client.runner(), link, ref, use)
    until(lambda: not status(link).members[0].running)


def test_importing_the_client_costs_no_heavy_module() -> None:
    import subprocess

    heavy = {
        "numpy",
        "jinja2",
        "llguidance",
        "llama_cpp",
        "structlog",
        "multiprocessing",
        "subprocess",
        "asyncio",
    }
    code = "import sys, aerix.pool.client, aerix.pool.cli; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not heavy & set(loaded)
