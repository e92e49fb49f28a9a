"""A supervisor under any order of events: children that come up, end, hang, obey or do not, timers, stops and additions.

The real supervisor runs in the test's own thread, one message at a time; its children are refs that do what the test
says. So every order of events can be had, and a failure is the same each time.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pykka._envelope import Envelope

from aerix.actors import (
    Actor,
    Answer,
    ChildSpec,
    Down,
    Exit,
    FindChild,
    Intensity,
    ManualClock,
    Ref,
    StartChild,
    Started,
    Stop,
    StopChild,
    Supervisor,
    launch,
    supervisor,
)
from aerix.actors.life import Life
from aerix.actors.mailbox import Mailbox, Slot

GRACE_S, START_S, WINDOW_S, RESTARTS = 2.0, 5.0, 60.0, 2
EXITS = ("normal", "shutdown", "crash", "killed", "lost")
KINDS = st.sampled_from(["permanent", "transient", "temporary"])
HANDLED = st.sampled_from([0, 1, 100, 100])
"""How many messages the supervisor handles after an event: none, one, or all."""
NUMBERS = itertools.count(1)


@dataclass(eq=False)
class Child:
    """One incarnation, as it really is."""

    ref: Ref
    state: str = "starting"
    stops: list[Stop] = field(default_factory=list)

    @property
    def lives(self) -> bool:
        """Whether its end was neither told nor given up waiting for."""
        self._hear()
        return self.state != "ended" and not any(stop.force for stop in self.stops)

    @property
    def asked(self) -> bool:
        self._hear()
        return bool(self.stops)

    def _hear(self) -> None:
        while (envelope := self.ref._mailbox.get(0.0)) is not None:
            self.stops.append(envelope.message)


def names(refs: set[Ref | None]) -> set[tuple[str, int]]:
    return {(ref.name, ref.incarnation) for ref in refs if ref is not None}


@dataclass
class Asked:
    """A message to the supervisor, and where its answer comes."""

    message: object
    name: str
    slot: Slot = field(default_factory=Slot)
    came: bool = False

    @property
    def answered(self) -> bool:
        """Whether there is an answer, or a refusal."""
        self.came = self.came or self.slot.wait(0)
        return self.came


class Tree(Supervisor):
    """Tells the machine what it does."""

    def __init__(self, machine: "Machine", specs: list[ChildSpec], strategy: Any) -> None:
        super().__init__(specs, strategy, Intensity(RESTARTS, WINDOW_S, 1.0))
        self.machine = machine
        self.clock = machine.clock

    def _ask_to_stop(self, child: Any) -> None:
        self.machine.check_stop(child)
        super()._ask_to_stop(child)


class Machine(RuleBasedStateMachine):
    """What may happen, and what must hold whatever happens."""

    @initialize(
        kinds=st.lists(st.tuples(KINDS, st.booleans()), max_size=4),
        strategy=st.sampled_from(["one_for_one", "rest_for_one", "one_for_all"]),
        obedient=st.booleans(),
    )
    def begin(self, kinds: list[tuple[Any, bool]], strategy: str, obedient: bool) -> None:
        self.clock = ManualClock()
        self.children: list[Child] = []
        self.asked: list[Asked] = []
        self.restarted: list[float] = []
        self.obedient = obedient
        self.specs = {
            name: self.spec(name, restart, significant=significant and restart == "temporary")
            for name, (restart, significant) in zip("abcd", kinds, strict=False)
        }
        self.tree = Tree(self, list(self.specs.values()), strategy)
        self.strategy = strategy
        mailbox: Mailbox[Any] = Mailbox(1000, Envelope)
        self.tree.name = "tree"
        self.tree.ref = Ref("tree", 0, mailbox)
        self.life = self.tree._life = Life(self.tree, self.tree.ref, mailbox, None)
        setattr(supervisor, "launch", self.launch)  # noqa: B010  # the only part of the runtime that is not there
        self.tree.setup()

    def spec(self, name: str, restart: Any, *, significant: bool = False) -> ChildSpec:
        return ChildSpec(name, Actor, restart, GRACE_S, START_S, significant)

    # --- what the supervisor does, checked when it does it

    def launch(self, _actor: Actor, name: str, _monitor: Ref) -> Ref:
        spec = self.tree._children[name].spec
        before = [child for child in self.children if child.ref.name == name]
        assert not any(child.lives for child in before), f"{name} is started beside itself"
        assert self.tree._ending is None, f"{name} is started by a tree that ends"
        assert not any(child.recycled for child in self.tree._children.values()), (
            f"{name} is started too early"
        )
        if not self.tree._children[name].dynamic:
            for earlier in itertools.takewhile(lambda other: other != name, self.specs):
                if (child := self.tree._children.get(earlier)) is not None:
                    waits = child.state == "delayed" and self.strategy == "one_for_one"
                    there = child.state == "up" or waits or not child.wanted
                    assert there, f"{name} is started while {earlier} is {child.state}"
        if spec.restart == "temporary" and name in self.specs:
            assert not before, f"the temporary {name} is started again"
        mailbox: Mailbox[Any] = Mailbox(1000, Envelope)
        self.children.append(Child(Ref(name, next(NUMBERS), mailbox)))
        return self.children[-1].ref

    def check_stop(self, child: Any) -> None:
        """One that was there first is asked to stop when all after it that must go are gone."""
        names = list(self.tree._children)
        if not child.dynamic:
            for name in names[names.index(child.spec.name) + 1 :]:
                later = self.tree._children[name]
                goes = not later.wanted or later.recycled
                assert not goes or later.state in ("down", "delayed"), f"{child.spec.name} goes before {name}"

    # --- what happens

    def living(self, state: str) -> list[Child]:
        return [child for child in self.children if child.lives and child.state == state]

    def tell_down(self, child: Child, exit: Exit) -> None:
        started = child.state == "up"
        child.state = "ended"
        self.tree.ref.tell(Down(child.ref.name, child.ref.incarnation, exit, started))

    @property
    def over(self) -> bool:
        return self.life.exit is not None

    @rule(which=st.integers(0, 3), count=HANDLED)
    def comes_up(self, which: int, count: int) -> None:
        if children := self.living("starting"):
            self.tell_started(children[which % len(children)])
            self.handles(count)

    @rule()
    def all_come_up(self) -> None:
        while children := self.living("starting"):
            self.tell_started(children[0])
            self.handles(100)

    def tell_started(self, child: Child) -> None:
        child.state = "up"
        self.tell(Started(child.ref.name, child.ref.incarnation))

    @rule(which=st.integers(0, 5), kind=st.sampled_from(EXITS), count=HANDLED)
    def ends(self, which: int, kind: Any, count: int) -> None:
        children = [child for child in self.children if child.state != "ended"]  # also one that was abandoned
        if children and not self.over:
            self.tell_down(children[which % len(children)], Exit(kind, "no luck"))
            self.handles(count)

    @rule(which=st.integers(0, 5), count=HANDLED)
    def obeys(self, which: int, count: int) -> None:
        children = [child for child in self.children if child.state != "ended" and child.asked]
        if children and not self.over:
            child = children[which % len(children)]
            self.tell_down(child, Exit("shutdown", child.stops[0].reason))
            self.handles(count)

    @rule(seconds=st.sampled_from([0.5, 1.0, 1.0, GRACE_S, GRACE_S, START_S, WINDOW_S + 1]), count=HANDLED)
    def time_passes(self, seconds: float, count: int) -> None:
        self.clock.advance(seconds)
        self.handles(count)

    @rule(number=st.integers(0, 2), restart=KINDS)
    def adds(self, number: int, restart: Any) -> None:
        self.ask(StartChild(self.spec(f"x{number}", restart)))

    @rule(name=st.sampled_from(["a", "b", "c", "x0", "x1"]))
    def removes(self, name: str) -> None:
        self.ask(StopChild(name))

    @rule(name=st.sampled_from(["a", "b", "c", "x0", "x1"]))
    def finds(self, name: str) -> None:
        self.ask(FindChild(name))

    @precondition(lambda self: len(self.children) > 10)
    @rule()
    def is_stopped(self) -> None:
        self.tell(Stop("enough"))

    @rule(count=HANDLED)
    def handles(self, count: int) -> None:
        for _ in range(count):
            self.handle()

    def tell(self, message: Any) -> None:
        if not self.over:
            self.tree.ref.tell(message)

    def ask(self, message: StartChild | StopChild | FindChild) -> None:
        if not self.over:
            self.asked.append(
                Asked(message, message.spec.name if isinstance(message, StartChild) else message.name)
            )
            self.tree.ref.send(message, Answer(None, self.asked[-1].slot, self.tree.ref))

    def handle(self) -> bool:
        """One message; whether there was one."""
        if self.over or len(self.tree.ref._mailbox) == 0:
            return False
        children = list(self.tree._children.values())
        counts = [child.restarts for child in children]
        to_go = {child.ref for child in children if not child.wanted or child.recycled}
        envelope = self.life.mailbox.get(0.0)
        assert envelope is not None
        self.life._handle(envelope)
        counted = sum(child.restarts - count for child, count in zip(children, counts, strict=True))
        if isinstance(down := envelope.message, Down) and (down.name, down.incarnation) in names(to_go):
            assert counted == 0, f"the end of {down.name}, which was to go anyway, is counted"
        self.restarted += [self.clock.now()] * counted
        if self.life.exit is not None:
            self.life.end(self.life.exit)
        return True

    # --- what must hold

    @invariant()
    def restarts_stay_within_the_limit(self) -> None:
        now = self.clock.now() if hasattr(self, "clock") else 0.0
        recent = [at for at in getattr(self, "restarted", ()) if now - at <= WINDOW_S]
        assert len(recent) <= RESTARTS

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """Whoever is not there waits for somebody who comes up or ends, or for a time."""
        if not hasattr(self, "life") or self.over or len(self.tree.ref._mailbox):
            return
        children = self.tree._children.values()
        for child in children:
            if child.state in ("starting", "stopping", "delayed"):
                assert child.timer is not None, f"{child.spec.name} is {child.state} without a limit"
            assert child.wanted or child.state in ("up", "starting", "stopping")
        if not any(child.state in ("starting", "stopping", "delayed") for child in children):
            assert all(child.state == "up" for child in children)
            assert not any(child.recycled or not child.wanted for child in children)
            assert self.tree.ref.started.is_set()
        for asked in self.asked:
            if asked.name not in self.tree._children:
                assert asked.answered, f"{asked.message} is not answered"
        known = {child.ref for child in children if child.ref is not None}
        assert {child.ref for child in self.children if child.lives} == known

    def teardown(self) -> None:
        """Whatever happened, a stop ends it: with children that obey, or by the clock alone."""
        if not hasattr(self, "life"):
            return
        self.tell(Stop("the end"))
        for turn in range(200):
            while self.handle():
                pass
            if self.over:
                break
            if turn % 2:
                self.clock.advance(GRACE_S)
            elif self.obedient and (
                children := [child for child in self.children if child.lives and child.asked]
            ):
                self.tell_down(children[0], Exit("shutdown", "the end"))
        assert self.over, "it does not end"
        assert not any(child.lives for child in self.children)
        for asked in self.asked:
            assert asked.answered, f"{asked.message} was not answered"


@pytest.mark.rule("supervisor.any-order")
def test_whatever_happens_in_whatever_order_a_supervisor_keeps_its_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "launch", launch)  # put back at the end
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=False,
        ),
    )


@pytest.mark.soak
@pytest.mark.rule("supervisor.any-order")
@pytest.mark.timeout(900)
def test_a_supervisor_keeps_its_rules_in_two_thousand_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "launch", launch)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=2_000,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
