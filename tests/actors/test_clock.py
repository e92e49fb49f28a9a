"""Timers, by the real clock and by one that a test turns."""

import threading

import pytest

from aerix.actors import Actor, Clock, ManualClock, Tick, on
from aerix.actors.clock import SystemClock
from tests.actors.bodies import PATIENCE, running


class Listener(Actor):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ticks: list[object] = []
        self.done = threading.Event()

    @on(Tick)
    def _tick(self, message: Tick) -> None:
        self.ticks.append(message.token)
        if message.token == "last":
            self.done.set()


@pytest.fixture(scope="module")
def real() -> SystemClock:
    return SystemClock()


@pytest.mark.rule("actors.clock")
def test_real_timers_fire_in_the_order_of_their_times(real: SystemClock) -> None:
    listener = Listener(real)
    with running(listener):
        for token, seconds in (("last", 1.0), ("second", 0.5), ("first", 0.0)):
            listener.after(seconds, token)
        assert listener.done.wait(PATIENCE)
    assert listener.ticks == ["first", "second", "last"]


@pytest.mark.rule("actors.clock")
def test_a_cancelled_timer_does_not_fire(real: SystemClock) -> None:
    listener = Listener(real)
    with running(listener):
        listener.after(0.0, "never").cancel()
        listener.after(0.001, "last")
        assert listener.done.wait(PATIENCE)
    assert listener.ticks in (["last"], ["never", "last"])  # it may have fired before it was cancelled
    assert listener.ticks[-1] == "last"


def test_a_timer_for_an_actor_that_has_ended_is_dropped(real: SystemClock) -> None:
    ended, other = Listener(real), Listener(real)
    with running(ended):
        ended.after(0.001, "late")
    with running(other, "other"):
        other.after(0.002, "last")
        assert other.done.wait(PATIENCE)


def test_long_timers_that_were_cancelled_do_not_pile_up() -> None:
    clock, listener = SystemClock(), Listener(ManualClock())
    with running(listener):
        kept = [clock.after(3600, listener.ref, n) for n in range(10)]
        for n in range(5000):
            clock.after(3600, listener.ref, n).cancel()
        assert len(clock._heap) < 200
        assert sum(not timer.cancelled for _, _, timer in clock._heap) == len(kept)


@pytest.mark.rule("actors.clock")
def test_the_manual_clock_stands_until_it_is_turned() -> None:
    clock = ManualClock()
    listener = Listener(clock)
    with running(listener):
        listener.after(5, "last")
        listener.after(3, "first")
        gone = listener.after(4, "never")
        assert clock.pending == 3
        gone.cancel()
        clock.advance(2.9)
        assert (clock.now(), clock.pending, listener.ticks) == (2.9, 2, [])
        clock.advance(2.1)
        assert listener.done.wait(PATIENCE)
    assert listener.ticks == ["first", "last"]
    assert clock.pending == 0
