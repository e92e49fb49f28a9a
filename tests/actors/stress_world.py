"""The world of the stress: who lives in it, what each may be told to do, and what each must not see happen."""

import random
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

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
    Intensity,
    Ledger,
    Left,
    Piece,
    Ref,
    Refused,
    Reply,
    StartChild,
    Started,
    Supervisor,
    Tick,
    on,
)
from aerix.actors.wire import Plain
from tests.actors.bodies import PATIENCE
from tests.actors.test_process import Owner

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
