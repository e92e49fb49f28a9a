"""The resident shelf, alone and against a brute-force model of a cache."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerix.pool.prefix import Copy, Cut, Lease, Shelf, common

A = list(range(10))


def leased(shelf: Shelf, tokens: list[int], *, reserve: int, latest: int | None = None) -> Lease | None:
    """Lease the best place that there is room for, as the store does with nothing on its other shelves."""
    for place in shelf.places(tokens, len(tokens) - 1 if latest is None else latest):
        need = len(tokens) - place.start + reserve
        if (victims := shelf.victims(place, need)) is not None:
            return shelf.take(place, victims, need)
    return None


def held(shelf: Shelf, tokens: list[int], reserve: int = 5) -> Lease:
    """Compute a prompt and give it back: its rows are on the shelf."""
    lease = leased(shelf, tokens, reserve=reserve)
    assert lease is not None
    shelf.commit(lease.sequence, tokens[lease.start :])
    shelf.release(lease.sequence)
    return lease


def test_an_empty_shelf_starts_from_the_first_row() -> None:
    lease = leased(Shelf(2, 100), A, reserve=5)
    assert lease is not None
    assert (lease.start, lease.operations) == (0, ())


@pytest.mark.rule("prefix.longest")
def test_a_longer_prompt_goes_on_in_the_sequence_that_holds_its_beginning() -> None:
    shelf = Shelf(2, 100)
    first = held(shelf, A)
    assert leased(shelf, [*A, 10, 11], reserve=5) == Lease(first.sequence, 10, ())


def test_the_last_row_is_computed_again_for_its_logits() -> None:
    shelf = Shelf(2, 100)
    first = held(shelf, A)
    assert leased(shelf, A, reserve=5) == Lease(first.sequence, 9, (Cut(first.sequence, 9),))


@pytest.mark.rule("prefix.resident-fork")
def test_a_prompt_that_leaves_another_one_half_way_forks_it_and_both_stay() -> None:
    shelf = Shelf(2, 100)
    first = held(shelf, A)
    lease = leased(shelf, [0, 1, 2, 3, 77], reserve=5)
    assert lease is not None
    assert lease.operations == (Copy(first.sequence, lease.sequence, 4),)
    assert shelf.tokens(first.sequence) == A
    assert shelf.used == 10, "a fork takes no cells"


def test_what_a_generation_uses_is_forked_and_never_taken_away() -> None:
    shelf = Shelf(2, 100)
    running = leased(shelf, A, reserve=5)
    assert running is not None
    shelf.commit(running.sequence, A)
    second = leased(shelf, [*A, 10], reserve=5)
    assert second is not None
    assert second.operations == (Copy(running.sequence, second.sequence, 10),)
    assert leased(shelf, [5], reserve=1) is None, "both sequences are in use"


def test_the_least_recently_used_sequence_makes_room() -> None:
    shelf = Shelf(2, 100)
    old, new = held(shelf, [1, 2, 3]), held(shelf, [4, 5, 6])
    lease = leased(shelf, [7, 8], reserve=1)
    assert lease is not None
    assert lease.operations == (Cut(old.sequence, 0),)
    assert shelf.tokens(new.sequence) == [4, 5, 6]


def test_cells_that_are_promised_to_a_running_generation_are_not_given_twice() -> None:
    shelf = Shelf(4, 30)
    assert leased(shelf, A, reserve=15) is not None
    assert leased(shelf, [50, 51, 52], reserve=3) is None
    assert leased(shelf, [50, 51, 52], reserve=2) is not None


def test_without_room_for_a_fork_the_source_itself_is_cut() -> None:
    shelf = Shelf(2, 12)
    first = held(shelf, A, reserve=2)
    lease = leased(shelf, [0, 1, 2, 3, 77], reserve=6)
    assert lease == Lease(first.sequence, 4, (Cut(first.sequence, 4),))


def test_a_prompt_larger_than_the_cache_has_no_room() -> None:
    assert leased(Shelf(2, 8), A, reserve=0) is None


@pytest.mark.rule("prefix.probe-keeps-prompt")
def test_a_released_probe_leaves_nothing_and_its_source_everything() -> None:
    shelf = Shelf(3, 100)
    source = leased(shelf, A, reserve=5)
    assert source is not None
    shelf.commit(source.sequence, A)
    probe = leased(shelf, [*A, 20, 21], reserve=0, latest=10)
    assert probe is not None
    assert probe.start == 10
    shelf.commit(probe.sequence, [20, 21])
    assert shelf.release(probe.sequence, keep=False) == (Cut(probe.sequence, 0),)
    assert (shelf.used, list(shelf.tokens(source.sequence))) == (10, A)


def test_memory_that_cannot_be_cut_is_only_taken_whole() -> None:
    shelf = Shelf(2, 100, cuttable=False)
    first = held(shelf, A)
    again = leased(shelf, A, reserve=5)
    assert again is not None
    assert again.start == 0
    longer = leased(shelf, [*A, 10], reserve=5)
    assert longer is not None
    assert (longer.sequence, longer.start) == (first.sequence, 10)


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)), st.integers(0, 200))
def test_common_counts_the_leading_tokens_that_are_equal(one: list[int], other: list[int], same: int) -> None:
    lead = [7] * same
    expected = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    assert common(lead + one, lead + other) == same + expected


class Cache:
    """A cache as the engine has it: rows by sequence, each row an object that forks share."""

    def __init__(self) -> None:
        self.rows: dict[int, list[tuple[object, int]]] = {}

    def do(self, operation: Copy | Cut) -> None:
        if isinstance(operation, Copy):
            assert not self.rows.get(operation.target), "a fork goes into an empty sequence"
            self.rows[operation.target] = self.rows[operation.source][: operation.upto]
        else:
            del self.rows.setdefault(operation.sequence, [])[operation.at :]

    def compute(self, sequence: int, tokens: list[int]) -> None:
        self.rows.setdefault(sequence, []).extend((object(), token) for token in tokens)

    def tokens(self, sequence: int) -> list[int]:
        return [token for _, token in self.rows.get(sequence, [])]

    @property
    def used(self) -> int:
        return len({id(cell) for rows in self.rows.values() for cell, _ in rows})


STEP = st.one_of(
    st.tuples(st.just("admit"), st.lists(st.integers(0, 1), min_size=1, max_size=12), st.integers(0, 6)),
    st.tuples(st.just("commit"), st.integers(0, 9), st.integers(1, 6)),
    st.tuples(st.just("release"), st.integers(0, 9), st.booleans()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=60), st.integers(1, 4), st.integers(4, 40), st.booleans())
@pytest.mark.rule("prefix.evicted-is-prefill")
def test_under_any_traffic_the_shelf_is_what_the_cache_holds(
    steps: list[tuple[str, object, object]], sequences: int, cells: int, cuttable: bool
) -> None:
    shelf, cache = Shelf(sequences, cells, cuttable=cuttable), Cache()
    running: dict[int, list[int]] = {}

    def admit(tokens: list[int], reserve: int) -> None:
        before = {sequence: cache.tokens(sequence) for sequence in running}
        lease = leased(shelf, tokens, reserve=reserve)
        if lease is None:
            alone = not running and sequences and len(tokens) + reserve <= cells
            assert not alone, "a generation alone always finds room"
            return
        for operation in lease.operations:
            whole = isinstance(operation, Copy) or operation.at in (0, len(cache.tokens(operation.sequence)))
            assert whole or cuttable
            cache.do(operation)
        assert lease.sequence not in running
        assert cache.tokens(lease.sequence) == tokens[: lease.start]
        assert lease.start < len(tokens)
        assert before == {sequence: cache.tokens(sequence) for sequence in before}, (
            "rows in use are left alone"
        )
        running[lease.sequence] = [*tokens[lease.start :], *range(100, 100 + reserve)]

    def commit(which: int, count: int) -> None:
        if running:
            sequence = sorted(running)[which % len(running)]
            rows, running[sequence] = running[sequence][:count], running[sequence][count:]
            cache.compute(sequence, rows)
            shelf.commit(sequence, rows)

    def release(which: int, keep: bool) -> None:
        if running:
            sequence = sorted(running)[which % len(running)]
            del running[sequence]
            for operation in shelf.release(sequence, keep=keep):
                cache.do(operation)

    act: dict[str, Callable[..., None]] = {"admit": admit, "commit": commit, "release": release}
    for name, first, second in steps:
        act[name](first, second)
        assert shelf.used == cache.used, "no cell is lost, none counted twice"
        assert shelf.used + shelf.promised <= cells
        assert all(list(shelf.tokens(s)) == cache.tokens(s) for s in range(sequences))
