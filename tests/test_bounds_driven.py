"""Every built row of the table of limits has a test that drives it to its end, and says so with a mark."""

import pytest

from aerix.bounds import every_row
from tests.marks import read_marks


@pytest.mark.rule("bounds.every-row-driven")
def test_every_built_row_is_driven_to_its_end() -> None:
    """A test with the mark sets the row small and sees how that end is called."""
    marks = read_marks("bound")
    assert [row.name for row in every_row() if row.built and row.name not in marks] == []


@pytest.mark.rule("bounds.every-row-driven")
def test_every_mark_names_a_row() -> None:
    known = {row.name for row in every_row()}
    assert {name: files for name, files in read_marks("bound").items() if name not in known} == {}


def test_a_row_with_a_test_is_said_to_be_built() -> None:
    marks = read_marks("bound")
    assert [row.name for row in every_row() if not row.built and row.name in marks] == []
