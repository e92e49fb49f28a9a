"""The schema of a turn, and the check of an input."""

import json

import pytest

from aerix.turn import CALLS, THOUGHT_CHARS, ToolSpec, check_input, check_value, turn_schema

READ = ToolSpec(
    "read",
    "Lines of a file.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 200},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
)
PLAN = ToolSpec(
    "plan",
    "Your plan.",
    {
        "type": "object",
        "properties": {"op": {"type": "string", "enum": ["read", "write"]}, "text": {"type": "string"}},
        "required": ["op"],
        "additionalProperties": False,
    },
)


def objects(schema):
    """Every object schema inside a schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for inner in schema.values():
            yield from objects(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from objects(inner)


@pytest.mark.rule("turn.schema")
def test_a_turn_is_a_thought_and_then_calls_or_a_final():
    calls, final = turn_schema([READ, PLAN])["oneOf"]
    assert ["thought", "calls"] == list(calls["properties"]) == calls["required"]
    assert ["thought", "final"] == list(final["properties"]) == final["required"]
    assert calls["properties"]["thought"] == {"type": "string", "maxLength": THOUGHT_CHARS}
    assert (calls["properties"]["calls"]["minItems"], calls["properties"]["calls"]["maxItems"]) == (1, CALLS)
    assert (THOUGHT_CHARS, CALLS) == (600, 8)


@pytest.mark.rule("turn.schema")
def test_a_call_is_one_of_the_tools_each_with_its_own_input():
    calls = turn_schema([READ, PLAN])["oneOf"][0]["properties"]["calls"]["items"]["oneOf"]
    assert [c["properties"]["tool"] for c in calls] == [{"const": "read"}, {"const": "plan"}]
    assert [READ.input, PLAN.input] == [c["properties"]["input"] for c in calls]


@pytest.mark.rule("turn.schema")
def test_every_object_is_closed():
    assert all(o["additionalProperties"] is False for o in objects(turn_schema([READ, PLAN])))


def test_without_tools_a_turn_is_a_final():
    assert list(turn_schema([])["properties"]) == ["thought", "final"]


def test_a_final_can_have_a_schema_of_its_own():
    verdict = {
        "type": "object",
        "properties": {"verdict": {"enum": ["pass", "fail"]}},
        "additionalProperties": False,
    }
    assert verdict == turn_schema([READ], verdict)["oneOf"][1]["properties"]["final"]


@pytest.mark.rule("turn.schema")
@pytest.mark.parametrize(
    ("turn", "valid"),
    [
        ({"thought": "x", "calls": [{"tool": "read", "input": {"path": "a", "limit": 3}}]}, True),
        ({"thought": "x", "final": "done"}, True),
        ({"thought": "x", "final": ""}, False),
        ({"final": "done"}, False),
        ({"thought": "x", "calls": [], "final": "done"}, False),
        ({"thought": "x", "calls": []}, False),
        ({"thought": "x", "calls": [{"tool": "plan", "input": {"op": "read"}}] * 8}, True),
        ({"thought": "x", "calls": [{"tool": "plan", "input": {"op": "read"}}] * 9}, False),
        ({"thought": "x" * 600, "final": "done"}, True),
        ({"thought": "x" * 601, "final": "done"}, False),
        ({"thought": "x", "calls": [{"tool": "read", "input": {"path": "a", "depth": 3}}]}, False),
        ({"thought": "x", "calls": [{"tool": "bash", "input": {}}]}, False),
    ],
)
def test_the_schema_takes_turns_and_nothing_else(turn, valid):
    from jsonschema import Draft202012Validator

    assert valid == Draft202012Validator(turn_schema([READ, PLAN])).is_valid(turn)


def test_a_schema_is_plain_json():
    schema = turn_schema([READ, PLAN])
    assert schema == json.loads(json.dumps(schema))


@pytest.mark.rule("turn.input-checked")
@pytest.mark.parametrize(
    ("tool", "value", "wrong"),
    [
        (READ, {"path": "a"}, None),
        (READ, {"path": "a", "limit": 1}, None),
        (READ, {}, "`path` is missing; the keys are path, limit."),
        (READ, {"path": 3}, "`path` must be a string, not an integer."),
        (READ, {"path": "a", "limit": "3"}, "`limit` must be an integer, not a string."),
        (READ, {"path": "a", "limit": 2.5}, "`limit` must be an integer, not a number."),
        (READ, {"path": "a", "limit": True}, "`limit` must be an integer, not true or false."),
        (READ, {"path": "a", "limit": None}, "`limit` must be an integer, not null."),
        (READ, {"path": "a", "limit": 0}, "`limit` must be at least 1."),
        (READ, {"path": "a", "limit": 201}, "`limit` must be at most 200."),
        (READ, {"path": "a", "x" * 90: 1}, f"`{'x' * 39}…` is not known; the keys are path, limit."),
        (READ, ["a"], "the input must be an object, not a list."),
        (PLAN, {"op": "erase"}, "`op` must be one of read, write."),
        (ToolSpec("t", "", {"type": "object", "additionalProperties": False}), {"a": 1},
         "`a` is not known; there are no keys."),
    ],
)  # fmt: skip
def test_an_input_is_checked_in_a_sentence(tool, value, wrong):
    assert wrong == check_input(tool.input, value)


@pytest.mark.parametrize(
    ("schema", "value", "wrong"),
    [
        ({"type": "number"}, 3, None),
        ({"type": ["string", "null"]}, None, None),
        ({"type": ["string", "null"]}, 1, "must be a string or null, not an integer."),
        ({"const": 1}, True, "must be 1, not true or false."),
        ({"enum": [1, 2]}, True, "must be one of 1, 2."),
        ({"type": "string", "minLength": 1}, "", "must not be empty."),
        ({"type": "string", "minLength": 3}, "ab", "must have at least 3 characters."),
        ({"type": "string", "maxLength": 1}, "ab", "must have at most 1 characters."),
        ({"type": "something new"}, object(), None),
    ],
)
def test_a_value_is_checked_in_the_end_of_a_sentence(schema, value, wrong):
    assert wrong == check_value(schema, value)


@pytest.mark.rule("turn.final-schema")
@pytest.mark.parametrize(
    ("tools", "at"), [([READ], "#/oneOf/1/properties/final"), ([], "#/properties/final")]
)
def test_a_final_of_a_schema_with_references_refers_into_the_turns_schema(tools, at):
    given = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.org/x",
        "properties": {"const": {"$ref": "#/$defs/a"}, "other": {"const": {"$ref": "#/$defs/a"}}},
        "$defs": {"a": {"type": "string"}},
    }
    whole = turn_schema(tools, given)
    turn = whole["oneOf"][1] if tools else whole
    assert turn["properties"]["final"] == {
        "properties": {"const": {"$ref": f"{at}/$defs/a"}, "other": {"const": {"$ref": "#/$defs/a"}}},
        "$defs": {"a": {"type": "string"}},
    }
