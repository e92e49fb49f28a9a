"""A server that misbehaves, in every way that is known of servers: each ends in an answer, or in a named failure."""

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.remote import address
from aerix.pool.remote_chat import Way
from aerix.pool.remote_counts import Counts
from aerix.pool.remote_http import Server
from aerix.pool.remote_load import Facts
from aerix.pool.remote_stream import Events, Finished, Garbled, Said, Spent, Text, Told, quoted, said
from aerix.pool.remote_turn import Turn
from tests.pool.remote_server import (
    DONE,
    PATIENCE,
    Answer,
    Fake,
    Handler,
    Hold,
    breaks_off,
    chunk,
    event,
    fake,
    is_silent,
    says,
    slams,
    status,
    streams,
    usage,
)

HI = p.Segment("u1", "user", "Hi")
SCHEMA = {"type": "object"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.setenv("AERIX_BOUND_REMOTE_DELAY", "0.001")
    with fake() as one:
        yield one


def turn(
    server: Fake, *answers: Answer, ref: str = "", got: list[p.Token] | None = None, **fields: Any
) -> p.Done:
    """What a turn comes to, when the server gives these answers."""
    server.answers.extend(answers)
    fields = {"max_tokens": 100} | fields

    async def run() -> p.Done:
        async with Server(address(ref or server.ref), "") as one:
            facts = Facts(
                8192, Way(fold=False, schema=True, extras=True), json=True, thinking=0, counts=Counts(one)
            )
            pieces: list[p.Token] = [] if got is None else got
            turn = Turn(one, facts, p.Generate(1, "c", **fields), [HI], pieces.append)
            await turn.count()
            return await turn.run()

    return asyncio.run(run())


def refusal(server: Fake, *answers: Answer, **fields: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        turn(server, *answers, **fields)
    return caught.value


@pytest.mark.rule("remote.misbehaviour")
def test_a_stream_that_stays_open_behind_its_end_holds_nobody_up(server: Fake) -> None:
    hold = Hold()
    answer = streams(chunk("Hello"), chunk(finish="stop"), usage(9, 1), DONE, hold=hold)
    done = turn(server, answer)
    assert (done.text, done.stop, done.usage.prompt_tokens) == ("Hello", "stop", 9)
    assert hold.closed.wait(PATIENCE)


# --- answers that are odd -----------------------------------------------------------------------------------------


@pytest.mark.rule("remote.misbehaviour")
@pytest.mark.parametrize(
    ("answer", "stop", "text"),
    [
        (says(), "stop", ""),
        (says("The answer: {}"), "stop", "The answer: {}"),
        (says('{"a": tru'), "stop", '{"a": tru'),
        (says('{"a"', finish="length"), "length", '{"a"'),
        (says('{"a": 1}', '{"a": 1}'), "stop", '{"a": 1}{"a": 1}'),
        (says("{}"), "final", "{}"),
        (streams(chunk("{}"), DONE), "final", "{}"),
        (streams(chunk("{}"), chunk(finish="stop")), "final", "{}"),
        (streams(chunk("{}"), chunk(finish="stop"), b"data: {broken\n\n"), "final", "{}"),
        (breaks_off(chunk("{}"), chunk(finish="stop")), "final", "{}"),
        (streams(chunk(tool_calls=[{"function": {"name": "f"}}]), chunk(finish="tool_calls")), "stop", ""),
    ],
    ids=[
        "empty", "textual", "malformed", "cut", "repeated", "whole", "no-finish", "no-done", "garbage-after-the-end",
        "broken-after-the-end", "a-tool-call",
    ],
)  # fmt: skip
def test_an_odd_answer_is_given_as_it_is(server: Fake, answer: Answer, stop: str, text: str) -> None:
    """Whoever asked parses it, asks again, or ends: it is no failure of the server's."""
    done = turn(server, answer, constraint=p.Constraint(schema=json.dumps(SCHEMA)))
    assert (done.stop, done.text, len(server.chats())) == (stop, text, 1)


@pytest.mark.rule("remote.misbehaviour")
def test_comments_and_other_fields_of_a_stream_are_passed_over(server: Fake) -> None:
    pieces = [
        b": keep-alive\n\n",
        b"id: 1\r\nevent: x\r\n" + chunk("a").replace(b"\n", b"\r\n"),
        chunk("b"),
        DONE,
    ]
    assert turn(server, streams(*pieces)).text == "ab"


@pytest.mark.rule("remote.misbehaviour")
def test_fields_that_are_not_what_they_should_be_are_passed_over(server: Fake) -> None:
    odd = [
        event({"choices": [{"delta": {"content": 5, "reasoning": None}, "finish_reason": 7}]}),
        event({"choices": ["x"], "usage": {"prompt_tokens": -1, "completion_tokens": "many"}}),
        event({"choices": [{"delta": [1]}]}),
    ]
    done = turn(server, streams(*odd, chunk("a"), DONE))
    assert (done.text, done.usage.prompt_tokens) == ("a", 1 + 2 * 5)


# --- what is tried again ------------------------------------------------------------------------------------------


def resets(handler: Handler) -> None:
    """The connection is reset, not closed."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


@pytest.mark.rule("remote.tried-again")
@pytest.mark.parametrize(
    "answer",
    [
        status(500, {"error": {"message": "oops"}}),
        status(503, {"error": {"message": "Loading model"}}),
        status(429, "slow down", Retry_After="0"),
        slams,
        resets,
        streams(),
        streams(chunk(role="assistant")),
        streams(b"data: {malformed\n\n"),
        streams(event([1])),
        streams(event({"error": {"message": "slot unavailable"}})),
        status(200, {"error": "busy"}),
        streams(b"<h1>Welcome</h1>", kind="text/html"),
    ],
    ids=[
        "500", "503", "429", "drop", "reset", "no-event", "no-word", "malformed", "no-object", "error-event",
        "error-object", "a-page",
    ],
)  # fmt: skip
def test_what_has_not_begun_is_tried_again_and_is_fine_in_the_end(server: Fake, answer: Answer) -> None:
    assert turn(server, *[answer] * 3, says("ok")).text == "ok"
    assert len(server.chats()) == 4


@pytest.mark.rule("remote.tried-again")
def test_a_server_that_fails_for_ever_is_given_up_with_its_own_words(server: Fake) -> None:
    failed = refusal(server, *[status(500, {"error": {"message": "out of memory"}})] * 20)
    assert failed.code == "server_failed"
    why = f"the server at {server.base}: it answered 500 Internal Server Error: out of memory (tried 8 times)"
    assert failed.message == why
    assert len(server.chats()) == 8


@pytest.mark.bound("remote.wait")
@pytest.mark.bound("remote.delay")
@pytest.mark.rule("remote.tried-again")
def test_the_delays_grow_and_a_server_that_names_one_is_heard_up_to_a_bound(
    server: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("aerix.pool.remote_http.asyncio.sleep", sleep)
    monkeypatch.setenv("AERIX_BOUND_REMOTE_DELAY", "0.5")
    monkeypatch.setenv("AERIX_BOUND_REMOTE_WAIT", "30")
    limited = [
        status(429, "no", Retry_After=value) for value in ("7", "100000", "Wed, 21 Oct 2026 07:28:00 GMT")
    ]
    assert turn(server, slams, slams, *limited, slams, says("ok")).text == "ok"
    assert waited == [0.5, 1, 7, 30, 8, 16]


@pytest.mark.bound("remote.tries")
@pytest.mark.rule("remote.tried-again")
def test_nobody_at_the_address_is_said_so(server: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_REMOTE_TRIES", "2")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        failed = refusal(server, ref=f"{base}#m")
    assert failed.code == "server_unreachable"
    assert failed.message == f"the server at {base}: nobody answers (Connection refused) (tried 2 times)"


@pytest.mark.bound("remote.connect")
@pytest.mark.rule("remote.tried-again")
def test_an_address_that_takes_no_connection_is_given_up(
    server: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_REMOTE_CONNECT", "0.1")
    monkeypatch.setenv("AERIX_BOUND_REMOTE_TRIES", "2")
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.create_connection(full.getsockname()),
    ):
        failed = refusal(server, ref=f"http://127.0.0.1:{full.getsockname()[1]}/v1#m")
    assert failed.code == "server_unreachable"
    assert failed.message.endswith("nobody answers in 0.1 s (tried 2 times)")


# --- what broke off -----------------------------------------------------------------------------------------------


@pytest.mark.rule("remote.broken-off")
@pytest.mark.parametrize(
    "answer",
    [
        streams(chunk("Hel")),
        breaks_off(chunk("Hel")),
        streams(chunk("Hel"), b"data: {malformed\n\n"),
        streams(chunk("Hel"), event({"error": {"message": "gone"}})),
        streams(chunk("Hel"), b"data: " + b"x" * 300_000),
    ],
    ids=["cut", "dropped", "malformed", "error", "huge-line"],
)
def test_a_turn_that_breaks_off_is_told_and_not_tried_again_behind_the_clients_back(
    server: Fake, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_REMOTE_LINE", "200000")
    got: list[p.Token] = []
    failed = refusal(server, answer, got=got)
    assert (failed.code, [piece.data for piece in got], len(server.chats())) == ("server_cut", [b"Hel"], 1)


# --- silence ------------------------------------------------------------------------------------------------------


@pytest.mark.bound("remote.silence")
@pytest.mark.rule("remote.silence")
def test_a_server_that_never_says_a_byte_is_given_up(server: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_REMOTE_SILENCE", "0.1")
    hold = Hold()
    failed = refusal(server, is_silent(hold))
    assert (failed.code, len(server.chats())) == ("server_silent", 1)
    assert failed.message.endswith("it sent nothing for 0.1 s")
    assert hold.closed.wait(10)


@pytest.mark.rule("remote.silence")
def test_comments_are_signs_of_life_however_long_it_takes(
    server: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_REMOTE_SILENCE", "0.4")
    holds = [Hold() for _ in range(6)]

    def slow(handler: Handler) -> None:
        handler.head(200, "text/event-stream")
        for hold in holds:
            handler.connection.settimeout(0.1)
            with pytest.raises(TimeoutError):
                handler.connection.recv(1)
            handler.wfile.write(b": still at it\n\n")
            handler.wfile.flush()
            hold.let_go()
        handler.wfile.write(chunk("at last") + DONE)

    assert turn(server, slow).text == "at last"


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("remote.own-words")
@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (
            status(401, {"error": {"message": "No key"}}),
            "server_refused",
            "401 Unauthorized: No key; name the variable",
        ),
        (status(404, {"detail": "no such model"}), "server_refused", "404 Not Found: no such model"),
        (
            status(422, {"error": "bad \x1b[31m field"}),
            "server_refused",
            "422 Unprocessable Entity: bad [31m field",
        ),
        (status(400, "<p>Bad\nRequest"), "server_refused", "400 Bad Request: <p>Bad Request"),
        (status(400), "server_refused", "it answered 400 Bad Request"),
        (
            status(400, {"error": {"type": "exceed_context_size_error", "message": "too long", "code": 400}}),
            "context_overflow",
            "too long",
        ),
        (
            status(400, {"error": {"code": "context_length_exceeded", "message": "no"}}),
            "context_overflow",
            "no",
        ),
    ],
    ids=["401", "404", "escapes", "page", "no-words", "llama-overflow", "openai-overflow"],
)
def test_a_refusal_is_told_in_the_servers_own_words_and_not_tried_again(
    server: Fake, answer: Answer, code: str, words: str
) -> None:
    failed = refusal(server, answer)
    assert (failed.code, len(server.chats())) == (code, 1)
    assert words in failed.message
    assert failed.message.isprintable()


@pytest.mark.rule("remote.no-redirects")
def test_a_redirect_is_not_followed(server: Fake) -> None:
    with fake() as other:
        failed = refusal(server, status(307, Location=f"{other.base}/chat/completions"))
        assert failed.code == "server_refused"
        assert f"it sends elsewhere, to {other.base}/chat/completions: name that address" in failed.message
        assert other.seen == []


@pytest.mark.bound("remote.text")
@pytest.mark.rule("remote.bounded-answers")
def test_an_answer_without_an_end_is_cut(server: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_REMOTE_TEXT", "1000")

    def endless(handler: Handler) -> None:
        handler.head(200, "text/event-stream")
        while True:
            handler.wfile.write(chunk("x" * 100))

    done = turn(server, endless)
    assert (done.stop, len(done.text)) == ("length", 1100)


@pytest.mark.bound("remote.line")
@pytest.mark.rule("remote.bounded-answers")
def test_a_line_without_an_end_is_not_read_to_its_end(server: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_REMOTE_LINE", "1000")
    monkeypatch.setenv("AERIX_BOUND_REMOTE_TRIES", "1")
    failed = refusal(server, streams(b"data: " + b"x" * 200_000))
    assert failed.code == "server_garbled"
    assert "a line of more than 1000 bytes" in failed.message


@pytest.mark.bound("remote.body")
@pytest.mark.rule("remote.bounded-answers")
def test_a_page_without_an_end_is_not_read_to_its_end(server: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_REMOTE_BODY", "1000")
    monkeypatch.setenv("AERIX_BOUND_REMOTE_TRIES", "1")
    page = refusal(server, status(200, "[" * 5000))
    assert page.code == "server_garbled"
    assert "more than 1000 bytes" in page.message
    assert refusal(server, status(404, "x" * 5000)).message.endswith("404 Not Found")


# --- the stream itself --------------------------------------------------------------------------------------------


def test_a_stream_may_be_cut_at_every_byte() -> None:
    data = chunk("é1") + b": x\n\n" + usage(3, 4) + chunk("2", "stop") + DONE
    whole: list[Said] = [Text("é1"), Spent(3, 4, 0, 0), Text("2"), Finished("stop"), Finished("")]
    for at in range(len(data) + 1):
        events = Events()
        assert [*events.feed(data[:at]), *events.feed(data[at:])] == whole


def test_nested_nonsense_is_garbled() -> None:
    with pytest.raises(Garbled):
        list(Events().feed(b"data: " + b"[" * 100_000 + b"\n\n"))


NAMES = st.sampled_from(
    [
        "choices",
        "delta",
        "message",
        "content",
        "reasoning",
        "finish_reason",
        "usage",
        "prompt_tokens",
        "error",
        "code",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.rule("remote.misbehaviour")
@settings(deadline=None)
@given(VALUES)
def test_whatever_json_comes_is_an_answer_or_has_a_name(value: object) -> None:
    try:
        found = list(said(json.dumps(value)))
    except (Garbled, Told) as named:
        assert str(named).isprintable()
        assert len(str(named)) < 1000
    else:
        assert all(isinstance(one, Text | Finished | Spent) for one in found)


def test_words_are_quoted_in_one_short_line() -> None:
    assert quoted("a\r\n\tb\x1b[0m") == "a b [0m"
    assert len(quoted("x" * 10_000)) == 301
