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


@pytest.mark.rule("bounds.not-built-said")
def test_what_is_not_built_says_so() -> None:
    assert [row.name for row in bounds.ROWS if not row.built] == ["child.ping", "child.pings-missed"]


def test_a_row_is_set_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bounds.MAILBOX.variable == "AERIX_BOUND_ACTOR_MAILBOX"
    assert bounds.CHILD_PINGS_MISSED.variable == "AERIX_BOUND_CHILD_PINGS_MISSED"
    assert bounds.MAILBOX.count == 1000
    monkeypatch.setenv("AERIX_BOUND_ACTOR_MAILBOX", "2.5")
    assert (bounds.MAILBOX.value, bounds.MAILBOX.count, bounds.MAILBOX.default) == (2.5, 2, 1000)


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
