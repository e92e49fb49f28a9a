"""Drawing a token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerix.actors import Refused
from aerix.pool.asked import check_sampling
from aerix.pool.protocol import Sampling
from aerix.pool.sampling import Sampler, log_probabilities, uniform

LOGITS = np.array([1.0, 4.0, 3.0, -2.0], dtype=np.float32)


def draws(sampling: Sampling, logits: np.ndarray = LOGITS, count: int = 300) -> list[int | None]:
    sampler = Sampler(sampling)
    return [sampler.draw(logits, place) for place in range(count)]


@pytest.mark.rule("sampling.greedy")
def test_temperature_0_takes_the_most_likely_token() -> None:
    assert set(draws(Sampling(temperature=0))) == {1}


def test_the_best_token_is_known_at_temperature_0_where_it_has_a_number() -> None:
    greedy = Sampler(Sampling(temperature=0))
    assert greedy.best(LOGITS) == greedy.draw(LOGITS, 0) == 1
    assert greedy.best(np.array([1, np.nan, 3], dtype=np.float32)) is None
    assert Sampler(Sampling(temperature=1)).best(LOGITS) is None


@pytest.mark.rule("sampling.seeded")
def test_the_same_seed_draws_the_same_tokens() -> None:
    loose = Sampling(temperature=2, top_p=1, min_p=0, seed=5)
    assert draws(loose) == draws(loose)
    assert draws(loose) != draws(Sampling(temperature=2, top_p=1, min_p=0, seed=6))


def test_without_a_seed_two_generations_differ() -> None:
    loose = Sampling(temperature=2, top_p=1, min_p=0)
    assert draws(loose) != draws(loose)


@pytest.mark.rule("sampling.resumed-draws")
def test_a_draw_depends_on_its_place_and_not_on_those_before_it() -> None:
    loose = Sampling(temperature=2, top_p=1, min_p=0, seed=5)
    assert Sampler(loose).draw(LOGITS, 200) == draws(loose)[200]


@pytest.mark.rule("sampling.masked")
def test_a_token_that_is_not_allowed_is_never_drawn() -> None:
    allowed = np.array([True, False, False, True])
    sampler = Sampler(Sampling(temperature=5, top_p=1, min_p=0, seed=1))
    assert {sampler.draw(LOGITS, place, allowed) for place in range(300)} == {0, 3}


@pytest.mark.rule("sampling.top-p-min-p")
def test_min_p_leaves_out_what_is_unlikely_against_the_best() -> None:
    assert set(draws(Sampling(temperature=9, top_p=1, min_p=0.2, seed=1))) == {1, 2}


@pytest.mark.rule("sampling.top-p-min-p")
def test_top_p_leaves_out_the_tail() -> None:
    assert set(draws(Sampling(temperature=9, top_p=0.9, min_p=0, seed=1))) == {1, 2}


@pytest.mark.rule("sampling.top-p-min-p")
@pytest.mark.parametrize("sampling", [Sampling(1, 0, 0, 1), Sampling(1, 0, 1, 1), Sampling(1, 0.0001, 1, 1)])
def test_one_token_always_stays(sampling: Sampling) -> None:
    assert set(draws(sampling)) == {1}


def test_where_nothing_has_a_number_nothing_is_drawn() -> None:
    for bad in (np.nan, -np.inf):
        assert draws(Sampling(), np.full(4, bad, dtype=np.float32), 1) == [None]


def test_logits_are_not_written_to() -> None:
    logits = LOGITS.copy()
    logits.flags.writeable = False
    assert draws(Sampling(seed=1), logits, 3)


def test_many_draws_follow_the_probabilities() -> None:
    counts = np.bincount([t or 0 for t in draws(Sampling(1, 1, 0, 3), count=20_000)], minlength=4) / 20_000
    assert counts == pytest.approx(np.exp(log_probabilities(LOGITS, [0, 1, 2, 3])), abs=0.02)


def test_log_probabilities_are_those_of_the_softmax() -> None:
    assert sum(np.exp(log_probabilities(LOGITS, [0, 1, 2, 3]))) == pytest.approx(1)


@given(st.integers(-(2**63), 2**64), st.integers(0, 100_000))
def test_a_draw_is_a_number_from_0_up_to_1(seed: int, place: int) -> None:
    assert 0 <= uniform(seed, place) < 1


@pytest.mark.rule("sampling.checked")
@pytest.mark.parametrize(
    ("sampling", "why"),
    [
        (Sampling(temperature=-0.1), "temperature is -0.1; it must be 0 to 1,000"),
        (Sampling(temperature=float("nan")), "temperature is nan"),
        (Sampling(temperature=float("inf")), "temperature is inf"),
        (Sampling(top_p=0), "top_p is 0; it must be above 0, at most 1"),
        (Sampling(top_p=1.1), "top_p is 1.1"),
        (Sampling(min_p=-1), "min_p is -1; it must be 0 to 1"),
        (Sampling(min_p=float("nan")), "min_p is nan"),
        (Sampling(seed=-1), "seed is -1; it must be 0 to 18446744073709551615"),
        (Sampling(seed=1 << 64), "seed is 18446744073709551616"),
    ],
)
def test_sampling_that_nothing_can_be_drawn_by_is_refused(sampling: Sampling, why: str) -> None:
    with pytest.raises(Refused) as refusal:
        check_sampling(sampling)
    assert refusal.value.code == "bad_request"
    assert why in refusal.value.message


@pytest.mark.rule("sampling.checked")
def test_every_sampling_that_is_not_refused_draws() -> None:
    for sampling in (
        Sampling(),
        Sampling(0, 1, 0, 0),
        Sampling(1000, 1e-9, 1, (1 << 64) - 1),
        Sampling(1e-9, 1, 0.5, None),
    ):
        check_sampling(sampling)
        assert None not in draws(sampling)
