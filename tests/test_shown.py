"""What a model, a tool or a file says reaches a terminal as characters to see, and as nothing else."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerix.shown import clean, clip, one_line


@pytest.mark.rule("lines.no-control")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", "␛[2J␛]0;title␇"),
        ("\x9b31m\x9d", "\N{REPLACEMENT CHARACTER}31m\N{REPLACEMENT CHARACTER}"),
        ("a\rb\r\nc\x0bd\x7f", "a\nb\nc␋d␡"),
        ("\tx\0", "    x␀"),
        ("user\u202etxt.exe\u2066", "user\N{REPLACEMENT CHARACTER}txt.exe\N{REPLACEMENT CHARACTER}"),
        ("zero\u200bwidth\ufeff", "zero\N{REPLACEMENT CHARACTER}width\N{REPLACEMENT CHARACTER}"),
        ("half \ud800 \udcff", "half \N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}"),
        ("grün 漢字 👩\u200d💻 e\u0301", "grün 漢字 👩\u200d💻 e\u0301"),
    ],
)
def test_control_characters_are_marks(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.rule("lines.no-control")
@given(st.text(st.characters(exclude_categories=())))
def test_nothing_that_controls_is_left(text: str) -> None:
    left = {unicodedata.category(letter) for letter in clean(text).replace("\n", "")} & {
        "Cc",
        "Cs",
        "Zl",
        "Zp",
    }
    assert left == set()
    assert "\n" not in one_line(text)


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("漢字漢字", 8, "漢字漢字"),
        ("漢字漢字", 7, "漢字漢…"),
        ("漢字漢字", 6, "漢字…"),
        ("e\u0301e\u0301", 2, "e\u0301e\u0301"),
        ("word and", 6, "word…"),
        ("x", 0, ""),
    ],
)
def test_a_line_is_clipped_by_its_columns(text: str, width: int, shown: str) -> None:
    assert clip(text, width) == shown
