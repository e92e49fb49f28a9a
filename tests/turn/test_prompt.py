"""The texts of the loop that a model reads."""

import json

import pytest

from aerix.turn import ToolSpec, TurnError, parse, prompt
from aerix.turn.parse import EXAMPLE_ANSWER

WEATHER = ToolSpec(
    "weather",
    "Today's forecast.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "City name."},
            "days": {"type": "integer"},
            "unit": {"type": "string", "enum": ["c", "f"]},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)
NOTHING = ToolSpec(
    "repo_map", "The file tree.", {"type": "object", "properties": {}, "additionalProperties": False}
)
WRITE = ToolSpec("write", "", {"type": "object", "properties": {"path": {}, "append": {"type": "boolean"}}})


def test_the_tools_are_listed_with_signatures_from_their_schemas():
    assert prompt.tools_section([WEATHER, NOTHING]) == (
        "# Tools\n"
        "- weather(city, days?, unit?: c|f): Today's forecast. city: City name.\n"
        "- repo_map(): The file tree."
    )


@pytest.mark.rule("turn.contract-by-code")
def test_the_turns_section_is_text_with_an_example_of_each_kind():
    assert prompt.turns_section([WEATHER, NOTHING]) == (
        "# Turns\n"
        "Answer every turn with one JSON object and nothing else. When you know enough, answer the user:\n"
        '{"thought":"I know enough","final":"<your answer>"}\n'
        "Before that, call tools, at most 8 a turn, in order; each result comes back under [<tool> <id>]:\n"
        '{"thought":"I look first","calls":[{"tool":"weather","input":{"city":"…"}}]}'
    )


@pytest.mark.rule("turn.contract-by-code")
@pytest.mark.parametrize("tools", [[WEATHER, NOTHING], [NOTHING], []])
def test_the_examples_are_turns_themselves(tools):
    examples = [line for line in prompt.turns_section(tools).splitlines() if line.startswith("{")]
    assert (2 if tools else 1) == len(examples)
    for example in examples:
        assert not isinstance(parse(example.replace(EXAMPLE_ANSWER, "42"), tools), TurnError)


def test_the_example_of_a_final_with_a_schema_is_of_that_schema():
    verdict = {
        "type": "object",
        "properties": {"verdict": {"enum": ["pass", "fail"]}, "reason": {"type": "string"}},
        "required": ["verdict", "reason"],
    }
    final = prompt.turns_section([], verdict).splitlines()[-1]
    assert json.loads(final)["final"] == {"verdict": "pass", "reason": "…"}


@pytest.mark.rule("turn.final-schema")
def test_a_schema_of_the_users_is_told_with_an_example_of_it():
    schema = {
        "type": "object",
        "properties": {
            "kind": {"const": "list"},
            "of": {"type": "array", "items": {"type": ["string", "null"]}},
        },
        "required": ["kind", "of"],
    }
    told = prompt.final_text(schema, [WEATHER])
    assert told.startswith(prompt.turns_section([WEATHER], schema))
    assert '"final":{"kind":"list","of":["…"]}' in told
    assert json.loads(told.splitlines()[-1]) == schema


@pytest.mark.rule("turn.no-example-to-copy")
def test_a_model_that_is_held_to_the_shape_is_told_in_words_and_has_nothing_to_copy():
    for tools in ([WEATHER], []):
        told = prompt.turns_in_words(tools)
        assert told.startswith("# Turns\n")
        assert "{" not in told
        assert all(
            f"`{key}`" in told for key in ("thought", "final", *(["calls", "tool", "input"] if tools else []))
        )
        assert prompt.system_text("You.", tools, held=True).endswith(told)
    schema = {"type": "array", "items": {"type": "string"}}
    assert prompt.final_text(schema, [WEATHER], held=True).splitlines() == [
        "# Turns",
        "Here `final` is a JSON value of this schema, not a text about it:",
        '{"type":"array","items":{"type":"string"}}',
    ]


@pytest.mark.rule("turn.calls-kept")
def test_the_contract_names_the_number_of_calls_in_force():
    for held in (True, False):
        assert "at most 3 a turn" in prompt.system_text("You.", [WEATHER], held=held, max_calls=3)


@pytest.mark.rule("turn.contract-by-code")
def test_the_contract_follows_the_prompt_file_and_the_tools():
    text = prompt.system_text("You are an agent.\n", [WEATHER])
    assert text.startswith("You are an agent.\n\n# Tools\n- weather(")
    assert text.endswith("\n\n" + prompt.turns_section([WEATHER]))


def test_without_tools_there_is_no_tools_section():
    assert "You are an agent.\n\n" + prompt.turns_section([]) == prompt.system_text("You are an agent.", [])


@pytest.mark.rule("turn.result-heading")
def test_a_result_is_headed_by_tool_and_id():
    assert prompt.result("read", "c3", "1\tone") == "[read c3]\n1\tone"


@pytest.mark.rule("turn.malformed")
def test_a_malformed_turn_is_sent_back_with_what_was_wrong():
    error = parse("{}", [])
    assert prompt.malformed(error) == (
        "Your last answer is not a turn. The object has neither `calls` nor `final`. "
        "Answer again with one JSON object, as # Turns says."
    )


@pytest.mark.rule("turn.cut-says-tokens")
def test_a_cut_turn_is_asked_again_with_the_number_that_cut_it_and_for_smaller_parts():
    assert (
        prompt.cut(4096)
        == "Your last answer was cut off at 4096 tokens and is lost. Answer again in smaller parts."
    )
    assert prompt.cut(4096, [WRITE]).endswith(
        "Write a long file in parts: its start first, then the rest with append."
    )
