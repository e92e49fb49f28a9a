"""What generations cost together."""

import pytest

from aerix.agent.usage import Usage
from aerix.pool.protocol import Usage as One


def one(prompt: int, completion: int, recomputed_from: int) -> One:
    return One(prompt, completion, recomputed_from, "resident", 0, 0, 0)


@pytest.mark.rule("session.usage")
def test_generations_add_up_and_only_what_was_not_resident_counts_as_computed() -> None:
    used = Usage().plus(one(100, 7, 0)).plus(one(130, 5, 107))
    assert used.plain() == {
        "generations": 2,
        "prompt_tokens": 230,
        "computed_tokens": 123,
        "completion_tokens": 12,
    }


def test_sums_of_two_agents_add_up() -> None:
    mine, other = Usage().plus(one(10, 1, 4)), Usage().plus(one(20, 2, 20))
    assert mine.sum(other) == other.sum(mine) == Usage(2, 30, 6, 3)
