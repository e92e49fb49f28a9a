"""The rows of the runtime's bounds."""

import pytest

from aerix.actors import Bound, Outcome, StartFailed, bounds, start
from aerix.actors.process import ProcessActor
from tests.actors.bodies import CODEC


@pytest.mark.rule("bounds.one-table")
def test_every_bound_of_the_runtime_is_a_row_of_its_table_once() -> None:
    declared = [value for value in vars(bounds).values() if isinstance(value, Bound)]
    assert sorted(bounds.ROWS, key=lambda row: row.name) == sorted(declared, key=lambda row: row.name)
    assert len({row.name for row in bounds.ROWS}) == len(bounds.ROWS)
    assert len({row.variable for row in bounds.ROWS}) == len(bounds.ROWS)
    assert all(row.default > 0 and row.unit and row.owner and row.outcome for row in bounds.ROWS)


def test_a_row_is_set_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bounds.MAILBOX.variable == "AERIX_BOUND_ACTOR_MAILBOX"
    assert bounds.CHILD_PINGS_MISSED.variable == "AERIX_BOUND_CHILD_PINGS_MISSED"
    assert bounds.MAILBOX.count == 1000
    monkeypatch.setenv("AERIX_BOUND_ACTOR_MAILBOX", "2")
    assert (bounds.MAILBOX.value, bounds.MAILBOX.count, bounds.MAILBOX.default) == (2, 2, 1000)
    monkeypatch.setenv("AERIX_BOUND_ACTOR_MAILBOX", "")
    assert bounds.MAILBOX.count == 1000


@pytest.mark.rule("bounds.whole")
@pytest.mark.parametrize("text", ["many", "0", "-1", "2.5", "nan", "inf", "1e30", " "])
def test_what_counts_things_is_a_whole_number_from_its_least_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"actor\.mailbox is a whole number from 1 to"):
        bounds.MAILBOX.read(text)
    assert bounds.MAILBOX.read("1") == 1


@pytest.mark.rule("bounds.whole")
@pytest.mark.parametrize("text", ["soon", "-0.1", "nan", "inf", "1e7"])
def test_what_is_measured_in_seconds_is_a_number_that_can_be_waited(text: str) -> None:
    with pytest.raises(ValueError, match=r"actor\.grace is a number from 0 to 1000000 \(seconds\)"):
        bounds.GRACE.read(text)
    assert bounds.GRACE.read("0.25") == 0.25


@pytest.mark.rule("bounds.named-outcome")
def test_the_end_of_a_row_names_its_limit() -> None:
    row = Bound("x", 3, "tries", "nobody", "retry", "refused: Nobody moved N times")
    assert row.end(3) == Outcome("refused", "Nobody moved 3 times")
    with pytest.raises(AssertionError, match=r"actor\.grace ends nothing"):
        bounds.GRACE.end(2)


@pytest.mark.bound("child.stderr")
@pytest.mark.rule("bounds.settable")
def test_a_row_that_is_set_holds_in_child_processes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_CHILD_STDERR", "10")
    with pytest.raises(
        StartFailed, match="owner did not start: exit 70: : no disk"
    ):  # of what the child says it dies of
        start(ProcessActor("tests.actors.bodies:breaks", {}, CODEC, guard="kill", window=1), "owner")


def test_an_outcome_has_a_kind_and_a_reason() -> None:
    assert Outcome("budget", "turns 40") == Outcome("budget", "turns 40")
    assert Outcome("done").reason == ""
