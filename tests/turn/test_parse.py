"""Reading a turn, and everything that is none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerix.turn import CALLS, Call, ToolSpec, Turn, TurnError, parse

READ = ToolSpec(
    "read",
    "Lines of a file.",
    {
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["path"],
        "additionalProperties": False,
    },
)
VERDICT = {
    "type": "object",
    "properties": {"verdict": {"type": "string", "enum": ["pass", "fail"]}, "reason": {"type": "string"}},
    "required": ["verdict", "reason"],
    "additionalProperties": False,
}


def calls(*inputs, tool="read"):
    return json.dumps({"thought": "x", "calls": [{"tool": tool, "input": i} for i in inputs]})


def test_a_turn_with_calls():
    turn = parse(calls({"path": "a"}, {"path": "b", "limit": 2}), [READ])
    assert (
        Turn("x", (Call("c1", "read", {"path": "a"}), Call("c2", "read", {"path": "b", "limit": 2}))) == turn
    )


def test_a_turn_with_a_final():
    assert Turn("x", final="done", value="done") == parse(' {"thought":"x","final":"done"}\n', [READ])


@pytest.mark.rule("turn.call-ids")
def test_calls_are_numbered_over_an_agents_life():
    turn = parse(calls({"path": "a"}, {"path": "b"}), [READ], first_call=41)
    assert [c.id for c in turn.calls] == ["c41", "c42"]


@pytest.mark.rule("turn.thought-cut")
def test_a_thought_over_600_characters_is_cut():
    turn = parse(json.dumps({"thought": "é" * 601, "final": "done"}), [READ])
    assert turn.thought == "é" * 600


@pytest.mark.rule("turn.no-thought")
@pytest.mark.parametrize("text", ['{"final":"done"}', '{"thought":null,"final":"done"}'])
def test_a_turn_without_a_thought_is_taken(text):
    assert Turn("", final="done", value="done") == parse(text, [READ])


@pytest.mark.rule("turn.calls-kept")
@pytest.mark.parametrize(("more", "note"), [
    (1, "1 call dropped: at most 8 are run in one turn."),
    (3, "3 calls dropped: at most 8 are run in one turn."),
])  # fmt: skip
def test_at_most_eight_calls_are_kept_and_the_rest_is_dropped_with_a_note(more, note):
    turn = parse(calls(*[{"path": str(n)} for n in range(CALLS + more)]), [READ])
    assert [str(n) for n in range(8)] == [c.input["path"] for c in turn.calls]
    assert (note,) == turn.notes


def test_eight_calls_are_kept_without_a_note():
    turn = parse(calls(*[{"path": "a"}] * 8), [READ])
    assert (len(turn.calls), turn.notes) == (8, ())


@pytest.mark.rule("turn.calls-kept")
def test_the_number_of_calls_kept_can_be_set_smaller():
    turn = parse(calls({"path": "a"}, {"path": "b"}), [READ], max_calls=1)
    assert [c.id for c in turn.calls] == ["c1"]


@pytest.mark.rule("turn.tool-error-is-a-result")
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            {"tool": "shell", "input": {}},
            "error: there is no tool `shell` to call here; the tools are: read.",
        ),
        ({"tool": "read", "input": {}}, "error: `path` is missing; the keys are path, limit."),
        ({"tool": "read"}, "error: `path` is missing; the keys are path, limit."),
        ({"tool": "read", "input": "a"}, "error: the input must be an object, not a string."),
        ({"tool": "read", "input": {"path": 1}}, "error: `path` must be a string, not an integer."),
    ],
)
def test_a_call_that_cannot_be_run_is_kept_with_its_error(call, error):
    turn = parse(json.dumps({"calls": [call, {"tool": "read", "input": {"path": "a"}}]}), [READ])
    assert [error, None] == [c.error for c in turn.calls]


@pytest.mark.rule("tools.reserved-names")
@pytest.mark.parametrize("name", ["web_fetch", "web_search"])
def test_a_reserved_name_is_refused_when_it_is_called(name):
    turn = parse(calls({"url": "x"}, tool=name), [READ])
    assert f"refused: {name} is a reserved name; no tool has it." == turn.calls[0].error


@pytest.mark.rule("turn.final-schema")
def test_a_final_with_a_schema_keeps_its_value_and_its_json():
    turn = parse('{"thought":"","final":{"verdict":"pass","reason":"ok"}}', [], VERDICT)
    assert {"verdict": "pass", "reason": "ok"} == turn.value == json.loads(turn.final)


@pytest.mark.rule("turn.final-schema")
@pytest.mark.parametrize(
    ("schema", "final", "message"),
    [
        (VERDICT, {"verdict": "maybe", "reason": ""}, "In `final`, `verdict` must be one of pass, fail."),
        (VERDICT, "pass", "`final` must be an object, not a string."),
        ({"type": "integer"}, "3", "`final` must be an integer, not a string."),
    ],
)
def test_a_final_that_is_not_of_its_schema_is_asked_again(schema, final, message):
    assert TurnError("bad_final", message) == parse(json.dumps({"final": final}), [], schema)


@pytest.mark.rule("turn.malformed")
@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", "empty", "The answer was empty."),
        (" \n", "empty", "The answer was empty."),
        ("I will read it.", "not_json", "It is not JSON: Expecting value at character 1."),
        ('{"final":"a"} more', "not_json", "It is not JSON: Extra data at character 15."),
        ('{"final":"a', "not_json", "It is not JSON: Unterminated string starting at at character 10."),
        ('{"final":NaN}', "not_json", "It is not JSON: NaN is no number."),
        ('{"calls":1e999}', "not_json", "It is not JSON: a number is too large."),
        ('{"calls":' + "1" * 5000 + "}", "not_json", "It is not JSON: a number is too long."),
        ('["final"]', "not_object", "It is JSON, but not one object."),
        ('"final"', "not_object", "It is JSON, but not one object."),
        ('{"final":"a","final":"b"}', "duplicate_key", "The key `final` stands twice in one object."),
        ('{"calls":[{"tool":"read","input":{"path":1,"path":2}}]}', "duplicate_key",
         "The key `path` stands twice in one object."),
        ("{}", "no_action", "The object has neither `calls` nor `final`."),
        ('{"name":"read","arguments":{}}', "no_action", "The object has neither `calls` nor `final`."),
        ('{"calls":[],"final":"a"}', "two_actions", "A turn has `calls` or `final`, not both."),
        ('{"thought":3,"final":"a"}', "bad_thought", "`thought` must be a string."),
        ('{"calls":[]}', "bad_calls", "`calls` must be a list of at least one call."),
        ('{"calls":{"tool":"read"}}', "bad_calls", "`calls` must be a list of at least one call."),
        ('{"calls":["read"]}', "bad_call", 'Each call must be an object {"tool": "<name>", "input": {…}}.'),
        ('{"calls":[{"input":{}}]}', "bad_call", 'Each call must be an object {"tool": "<name>", "input": {…}}.'),
        ('{"final":""}', "bad_final", "`final` must be a string that is not empty."),
        ('{"final":" \\n"}', "bad_final", "`final` must be a string that is not empty."),
        ('{"final":{}}', "bad_final", "`final` must be a string that is not empty."),
        ('{"final":' + "[" * 40 + "]" * 40 + "}", "too_deep", "It is nested deeper than 32 levels."),
        ('{"final":' * 100_000, "too_deep", "It is nested deeper than 32 levels."),
        ("[" * 1_000_000, "too_deep", "It is nested deeper than 32 levels."),
    ],
)  # fmt: skip
def test_what_is_no_turn_says_what_is_wrong_with_it(text, code, message):
    assert TurnError(code, message) == parse(text, [READ])


def test_a_megabyte_of_text_is_read():
    assert parse(json.dumps({"final": "x" * 1_000_000}), [READ]).final == "x" * 1_000_000


@pytest.mark.rule("turn.encodable")
def test_half_a_surrogate_pair_never_leaves_the_parser():
    turn = parse(
        r'{"thought":"\ud800","calls":[{"tool":"\udfff","input":{"path":"\ud83d\ude00 \udc00"}}]}', [READ]
    )
    assert (turn.thought, turn.calls[0].tool, turn.calls[0].input["path"]) == (
        "\ufffd",
        "\ufffd",
        "\U0001f600 \ufffd",
    )
    json.dumps([turn.calls[0].error, turn.thought], ensure_ascii=False).encode()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)
CALL = st.fixed_dictionaries({}, optional={"tool": st.just("read") | VALUES, "input": VALUES})
TURNS = st.fixed_dictionaries(
    {}, optional={"thought": VALUES, "calls": st.lists(CALL | VALUES, max_size=12) | VALUES, "final": VALUES}
)
TEXTS = st.text(st.characters(exclude_categories=())) | st.binary().map(
    lambda b: b.decode("utf-8", "surrogateescape")
)


@pytest.mark.rule("turn.malformed")
@given(
    TEXTS | VALUES.map(json.dumps) | TURNS.map(json.dumps),
    st.sampled_from([None, VERDICT, {"type": "integer"}]),
)
def test_no_text_makes_it_raise(text, final):
    turn = parse(text, [READ], final)
    if isinstance(turn, TurnError):
        assert turn.code
        turn.message.encode()
    else:
        assert (turn.final is None) == bool(turn.calls)
        assert len(turn.thought) <= 600
        assert len(turn.calls) <= 8
        json.dumps(
            [turn.final, turn.value, [(c.tool, c.input, c.error) for c in turn.calls]], ensure_ascii=False
        ).encode()


@given(st.text(st.sampled_from('{}[]":,truefalsn0123456789.eE+- \\u d8thoughcalstoinp')))
def test_no_text_of_json_pieces_makes_it_raise(text):
    assert isinstance(parse(text, [READ]), Turn | TurnError)


def test_a_final_that_copies_the_example_is_no_answer() -> None:
    copied = parse('{"thought":"I know enough","final":"<your answer>"}', [])
    assert isinstance(copied, TurnError)
    assert copied.code == "bad_final"
    assert "example" in copied.message
