"""What may come next, by what stood behind the same tokens before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerix.pool.draft import Drafts

ROOM = 400


def after(tokens: list[int], most: int = 8) -> list[int]:
    drafts = Drafts(ROOM)
    drafts.extend(tokens)
    return drafts.next(most)


@pytest.mark.rule("scheduler.drafts")
@pytest.mark.parametrize(
    ("tokens", "drafted"),
    [
        ([], []),
        ([1, 2, 3, 4], []),
        ([1, 2, 3, 4, 5, 6, 2, 3, 4], []),  # three are chance
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4], [5, 6, 7, 8]),  # as many as were the same
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4], [5, 6, 7, 8, 9]),
        ([1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 6, 9, 1, 2, 3, 4], [6, 9, 1, 2]),  # the latest of two
        ([7, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 6, 7, 1, 2, 3, 4], [5, 0, 1, 2, 3]),  # unless another was longer
        ([1, 1, 1, 1, 1], [1] * 4),  # what repeats itself goes on so
        ([9, *([1, 2, 3] * 4)], [1, 2, 3, 1, 2, 3, 1, 2]),
        ([1] * 20, [1] * 8),
    ],
)
def test_what_followed_the_same_tokens_is_drafted(tokens: list[int], drafted: list[int]) -> None:
    assert after(tokens) == drafted


@pytest.mark.rule("scheduler.drafts-fit")
@pytest.mark.parametrize("most", [0, 1, 3, 8])
def test_a_draft_is_no_longer_than_it_may_be(most: int) -> None:
    assert after([1] * 40, most) == [1] * most


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 8))
def test_a_draft_stood_behind_the_same_tokens_whatever_they_are(tokens: list[int], most: int) -> None:
    drafts = Drafts(ROOM)
    for token in tokens:
        drafts.extend([token])
    assert len(drafts) == len(tokens)
    drafted = drafts.next(most)
    assert len(drafted) <= most
    places = [at for at in range(4, len(tokens)) if tokens[at - 4 : at] == tokens[-4:]]
    assert bool(drafted) == bool(places and most)
    if drafted:
        same, whole = max(4, len(drafted)), tokens + drafted
        assert any(
            whole[at : at + len(drafted)] == drafted and tokens[at - same : at] == tokens[-same:]
            for at in places
            if at >= same
        )


@pytest.mark.rule("scheduler.drafts-less")
def test_who_was_mostly_wrong_pauses() -> None:
    drafts = Drafts(ROOM)
    drafts.extend([1] * 20)
    drafts.judge(8, 8)
    for _ in range(2):
        assert drafts.next(8)
        drafts.judge(12, 0)
    assert [len(drafts.next(8)) for _ in range(3)] == [0, 8, 8]
    drafts.judge(1, 0)
    assert [len(drafts.next(8)) for _ in range(5)] == [0] * 4 + [8]
