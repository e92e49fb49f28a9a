"""Pace: a step uses fewer threads while others keep the cores busy."""

import pytest

from aerix.pool.pace import Pace

MOST = 8
STEP_S = 0.01


def steps(pace: Pace, count: int, cores: int, most: int = MOST) -> list[int]:
    """The threads of so many steps on a machine where so many cores are free: more threads are held up."""
    used = []
    for _ in range(count):
        threads = pace.threads(most)
        used.append(threads)
        pace.took(most, STEP_S, STEP_S * threads * (0.97 if threads <= cores else 0.4))
    return used


@pytest.mark.rule("pool.pace")
def test_undisturbed_steps_use_all_threads() -> None:
    assert set(steps(Pace(), 300, cores=8)) == {8}


@pytest.mark.rule("pool.pace")
def test_steps_that_are_held_up_use_half_the_threads_until_they_are_not() -> None:
    assert steps(Pace(), 4, cores=8)[-1] == 8
    pace = Pace()
    assert steps(pace, 6, cores=2)[-1] == 2
    assert steps(pace, 6, cores=1)[-1] == 1
    assert set(steps(Pace(), 20, cores=0, most=1)) == {1}


@pytest.mark.rule("pool.pace")
def test_more_threads_are_tried_again_ever_more_rarely() -> None:
    pace = Pace()
    used = steps(pace, 1000, cores=4)
    tries = [at for at, threads in enumerate(used) if threads == 8]
    assert len(tries) <= 14
    assert 0 < len([at for at in tries if at >= 500]) <= 4


@pytest.mark.rule("pool.pace")
def test_all_threads_are_used_again_once_the_cores_are_free() -> None:
    pace = Pace()
    steps(pace, 1000, cores=1)
    used = steps(pace, 2000, cores=8)
    assert used[-1] == 8
    assert set(used[-200:]) == {8}


@pytest.mark.rule("pool.pace")
def test_one_hiccup_changes_nothing() -> None:
    pace = Pace()
    pace.took(MOST, STEP_S, STEP_S * MOST * 0.3)
    assert set(steps(pace, 50, cores=8)) == {8}
