"""Snapshots in memory, alone: what is kept once, what is found, and who leaves first."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerix.pool.shelf_memory import Part, Snapshot, Snapshots

CHUNK = 4


def keep(
    shelf: Snapshots, tokens: list[int], *, pinned: int = 0, whole: bool = False
) -> list[tuple[int, int]]:
    """Keep what is missing of a sequence, a byte a row; what was kept."""
    kept = []
    for start, end in shelf.missing(tokens):
        data = memoryview(bytes(tokens[start:end]))
        if not shelf.put(tokens[:end], start, data, pinned=(end == pinned) if whole else start < pinned):
            break
        kept.append((start, end))
    return kept


def reach(shelf: Snapshots, tokens: list[int]) -> int:
    return max((part.upto for part in shelf.find(tokens, len(tokens))), default=0)


def test_a_sequence_is_kept_in_chunks_and_found_again() -> None:
    shelf = Snapshots(100, CHUNK)
    tokens = list(range(10))
    assert keep(shelf, tokens) == [(0, 4), (4, 8), (8, 10)]
    parts = shelf.find([*tokens, 77], 11)
    assert [(part.start, part.end, part.upto) for part in parts] == [(0, 4, 4), (4, 8, 8), (8, 10, 10)]
    assert b"".join(bytes(part.kept.data) for part in parts if isinstance(part.kept, Snapshot)) == bytes(
        tokens
    )


@pytest.mark.rule("prefix.shelves")
def test_what_two_sequences_share_is_kept_once() -> None:
    shelf = Snapshots(100, CHUNK)
    keep(shelf, [0, 1, 2, 3, 4, 5, 6, 7, 8])
    assert keep(shelf, [0, 1, 2, 3, 4, 5, 60]) == [(4, 7)]
    assert shelf.bytes == 9 + 3
    assert reach(shelf, [0, 1, 2, 3, 4, 5, 60, 7]) == 7


def test_a_longer_snapshot_covers_its_beginnings_and_takes_the_place_of_one() -> None:
    shelf = Snapshots(100, CHUNK)
    keep(shelf, [0, 1, 2, 3, 4, 5])
    assert keep(shelf, [0, 1, 2, 3, 4]) == []
    assert keep(shelf, [0, 1, 2, 3, 4, 5, 6]) == [(4, 7)]
    assert (shelf.bytes, shelf.entries) == (7, 2)
    assert reach(shelf, [0, 1, 2, 99]) == 3


def test_rows_beyond_the_limit_are_not_wanted() -> None:
    shelf = Snapshots(100, CHUNK)
    keep(shelf, list(range(8)))
    assert [part.upto for part in shelf.find(list(range(8)), 7)] == [4, 7]
    assert [part.upto for part in shelf.find(list(range(8)), 4)] == [4]


@pytest.mark.rule("prefix.lru")
def test_the_least_recently_used_snapshot_leaves_first() -> None:
    shelf = Snapshots(8, CHUNK)
    keep(shelf, [1, 1, 1])
    keep(shelf, [2, 2, 2])
    shelf.use(shelf.find([1, 1, 1], 3))
    keep(shelf, [3, 3, 3])
    assert [reach(shelf, [n] * 3) for n in (1, 2, 3)] == [3, 0, 3]


def test_what_others_go_on_from_leaves_after_them() -> None:
    shelf = Snapshots(12, CHUNK)
    keep(shelf, [0, 1, 2, 3, 4, 5])
    keep(shelf, [0, 1, 2, 3, 60, 61])
    keep(shelf, [7] * 6)
    assert reach(shelf, [0, 1, 2, 3, 60, 61]) in (4, 6)
    assert reach(shelf, [0, 1, 2, 3, 4, 5]) == 4


@pytest.mark.rule("prefix.pinned-outlive")
def test_a_pinned_head_outlives_conversations_as_long_as_heads_take_no_more_than_half() -> None:
    shelf = Snapshots(16, CHUNK)
    keep(shelf, [1] * 4, pinned=4)
    for n in range(10, 30):
        keep(shelf, [n] * 4)
    assert reach(shelf, [1] * 4) == 4
    for n in range(2, 5):
        keep(shelf, [n] * 4, pinned=4)
    keep(shelf, [40] * 4)
    assert [reach(shelf, [n] * 4) for n in (1, 2, 3, 4, 40)] == [0, 4, 4, 4, 4]


def test_a_snapshot_larger_than_the_budget_is_not_kept() -> None:
    shelf = Snapshots(3, CHUNK)
    assert keep(shelf, [1, 2, 3, 4]) == []
    assert shelf.bytes == 0


def test_a_smaller_budget_holds_at_once() -> None:
    shelf = Snapshots(100, CHUNK)
    keep(shelf, list(range(12)))
    shelf.resize(9)
    assert shelf.bytes == 8
    assert reach(shelf, list(range(12))) == 8


@pytest.mark.rule("prefix.uncuttable")
def test_a_whole_state_is_good_for_its_exact_tokens_only() -> None:
    shelf = Snapshots(100, CHUNK, cuttable=False)
    keep(shelf, list(range(6)))
    keep(shelf, list(range(9)))
    assert reach(shelf, list(range(8))) == 6
    assert reach(shelf, [*range(9), 50]) == 9
    assert reach(shelf, [0, 1, 2]) == 0
    assert shelf.missing(list(range(6))) == []
    assert shelf.bytes == 15


def test_a_state_that_is_no_good_goes_with_what_goes_on_from_it() -> None:
    shelf = Snapshots(100, CHUNK)
    keep(shelf, list(range(10)))
    (_, second, _) = shelf.find(list(range(10)), 10)
    assert isinstance(second.kept, Snapshot)
    shelf.forget(second.kept)
    shelf.forget(second.kept)
    assert (shelf.bytes, reach(shelf, list(range(10)))) == (4, 4)


SEQUENCE = st.lists(st.integers(0, 2), min_size=1, max_size=14)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(SEQUENCE, st.integers(0, 6), st.booleans()), max_size=30),
    st.integers(0, 40),
    st.booleans(),
)
@pytest.mark.rule("prefix.never-exceeded")
def test_under_any_traffic_what_is_found_is_there_and_the_budget_holds(
    steps: list[tuple[list[int], int, bool]], limit: int, cuttable: bool
) -> None:
    shelf = Snapshots(limit, CHUNK, cuttable=cuttable)
    for tokens, pinned, ask in steps:
        if ask:
            shelf.use(shelf.find(tokens, len(tokens)))
        else:
            keep(shelf, tokens, pinned=pinned, whole=not cuttable)
        kept = list(shelf.all())
        assert shelf.bytes == sum(len(one.data) for one in kept) <= limit
        assert shelf.entries == len(kept)
        found = shelf.find(tokens, len(tokens))
        _hold(found, tokens)
        if not ask and 0 < len(tokens) <= limit:
            assert found[-1].upto == len(tokens), "what was kept last is there"


def _hold(parts: list[Part], tokens: list[int]) -> None:
    """The parts go on from each other, and hold the tokens that they claim."""
    at = 0
    for part in parts:
        assert part.start == at
        assert isinstance(part.kept, Snapshot)
        assert list(part.kept.data[: part.upto - part.start]) == tokens[part.start : part.upto]
        at = part.upto
