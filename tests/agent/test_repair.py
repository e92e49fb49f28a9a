"""Calls in a foreign shape in the loop: they run, the log counts them, and what is unclear is asked again."""

import json
from typing import Any

import pytest

from aerix.session.events import Note
from tests.runs import Desk, final, of, play, results, turns

READ = {"name": "read", "arguments": {"path": "README.md"}}
PLAYS: dict[str, list[dict[str, Any]]] = {
    "tags": [
        {"text": f"First I look.\n<tool_call>{json.dumps(READ)}</tool_call>"},
        {"text": "bash(command='echo hi')"},
        final("seen"),
    ],
    "unclear": [{"text": f"You could say:\n```json\n{json.dumps(READ)}\n```"}, final("sorry")],
    "cut": [{"text": f"<tool_call>{json.dumps(READ)}</tool_call>", "fault": "cut"}, final("short")],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("loose"), PLAYS, window=16384, json=False)


@pytest.mark.rule("request.self-test-line")
def test_a_model_that_cannot_be_held_to_the_schema_is_named_at_the_start(desk: Desk) -> None:
    notes = [event.text for event in desk("play unclear").shown if isinstance(event, Note)]
    assert notes[0] == f"▲ member {desk.model} cannot be constrained: it takes no JSON schema"


@pytest.mark.rule("turn.repaired")
def test_calls_in_a_foreign_shape_run_and_are_counted_in_the_log(desk: Desk) -> None:
    ran = desk("play tags")
    assert (ran.end.outcome, ran.end.text) == ("done", "seen")
    assert [(line["call"], line["tool"]) for line in results(ran.log)] == [("c1", "read"), ("c2", "bash")]
    assert [(line["id"], line["shape"]) for line in of(ran.log, "turn.repaired")] == [
        ("t1", "tags"), ("t2", "function"),
    ]  # fmt: skip
    assert turns(ran.log)[0]["text"] == PLAYS["tags"][0]["text"]  # what was said stays what was said


@pytest.mark.rule("turn.repaired")
def test_what_could_be_read_in_two_ways_is_asked_again(desk: Desk) -> None:
    ran = desk("play unclear")
    assert (ran.end.outcome, ran.end.text) == ("done", "sorry")
    assert results(ran.log) == of(ran.log, "turn.repaired") == []


def test_a_turn_that_was_cut_is_not_repaired(desk: Desk) -> None:
    ran = desk("play cut")
    assert (ran.end.outcome, ran.end.text) == ("done", "short")
    assert of(ran.log, "turn.repaired") == []
