"""The ledger: what is spent stays spent, wherever whoever spends is killed and begun again."""

import threading
from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerix.actors import Bound, Exhausted, Ledger, Left, Outcome, Spent, replay

TURNS = Bound("a.turns", 3, "turns", "agent", "stop", "budget: turns N: no more than N")
ASKS = Bound("a.asks", 2, "asks", "agent", "retry", "failed: no turn", per=TURNS.name)
HITS = Bound("a.hits", 1, "hits", "agent", "kill", "killed: no room")
AGENTS = ("a1", "a1.c1")
STEPS = st.lists(st.tuples(st.sampled_from(AGENTS), st.sampled_from((TURNS, ASKS, HITS))), max_size=30)


def work(ledger: Ledger, steps: Sequence[tuple[str, Bound]]) -> list[Spent]:
    """Take these units; the records of those that were there."""
    taken = (ledger.spend(agent, bound) for agent, bound in steps)
    return [one.record for one in taken if isinstance(one, Left)]


def state(ledger: Ledger) -> list[int]:
    return [ledger.spent(agent, bound) for agent in AGENTS for bound in (TURNS, ASKS, HITS)]


# --- spending -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("bounds.ledger")
@pytest.mark.rule("bounds.named-outcome")
def test_a_bound_is_spent_to_its_end_which_has_the_rows_name() -> None:
    ledger = Ledger()
    record = Spent("a1", "a.turns")
    assert [ledger.spend("a1", TURNS) for _ in range(3)] == [Left(n, record) for n in (2, 1, 0)]
    for _ in range(2):
        assert ledger.spend("a1", TURNS) == Exhausted(Outcome("budget", "turns 3: no more than 3"))
    assert ledger.spent("a1", TURNS) == 3


@pytest.mark.rule("bounds.ledger")
def test_each_agent_and_each_bound_is_counted_for_itself() -> None:
    ledger = Ledger()
    work(ledger, [("a1", TURNS), ("a1", HITS), ("a1.c1", TURNS), ("a1", TURNS)])
    assert state(ledger) == [2, 0, 1, 1, 0, 0]


def test_a_request_may_have_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger({TURNS: 1})
    assert (ledger.limit(TURNS), ledger.limit(HITS)) == (1, 1)
    assert isinstance(ledger.spend("a1", TURNS), Left)
    assert ledger.spend("a1", TURNS) == Exhausted(Outcome("budget", "turns 1: no more than 1"))
    monkeypatch.setenv(HITS.variable, "0")
    assert ledger.spend("a1", HITS) == Exhausted(Outcome("killed", "no room"))


@pytest.mark.rule("bounds.reasks-anew")
def test_a_bound_per_another_one_is_counted_anew_by_each_unit_of_that() -> None:
    ledger = Ledger()
    work(ledger, [("a1", ASKS), ("a1", ASKS), ("a1.c1", ASKS)])
    assert isinstance(ledger.spend("a1", ASKS), Exhausted)
    assert ledger.spend("a1", TURNS) == Left(2, Spent("a1", "a.turns"))
    assert ledger.spend("a1", ASKS) == Left(1, Spent("a1", "a.asks", "a.turns"))
    assert ledger.spent("a1.c1", ASKS) == 1  # another agent's turn is none of its own


@pytest.mark.rule("bounds.ledger")
def test_threads_that_spend_at_once_get_no_more_than_there_is() -> None:
    ledger, begin, got = Ledger({TURNS: 500}), threading.Barrier(4), []

    def spend() -> None:
        begin.wait()
        got.append(len(work(ledger, [("a1", TURNS)] * 200)))

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) == ledger.spent("a1", TURNS) == 500


# --- beginning again ----------------------------------------------------------------------------------------------


@pytest.mark.rule("bounds.ledger-replay")
@given(STEPS)
def test_a_replay_of_what_was_logged_is_the_ledger_that_logged_it(steps: list[tuple[str, Bound]]) -> None:
    ledger = Ledger()
    records = work(ledger, steps)
    assert state(Ledger(records=records)) == state(ledger)
    assert state(Ledger(records=iter(records))) == state(ledger)


@pytest.mark.rule("bounds.ledger-replay")
@given(STEPS, st.integers(0, 30), st.integers(0, 30))
def test_a_log_may_be_replayed_in_one_piece_or_in_many(
    steps: list[tuple[str, Bound]], one: int, other: int
) -> None:
    records = work(Ledger(), steps)
    low, high = sorted((one, other))
    first = replay(records[:low])
    kept = dict(first)
    split = replay(records[high:], replay(records[low:high], first))
    assert split == replay(records)
    assert first == kept  # what was given is not changed


@pytest.mark.rule("bounds.ledger")
@pytest.mark.rule("bounds.ledger-replay")
@given(STEPS, st.integers(0, 30))
def test_any_prefix_of_a_log_and_what_follows_it_stay_within_the_limits(
    steps: list[tuple[str, Bound]], kept: int
) -> None:
    prefix = work(Ledger(), steps)[:kept]
    assert_within([*prefix, *work(Ledger(records=prefix), steps)])


@pytest.mark.rule("bounds.ledger")
@given(st.lists(st.tuples(STEPS, st.booleans()), max_size=6))
def test_kills_anywhere_refill_nothing(lives: list[tuple[list[tuple[str, Bound]], bool]]) -> None:
    """A life may end between a unit that was taken and its record: what that unit was to pay for did not begin."""
    log: list[Spent] = []
    for steps, unlogged in lives:
        records = work(Ledger(records=log), steps)
        log += records[:-1] if unlogged else records
    assert_within(log)


def assert_within(log: list[Spent]) -> None:
    for agent in AGENTS:
        mine = [record.bound for record in log if record.agent == agent]
        assert mine.count(TURNS.name) <= 3
        assert mine.count(HITS.name) <= 1
        stretches = groupby((name for name in mine if name != HITS.name), TURNS.name.__ne__)
        assert all(len(list(asks)) <= 2 for is_asks, asks in stretches if is_asks)
