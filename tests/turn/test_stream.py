"""A turn is read while it is written, cut wherever it is; nothing of its JSON is shown."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerix.turn.stream import Piece, TurnStream

TURN = {
    "thought": 'I "look"\n\\ at it \U0001f600',
    "calls": [
        {"tool": "read", "input": {"path": "a {b} \"c\", [d]", "tool": "no", "limit": 3}},
        {"tool": "bash", "input": {"command": "ls; echo '}'", "final": "no", "calls": [{"tool": "no"}]}},
    ],
}  # fmt: skip
TEXT = st.text(max_size=60)


def read(*parts: str) -> dict[str, str]:
    """What was read, by kind; each tool's name ends in a comma."""
    stream, found = TurnStream(), dict.fromkeys(("thought", "final", "tool"), "")
    for part in parts:
        for piece in stream.feed(part):
            found[piece.kind] += piece.text + "," * (piece.kind == "tool")
    return found


@pytest.mark.rule("lines.no-json")
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_turn_is_read_the_same_wherever_it_is_cut(ascii_only: bool) -> None:
    text = json.dumps(TURN, ensure_ascii=ascii_only)
    for cut in range(len(text) + 1):
        assert read(text[:cut], text[cut:]) == {"thought": TURN["thought"], "final": "", "tool": "read,bash,"}


@pytest.mark.rule("lines.no-json")
@given(TEXT, TEXT, st.lists(st.integers(0, 400)), st.booleans())
def test_thought_and_final_come_whole(thought: str, final: str, cuts: list[int], ascii_only: bool) -> None:
    text = json.dumps({"thought": thought, "final": final}, ensure_ascii=ascii_only)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    parts = [text[start:end] for start, end in pairwise(places)]
    assert read(*parts) == {"thought": thought, "final": final, "tool": ""}


def test_what_comes_is_told_as_it_comes() -> None:
    stream = TurnStream()
    told = [
        stream.feed(part)
        for part in ('{"thought": "I s', "ee.\\", 'n", "fin', 'al": "4', '2"}', '{"final": "43"}')
    ]
    thought = [[Piece("thought", "I s")], [Piece("thought", "ee.")], [Piece("thought", "\n")]]
    assert told == [*thought, [Piece("final", "4")], [Piece("final", "2")], []]


@pytest.mark.rule("lines.no-json")
@pytest.mark.parametrize(
    "text",
    ["", "Sure! {\"final\": \"x\"}", "```json\n{\"final\": \"x\"}\n```", "[\"final\", \"x\"]", "}]{", "\"final\"",
     "{\"a\": {\"final\": \"x\"}}", "{\"final\": {\"verdict\": \"pass\"}}", "{\"final\": [\"x\"]}", "{\"calls\": [\"tool\"]}"],
)  # fmt: skip
def test_what_is_no_turn_gives_nothing(text: str) -> None:
    assert read(text) == {"thought": "", "final": "", "tool": ""}


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\ud83d x", "\N{REPLACEMENT CHARACTER} x"),
        (r"\ude00", "\N{REPLACEMENT CHARACTER}"),
        (r"\ud83d\ud83d\ude00", "\N{REPLACEMENT CHARACTER}\U0001f600"),
        (r"\ud83d", "\N{REPLACEMENT CHARACTER}"),
        (r"\uzzzz", "\N{REPLACEMENT CHARACTER}"),
        (r"\x", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_an_escape_that_is_none_is_a_mark(written: str, shown: str) -> None:
    for cut in range(len(written)):
        assert read('{"final": "' + written[:cut], written[cut:] + '"}')["final"] == shown


@given(st.text(alphabet='{}[]":,\\u0dtfinal caohg"', max_size=80))
def test_nothing_makes_it_fail(text: str) -> None:
    assert set(read(*text)) == {"thought", "final", "tool"}
