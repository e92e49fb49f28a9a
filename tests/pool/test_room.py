"""Who has to go for one more member."""

import pytest

from aerix.actors import Refused
from aerix.pool.room import House, Need, Place, Tenant, place


def takes(count: int) -> Need:
    """A model of a fixed size."""

    def need(room: int) -> int:
        if count > room:
            raise Refused("no_memory", f"m does not fit: it needs {count} bytes, and {room} may be used.")
        return count

    return need


def unknown(_: int) -> None:
    return None


def idle(name: str, count: int | None, since: float = 0) -> Tenant:
    return Tenant(name, count, used=False, since=since)


def used(name: str, count: int | None) -> Tenant:
    return Tenant(name, count, used=True, since=0)


@pytest.mark.rule("models.making-room")
def test_what_fits_sends_nobody_away() -> None:
    assert place("m", takes(60), [idle("a", 40)], 100) == Place((), 60, 60)


@pytest.mark.rule("models.making-room")
def test_those_go_first_that_were_not_used_for_longest_and_no_more_than_needed() -> None:
    tenants = [
        idle("late", 30, since=3),
        used("u", 20),
        idle("first", 30, since=1),
        idle("second", 20, since=2),
    ]
    assert place("m", takes(20), tenants, 100) == Place(("first",), 30, 20)
    assert place("m", takes(40), tenants, 100) == Place(("first", "second"), 50, 40)


@pytest.mark.rule("models.making-room")
@pytest.mark.rule("models.fit")
def test_one_in_use_stays_and_the_refusal_has_the_numbers() -> None:
    with pytest.raises(Refused) as refused:
        place("m", takes(90_000_000), [idle("a", 5), used("u", 20_000_000)], 100_000_000)
    assert refused.value.code == "no_memory"
    assert refused.value.message == (
        "m does not fit: it needs 90000000 bytes, and 80000000 may be used. "
        "Of the limit of 100 MB, members in use take: u 20 MB."
    )
    with pytest.raises(Refused, match=r"it needs 101 bytes, and 100 may be used\.$"):
        place("m", takes(101), [idle("a", 50)], 100)


@pytest.mark.rule("models.unknown-footprint")
def test_one_whose_size_is_unknown_is_loaded_alone() -> None:
    assert place("m", unknown, [idle("a", 1), idle("b", 1)], 100) == Place(("a", "b"), 100, None)
    assert place("m", takes(1), [idle("unknown", None)], 100) == Place(("unknown",), 100, 1)
    for need, tenants in ((unknown, [used("a", 1)]), (takes(1), [idle("a", 1), used("odd", None)])):
        with pytest.raises(Refused, match="is loaded alone") as refused:
            place("m", need, tenants, 100)
        assert refused.value.code == "no_memory"


def test_one_that_takes_nothing_is_in_nobodys_way() -> None:
    tenants = [used("script", 0), used("odd", None)]
    assert place("m", takes(0), tenants, 100) == Place((), 100, 0)
    assert place("m", unknown, tenants[:1], 100) == Place((), 100, None)


@pytest.mark.rule("models.making-room")
def test_a_smaller_window_is_taken_before_anybody_goes() -> None:
    def shrinks(room: int) -> int:
        return takes(30)(room) if room < 60 else 60

    assert place("m", shrinks, [idle("a", 50)], 100) == Place((), 50, 30)


@pytest.mark.rule("pool.budget-split")
def test_what_members_leave_of_the_limit_is_free() -> None:
    house = House(100)
    house.move_in("a", takes(60), lambda _: True, 0)
    assert house.free == 40
    house.move_in("b", takes(10), lambda _: True, 0)
    house.move_out("a")
    assert house.free == 90
