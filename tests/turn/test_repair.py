"""Foreign call shapes: what is read as the turn that it means, and what is left alone."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerix.tools import TOOLS
from aerix.turn.loose import Unreadable, whole
from aerix.turn.parse import Call, Turn, TurnError
from aerix.turn.repair import parse_loosely, parse_said

ALL = tuple(TOOLS.values())
READ = {"name": "read", "arguments": {"path": "a.py"}}
CALL = Call("c1", "read", {"path": "a.py"})
OWN = {"thought": "I look.", "calls": [{"tool": "read", "input": {"path": "a.py"}}]}

ONE_CALL = {
    "bare name and arguments": json.dumps(READ),
    "arguments as a string": json.dumps({"name": "read", "arguments": json.dumps({"path": "a.py"})}),
    "a function of OpenAI's": json.dumps({"type": "function", "id": "1", "function": READ}),
    "a message of OpenAI's": json.dumps({"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}}
    ]}),
    "a list of one": json.dumps([READ]),
    "a block of Claude's": json.dumps({"type": "tool_use", "id": "t", "name": "read", "input": {"path": "a.py"}}),
    "Claude's names": json.dumps({"name": "Read", "input": {"file_path": "a.py"}}),
    "a turn with Claude's names": json.dumps({"calls": [{"tool": "Read", "input": {"file_path": "a.py"}}]}),
    "a bare call of ours": json.dumps({"tool": "read", "input": {"path": "a.py"}}),
    "our turn with their call": json.dumps({"calls": [READ]}),
    "parameters": json.dumps({"name": "read", "parameters": {"path": "a.py"}}),
    "tags": f"<tool_call>\n{json.dumps(READ)}\n</tool_call>",
    "tags behind words": f"I look at it first.\n\n<tool_call>{json.dumps(READ)}</tool_call>\n",
    "other tags": f"<function_call>{json.dumps(READ)}</function_call>",
    "a fence": f"```json\n{json.dumps(READ, indent=1)}\n```",
    "a fence without a language": f"```\n{json.dumps(READ)}\n```\n",
    "our turn in a fence behind words": f"Let me see.\n```json\n{json.dumps(OWN)}\n```",
    "our turn behind words": f"Let me see.\n{json.dumps(OWN, indent=1)}",
    "our turn and an empty final": json.dumps({**OWN, "final": ""}),
    "single quotes": "{'name': 'read', 'arguments': {'path': 'a.py'}}",
    "trailing commas": '{"calls": [{"tool": "read", "input": {"path": "a.py",},},],}',
    "a function": 'read(path="a.py")',
    "a function without names": "read('a.py')",
    "a function with an object": 'read({"path": "a.py"})',
    "a function in a list": '[read(path="a.py")]',
    "a function in a fence": '```tool_code\nread(path="a.py")\n```',
}  # fmt: skip


@pytest.mark.rule("turn.repaired")
@pytest.mark.parametrize("text", ONE_CALL.values(), ids=ONE_CALL.keys())
def test_a_call_in_a_foreign_shape_is_the_call_that_it_means(text: str) -> None:
    turn, shape = parse_loosely(text, ALL)
    assert isinstance(turn, Turn), turn
    assert turn.calls == (CALL,)
    assert shape is not None


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (ONE_CALL["tags"], "tags"),
        (ONE_CALL["a fence"], "fence"),
        (ONE_CALL["a function"], "function"),
        (ONE_CALL["single quotes"], "json"),
        (json.dumps(OWN), None),
        (json.dumps({"thought": "", "final": "42"}), None),
    ],
)
def test_the_shape_is_named_and_a_turn_has_none(text: str, shape: str | None) -> None:
    assert parse_loosely(text, ALL)[1] == shape


def test_words_before_a_call_are_the_thought() -> None:
    turn, _ = parse_loosely(ONE_CALL["tags behind words"], ALL)
    assert isinstance(turn, Turn)
    assert turn.thought == "I look at it first."


def test_several_calls_keep_their_order_and_their_numbers() -> None:
    two = '<tool_call>{"name": "read", "arguments": {"path": "a"}}</tool_call>\n' * 2
    turn, _ = parse_loosely(two, ALL, first_call=7)
    assert isinstance(turn, Turn)
    assert [call.id for call in turn.calls] == ["c7", "c8"]
    turn, _ = parse_loosely('read("a")\nbash("ls -l", timeout_secs=5); plan(op="read")', ALL)
    assert isinstance(turn, Turn)
    assert [(call.tool, call.input) for call in turn.calls] == [
        ("read", {"path": "a"}),
        ("bash", {"command": "ls -l", "timeout_secs": 5}),
        ("plan", {"op": "read"}),
    ]


def test_the_inputs_of_claudes_tools_get_our_names() -> None:
    text = json.dumps([
        {"name": "Edit", "input": {"file_path": "f", "old_string": "a", "new_string": "b", "replace_all": True}},
        {"name": "Bash", "input": {"command": "ls", "description": "List", "timeout": 4500, "run_in_background": True}},
    ])  # fmt: skip
    turn, _ = parse_loosely(text, ALL)
    assert isinstance(turn, Turn)
    assert [call.input for call in turn.calls] == [
        {"path": "f", "old": "a", "new": "b", "replace_all": True},
        {"command": "ls", "timeout_secs": 5, "background": True},
    ]
    assert not any(call.error for call in turn.calls)


def test_a_time_that_may_be_seconds_or_milliseconds_is_not_guessed() -> None:
    turn, _ = parse_loosely(json.dumps({"name": "Bash", "input": {"command": "ls", "timeout": 30}}), ALL)
    assert isinstance(turn, Turn)
    assert turn.calls[0].error is not None


def test_a_call_with_a_wrong_input_is_kept_with_its_error() -> None:
    turn, _ = parse_loosely(json.dumps({"name": "read", "arguments": {}}), ALL)
    assert isinstance(turn, Turn)
    assert turn.calls[0].error == "error: `path` is missing; the keys are path, offset, limit."


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ('{"thought": "ok", "calls": [], "final": "42"}', "42"),
        ("{'final': 'it\\'s \"42\"'}", 'it\'s "42"'),
        ('```json\n{"final": "a\nb"}\n```', "a\nb"),
        ('{"final": "two\nlines"}', "two\nlines"),
    ],
)
def test_a_final_is_repaired_too(text: str, final: str) -> None:
    turn, shape = parse_loosely(text, ALL)
    assert isinstance(turn, Turn), turn
    assert (turn.final, shape is not None) == (final, True)


def test_a_call_that_was_only_thought_counts_where_nothing_was_said() -> None:
    turn, shape = parse_said("", ONE_CALL["tags"], ALL)
    assert isinstance(turn, Turn)
    assert (turn.calls, shape) == ((CALL,), "thinking")
    assert parse_said("", "I should read it.", ALL) == (parse_loosely("", ALL)[0], None)
    said, shape = parse_said('{"final": "42"}', ONE_CALL["tags"], ALL)
    assert isinstance(said, Turn)
    assert (said.final, shape) == ("42", None)


LEFT_ALONE = {
    "prose": "You could call read(path='a.py') to see it.",
    "prose with a call at its end": f"You could say:\n{json.dumps(READ)}",
    "an example in a fence": f"You could say:\n```json\n{json.dumps(READ)}\n```",
    "words behind a fence": f"```json\n{json.dumps(READ)}\n```\nThat reads it.",
    "words behind tags": f"<tool_call>{json.dumps(READ)}</tool_call>\nThat reads it.",
    "tags in a fence": f"```\n<tool_call>{json.dumps(READ)}</tool_call>\n```",
    "tags in a sentence": f"Say <tool_call>{json.dumps(READ)}</tool_call>",
    "a made up response": f"<tool_call>{json.dumps(READ)}</tool_call>\n<tool_response>x</tool_response>",
    "an open tag": f"<tool_call>{json.dumps(READ)}",
    "two objects": f"{json.dumps(READ)}\n{json.dumps(READ)}",
    "two fences": f"```json\n{json.dumps(OWN)}\n```\n```json\n{json.dumps(OWN)}\n```",
    "calls and a final": json.dumps({**OWN, "final": "done"}),
    "two names": json.dumps({"name": "read", "tool": "write", "input": {"path": "a"}}),
    "two inputs": json.dumps({"name": "read", "input": {"path": "a"}, "arguments": {"path": "b"}}),
    "a key twice": '{"name": "read", "name": "bash", "arguments": {"path": "a"}}',
    "a description of a tool": json.dumps(
        {"name": "read", "description": "Reads.", "parameters": {"type": "object"}}
    ),
    "no tool of ours": json.dumps({"name": "fly", "arguments": {}}),
    "a list with something else": json.dumps([READ, {"note": "x"}]),
    "data": json.dumps({"name": "read", "size": 3}),
    "a quote in single quotes": "{'name': 'bash', 'arguments': {'command': 'echo 'hi''}}",
    "an open string": '{"name": "read", "arguments": {"path": "a',
    "python": 'read(path="a") and bash(command="ls")',
    "an expression": 'read(path="a" + "b")',
    "a name": "read(path=secret)",
    "a position behind a name": 'edit(new="x", "f")',
    "a shell block": "```bash\nls -la\n```",
    "empty": "",
    "no number": '{"name": "read", "arguments": {"path": "a", "limit": NaN}}',
}


@pytest.mark.rule("turn.repaired")
@pytest.mark.parametrize("text", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_what_could_be_read_in_two_ways_is_no_call(text: str) -> None:
    turn, shape = parse_loosely(text, ALL)
    assert isinstance(turn, TurnError), turn
    assert shape is None


# --- whatever a model says -----------------------------------------------------------------------------------------

PIECES = st.sampled_from([
    "{", "}", "[", "]", "(", ")", '"', "'", ":", ",", "\\", "\n", "```", "```json\n", "<tool_call>", "</tool_call>", "=",
    '{"name": "read", "arguments": ', '{"path": "a.py"}', '"calls"', '"final"', '"tool"', "read", "bash(", "true", "null",
    "1", "-", "1e9", "\\u00e9", "\\ud800", "é", " ",
])  # fmt: skip
TEXTS = st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=30).map("".join))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.rule("turn.repaired")
@settings(max_examples=400, deadline=None)
@given(TEXTS)
def test_it_never_raises_and_never_invents_a_call(text: str) -> None:
    turn, _ = parse_loosely(text, ALL)
    for call in turn.calls if isinstance(turn, Turn) else ():
        if call.error is None:
            assert call.tool in text.lower()
            assert all(
                value in text for value in call.input.values() if isinstance(value, str) and value.isalnum()
            )


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_the_loose_reader_reads_all_json_as_json(value: Any) -> None:
    assert whole(json.dumps(value)) == value
    assert whole(json.dumps(value, ensure_ascii=False, indent=1)) == value


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "'" + "\\'" * 200_000,
        "read(" * 50_000,
        "9" * 5000,
        "<tool_call>" * 20_000,
        "```\n" * 20_000,
        "\n{" * 20_000,
    ],
)
def test_a_hostile_text_costs_no_more_than_reading_it(text: str) -> None:
    assert isinstance(parse_loosely(text, ALL)[0], TurnError)
    with pytest.raises(Unreadable):
        whole(text)
