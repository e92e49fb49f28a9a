"""The lost ask: whoever asks an actor while it stops gets an end of it, whatever the moment was."""

import itertools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from aerix.actors import Actor, Answer, DeadlineExceeded, Ref, Refused, launch, on, start, whereis
from tests.actors.bodies import PATIENCE, Ping, Puppet, Run, running

SHORT = 0.00005
"""Seconds between two looks of the interpreter for another thread: more turns, more races."""


class Slippery(Puppet):
    """Answers some at once, owes others an answer that it never gives, and hands the rest on."""

    def __init__(self, other: Ref) -> None:
        super().__init__()
        self._other = other
        self._owed: list[Answer] = []

    @on(Ping)
    def _ping(self, message: Ping) -> int:
        if message.number % 3 == 1:
            self._owed.append(self.later())
        elif message.number % 3 == 2:
            self.forward(self._other, message)
        return message.number


class Crowd:
    """Threads and actors that ask whoever bears the name now, until it is over; what became of their asks."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.there = threading.Event()
        self.answered = itertools.count()
        self.refused = itertools.count()
        self.lost: list[str] = []

    def ask(self) -> None:
        """A thread at an edge."""
        self._go(lambda ref, number: ref.ask(Ping(number), PATIENCE))

    def request(self, actor: Actor) -> None:
        """An actor that waits for replies."""
        self._go(
            lambda ref, number: actor.wait(actor.request(ref, Ping(number)), deadline_s=PATIENCE).result()
        )

    def _go(self, send: Any) -> None:
        for number in itertools.count():
            if self.over.is_set():
                return
            if (ref := whereis("target")) is None:
                self.there.wait(PATIENCE)
                continue
            try:
                assert send(ref, number) == number
                next(self.answered)
            except Refused as refused:
                assert refused.code in ("gone", "crashed"), refused
                next(self.refused)
            except DeadlineExceeded as error:
                self.lost.append(str(error))
                return


@contextmanager
def switching(seconds: float | None) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds or before)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def leave(_: Actor) -> None:
    raise SystemExit


def hammer(stops: int, switch_s: float | None) -> tuple[int, int]:
    """How many asks were answered, and how many refused; none may be lost."""
    crowd = Crowd()
    threads = [threading.Thread(target=crowd.ask) for _ in range(4)]
    with running(Puppet(), "other") as other, switching(switch_s):
        askers = [start(Puppet(), f"asker{n}") for n in range(2)]
        for asker in askers:
            asker.tell(Run(crowd.request))
        for thread in threads:
            thread.start()
        for at in range(stops):
            ref = launch(Slippery(other), "target")
            crowd.there.set()
            if at % 2:
                assert ref.started.wait(PATIENCE)
            if at % 3 == 0:
                ref.tell(Run(leave))
            else:
                ref.stop()
            crowd.there.clear()
            assert ref.join(PATIENCE), f"{ref} did not stop"
        crowd.over.set()
        crowd.there.set()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        for asker in askers:
            assert asker.ask(Ping(7), PATIENCE) == 7
            asker.stop()
            assert asker.join(PATIENCE)
    assert crowd.lost == []
    return next(crowd.answered), next(crowd.refused)


@pytest.mark.rule("actors.no-lost-ask")
@pytest.mark.parametrize("switch_s", [None, SHORT])
def test_no_ask_is_lost_while_the_actor_stops(switch_s: float | None) -> None:
    hammer(500, switch_s)


@pytest.mark.soak
@pytest.mark.rule("actors.no-lost-ask")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("switch_s", [None, SHORT])
def test_no_ask_is_lost_in_ten_thousand_stops(switch_s: float | None) -> None:
    answered, refused = hammer(10_000, switch_s)
    assert answered > 1000
    assert refused > 1000
