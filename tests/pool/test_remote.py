"""A member that is a model on a server: what is asked of the server, and what a client gets, all being well."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from aerix.pool import protocol as p
from aerix.pool.bounds import UNSCORED
from aerix.pool.workerargs import WorkerArgs
from tests.pool.owner import Asked, Owner, worker
from tests.pool.remote_server import Fake, Hold, chunk, fake, is_silent, says, status, streams, usage

HI = p.Segment("u1", "user", "Hi")
SCHEMA = {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False,
}  # fmt: skip
JSON = p.Constraint(schema=json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Fake, Owner]]:
    """A server that does all it should, and its member's worker."""
    with fake() as server, worker(WorkerArgs(server.ref)) as owner:
        assert owner.info
        yield server, owner


@pytest.fixture
def server(shared: tuple[Fake, Owner]) -> Fake:
    shared[0].seen.clear()
    shared[0].answers.clear()
    return shared[0]


@pytest.fixture
def owner(shared: tuple[Fake, Owner]) -> Owner:
    return shared[1]


@pytest.mark.rule("contexts.generate-appends")
def test_what_a_generation_appends_is_counted_and_asked_with_the_rest(server: Fake, owner: Owner) -> None:
    server.answers.append(says("Fine", spent=usage(31, 2)))
    context = owner.create(HI)
    append = [p.Segment("a1", "assistant", "Yes?"), p.Segment("u2", "user", "more")]
    asked = owner.ask(p.Generate(5, context, 100, append=append))
    assert asked.result().text == "Fine"
    assert isinstance(asked.pieces[0], p.ContextState)
    assert {"a1", "u2"} <= {count.id for count in asked.pieces[0].segments}
    assert [one["content"] for one in server.seen[-1][3]["messages"]] == ["Hi", "Yes?", "more"]
    refused = owner.ask(p.Generate(5, context, 100, append=append))
    assert (refused.refusal().code, refused.pieces) == ("duplicate_segment", [])
    assert owner.ask(p.ContextRead(2, context)).result().segments == [HI, *append]


def ask(owner: Owner, *segments: p.Segment, max_tokens: int = 100, **fields: Any) -> Asked:
    return owner.ask(p.Generate(5, owner.create(*(segments or (HI,))), max_tokens, **fields))


# --- chats --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("remote.chat")
def test_a_context_is_asked_as_chat_messages_and_answered_as_it_comes(server: Fake, owner: Owner) -> None:
    server.answers.append(says("Hel", "lo", spent=usage(31, 2, 7)))
    asked = ask(
        owner,
        p.Segment("s1", "system", "Be kind."),
        p.Segment("s2", "system", "Be brief."),
        HI,
        p.Segment("a1", "assistant", "Yes?", tokens=[1, 2], vocab="x"),
        p.Segment("r1", "user", "It printed 3."),
        p.Segment("u2", "user", "Go on."),
        sampling=p.Sampling(0.5, 0.9, 0.1, 7),
    )
    done = asked.result()
    assert (done.stop, done.text, done.tokens, done.vocab) == ("stop", "Hello", [], "")
    assert [(piece.data, piece.tokens) for piece in asked.pieces] == [(b"Hel", []), (b"lo", [])]
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (31, 2)
    assert (done.usage.recomputed_from, done.usage.shelf) == (7, "resident")
    (body,) = server.chats()
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be kind.\n\nBe brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": "It printed 3.\n\nGo on."},
        ],
        "max_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 7,
    }


@pytest.mark.rule("remote.chat")
def test_a_context_takes_every_edit_and_reads_back(server: Fake, owner: Owner) -> None:
    def change(message: Any) -> p.ContextState:
        state = owner.ask(message).result()
        assert isinstance(state, p.ContextState)
        return state

    context = owner.create(p.Segment("s", "system", "S"), HI)
    change(p.ContextAppend(2, context, [p.Segment("a", "assistant", "A"), p.Segment("u2", "user", "B")]))
    state = change(p.ContextReplace(2, context, p.Segment("a", "assistant", "C")))
    assert [count.id for count in state.segments] == ["s", "u1", "a", "u2"]
    assert state.tokens == sum(count.tokens for count in state.segments)
    fork = change(p.ContextFork(2, context, "a")).context
    change(p.ContextRemove(2, context, ["a", "u1"]))
    texts = [
        [segment.text for segment in owner.ask(p.ContextRead(3, name)).result().segments]
        for name in (context, fork)
    ]
    assert texts == [["S", "B"], ["S", "Hi", "C"]]
    assert owner.ask(p.ContextDrop(4, fork)).result() == p.Ok(4)
    refusals = {
        "unknown_context": p.ContextRead(3, fork),
        "unknown_segment": p.ContextRemove(3, context, ["nobody"]),
        "duplicate_segment": p.ContextAppend(3, context, [p.Segment("s", "user", "x")]),
        "late_system": p.ContextAppend(3, context, [p.Segment("s3", "system", "x")]),
    }
    assert {code: owner.ask(message).refusal().code for code, message in refusals.items()} == {
        code: code for code in refusals
    }


@pytest.mark.rule("remote.chat")
def test_what_a_model_thinks_first_is_told_apart(server: Fake, owner: Owner) -> None:
    server.answers.append(streams(chunk(reasoning_content="Hm."), chunk("Yes"), chunk(finish="stop")))
    asked = ask(owner)
    assert (asked.result().text, asked.result().thinking) == ("Yes", "Hm.")
    assert [(piece.data, piece.thinking) for piece in asked.pieces] == [(b"Hm.", True), (b"Yes", False)]


@pytest.mark.rule("remote.chat")
def test_an_answer_that_does_not_stream_is_an_answer(server: Fake, owner: Owner) -> None:
    whole = {
        "choices": [{"message": {"content": "All."}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 9},
    }
    server.answers.append(status(200, whole))
    done = ask(owner).result()
    assert (done.text, done.stop, done.usage.prompt_tokens) == ("All.", "length", 9)


@pytest.mark.rule("remote.no-start")
def test_token_ids_to_go_on_from_are_refused(server: Fake, owner: Owner) -> None:
    refusal = ask(owner, start=[1]).refusal()
    assert (refusal.code, server.chats()) == ("bad_start", [])


# --- constraints --------------------------------------------------------------------------------------------------


@pytest.mark.rule("remote.misbehaviour")
def test_what_cannot_be_sent_is_refused(server: Fake, owner: Owner) -> None:
    for schema in ('{"const": ', '{"const": NaN}'):
        assert ask(owner, constraint=p.Constraint(schema=schema)).refusal().code == "bad_constraint"
    assert ask(owner, sampling=p.Sampling(float("inf"))).refusal().code == "bad_request"
    server.answers.append(says("half a character: ", "\ud800"))
    assert ask(owner).result().text == "half a character: ?"


@pytest.mark.rule("remote.schema")
def test_a_schema_goes_to_the_server_and_a_whole_value_is_final(server: Fake, owner: Owner) -> None:
    assert owner.info["json"] is True
    server.answers.extend([says('{"a"', ": 1}"), says('{"a"', finish="length"), says("I will not.")])
    stops = [ask(owner, constraint=JSON).result().stop for _ in range(3)]
    assert stops == ["final", "length", "stop"]
    form = server.chats()[0]["response_format"]
    assert form == {
        "type": "json_schema",
        "json_schema": {"name": "turn", "strict": True, "schema": SCHEMA},
    }


@pytest.mark.rule("constraint.one-of-unscored")
def test_a_choice_is_generated_freely_and_what_matches_none_is_no_choice(server: Fake, owner: Owner) -> None:
    texts = p.Constraint(texts=["answer", "edit"])
    server.answers.extend(
        [says('"Edit".'), says("I would rather", finish="length"), says("answer", finish="length")]
    )
    dones = [ask(owner, constraint=texts).result() for _ in range(3)]
    assert [(done.choice, done.stop, done.scores) for done in dones] == [
        (1, "final", None),
        (None, "length", None),
        (0, "final", None),
    ]
    assert {body["max_tokens"] for body in server.chats()} == {UNSCORED.count}
    for bad in (p.Constraint(texts=[]), p.Constraint(texts=["a", ""]), p.Constraint()):
        assert ask(owner, constraint=bad).refusal().code == "bad_constraint"


# --- cancels ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("remote.cancel")
def test_a_cancel_closes_the_connection_and_keeps_what_came(server: Fake, owner: Owner) -> None:
    hold = Hold()
    server.answers.append(streams(chunk("Hel"), hold=hold))
    asked = ask(owner)
    asked.until(bool)
    owner.cancel(asked)
    done = asked.result()
    assert (done.stop, done.text) == ("cancelled", "Hel")
    assert hold.closed.wait(10)


@pytest.mark.rule("remote.cancel")
def test_a_cancel_before_the_first_word_closes_the_connection(server: Fake, owner: Owner) -> None:
    hold = Hold()
    server.answers.append(is_silent(hold))
    asked = ask(owner)
    owner.status(lambda info: info.running == 1 and len(server.chats()) == 1)
    owner.cancel(asked)
    assert (asked.result().stop, asked.result().text) == ("cancelled", "")
    assert hold.closed.wait(10)


@pytest.mark.rule("remote.several")
def test_four_turns_run_at_once_and_a_fifth_waits(server: Fake, owner: Owner) -> None:
    ends = [Hold() for _ in range(4)]
    server.answers.extend([streams(chunk("."), chunk(finish="stop"), hold=end) for end in ends])
    server.answers.append(says("fifth"))
    first = [ask(owner) for _ in range(4)]
    for one in first:
        one.until(bool)
    fifth = ask(owner)
    owner.status(lambda info: (info.running, info.waiting) == (4, 1))
    assert len(server.chats()) == 4
    ends[2].let_go()
    assert fifth.result().text == "fifth"
    for end in (ends[0], ends[1], ends[3]):
        end.let_go()
    assert [one.result().text for one in first] == ["."] * 4
