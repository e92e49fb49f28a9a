"""Random trees of supervisors, thread actors and processes, under random messages, crashes, kills and stops.

``STRESS_SEED`` in the environment sets the seed, which a failure prints with the merged log of all actors. Threads
make no run the same as another; the seed gives the same tree and the same intentions.
"""

import itertools
import os
import random
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pytest

from aerix.actors import (
    Actor,
    Answer,
    Bound,
    Call,
    CallCancelled,
    ChildSpec,
    DeadlineExceeded,
    Down,
    Exit,
    FindChild,
    Intensity,
    Ledger,
    Left,
    Piece,
    Ref,
    Refused,
    Reply,
    StartChild,
    Started,
    StartFailed,
    StopChild,
    Supervisor,
    Tick,
    on,
    start,
    whereis,
)
from aerix.actors.wire import Plain
from tests.actors.bodies import PATIENCE, Do, Echo
from tests.actors.test_process import Owner, until_ended

SEED = os.environ.get("STRESS_SEED")
MOMENT = 0.05
"""Seconds: how long an impatient asker waits, and a slow handler takes."""
LOG_LINES = 400
UNITS = Bound("stress.units", 20, "units of a name", "the stress", "stop", "budget: units")
RESTARTS, WINDOW_S = 4, 1.0
EXPECTED = frozenset(
    [
        "gone",
        "crashed",
        "cancelled",
        "busy",
        "stopping",
        "mailbox_full",
        "start_failed",
        "name_taken",
        "no_child",
        "unknown_message",
        "worker_died",
        "late",
        "setup_refused",
    ]
)


@dataclass(frozen=True, slots=True)
class Poke:
    """Do this; ``hops`` bounds how far it is handed on."""

    what: str
    hops: int = 3


class World:
    """What everybody shares: the dice, the merged log, who lives, and what went wrong."""

    def __init__(self, seed: int, processes: int) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.over = threading.Event()
        self.problems: list[str] = []
        self.asks: Counter[str] = Counter()
        self.downs: Counter[tuple[str, int]] = Counter()
        self.born: set[tuple[str, int]] = set()
        self.torn_down: Counter[tuple[str, int]] = Counter()
        self.unwatched: set[tuple[str, int]] = set()
        self.granted: Counter[str] = Counter()
        self.ledger = Ledger({UNITS: 20})
        self.pids: set[int] = set()
        self.processes = processes
        self.living: dict[str, Actor] = {}
        self.names: set[str] = set()
        self._lock = threading.Lock()
        self._log: deque[str] = deque(maxlen=LOG_LINES)

    def note(self, who: str, what: str) -> None:
        self._log.append(f"{monotonic():.4f} {who}: {what}")

    def problem(self, what: str) -> None:
        self.note("PROBLEM", what)
        self.problems.append(what)
        self.over.set()

    def begins(self, actor: Actor) -> None:
        me = (actor.name, actor.ref.incarnation)
        with self._lock:
            self.born.add(me)
            self.names.add(actor.name)
            self.living[actor.name] = actor
        self.note(f"{me}", "begins")

    def handles(self, actor: Actor, what: object) -> None:
        me = (actor.name, actor.ref.incarnation)
        self.note(f"{me}", f"handles {what}")
        if self.torn_down[me] or self.downs[me] or actor.ref.gone.is_set():
            self.problem(f"{me} handles {what} after its end")

    def ends(self, actor: Actor, exit: Exit) -> None:
        me = (actor.name, actor.ref.incarnation)
        self.note(f"{me}", f"ends: {exit.kind} {exit.detail.strip()[-60:]!r}")
        with self._lock:
            self.torn_down[me] += 1
            if self.living.get(actor.name) is actor:
                del self.living[actor.name]

    def down(self, tree: str, message: Down) -> None:
        them = (message.name, message.incarnation)
        self.note(tree, f"is told of the end of {them}: {message.exit.kind}")
        with self._lock:
            self.downs[them] += 1
            if self.downs[them] > 1:
                self.problem(f"the end of {them} is told twice")

    def somebody(self, dice: random.Random, kind: type = Actor) -> Ref | None:
        """Somebody of that kind who lives, or did a moment ago."""
        with self._lock:
            actors = [actor for actor in self.living.values() if isinstance(actor, kind)]
        return dice.choice(actors).ref if actors else None

    def told(self) -> str:
        return f"STRESS_SEED={self.seed}\n" + "\n".join(self._log) + "\n" + "\n".join(self.problems)


# --- who lives in it ----------------------------------------------------------------------------------------------


class Node(Actor):
    """A thread actor that does what it is told, well or badly."""

    mailbox_limit = 20

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = random.Random(world.dice.random())
        self._kept: list[Answer] = []

    def setup(self) -> None:
        self._world.begins(self)
        luck = self._dice.random()
        if luck < 0.02:
            raise OSError("no luck")
        if luck < 0.03:
            raise Refused("setup_refused", "not today")
        if luck < 0.05:
            pause()

    @on(Poke)
    def _poke(self, message: Poke) -> object:
        self._world.handles(self, message.what)
        return DEEDS[message.what](self, message)

    @on(Tick)
    def _tick(self, message: Tick) -> None:
        self._world.handles(self, message.token)
        for answer in self._kept:
            answer.piece("late")
            answer.reply("late")
        self._kept.clear()

    @on(CallCancelled)
    def _cancelled(self, message: CallCancelled) -> None:
        self._world.handles(self, "CallCancelled")
        for answer in self._kept:
            if answer.token == message.token:
                answer.refuse(Refused("cancelled", "as you like"))

    @on(Piece)
    def _piece(self, _message: Piece) -> None:
        self._world.handles(self, "Piece")

    @on(Reply)
    def _reply(self, _message: Reply) -> None:
        self._world.handles(self, "Reply")

    def teardown(self, exit: Exit) -> None:
        self._world.ends(self, exit)
        luck = self._dice.random()
        if luck < 0.02:
            raise OSError("no luck either")
        if luck < 0.05:
            pause()

    # --- deeds

    def note(self, _: Poke) -> str:
        return "noted"

    def spend(self, _: Poke) -> int:
        left = self._world.ledger.spend(self.name, UNITS)
        if isinstance(left, Left):
            self._world.granted[self.name] += 1  # by this name's own thread only
            return left.count
        return -1

    def crash(self, _: Poke) -> None:
        raise ValueError("no luck at all")

    def leave(self, _: Poke) -> None:
        raise SystemExit

    def end(self, _: Poke) -> None:
        self.stop(self._dice.choice(["normal", "shutdown", "killed", "lost"]), "its own way")

    def owe(self, _: Poke) -> None:
        self._kept.append(self.later())
        if self._dice.random() < 0.5:  # else it is owed until the end, or somebody else's timer
            self.after(4 * MOMENT, "owed")

    def answer_later(self, _: Poke) -> None:
        self._kept.append(self.later())
        self.after(self._dice.random() * MOMENT, "answer")

    def slow(self, _: Poke) -> None:
        pause()

    def pieces(self, _: Poke) -> str:
        answer = self.later()
        for number in range(self._dice.randrange(5)):
            answer.piece(number)
        answer.reply("whole")
        return "nothing"

    def hand_on(self, message: Poke) -> str:
        other = self._world.somebody(self._dice, Node)
        if other is None or message.hops == 0:
            return "mine"
        self.forward(other, Poke(self._dice.choice(KIND), message.hops - 1))
        return "nothing"

    def ask_on(self, message: Poke) -> object:
        other = self._world.somebody(self._dice)
        if other is None or message.hops == 0:
            return "mine"
        call = self.request(other, Poke(self._dice.choice(KIND), message.hops - 1))
        return self.outcome(call)

    def ask_several(self, message: Poke) -> object:
        others = [self._world.somebody(self._dice, Node) for _ in range(3)]
        calls = [self.request(other, Poke("pieces")) for other in others if other is not None]
        if calls and self._dice.random() < 0.3:
            calls[0].cancel()
        return self.outcome(*calls) if calls else "mine"

    def outcome(self, *calls: Call) -> object:
        try:
            return self.wait(*calls, deadline_s=MOMENT, on_piece=lambda *_: None).result()
        except DeadlineExceeded:
            calls[0].cancel()
            raise Refused("late", "it took too long") from None

    def start_one(self, _: Poke) -> object:
        tree = self._world.somebody(self._dice, Tree)
        if tree is None:
            return "alone"
        name = f"{tree.name}/x{self._dice.randrange(4)}"
        spec = ChildSpec(name, lambda: Node(self._world), "temporary", MOMENT, PATIENCE)
        return self.outcome(self.request(tree, StartChild(spec)))


DEEDS: dict[str, Callable[[Node, Poke], object]] = {
    "note": Node.note, "spend": Node.spend, "crash": Node.crash, "leave": Node.leave, "end": Node.end, "owe": Node.owe,
    "answer_later": Node.answer_later, "slow": Node.slow, "pieces": Node.pieces, "hand_on": Node.hand_on,
    "ask_on": Node.ask_on, "ask_several": Node.ask_several, "start_one": Node.start_one,
}  # fmt: skip
KIND = ["note", "spend", "owe", "answer_later", "pieces", "hand_on", "ask_on", "ask_several"]
"""Deeds that end nobody."""


def pause() -> None:
    """Hang for a moment, and hear nothing."""
    threading.Event().wait(MOMENT)


class Body(Owner):
    """A process, with graces so small that they run out."""

    def __init__(self, world: World) -> None:
        super().__init__(stop_s=MOMENT, term_s=MOMENT, args={"deaf": world.dice.random() < 0.3})
        self._world = world

    def setup(self) -> None:
        self._world.begins(self)
        super().setup()

    def ready(self, info: Plain) -> None:
        super().ready(info)
        self._world.pids.add(self.pid)

    def teardown(self, exit: Exit) -> None:
        super().teardown(exit)
        self._world.ends(self, exit)


class Tree(Supervisor):
    """A supervisor of random children, which checks what it is told."""

    def __init__(self, world: World, path: str, depth: int) -> None:
        self._world = world
        dice = random.Random(world.dice.random())
        self._times: deque[float] = deque()
        specs = [self._spec(dice, f"{path}.{n}", depth) for n in range(dice.randint(1, 4))]
        strategy: Any = dice.choice(["one_for_one", "rest_for_one", "one_for_all"])
        super().__init__(specs, strategy, Intensity(RESTARTS, WINDOW_S, 0.01))

    def _spec(self, dice: random.Random, name: str, depth: int) -> ChildSpec:
        restart: Any = dice.choice(["permanent", "permanent", "transient", "temporary"])
        significant = dice.random() < 0.05
        if depth > 0 and dice.random() < 0.5:
            return ChildSpec(
                name, lambda: Tree(self._world, name, depth - 1), restart, None, PATIENCE, significant
            )
        if self._world.processes > 0 and dice.random() < 0.3:
            self._world.processes -= 1
            return ChildSpec(name, lambda: Body(self._world), restart, PATIENCE, PATIENCE, significant)
        grace_s = dice.choice([MOMENT / 4, MOMENT * 4, PATIENCE])
        return ChildSpec(name, lambda: Node(self._world), restart, grace_s, PATIENCE, significant)

    def setup(self) -> None:
        self._world.begins(self)
        super().setup()

    def _ended(self, message: Down) -> None:
        self._world.down(self.name, message)
        super()._ended(message)

    def _started(self, message: Started) -> None:
        if self._world.downs[message.name, message.incarnation]:
            self._world.problem(f"{message.name} is told to be up after its end")
        super()._started(message)

    def _restart(self, child: Any, exit: Exit) -> None:
        before = child.restarts
        super()._restart(child, exit)
        if child.restarts > before:
            now = self.clock.now()
            self._times.append(now)
            while now - self._times[0] > WINDOW_S:
                self._times.popleft()
            if len(self._times) > RESTARTS:
                self._world.problem(f"{self.name} restarted {len(self._times)} times in {WINDOW_S} s")

    def _abandon(self, child: Any, why: str) -> None:
        self._world.unwatched.add((child.spec.name, child.ref.incarnation))  # its end may find nobody
        super()._abandon(child, why)

    def teardown(self, exit: Exit) -> None:
        super().teardown(exit)
        if any(child.ref is not None for child in self._children.values()):
            self._world.problem(f"{self.name} ended before its children: {exit}")
        self._world.ends(self, exit)


# --- what happens in it -------------------------------------------------------------------------------------------


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
    for name in list(world.names):  # the abandoned ones come back from what they hang in
        if (ref := whereis(name)) is not None and ref.join(PATIENCE) is None:
            world.problem(f"{ref} was left behind")
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
