"""Random trees of supervisors, thread actors and processes, under random messages, crashes, kills and stops.

``STRESS_SEED`` in the environment sets the seed, which a failure prints with the merged log of all actors. Threads
make no run the same as another; the seed gives the same tree and the same intentions.
"""

import itertools
import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import pytest

from aerix.actors import (
    ChildSpec,
    DeadlineExceeded,
    FindChild,
    Ref,
    Refused,
    StartChild,
    StartFailed,
    StopChild,
    start,
)
from aerix.actors.actor import living
from tests.actors.bodies import PATIENCE, Do, Echo
from tests.actors.stress_world import EXPECTED, KIND, MOMENT, UNITS, Body, Node, Poke, Tree, World
from tests.actors.test_process import until_ended

SEED = os.environ.get("STRESS_SEED")


class Driver:
    """A thread outside: it asks, tells, cancels, stops and kills, at random, until it is over."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = random.Random(world.dice.random())
        self.kinds: dict[type, Callable[[Ref, float], None]] = {Tree: self._steer, Body: self._use}

    def run(self) -> None:
        try:
            while not self._world.over.is_set():
                self._act(self._dice.random())
        except BaseException as error:  # noqa: BLE001  # the test's own thread reads it
            self._world.problem(f"a driver failed: {error!r}")

    def _act(self, luck: float) -> None:
        ref = self._world.somebody(self._dice, self._dice.choice([Node, Node, Node, Node, Tree, Body]))
        if ref is None:
            return
        self.kinds.get(type(self._world.living.get(ref.name)), self._poke)(ref, luck)

    def _poke(self, ref: Ref, luck: float) -> None:
        dice = self._dice
        if luck < 0.6:
            self._ask(ref, Poke(dice.choice([*KIND, "slow", "start_one"])))
        elif luck < 0.8:
            with suppress(Refused):
                ref.tell(Poke(dice.choice(KIND)))
        elif luck < 0.9:
            self._ask(ref, Poke(dice.choice(["crash", "leave", "end"])))
        elif luck < 0.95:
            self._world.note("driver", f"cancels or stops {ref}")
            (ref.cancel if dice.random() < 0.5 else ref.stop)("by dice")

    def _steer(self, ref: Ref, luck: float) -> None:
        dice = self._dice
        name = f"{ref.name}/x{dice.randrange(4)}"
        restart: Any = dice.choice(["transient", "temporary"])
        spec = ChildSpec(name, lambda: Node(self._world), restart, MOMENT, PATIENCE)
        if luck < 0.98:
            self._ask(
                ref, dice.choice([StartChild(spec), StartChild(spec), StopChild(name), FindChild(name)])
            )
        else:
            self._world.note("driver", f"stops {ref}")
            ref.stop("by dice")

    def _use(self, ref: Ref, luck: float) -> None:
        if luck < 0.6:
            self._ask(ref, Echo("x", 20))
        elif luck < 0.8:
            self._ask(ref, Do("until_cancelled"), MOMENT)  # its deadline cancels it
        elif luck < 0.82:
            self._ask(ref, Do("leave", "3"))
        elif luck < 0.84 and self._world.pids:
            pid = self._dice.choice(list(self._world.pids))
            self._world.note("driver", f"kills {pid}")
            self._world.pids.discard(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            until_ended(pid)

    def _ask(self, ref: Ref, message: Any, deadline_s: float | None = None) -> None:
        """Any end is good, but for none in a long time."""
        patience = deadline_s or self._dice.choice([MOMENT / 50, MOMENT, PATIENCE])
        if isinstance(message, Poke) and message.what in ("owe", "hand_on"):
            patience = min(patience, MOMENT)  # it may be owed to the end
        end = "answered"
        try:
            ref.ask(message, patience)
        except Refused as refused:
            end = refused.code
            if end not in EXPECTED:
                self._world.problem(f"{ref} refused {message} with {end}: {refused.message}")
        except DeadlineExceeded as late:
            end = "late"
            if patience == PATIENCE:
                self._world.problem(f"lost: {late}")
        self._world.asks[end] += 1


def stress(seconds: float, seed: int, processes: int) -> World:
    """A world in which all of this happens for that long; what must hold is asserted at its end."""
    world = World(seed, processes)
    drivers = [threading.Thread(target=Driver(world).run) for _ in range(3)]
    for thread in drivers:
        thread.start()
    until = monotonic() + seconds
    try:
        for number in itertools.count():
            if not live(world, f"root{number}", until):
                break
    finally:
        world.over.set()
        for thread in drivers:
            thread.join(2 * PATIENCE)
    world_ended(world)
    return world


def live(world: World, name: str, until: float) -> bool:
    """One root's life; whether there is to be another one."""
    try:
        root = start(Tree(world, name, 2), name)
    except (StartFailed, Refused) as error:
        world.note("the test", f"{name} did not start: {error}")
        world.unwatched |= {me for me in world.born if me[0] == name}
        return monotonic() < until
    while monotonic() < until and root.alive and not world.over.is_set():
        root.gone.wait(0.1)
    world.unwatched.add((root.name, root.incarnation))
    root.stop("the end")
    if root.join(2 * PATIENCE) is None:
        world.problem(f"{root} does not end")
    return monotonic() < until and not world.over.is_set()


def world_ended(world: World) -> None:
    """What must hold when all is over."""
    for actor in living():  # the abandoned ones come back from what they hang in
        if (actor.ref.name, actor.ref.incarnation) in world.born and actor.ref.join(PATIENCE) is None:
            world.problem(f"{actor.ref} was left behind")
    for pid in list(world.pids):
        until_ended(pid)
    for name, count in world.granted.items():
        if count != world.ledger.spent(name, UNITS) or count > 20:
            world.problem(
                f"{name} was granted {count} units, and {world.ledger.spent(name, UNITS)} are spent"
            )
    for me in world.born:
        if world.torn_down[me] != 1:
            world.problem(f"{me} was torn down {world.torn_down[me]} times")
        if world.downs[me] != 1 and me not in world.unwatched:
            world.problem(f"the end of {me} was told {world.downs[me]} times")
    assert not world.problems, world.told()
    assert world.asks["answered"] > 0, world.told()


def seed_of(default: int) -> int:
    return int(SEED) if SEED is not None else default


@pytest.mark.rule("actors.stress")
@pytest.mark.rule("actors.no-lost-ask")
def test_a_random_tree_under_random_blows_keeps_its_promises() -> None:
    stress(3.0, seed_of(random.randrange(2**32)), processes=2)


@pytest.mark.soak
@pytest.mark.rule("actors.stress")
@pytest.mark.timeout(900)
def test_random_trees_keep_their_promises_for_a_minute() -> None:
    world = stress(60.0, seed_of(random.randrange(2**32)), processes=4)
    assert len(world.born) > 1000
