"""How a model on a server is found and tried out at its load: what it can do, its window, its counts, its key."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.remote import Address, address
from aerix.pool.remote_http import Server
from aerix.pool.remote_load import Facts, look
from aerix.pool.workerargs import WorkerArgs
from tests.pool.owner import Asked, Owner, worker
from tests.pool.remote_server import (
    WINDOW,
    Handler,
    Hold,
    chunk,
    fake,
    is_silent,
    says,
    status,
    streams,
    usage,
)

HI = p.Segment("u1", "user", "Hi")
JSON = p.Constraint(schema='{"type": "object", "properties": {}, "additionalProperties": false}')


def looked(ref: str) -> Facts:
    """What is found out of a server."""

    async def run() -> Facts:
        async with Server(address(ref), "") as one:
            return await look(one, 0, 1024)

    return asyncio.run(run())


def ask(owner: Owner, *segments: p.Segment, max_tokens: int = 100, **fields: Any) -> Asked:
    return owner.ask(p.Generate(5, owner.create(*(segments or (HI,))), max_tokens, **fields))


@pytest.mark.rule("remote.schema")
@pytest.mark.parametrize("refuses", [False, True], ids=["ignores", "refuses"])
def test_a_server_that_does_not_hold_to_a_schema_says_so_at_load(refuses: bool) -> None:
    with fake() as server:
        server.schema = False
        if refuses:
            server.trials.extend([status(400, {"error": {"message": "response_format: unknown"}})] * 2)
        with worker(WorkerArgs(server.ref)) as owner:
            assert owner.info["json"] is False
            assert "schema" in str(owner.info["note"])
            assert ask(owner, constraint=JSON).refusal().code == "no_json"
            server.answers.append(says("free"))
            assert ask(owner).result().text == "free"
            assert "response_format" not in server.chats()[0]


# --- load ---------------------------------------------------------------------------------------------------------


def listed(**more: Any) -> dict[str, Any]:
    return {"/v1/models": {"data": [{"id": "m", **more}]}}


@pytest.mark.rule("remote.window")
@pytest.mark.parametrize(
    ("pages", "window"),
    [
        ({"/props": {"default_generation_settings": {"n_ctx": 5000}}} | listed(meta={"n_ctx": 1}), 5000),
        (listed(meta={"n_ctx_train": 131072, "n_ctx": 5001}), 5001),
        (listed(max_context_length=131072, loaded_context_length=5002), 5002),
        (listed(context_length=5003), 5003),
        (
            {"/api/ps": {"models": [{"name": "other"}, {"name": "m", "context_length": 5004}]}} | listed(),
            5004,
        ),
    ],
    ids=["props", "meta", "loaded", "length", "ollama"],
)
def test_the_window_is_the_one_the_server_says_it_serves(pages: dict[str, object], window: int) -> None:
    with fake() as server:
        server.pages = pages
        assert looked(server.ref).window == window


@pytest.mark.rule("remote.window")
def test_the_window_that_is_set_wins_and_what_exceeds_it_is_refused() -> None:
    with fake() as server, worker(WorkerArgs(server.ref, window=60)) as owner:
        assert owner.info["window"] == 60
        refusal = ask(owner, max_tokens=55).refusal()
        assert refusal.code == "context_overflow"
        assert "about 11 tokens and a reply of up to 55 are 66, more than the window's 60" in refusal.message
        assert server.chats() == []


def failed_load(**args: Any) -> str:
    """Why a worker did not come up."""
    owner = Owner(WorkerArgs(**args))
    try:
        return owner.end().detail
    finally:
        owner.owner.stop()
        assert owner.owner.join(10)


@pytest.mark.rule("remote.window")
def test_a_window_that_nobody_tells_is_asked_of_the_user() -> None:
    with fake() as server:
        server.pages = listed()
        with pytest.raises(Refused, match="does not say how large the window is") as caught:
            looked(server.ref)
        assert caught.value.code == "server_no_window"


@pytest.mark.bound("remote.ask")
@pytest.mark.rule("remote.window")
def test_what_a_server_tells_too_late_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_REMOTE_ASK", "0.1")
    hold = Hold()
    with fake() as server:
        server.pages["/props"] = is_silent(hold)
        assert looked(server.ref).window == WINDOW
        assert hold.closed.wait(10)


@pytest.mark.rule("remote.window")
def test_a_connection_that_is_lost_while_a_server_tells_of_itself_is_made_anew() -> None:
    with fake() as server:

        def slams_once(handler: Handler) -> None:
            server.pages["/props"] = {"default_generation_settings": {"n_ctx": 5000}}

        server.pages["/props"] = slams_once
        assert looked(server.ref).window == 5000


@pytest.mark.rule("rooms.llama-in-worker")
def test_its_process_loads_no_engine() -> None:
    code = "import sys, aerix.pool.remote_worker; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"llama_cpp", "numpy", "llguidance", "jinja2", "pykka"} & set(done.stdout.split()) == set()


@pytest.mark.rule("remote.no-model")
def test_a_model_that_is_not_there_is_refused_with_those_that_are() -> None:
    with fake() as server:
        with pytest.raises(Refused) as caught:
            looked(f"{server.base}#x")
        assert caught.value.code == "server_no_model"
        assert caught.value.message == f"the server at {server.base} has no model 'x'; it has m, other"
        assert server.tried() == []


@pytest.mark.rule("remote.chat")
def test_a_template_without_system_messages_gets_them_in_the_users() -> None:
    with fake() as server:
        server.trials.extend([status(500, {"error": {"message": "System role not supported"}})] * 4)
        with worker(WorkerArgs(server.ref)) as owner:
            server.answers.append(says("ok"))
            ask(owner, p.Segment("s", "system", "S"), HI).result()
            assert server.chats()[0]["messages"] == [{"role": "user", "content": "S\n\nHi"}]
            assert len(server.tried()) == 5


@pytest.mark.rule("remote.chat")
def test_a_server_that_takes_no_fields_of_others_gets_none() -> None:
    with fake() as server:
        server.trials.append(status(400, {"error": {"message": "Unrecognized request argument: min_p"}}))
        with worker(WorkerArgs(server.ref)) as owner:
            server.answers.append(says("ok"))
            ask(owner).result()
            assert "min_p" not in server.chats()[0]
            assert owner.info["json"] is True


@pytest.mark.rule("remote.chat")
def test_a_model_that_thinks_first_is_granted_its_thinking() -> None:
    thought = streams(chunk(reasoning_content="Hm…"), chunk(finish="length"))
    with fake() as server:
        server.trials.append(thought)
        with worker(WorkerArgs(server.ref, thinking=500)) as owner:
            assert owner.info["thinking"] == 500
            server.answers.append(says("ok"))
            ask(owner, max_tokens=10).result()
            assert server.chats()[0]["max_tokens"] == 510
            assert [body["max_tokens"] for body in server.tried()] == [48, 548]


# --- counts -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("remote.counts")
def test_a_server_that_counts_is_asked() -> None:
    with fake() as server:
        server.counts = True
        with worker(WorkerArgs(server.ref)) as owner:
            assert owner.info["estimated"] is False
            words = p.Segment("u1", "user", "one two three")
            state = owner.ask(p.ContextCreate(1, "m", [words])).result()
            # The prompt of 40 tokens that tried it out had 13 words in two messages: 9 for a marker.
            assert state == p.ContextState(1, state.context, [p.SegmentCount("u1", 3 + 9)], 12, 9)
            assert [body["content"] for _, path, _, body in server.seen if path == "/tokenize"][
                -1
            ] == words.text
            asked = len(server.seen)
            owner.create(words)
            assert len(server.seen) == asked, "a text that was counted is not asked for again"
            server.counts = False
            state = owner.ask(p.ContextCreate(1, "m", [p.Segment("u1", "user", "x" * 30)])).result()
            assert (state.estimated, state.tokens) == (True, 10 + 9)


@pytest.mark.rule("remote.counts")
def test_without_counting_bytes_are_a_guess_that_the_servers_usage_corrects() -> None:
    text = p.Segment("u1", "user", "é" * 300)
    with fake() as server, worker(WorkerArgs(server.ref)) as owner:
        assert owner.info["estimated"] is True
        state = owner.ask(p.ContextCreate(1, "m", [text])).result()
        assert (state.estimated, state.tokens, state.opening) == (True, 200 + 5, 5)
        server.answers.append(says("ok", spent=usage(110, 1)))
        assert owner.ask(p.Generate(2, state.context, 10)).result().usage.prompt_tokens == 110
        state = owner.ask(p.ContextFork(3, state.context)).result()
        assert (state.tokens, state.opening) == (105, 5)


# --- references and keys ------------------------------------------------------------------------------------------


@pytest.mark.rule("remote.reference")
def test_a_reference_is_an_address_and_a_name() -> None:
    found = address("HTTP://LocalHost:8080/v1/#org/name:7b#x")
    assert found == Address("http://localhost:8080/v1", "org/name:7b#x")
    assert (found.root, found.loopback) == ("http://localhost:8080", True)
    assert address("https://h/api/v1#m").root == "https://h/api"
    loopback = [
        address(f"http://{host}/v1#m").loopback for host in ("127.9.9.9", "[::1]:1", "10.0.0.1", "box")
    ]
    assert loopback == [True, True, False, False]


@pytest.mark.rule("remote.reference")
@pytest.mark.parametrize(
    ("ref", "why"),
    [
        ("http://h:1/v1", "names no model"),
        ("http://h:x/v1#m", "cannot be read"),
        ("http://#m", "no address"),
        ("http://h/v1?key=secret#m", "no address"),
        ("http://me:secret@h/v1#m", "key_env"),
        ("http://h /v1#m", "no address"),
    ],
)
def test_what_is_no_reference_is_refused_and_no_secret_of_it_is_quoted(ref: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as caught:
        address(ref)
    assert caught.value.code == "model_unknown"
    assert "secret" not in caught.value.message


@pytest.mark.rule("remote.key")
def test_the_key_is_sent_and_appears_nowhere_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    log = tmp_path / "pool.log"
    monkeypatch.setenv("MY_KEY", "sk-geheim")
    monkeypatch.setenv("AERIX_LOG_FILE", str(log))
    with fake() as server, worker(WorkerArgs(server.ref, key_env="MY_KEY")) as owner:
        assert owner.info
        assert "sk-geheim" not in str(owner.info)
        server.answers.append(status(401, {"error": {"message": "Incorrect API key: sk-geheim (or not)"}}))
        refusal = ask(owner).refusal()
        assert refusal.code == "server_refused"
        assert refusal.message.endswith("it answered 401 Unauthorized: Incorrect API key: … (or not)")
        (status_,) = owner.ask(p.MemberList(1)).result().members
        assert "geheim" not in str(status_)
        assert {seen[2].get("Authorization") for seen in server.seen} == {"Bearer sk-geheim"}
    assert "worker.ready" in log.read_text()
    assert "geheim" not in log.read_text()


@pytest.mark.rule("remote.key")
def test_a_key_that_is_not_there_is_missed_by_its_variables_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAD_KEY", "geheim\nX: y")
    assert "'NO_KEY', a variable that is not set" in failed_load(
        model="http://127.0.0.1:1/v1#m", key_env="NO_KEY"
    )
    bad = failed_load(model="http://127.0.0.1:1/v1#m", key_env="BAD_KEY")
    assert "'BAD_KEY', which key_env names, holds what cannot be a key" in bad
    assert "geheim" not in bad


@pytest.mark.rule("remote.proxies")
def test_no_proxy_stands_before_a_server_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with fake() as server, worker(WorkerArgs(server.ref)) as owner:
        assert owner.info["window"] == WINDOW


@pytest.mark.rule("remote.proxies")
def test_elsewhere_the_proxies_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake() as proxy:
        proxy.pages = {"http://models.example:1/v1/models": {"data": []}}
        monkeypatch.setenv("http_proxy", proxy.base.removesuffix("/v1"))
        assert "404" in failed_load(model="http://models.example:1/v1#m")
        assert {path for _, path, _, _ in proxy.seen} == {
            "http://models.example:1/v1/models",
            "http://models.example:1/v1/chat/completions",
        }
