"""The engine that plays scripts: what it says, and what goes wrong on request. Deaths are shown in test_worker.py."""

import json
import threading
import time
from typing import Any

import pytest

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.rows import Aborted, Row, Scene

TURN = {"thought": "hm", "final": "x"}
SCHEMA = {
    "type": "object",
    "properties": {"thought": {"type": "string"}, "final": {"type": "string"}},
    "required": ["thought", "final"],
    "additionalProperties": False,
}
JSON = p.Constraint(schema=json.dumps(SCHEMA))


@pytest.mark.rule("scripted.turns")
def test_a_conversation_plays_its_steps_in_order(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"turn": TURN}, {"text": "then this"})
    desk.create(user("Hi"))
    first = desk.generate(constraint=JSON)
    assert json.loads(first.text) == TURN
    desk.append(p.Segment("a1", "assistant", first.text), user("and", "u2"))
    assert desk.generate().text == "then this"


@pytest.mark.rule("scripted.resumes")
def test_the_same_context_plays_the_same_step_again(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": "one"}, {"text": "two"})
    desk.create(user("Hi"))
    assert [desk.generate().text, desk.generate(start=[*b"on"]).text] == ["one", "one"]


def test_a_step_that_the_schema_forbids_is_named(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"turn": {"thought": "hm", "other": 1}})
    desk.create(user("Hi"))
    with pytest.raises(Refused) as refusal:
        desk.generate(constraint=JSON)
    assert refusal.value.code == "script_mismatch"
    assert refusal.value.message.endswith(
        """play.jsonl, line 2: after '{"thought":"hm","' the step says '{"thought":"hm","other":1}', """
        """but the schema forces more."""
    )


def test_a_token_that_the_schema_forbids_is_named_with_what_is_allowed(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": '{"thought":"a\nb"}'})
    desk.create(user("Hi"))
    with pytest.raises(Refused, match="line 2") as refusal:
        desk.generate(constraint=JSON)
    assert refusal.value.code == "script_mismatch"
    assert (
        "after '{\"thought\":\"a' the step says '\\nb\"}', but only this is allowed there"
        in refusal.value.message
    )


def test_a_text_that_ends_before_the_schema_does_is_named(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": '{"thought":"a'})
    desk.create(user("Hi"))
    with pytest.raises(Refused, match="the step says 'the end of the turn'"):
        desk.generate(constraint=JSON)


@pytest.mark.rule("scripted.faults")
def test_a_cut_step_ends_as_if_its_tokens_ran_out(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": '{"thought":"and on', "fault": "cut"}, {"turn": TURN, "fault": "cut"})
    desk.create(user("Hi"))
    done = desk.generate(constraint=JSON)
    assert (done.stop, done.text) == ("length", '{"thought":"and on')
    desk.append(user("too long", "u1.cut"))
    done = desk.generate(constraint=JSON)
    assert done.stop == "length"
    assert 12 < len(done.text) < len(json.dumps(TURN))


@pytest.mark.rule("scripted.faults")
def test_an_error_step_fails_the_generation_by_name(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": "abc", "fault": "error"})
    desk.create(user("Hi"))
    with pytest.raises(Refused, match="line 2: the step says `fault: error`") as refusal:
        desk.generate()
    assert refusal.value.code == "scripted_error"
    assert bytes(desk.streamed) == b"abc"


@pytest.mark.rule("scripted.delays")
def test_a_step_waits_before_its_first_token_and_between_tokens(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": "abc", "delay": 0.5, "per_token_delay": 0.02})
    desk.create(user("Hi"))
    begun = time.monotonic()
    assert desk.generate().text == "abc"
    assert time.monotonic() - begun >= 0.5 + 3 * 0.02
    begun = time.monotonic()
    desk.generate(start=[*b"abc"])
    assert time.monotonic() - begun < 0.5, "what was taken up again does not wait anew"


def test_a_wait_can_be_interrupted(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": "abc", "delay": 3600})
    desk.create(user("Hi"))
    generation = desk.open()
    timer = threading.Timer(0.01, desk.engine.interrupt)
    timer.start()
    with pytest.raises(Aborted):
        desk.step(generation)
    timer.join()
    generation.close()


def test_a_text_is_said_in_whatever_pieces_the_schema_forces(scripts: Any) -> None:
    """A forced stretch may end inside one of the text's own tokens, and inside a character."""
    engine = scripts.engine({}, {"text": "añb"})
    engine.begin(0, Scene((p.Segment("u", "user", ""),), prompt=1, resumed=False))
    rows = [Row(0, 0, 0), Row(ord("a"), 1, 0), Row("ñ".encode()[0], 2, 0, logits=True)]
    (logits,) = engine.decode(rows)
    assert logits.argmax() == "ñ".encode()[1]


@pytest.mark.rule("scripted.header")
def test_the_header_says_what_the_member_serves(scripts: Any) -> None:
    facts = scripts.engine({"window": 100, "json": False}).facts
    assert (facts.window, facts.json) == (100, False)
    assert scripts.engine({"window": 100}, window=50).facts.window == 50
