"""The file behind ``scripted:FILE``: reading it, refusing it, and which step plays when."""

from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.script import Script


@pytest.fixture
def read(scripts: Any) -> Any:
    return lambda *lines: Script(scripts.write(*lines))


def said(script: Script, *segments: p.Segment) -> str:
    return script.step(segments).text


ASK = p.Segment("u1", "user", "please fix the bug")
TURN = p.Segment("a1", "assistant", "done")


@pytest.mark.rule("scripted.header")
def test_the_header_has_defaults(read: Any) -> None:
    header = read({}).header
    assert (header.window, header.tokenizer, header.json) == (8192, "bytes", True)


@pytest.mark.rule("scripted.header")
@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["{"], r"play.jsonl, line 1: no JSON \("),
        (["[]"], "line 1: a line is a JSON object"),
        ([{"windows": 1}], "line 1: unknown key `windows`; allowed are window, tokenizer, json"),
        ([{"window": "8k"}], "line 1: `window` must be a number"),
        ([{"window": True}], "line 1: `window` must be a number"),
        ([{"window": 0}], "line 1: `window` must be at least 1"),
        ([{"json": 1}], "line 1: `json` must be true or false"),
        ([{}, "", {"text": 1}], "line 3: `text` must be a text"),
        ([{}, {"turn": "x"}], "line 2: `turn` must be an object"),
        ([{}, {"turn": {}, "text": ""}], "line 2: a step has either `turn` or `text`"),
        ([{}, {"delay": 1}], "line 2: a step has either `turn` or `text`"),
        ([{}, {"text": "", "delay": -1}], "line 2: a delay is at least 0 seconds"),
        ([{}, {"text": "", "fault": "explode"}], "line 2: `fault` must be one of die, hang, cut, error"),
        ([{}, {"text": "", "match": "("}], r"line 2: `match` is no pattern \("),
        (["{}", '{"turn": {"final": "\\ud83d"}}'], "line 2: it has half of a surrogate pair"),
        (["{}", "[" * 100_000], "line 2: it is nested too deep"),
        ([], "is empty: its first line is a header"),
    ],
)
def test_a_faulty_line_is_named_with_its_number(read: Any, lines: list[Any], why: str) -> None:
    with pytest.raises(Refused, match=why) as refusal:
        read(*lines)
    assert refusal.value.code == "bad_script"


@pytest.mark.rule("scripted.turns")
def test_a_line_ends_at_a_line_feed_alone(read: Any) -> None:
    assert said(read("{}\r", '{"text": "a\u2028b\x85c"}'), ASK) == "a\u2028b\x85c"


@pytest.mark.bound("worker.script")
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="cannot be read: No such file"):
        Script(tmp_path / "none.jsonl")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(Refused, match="is not UTF-8 text"):
        Script(binary)
    monkeypatch.setenv("AERIX_BOUND_WORKER_SCRIPT", "1")
    with pytest.raises(Refused, match="larger than 1 bytes"):
        Script(binary)


@pytest.mark.rule("scripted.turns")
def test_steps_play_in_order_and_a_turn_is_written_without_white_space(read: Any) -> None:
    script = read({}, {"turn": {"thought": "é", "final": "x y"}}, {"text": "raw"})
    assert said(script, ASK) == '{"thought":"é","final":"x y"}'
    assert said(script, ASK, TURN, ASK) == "raw"


def test_a_note_in_place_of_a_removed_turn_counts_as_its_turn(read: Any) -> None:
    script = read({}, {"text": "first"}, {"text": "second"})
    assert said(script, ASK, p.Segment("t1.cut", "user", "that was cut")) == "second"
    assert said(script, ASK, p.Segment("t1.cut", "system", "no note")) == "first"


@pytest.mark.rule("scripted.match")
def test_a_step_with_a_pattern_answers_the_contexts_it_matches_before_those_without(read: Any) -> None:
    script = read(
        {},
        {"text": "any"},
        {"match": "fix", "text": "one"},
        {"match": "b.g", "text": "never"},
        {"match": "fix", "text": "two"},
    )
    assert said(script, ASK) == "one"
    assert said(script, ASK, TURN) == "two"
    assert said(script, p.Segment("u", "user", "hello")) == "any"


@pytest.mark.rule("scripted.exhausted")
def test_a_script_that_is_played_out_fails_by_name(read: Any) -> None:
    script = read({}, {"match": "fix", "text": "one"}, {"text": "any"})
    with pytest.raises(
        Refused, match=r"The script .*play.jsonl has no step for turn 2 of this context"
    ) as refusal:
        said(script, ASK, TURN)
    assert refusal.value.code == "script_ended"
    with pytest.raises(Refused, match="no step for turn 1"):
        said(read({}), ASK)


def test_a_choice_is_made_by_a_matching_step_whose_text_is_among_the_texts(read: Any) -> None:
    script = read(
        {}, {"text": "plan"}, {"match": "bug", "text": "whatever"}, {"match": "fix", "text": "edit"}
    )
    texts = ("answer", "edit", "plan")
    assert script.choice((ASK,), texts) == "edit"
    assert script.choice((p.Segment("u", "user", "hello"),), texts) == "answer"
    assert script.choice((ASK, TURN), texts) == "answer"
