"""A model on a server as a member of a real daemon: the client's way back, waiting, loading, and `aerix -p`."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Actor, Refused
from aerix.pool import protocol as p
from aerix.pool.client import PoolContext, Recreated, load_member
from aerix.session.events import Event, Reading
from tests.pool.daemons import AERIX, PATIENCE, Clients, Daemons, Do, Wire, user
from tests.pool.remote_server import Fake, Hold, chunk, fake, is_silent, says, slams, status, streams, usage
from tests.runs import Aerix, Desk, results


@pytest.fixture
def server() -> Iterator[Fake]:
    with fake() as one:
        yield one


class Heard:
    """What a client hears of a generation; calls ``act`` at the first token."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.events: list[Any] = []
        self._act: Callable[[], object] | None = act

    def __call__(self, one: Any) -> None:
        self.events.append(one)
        act = self._act
        if isinstance(one, p.Token) and act is not None:
            self._act = None
            act()

    @property
    def stays(self) -> str:
        """The text, without what a loss made void."""
        text = b""
        for one in self.events:
            text = b"" if isinstance(one, Recreated) else text + getattr(one, "data", b"")
        return text.decode()

    @property
    def lost(self) -> list[tuple[str, int]]:
        return [(one.code, one.kept) for one in self.events if isinstance(one, Recreated)]


def generate(client: Clients, ref: str, heard: Heard, **flags: Any) -> p.Done:
    """Load the model through the daemon, and have it say something."""
    link = client.link()

    def work(me: Actor) -> object:
        info = load_member(me, link, ref, flags)
        context = PoolContext(me, link, info.name)
        context.create([user("hi")])
        return context.generate(100, on_event=heard)

    done = client.runner().ask(Do(work), 2 * PATIENCE)
    assert isinstance(done, p.Done)
    return done


# --- the way back -------------------------------------------------------------------------------------------------


@pytest.mark.rule("remote.broken-off")
def test_a_turn_that_broke_off_is_asked_for_anew_on_the_same_context(
    pool: Daemons, client: Clients, server: Fake
) -> None:
    pool()
    server.answers.extend([streams(chunk("Hel")), says("Hello")])
    heard = Heard()
    done = generate(client, server.ref, heard)
    assert (done.text, heard.stays, heard.lost) == ("Hello", "Hello", [("server_cut", 0)])
    first, second = server.chats()
    assert first == second


@pytest.mark.rule("remote.broken-off")
def test_two_that_break_off_in_a_row_are_a_named_failure(
    pool: Daemons, client: Clients, server: Fake
) -> None:
    pool()
    server.answers.extend([streams(chunk("Hel"))] * 5)
    with pytest.raises(Refused) as caught:
        generate(client, server.ref, Heard())
    assert caught.value.code == "generation_lost"
    assert "its answer ended before it was whole" in caught.value.message
    assert len(server.chats()) == 2


@pytest.mark.rule("remote.broken-off")
def test_when_its_process_dies_the_turn_is_asked_for_anew(
    pool: Daemons, client: Clients, server: Fake, wire: Callable[..., Wire]
) -> None:
    one = pool()
    hold = Hold()
    server.answers.extend([streams(chunk("Hel"), hold=hold), says("Hello")])

    def kill() -> None:
        plain = wire(one.socket)
        plain.hello()
        (member,) = plain.ask("MemberList")["members"]
        os.kill(member["pid"], signal.SIGKILL)

    heard = Heard(kill)
    done = generate(client, server.ref, heard)
    assert (done.text, heard.stays, heard.lost) == ("Hello", "Hello", [("member_restarted", 0)])
    assert hold.closed.wait(PATIENCE)


# --- waiting ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("remote.silence")
def test_a_first_word_after_a_long_time_is_waited_for(
    pool: Daemons, client: Clients, server: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool(POOL_HELD_PROGRESS=0.05)
    monkeypatch.setenv("AERIX_BOUND_POOL_FRAMES", "0.6")
    hold = Hold()
    server.answers.append(is_silent(hold, chunk("at last"), chunk(finish="stop")))
    heard = Heard()
    told = heard.__call__

    def enough(one: Any) -> None:
        told(one)
        if len(heard.events) == 20:  # a second of signs of life, more than the client bears without
            hold.let_go()

    link = client.link()

    def work(me: Actor) -> object:
        info = load_member(me, link, server.ref)
        context = PoolContext(me, link, info.name)
        context.create([user("hi")])
        return context.generate(100, on_event=enough)

    assert client.runner().ask(Do(work), PATIENCE).text == "at last"
    assert {(one.done, one.total) for one in heard.events[:20]} == {(0, 0)}


@pytest.mark.rule("remote.silence")
def test_whoever_waits_for_a_first_word_is_told_so(
    pool: Daemons, client: Clients, server: Fake, git_repo: Path
) -> None:
    pool(POOL_HELD_PROGRESS=0.05)
    hold = Hold()
    server.answers.extend([says("answer"), is_silent(hold, *turn_bytes(final="It is 6."))])
    desk = Desk(client.settings(), git_repo, git_repo.parent, server.ref)

    def heard(one: Event) -> None:
        if isinstance(one, Reading) and one.sentence == "waiting for the model":
            hold.let_go()

    desk.heard = heard
    assert desk("what is two times three").end.text == "It is 6."


# --- loading ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("remote.chat")
def test_it_is_a_member_like_any_other(pool: Daemons, server: Fake, wire: Callable[..., Wire]) -> None:
    one = wire(pool().socket)
    one.hello()
    loaded = one.ask("MemberLoad", ref=server.ref, flags={"max_batch": 2})
    assert loaded["member"]["name"] == f"{server.ref} max_batch=2"
    assert one.ask("MemberLoad", ref=server.ref, flags={"max_batch": 2}) == loaded | {"id": 3}
    assert len(server.tried()) == 1
    context = one.create(loaded["member"]["name"])
    (info,) = one.ask("MemberList")["members"]
    wanted = {"state": "ready", "window": 8192, "json": True, "estimated": True, "contexts": 1, "vocab": ""}
    assert {key: info[key] for key in wanted} == wanted
    server.answers.append(says("Hello", spent=usage(12, 3)))
    done = one.ask("Generate", context=context, max_tokens=9)
    assert (done["text"], done["stop"], done["usage"]["completion_tokens"]) == ("Hello", "stop", 3)
    (info,) = one.ask("MemberList")["members"]
    assert (info["totals"]["generations"], info["totals"]["generated_tokens"]) == (1, 3)
    shown = subprocess.run([*AERIX, "pool", "status"], capture_output=True, text=True, check=True).stdout
    assert f"  {server.ref} max_batch=2: ready\n    window 8192, counts ≈, " in shown


@pytest.mark.rule("remote.own-words")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            status(401, {"error": {"message": "No key"}}),
            "401 Unauthorized: No key; name the variable that holds its key",
        ),
        (slams, "the connection broke"),
    ],
    ids=["401", "drops"],
)
def test_a_load_that_fails_says_why_in_the_servers_words(
    pool: Daemons, server: Fake, wire: Callable[..., Wire], answer: Any, why: str
) -> None:
    server.trials.extend([answer] * 8)
    one = wire(pool().socket)
    one.hello()
    refused = one.ask("MemberLoad", ref=server.ref)
    assert (refused["type"], refused["code"]) == ("Error", "load_failed")
    assert refused["message"].startswith(f"{server.ref} could not be loaded: the server at {server.base}: ")
    assert why in refused["message"]


# --- the whole program --------------------------------------------------------------------------------------------


def turn_bytes(**fields: Any) -> tuple[bytes, ...]:
    return chunk(json.dumps({"thought": "On it."} | fields)), chunk(finish="stop"), usage(700, 20, 650)


def turn(**fields: Any) -> Any:
    return streams(*turn_bytes(**fields))


@pytest.mark.rule("remote.request")
def test_a_request_runs_on_it_from_end_to_end(
    pool: Daemons, server: Fake, git_repo: Path, client: Clients
) -> None:
    pool()
    aerix = Aerix(git_repo, client.settings(), server.ref)
    server.answers.extend([
        says("edit"),
        turn(calls=[{"tool": "bash", "input": {"command": "echo 6 > answer.txt && cat answer.txt"}}]),
        turn(final="It is 6."),
    ])  # fmt: skip
    try:
        run = aerix("-p", "what is two times three", "--output-format", "stream-json")
    finally:
        aerix.close()
    assert run.code == 0, run.err
    end = run.lines[-1]
    assert (end["text"], end["outcome"], end["turns"]) == ("It is 6.", "done", 2)
    assert "+6" in end["diff"]
    (result,) = results(run.lines)
    assert "6" in result["text"]
    route, first, second = server.chats()
    assert "response_format" not in route
    assert "oneOf" in first["response_format"]["json_schema"]["schema"]
    told = first["messages"]
    assert [message["role"] for message in told] == ["system", "user"]
    assert second["messages"][: len(told)] == told, "what was sent stays as it was"
    assert [message["role"] for message in second["messages"][len(told) :]] == ["assistant", "user"]


@pytest.mark.rule("remote.request")
@pytest.mark.rule("remote.key")
def test_its_settings_reach_a_pool_that_is_started_for_it(
    server: Fake, git_repo: Path, own_home: Path
) -> None:
    server.pages = {"/v1/models": {"data": [{"id": "m"}]}}
    settings = own_home / ".config/aerix/settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        f'models.main = "{server.ref}"\n[models."{server.ref}"]\nwindow = 9000\nkey_env = "MY_KEY"\n'
    )
    cut = says('{"thought"', finish="length", spent=usage(700, 33))
    server.answers.extend([says("answer"), cut, turn(final="It is 6.")])
    aerix = Aerix(git_repo)
    try:
        run = aerix("-p", "what is two times three", MY_KEY="sk-geheim")
        shown = aerix("pool", "status")
    finally:
        aerix("pool", "stop")
        aerix.close()
    assert (run.code, run.out) == (0, "It is 6.\n"), run.err
    assert "the turn was cut at 33 tokens and is asked again" in run.err
    assert "window 9000, counts ≈" in shown.out
    assert {headers.get("Authorization") for _, _, headers, _ in server.seen} == {"Bearer sk-geheim"}
    state = own_home / ".local/state/aerix"
    assert [path.name for path in state.rglob("*") if path.is_file() and b"geheim" in path.read_bytes()] == []
    assert "geheim" not in run.err + shown.out
