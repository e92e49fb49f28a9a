from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerix.tools.match import Found, find, replacement


@pytest.mark.rule("tools.edit-relaxations")
@pytest.mark.parametrize(
    ("text", "old", "how", "matched"),
    [
        ("a\nb\nc\n", "b\n", "exact", "b\n"),
        ("a\r\nb\r\n", "a\nb\n", "line ends", "a\r\nb\r\n"),
        ("a\nb\n", "a\r\nb", "line ends", "a\nb"),
        ("a\rb\rc", "a\nb", "line ends", "a\rb"),
        ("x a\r\nb y", "a\nb", "line ends", "a\r\nb"),
        ("a\nb", "b\n", "line ends", "b"),
        ("a  \nb\t\nc", "a\nb\nc", "trailing blanks", "a  \nb\t\nc"),
        ("a\nb\nc", "a \nb  \nc", "trailing blanks", "a\nb\nc"),
        ("a\nb", "b  ", "trailing blanks", "b"),
        ("a \r\nb\r\n", "a\nb\n", "trailing blanks", "a \r\nb\r\n"),
        ("x\n  \ny\n", "x\n\ny\n", "trailing blanks", "x\n  \ny\n"),
        ("\n  a\n", "  \n  a", "trailing blanks", "\n  a"),
        ("if x:\n    a\n    b\n", "a\n  b\n", "indentation", ""),
        ("  if x:\n    a\n", "if x:\n  a\n", "indentation", "  if x:\n    a\n"),
        ("if x:\n  a\n", "    if x:\n      a\n", "indentation", "if x:\n  a\n"),
        ("\tif x:\n\t\ta\n\n\t\tb\n", "if x:\n\ta\n\n\tb", "indentation", "\tif x:\n\t\ta\n\n\t\tb"),
        ("  if x:  \r\n    a\r\n", "if x:\n  a\n", "indentation", "  if x:  \r\n    a\r\n"),
        ("  a\n    b", "a\n  b\n", "indentation", "  a\n    b"),
    ],
)
def test_the_first_kind_of_match_that_finds_anything_is_taken(
    text: str, old: str, how: str, matched: str
) -> None:
    kind, found = find(text, old)
    assert (kind, [text[f.start : f.end] for f in found]) == (how, [matched] if matched else [])


@pytest.mark.rule("tools.edit-relaxations")
@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("a b\n", "a  b"),
        ("  a\n b\n", "a\nb\n"),
        ("  a\n\tb\n", "a\nb\n"),
        ("a\nb\n", "A\nB\n"),
        ("a\n\nb\n", "a\nb\n"),
        ("a\n", " \n "),
        ("", "a"),
    ],
)
def test_nothing_else_is_taken_for_a_match(text: str, old: str) -> None:
    assert find(text, old)[1] == []


def test_exact_places_do_not_overlap() -> None:
    assert find("aaaa", "aa") == ("exact", [Found(0, 2), Found(2, 4)])


def test_shifted_places_do_not_overlap() -> None:
    how, found = find("  a\n    b\n  a\n    b\n", "a\n  b\n")
    assert how == "indentation"
    assert [(f.start, f.end) for f in found] == [(0, 10), (10, 20)]


@pytest.mark.rule("tools.edit-relaxations")
def test_the_new_text_is_shifted_as_the_old_one_was() -> None:
    text = "  if x:\n    a\n"
    (place,) = find(text, "if x:\n  a\n")[1]
    assert replacement(text, place, "if y:\n  b\n\n  c\n") == "  if y:\n    b\n\n    c\n"
    text = "if x:\n  a\n"
    (place,) = find(text, "  if x:\n    a\n")[1]
    assert replacement(text, place, "  if y:\n    b\n") == "if y:\n  b\n"
    assert replacement(text, place, " if y:\n    b\n") is None


@pytest.mark.rule("tools.edit-keeps")
@pytest.mark.parametrize(
    ("text", "old", "new", "put"),
    [
        ("a\r\nb\r\n", "a", "x\ny", "x\r\ny"),
        ("a\r\nb", "b", "x\ny", "x\r\ny"),
        ("a\rb", "a", "x\ny", "x\ry"),
        ("a\nb\n", "a", "x\r\ny", "x\ny"),
        ("a", "a", "x\r\ny", "x\r\ny"),
        ("a\nb", "b\n", "c\n", "c"),
        ("a\rz\nb\n", "b", "x\ny", "x\ny"),
    ],
)
def test_the_new_text_has_the_line_ends_of_its_place(text: str, old: str, new: str, put: str) -> None:
    (place,) = find(text, old)[1]
    assert replacement(text, place, new) == put


_LINE = st.text(alphabet="ab \t{", max_size=6)
_ENDS = st.sampled_from(["\n", "\r\n"])


@given(st.lists(_LINE, min_size=1, max_size=6), _ENDS, st.lists(_LINE, min_size=1, max_size=3))
def test_every_place_is_the_wanted_text_but_for_blanks(lines: list[str], end: str, wanted: list[str]) -> None:
    text, old = end.join(lines), "\n".join(wanted)
    if not old:
        return
    _, found = find(text, old)
    for place in found:
        assert 0 <= place.start <= place.end <= len(text)
        assert "".join(text[place.start : place.end].split()) == "".join(old.split())
    assert all(one.end <= other.start for one, other in pairwise(found))
