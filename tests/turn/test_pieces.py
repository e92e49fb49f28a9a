"""The texts of delegation that a model reads."""

import json

import jsonschema
import pytest

from aerix.prompts import load
from aerix.tools import TOOLS
from aerix.turn import pieces
from aerix.turn.parse import Turn, TurnError, parse
from aerix.turn.schema import turn_schema

READING = [TOOLS["read"], TOOLS["bash"]]


@pytest.mark.rule("delegation.implementer-fork")
def test_a_brief_stands_in_the_prompt_as_it_is():
    """Also one that looks like a place to fill."""
    text = pieces.brief_text(load("brief"), "Pay $check to ${brief} and $nobody.", "", may_delegate=True)
    assert "# Brief\nPay $check to ${brief} and $nobody.\n" in text
    assert f"# Check\n{pieces.NO_CHECK}" in text
    assert pieces.AT_LIMIT not in text
    assert pieces.brief_text("$brief", "x", "", may_delegate=False).endswith(pieces.AT_LIMIT)


@pytest.mark.rule("delegation.verifier-fresh")
def test_a_verifier_reads_what_was_asked_what_was_said_and_how_to_answer():
    text = pieces.verifier_text(load("verifier"), "Do it.", "make test", "I did.", ["a.py", "b.py"], READING)
    for part in (
        "Do it.",
        "make test",
        "I did.",
        "- a.py\n- b.py",
        "# Turns",
        '"final":{"verdict":"pass","reason":"…"}',
    ):
        assert part in text
    assert pieces.NO_FILES in pieces.verifier_text("$files", "", "", "", [], READING)


@pytest.mark.rule("turn.no-example-to-copy")
def test_a_verifier_that_is_held_to_its_verdict_is_shown_none_that_it_could_copy():
    text = pieces.verifier_text("Look.", "", "", "", [], READING, held=True)
    assert '"pass","fail"' in text
    assert '"verdict":"pass"' not in text


@pytest.mark.rule("turn.verdict")
@pytest.mark.parametrize(
    ("final", "good"),
    [
        ('{"verdict":"pass","reason":"seen"}', True),
        ('{"verdict":"fail","reason":""}', True),
        ('{"verdict":"maybe","reason":"x"}', False),
        ('{"verdict":"pass"}', False),
        ('"pass"', False),
    ],
)
def test_a_verdict_is_pass_or_fail_with_a_reason(final, good):
    text = f'{{"thought":"","final":{final}}}'
    found = parse(text, READING, pieces.VERDICT)
    assert isinstance(found, Turn if good else TurnError)
    schema = turn_schema(READING, pieces.VERDICT)
    assert (
        jsonschema.Draft202012Validator(schema).is_valid({"thought": "", "final": json.loads(final)}) == good
    )


@pytest.mark.rule("delegation.planner")
def test_a_planner_is_told_what_it_may_call():
    assert "only: read, bash." in pieces.planner_note(READING)


@pytest.mark.rule("turn.contract-by-code")
@pytest.mark.parametrize("name", ["brief", "verifier"])
def test_no_prompt_file_of_delegation_tells_the_shape_of_a_turn(name):
    assert "{" not in load(name)
    assert "# Turns" not in load(name)
