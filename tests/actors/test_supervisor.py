"""Supervisors: who is started, restarted, stopped, in which order and how often. Time is turned by hand."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from aerix.actors import (
    Actor,
    ChildSpec,
    Down,
    Exit,
    FindChild,
    Gone,
    Intensity,
    ManualClock,
    Ref,
    Refused,
    RestartWindow,
    StartChild,
    StartFailed,
    StopChild,
    Supervisor,
    Tick,
    launch,
    on,
    start,
    whereis,
)
from tests.actors.bodies import PATIENCE, Asker, Gate, Ping, Puppet, Run, refusal, running
from tests.actors.test_process import Owner, ended

KINDS = ("permanent", "transient", "temporary")
EXITS = ("normal", "shutdown", "crash", "killed", "lost")
STRATEGIES = ("one_for_one", "rest_for_one", "one_for_all")
MANY = Intensity(100, 60)


class History:
    """What happened, in order, for threads to wait on."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.changed = threading.Condition()

    def add(self, event: str) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def until(self, test: Callable[[list[str]], Any]) -> list[str]:
        with self.changed:
            assert self.changed.wait_for(lambda: test(self.events), PATIENCE), self.events
            return list(self.events)

    def until_seen(self, event: str, times: int = 1) -> None:
        self.until(lambda events: events.count(event) >= times)


class Limb(Puppet):
    """A child; ``plan`` says for each of its starts what its set-up does."""

    def __init__(self, history: History, plan: list[Callable[[], None]] | None = None) -> None:
        super().__init__()
        self.history = history
        self.plan = plan

    def setup(self) -> None:
        self.history.add(f"start {self.name}")
        if self.plan:
            self.plan.pop(0)()

    def teardown(self, exit: Exit) -> None:
        self.history.add(f"stop {self.name}")


class Tree(Supervisor):
    """A supervisor that tells what it sees, on a clock that stands."""

    def __init__(self, history: History, clock: ManualClock, *specs: ChildSpec, **options: Any) -> None:
        super().__init__(specs, **options)
        self.history = history
        self.clock = clock

    def child_up(self, name: str, ref: Ref) -> None:
        self.history.add(f"up {name}")

    def child_down(self, name: str, exit: Exit, *, started: bool) -> None:
        self.history.add(f"down {name}" if started else f"failed {name}")

    @on(Run)
    def _run(self, message: Run) -> object:
        return message.do(self)


class Grove:
    """A tree, its history and its clock, for one test."""

    def __init__(self) -> None:
        self.history = History()
        self.clock = ManualClock()

    def spec(self, name: str, plan: list[Callable[[], None]] | None = None, **options: Any) -> ChildSpec:
        options.setdefault("grace_s", None)
        return ChildSpec(name, lambda: Limb(self.history, plan), **options)

    def specs(self, names: str, **options: Any) -> list[ChildSpec]:
        return [self.spec(name, **options) for name in names]

    def tree(self, *specs: ChildSpec, **options: Any) -> Tree:
        return Tree(self.history, self.clock, *specs, **options)

    @contextmanager
    def growing(self, *specs: ChildSpec, **options: Any) -> Iterator[Ref]:
        options.setdefault("intensity", MANY)
        with running(self.tree(*specs, **options), "tree") as ref:
            yield ref

    def refs(self, tree: Ref) -> dict[str, int]:
        """Who is up, in which incarnation; after all that the tree was told before."""
        up: dict[str, Ref] = tree.ask(Run(lambda me: me.refs()), PATIENCE)
        return {name: ref.incarnation for name, ref in up.items()}

    def state(self, tree: Ref, name: str) -> str:
        state: str = tree.ask(Run(lambda me: me._children[name].state), PATIENCE)
        return state

    def turn(self, tree: Ref, seconds: float) -> None:
        """Turn the clock when the tree has done what it was told before, and let it see what came due."""
        self.refs(tree)
        self.clock.advance(seconds)
        with suppress(Gone):  # what came due may have been its end
            self.refs(tree)


@pytest.fixture
def grove() -> Grove:
    return Grove()


def child(name: str) -> Ref:
    ref = whereis(name)
    assert ref is not None, f"no {name} is alive"
    return ref


def end(name: str, kind: str = "crash") -> None:
    """End a child from inside, and see it gone."""
    ref = child(name)

    def crash(_: Actor) -> None:
        raise ValueError("no luck")

    ref.tell(Run(crash if kind == "crash" else lambda me: me.stop(kind, "as planned")))
    exit = ref.join(PATIENCE)
    assert exit is not None
    assert exit.kind == kind


def fails() -> None:
    raise OSError("no disk")


def passes() -> None:
    """A set-up that goes well."""


# --- the grid -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("supervisor.kinds")
@pytest.mark.rule("supervisor.one-for-one")
@pytest.mark.rule("supervisor.rest-for-one")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", EXITS)
@pytest.mark.parametrize("restart", KINDS)
def test_who_is_restarted(grove: Grove, restart: str, kind: str, strategy: str) -> None:
    restarted = restart == "permanent" or (restart == "transient" and kind in ("crash", "killed", "lost"))
    with_it = {"one_for_one": "b", "rest_for_one": "bc", "one_for_all": "abc"}[strategy] if restarted else ""
    specs = [grove.spec("a"), grove.spec("b", restart=restart), grove.spec("c")]
    with grove.growing(*specs, strategy=strategy) as tree:
        before = grove.refs(tree)
        end("b", kind)
        grove.history.until_seen("down b")
        for name in with_it:
            grove.history.until_seen(f"up {name}", 2)
        after = grove.refs(tree)
    assert set(before) == set("abc")
    assert set(after) == (set("abc") if restarted else set("ac"))
    assert {name for name in after if after[name] != before[name]} == set(with_it)


@pytest.mark.rule("supervisor.rest-for-one")
@pytest.mark.parametrize(
    ("strategy", "order"),
    [
        ("rest_for_one", ["stop b", "stop d", "stop c", "start b", "start c", "start d"]),
        ("one_for_all", ["stop b", "stop d", "stop c", "stop a", "start a", "start b", "start c", "start d"]),
    ],
)
def test_siblings_are_stopped_in_reverse_before_any_is_started_in_order(
    grove: Grove, strategy: str, order: list[str]
) -> None:
    with grove.growing(*grove.specs("abcd"), strategy=strategy):
        began = len(grove.history.events)
        end("b")
        grove.history.until_seen("up d", 2)
        seen = [event for event in grove.history.events[began:] if event[:3] == "sta" or event[:4] == "stop"]
    assert seen == order


@pytest.mark.rule("supervisor.kinds")
@pytest.mark.parametrize("strategy", ["rest_for_one", "one_for_all"])
def test_a_temporary_sibling_is_stopped_and_not_started_again(grove: Grove, strategy: str) -> None:
    with grove.growing(grove.spec("a"), grove.spec("b", restart="temporary"), strategy=strategy) as tree:
        end("a")
        grove.history.until_seen("up a", 2)
        assert set(grove.refs(tree)) == {"a"}
    assert grove.history.events.count("start b") == 1


def test_a_sibling_that_fails_while_it_is_to_be_stopped_anyway_is_not_counted(grove: Grove) -> None:
    gate = Gate()
    with grove.growing(*grove.specs("abc"), strategy="rest_for_one", intensity=Intensity(1, 60)) as tree:
        gate.hold(child("c"))
        end("a")
        grove.history.until_seen("down a")
        end("b")  # it waits for c to stop before it is stopped itself
        grove.history.until_seen("down b")
        assert grove.refs(tree) == {}
        gate.free.set()
        grove.history.until_seen("up c", 2)
        assert set(grove.refs(tree)) == set("abc")
        assert [tree.ask(Run(lambda me, n=n: me.restarts(n)), PATIENCE) for n in "abc"] == [1, 0, 0]


@pytest.mark.rule("supervisor.intensity")
def test_a_child_that_fails_while_its_own_stop_waits_for_its_turn_is_not_counted(grove: Grove) -> None:
    gate = Gate()
    with grove.growing(*grove.specs("abc"), strategy="one_for_all", intensity=Intensity(0, 60)) as tree:
        gate.hold(child("c"))
        stops = [threading.Thread(target=tree.ask, args=(StopChild(name), PATIENCE)) for name in "ca"]
        for name, stop in zip("ca", stops, strict=True):
            stop.start()
            while not tree.ask(Run(lambda me, n=name: me._children[n].stopped), PATIENCE):
                pass
        end("a")  # c must have ended before it is asked to
        grove.history.until_seen("down a")
        gate.free.set()
        for stop in stops:
            stop.join(PATIENCE)
        assert set(grove.refs(tree)) == {"b"}


def test_another_failure_while_siblings_stop_still_waits_for_them(grove: Grove) -> None:
    gate = Gate()
    with grove.growing(*grove.specs("abc"), strategy="one_for_all") as tree:
        gate.hold(child("c"))
        end("a")
        grove.history.until_seen("down a")
        assert grove.state(tree, "c") == "stopping"
        end("b")
        grove.history.until_seen("down b")
        grove.refs(tree)
        assert grove.history.events.count("start a") == 1
        gate.free.set()
        grove.history.until_seen("up c", 2)
    assert grove.history.events.index("stop c") < max(
        at for at, event in enumerate(grove.history.events) if event == "start a"
    )


def test_dynamic_siblings_are_stopped_before_the_restart_and_started_after_it(grove: Grove) -> None:
    gate = Gate()
    with grove.growing(grove.spec("a"), strategy="rest_for_one") as tree:
        for name in "xy":
            tree.ask(StartChild(grove.spec(name)), PATIENCE)
        gate.hold(child("x"))
        end("a")
        grove.history.until_seen("stop y")
        grove.refs(tree)
        assert grove.history.events.count("start a") == 1
        gate.free.set()
        for name in "axy":
            grove.history.until_seen(f"up {name}", 2)


# --- order --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("supervisor.start-order")
def test_children_start_in_order_each_when_the_one_before_is_up_and_stop_in_reverse(grove: Grove) -> None:
    class Slow(Limb):
        starts_later = True

        def setup(self) -> None:
            super().setup()
            self.after(0, "up")

        @on(Tick)
        def _tick(self, _: Tick) -> None:
            self.history.add(f"ready {self.name}")
            self.declare_started()

    names = "abc"
    specs = [ChildSpec(name, lambda: Slow(grove.history), grace_s=None) for name in names]
    with grove.growing(*specs) as tree:
        events = grove.history.until(lambda events: events[-1] == "up c")
        assert tree.up
    assert events == [f"{what} {name}" for name in names for what in ("start", "ready", "up")]
    assert grove.history.events[len(events) :] == [f"stop {name}" for name in reversed(names)]


@pytest.mark.rule("supervisor.start-error")
def test_a_child_that_fails_its_first_start_is_a_start_error_and_those_before_it_are_stopped(
    grove: Grove,
) -> None:
    specs = [grove.spec("a"), grove.spec("b", [fails]), grove.spec("c")]
    with pytest.raises(StartFailed, match="tree did not start: OSError: no disk"):
        start(grove.tree(*specs), "tree")
    assert grove.history.events == ["start a", "up a", "start b", "stop b", "failed b", "stop a"]


@pytest.mark.rule("supervisor.start-error")
def test_a_child_that_cannot_be_built_is_a_start_error(grove: Grove) -> None:
    def build() -> Actor:
        raise ValueError("no such model")

    with pytest.raises(StartFailed, match="ValueError: no such model"):
        start(grove.tree(ChildSpec("a", build)), "tree")


def test_what_a_first_child_refused_with_is_what_the_start_is_refused_with(grove: Grove) -> None:
    def locked() -> None:
        raise Refused("locked", "somebody else has it")

    with pytest.raises(Refused, match="somebody else has it") as refused:
        start(grove.tree(grove.spec("a", [locked])), "tree")
    assert refused.value.code == "locked"


def test_an_added_child_that_refuses_while_the_first_start_is_no_start_error_of_the_tree(
    grove: Grove,
) -> None:
    gate = threading.Event()

    def refuse() -> None:
        raise Refused("locked", "somebody else has it")

    ref = launch(grove.tree(grove.spec("a", [lambda: assert_set(gate)])), "tree")
    grove.history.until_seen("start a")
    assert refusal(ref, StartChild(grove.spec("x", [refuse]))).code == "start_failed"
    gate.set()
    assert ref.started.wait(PATIENCE)
    assert (ref.up, ref.refusal) == (True, None)
    ref.stop()
    assert ref.join(PATIENCE)


@pytest.mark.parametrize("kind", ["normal", "crash"])
def test_a_child_that_was_up_and_ends_before_the_others_are_up_is_no_start_error(
    grove: Grove, kind: str
) -> None:
    gate = threading.Event()
    specs = [grove.spec("a", restart="transient"), grove.spec("b", [lambda: assert_set(gate)])]
    tree = grove.tree(*specs)

    def meanwhile() -> None:
        grove.history.until_seen("start b")
        end("a", kind)
        grove.history.until_seen("down a")
        gate.set()

    thread = threading.Thread(target=meanwhile)
    thread.start()
    with running(tree, "tree") as ref:
        grove.history.until_seen("up a", 2 if kind == "crash" else 1)
        assert set(grove.refs(ref)) == ({"a", "b"} if kind == "crash" else {"b"})
    thread.join()


def assert_set(event: threading.Event) -> None:
    assert event.wait(PATIENCE)


@pytest.mark.rule("supervisor.specs-checked")
def test_two_children_of_one_name_are_refused(grove: Grove) -> None:
    with pytest.raises(ValueError, match="two children have one name among a, b, a"):
        grove.tree(*grove.specs("aba"))


def test_a_supervisor_without_children_is_up_at_once(grove: Grove) -> None:
    with grove.growing() as tree:
        assert grove.refs(tree) == {}


# --- how often ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("supervisor.intensity")
def test_too_many_restarts_end_the_tree_with_a_crash_that_names_the_child(grove: Grove) -> None:
    tree = start(grove.tree(*grove.specs("abc"), intensity=Intensity(2, 60, 1)), "tree")
    end("b")
    grove.history.until_seen("up b", 2)
    end("b")
    grove.history.until_seen("down b", 2)
    grove.turn(tree, 1)
    grove.history.until_seen("up b", 3)
    end("b")
    exit = tree.join(PATIENCE)
    assert exit == Exit("crash", "restart limit: b ended again: ValueError: no luck")
    assert grove.history.events[-2:] == ["stop c", "stop a"]


@pytest.mark.rule("supervisor.backoff")
def test_restarts_wait_longer_each_time_and_not_after_a_quiet_time(grove: Grove) -> None:
    with grove.growing(grove.spec("a"), intensity=Intensity(10, 100, 2)) as tree:
        for turn, delay in enumerate((0, 2, 4, 8, 16)):
            end("a")
            grove.history.until_seen("down a", turn + 1)
            if delay:
                grove.turn(tree, delay - 0.5)
                assert grove.state(tree, "a") == "delayed"
                grove.turn(tree, 0.5)
            grove.history.until_seen("up a", turn + 2)
        grove.turn(tree, 101)
        end("a")
        grove.history.until_seen("up a", 7)
        assert tree.ask(Run(lambda me: me.restarts("a")), PATIENCE) == 6


@pytest.mark.rule("supervisor.backoff")
@pytest.mark.rule("supervisor.intensity")
def test_a_window_of_restarts_moves_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    window = RestartWindow(Intensity(3, 60, 1))
    assert [window.record(now) for now in (0, 10, 20, 30)] == [0, 1, 2, None]
    assert window.record(61) == 2  # the first is out of it, two are in it
    assert window.record(62) is None
    assert window.record(200) == 0
    assert RestartWindow(Intensity(0)).record(0) is None
    monkeypatch.setenv("AERIX_BOUND_SUPERVISOR_DELAY", "3")
    long = RestartWindow(Intensity(9, 60, 1))
    assert [long.record(0) for _ in range(6)] == [0, 1, 2, 3, 3, 3]


def test_others_are_restarted_while_one_waits_for_its_delay(grove: Grove) -> None:
    with grove.growing(*grove.specs("ab"), intensity=Intensity(9, 60, 5)) as tree:
        end("a")
        grove.history.until_seen("up a", 2)
        end("a")
        grove.history.until_seen("down a", 2)
        end("b")
        grove.history.until_seen("down b")
        assert (grove.state(tree, "a"), grove.state(tree, "b")) == ("delayed", "delayed")
        grove.turn(tree, 5)
        grove.history.until_seen("up a", 3)
        assert grove.state(tree, "b") == "delayed"
        grove.turn(tree, 5)
        grove.history.until_seen("up b", 2)


def test_with_rest_for_one_the_later_ones_wait_for_the_delay_of_an_earlier(grove: Grove) -> None:
    intensity = Intensity(9, 60, 5)
    with grove.growing(*grove.specs("ab"), strategy="rest_for_one", intensity=intensity) as tree:
        end("a")
        grove.history.until_seen("up b", 2)
        end("a")
        grove.history.until_seen("stop b", 2)
        assert grove.refs(tree) == {}
        grove.turn(tree, 5)
        grove.history.until_seen("up b", 3)
        assert set(grove.refs(tree)) == set("ab")


@pytest.mark.rule("supervisor.escalation")
@pytest.mark.rule("supervisor.intensity")
def test_what_one_level_gives_up_is_restarted_by_the_level_above_until_that_gives_up_too(
    grove: Grove,
) -> None:
    inner = ChildSpec(
        "inner",
        lambda: grove.tree(grove.spec("leaf"), grove.spec("twig"), intensity=Intensity(1, 60)),
        grace_s=None,
    )
    root = start(grove.tree(inner, intensity=Intensity(1, 60)), "root")
    for turn in range(4):
        grove.history.until_seen("up leaf", turn + 1)
        grove.history.until_seen("up inner", turn // 2 + 1)
        end("leaf")
    exit = root.join(PATIENCE)
    assert exit is not None
    assert exit.kind == "crash"
    assert exit.detail == (
        "restart limit: inner ended again: restart limit: leaf ended again: ValueError: no luck"
    )
    assert whereis("twig") is None
    assert grove.history.events.count("start twig") == 2


@pytest.mark.rule("supervisor.reason-upward")
def test_whoever_is_stopped_for_anothers_sake_is_told_why(grove: Grove) -> None:
    tree = start(grove.tree(*grove.specs("ab"), strategy="rest_for_one", intensity=Intensity(1, 60)), "tree")
    first = child("b")
    end("a")
    grove.history.until_seen("up b", 2)
    second = child("b")
    end("a")
    assert first.join(PATIENCE) == Exit("shutdown", "a ended: ValueError: no luck")
    assert second.join(PATIENCE) == Exit("shutdown", "restart limit: a ended again: ValueError: no luck")
    assert tree.join(PATIENCE) == Exit("crash", "restart limit: a ended again: ValueError: no luck")


@pytest.mark.rule("supervisor.reason-upward")
def test_whoever_is_stopped_with_the_tree_is_told_what_the_tree_was_told(grove: Grove) -> None:
    tree = start(grove.tree(*grove.specs("ab")), "tree")
    refs = [child("a"), child("b")]
    tree.stop("enough")
    assert [ref.join(PATIENCE) for ref in refs] == [Exit("shutdown", "enough")] * 2


@pytest.mark.rule("supervisor.start-error")
def test_a_child_that_fails_its_restart_is_tried_again_and_counted(grove: Grove) -> None:
    with grove.growing(
        grove.spec("a", [passes, fails, fails, passes]), intensity=Intensity(3, 60, 1)
    ) as tree:
        end("a")
        grove.history.until_seen("failed a", 1)
        grove.turn(tree, 1)
        grove.history.until_seen("failed a", 2)
        grove.turn(tree, 2)
        grove.history.until_seen("up a", 2)
        assert tree.ask(Run(lambda me: me.restarts("a")), PATIENCE) == 3


@pytest.mark.rule("supervisor.start-error")
def test_a_child_that_can_no_longer_be_built_is_tried_again_and_counted(grove: Grove) -> None:
    builds: list[bool] = []

    def build() -> Actor:
        builds.append(True)
        if len(builds) == 2:
            raise ValueError("out of paint")
        return Limb(grove.history)

    with grove.growing(ChildSpec("a", build, grace_s=None), intensity=Intensity(3, 60, 1)) as tree:
        end("a")
        grove.history.until_seen("failed a")
        grove.turn(tree, 1)
        grove.history.until_seen("up a", 2)


# --- things that hang ---------------------------------------------------------------------------------------------


@pytest.mark.rule("supervisor.grace")
def test_a_child_over_its_grace_is_abandoned_and_the_others_go_on(grove: Grove) -> None:
    gate = Gate()
    tree = start(grove.tree(grove.spec("a"), grove.spec("b", grace_s=3)), "tree")
    b = child("b")
    gate.hold(b)
    tree.stop()
    grove.turn(tree, 2.9)
    assert "stop a" not in grove.history.events
    grove.turn(tree, 0.1)
    assert tree.join(PATIENCE) == Exit("shutdown", "shutdown")
    assert grove.history.events[-1] == "stop a"
    gate.free.set()
    assert b.join(PATIENCE)


@pytest.mark.rule("supervisor.abandoned-refuses")
def test_an_abandoned_child_refuses_who_waits_in_its_mailbox_and_who_comes_later(grove: Grove) -> None:
    gate, asker = Gate(), Asker()
    with running(asker, "asker"):
        tree = start(grove.tree(grove.spec("a", grace_s=3)), "tree")
        a = child("a")
        gate.hold(a)
        waiting = asker.sends(a, Ping())
        tree.stop()
        grove.turn(tree, 3)
        assert tree.join(PATIENCE) == Exit("shutdown", "shutdown")
        asker.until(lambda asker: asker.replies)
        assert waiting.error is not None
        assert (waiting.error.code, refusal(a, Ping()).code) == ("gone", "gone")
        gate.free.set()
        assert a.join(PATIENCE) == Exit("shutdown", "shutdown")


@pytest.mark.rule("supervisor.grace")
def test_a_teardown_that_hangs_is_abandoned(grove: Grove) -> None:
    free = threading.Event()

    class Clinging(Limb):
        def teardown(self, exit: Exit) -> None:
            super().teardown(exit)
            assert free.wait(PATIENCE)

    tree = start(grove.tree(ChildSpec("a", lambda: Clinging(grove.history), grace_s=3)), "tree")
    tree.stop()
    grove.history.until_seen("stop a")
    grove.turn(tree, 3)
    assert tree.join(PATIENCE)
    free.set()


class Sloppy(Limb):
    """Its clean-up fails."""

    def teardown(self, exit: Exit) -> None:
        super().teardown(exit)
        raise OSError("no disk")


@pytest.mark.rule("supervisor.kinds")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_clean_up_that_fails_is_a_crash_where_nobody_asked_and_an_end_where_somebody_did(
    grove: Grove, strategy: str
) -> None:
    spec = ChildSpec("b", lambda: Sloppy(grove.history), restart="transient", grace_s=None)
    with grove.growing(grove.spec("a"), spec, strategy=strategy) as tree:
        ref = child("b")
        ref.tell(Run(lambda me: me.stop()))
        grove.history.until_seen("up b", 2)
        assert ref.exit is not None
        assert (ref.exit.kind, ref.exit.detail.splitlines()[-1]) == ("crash", "OSError: no disk")
        assert tree.ask(StopChild("b"), PATIENCE) is None
        assert set(grove.refs(tree)) == {"a"}
        assert tree.ask(Run(lambda me: me.restarts("a")), PATIENCE) == 0


@pytest.mark.rule("supervisor.grace")
def test_a_tree_over_its_grace_ends_what_can_be_killed_below_it_at_once(grove: Grove) -> None:
    """A process that ignores TERM, with graces that last longer than the test."""
    owner = Owner(args={"deaf": True})
    gate = Gate()
    inner = ChildSpec(
        "inner",
        lambda: grove.tree(ChildSpec("process", lambda: owner, grace_s=None), grove.spec("thread")),
        grace_s=3,
    )
    tree = start(grove.tree(inner), "tree")
    gate.hold(child("thread"))
    process, below = child("process"), child("inner")
    tree.stop()
    while grove.state(below, "thread") != "stopping":
        pass
    grove.turn(tree, 3)
    assert tree.join(PATIENCE) == Exit("shutdown", "shutdown")
    assert process.join(PATIENCE)
    assert ended(owner.pid)
    gate.free.set()
    assert below.join(PATIENCE)


def test_the_late_end_of_an_abandoned_child_is_not_taken_for_its_successors(grove: Grove) -> None:
    gate = Gate()
    with grove.growing(*grove.specs("ab", grace_s=3), strategy="rest_for_one") as tree:
        old = child("b")
        gate.hold(old)
        end("a")
        grove.history.until_seen("down a")
        grove.turn(tree, 3)
        grove.history.until_seen("up b", 2)
        gate.free.set()
        assert old.join(PATIENCE)
        assert set(grove.refs(tree)) == set("ab")
        assert child("b") is not old
        assert grove.history.events.count("down b") == 0


@pytest.mark.rule("actors.stale-down")
def test_a_down_of_an_older_incarnation_is_ignored(grove: Grove) -> None:
    with grove.growing(grove.spec("a")) as tree:
        now = grove.refs(tree)
        tree.tell(Down("a", now["a"] - 1, Exit("crash")))
        tree.tell(Down("nobody", 1, Exit("crash")))
        assert grove.refs(tree) == now


@pytest.mark.rule("process.start-timeout")
def test_a_first_start_that_takes_too_long_is_a_start_error(grove: Grove) -> None:
    gate = threading.Event()
    spec = grove.spec("a", [lambda: assert_set(gate)], start_timeout_s=5)

    def meanwhile() -> None:
        grove.history.until_seen("start a")
        grove.turn(child("tree"), 5)

    thread = threading.Thread(target=meanwhile)
    thread.start()
    with pytest.raises(StartFailed, match=r"a did not start: was not up in 5 s"):
        start(grove.tree(spec), "tree")
    thread.join()
    gate.set()
    grove.history.until_seen("stop a")


def test_a_restart_that_takes_too_long_is_counted_and_tried_again(grove: Grove) -> None:
    gate = threading.Event()
    spec = grove.spec("a", [passes, lambda: assert_set(gate), passes], start_timeout_s=5)
    with grove.growing(spec, intensity=Intensity(3, 60, 1)) as tree:
        end("a")
        grove.history.until_seen("start a", 2)
        grove.turn(tree, 5)
        grove.history.until_seen("failed a")
        grove.turn(tree, 1)
        grove.history.until_seen("up a", 2)
        assert tree.ask(Run(lambda me: me.restarts("a")), PATIENCE) == 2
        gate.set()
        grove.history.until_seen("stop a", 2)  # the first, and the one that came up too late


@pytest.mark.rule("supervisor.hanging-loop-stops")
def test_a_tree_whose_child_hangs_in_its_restart_can_be_stopped(grove: Grove) -> None:
    gate = threading.Event()
    spec = grove.spec("b", [passes, lambda: assert_set(gate)], grace_s=2)
    tree = start(grove.tree(grove.spec("a"), spec), "tree")
    end("b")
    grove.history.until_seen("start b", 2)
    tree.stop()
    grove.turn(tree, 2)
    assert tree.join(PATIENCE) == Exit("shutdown", "shutdown")
    gate.set()
    grove.history.until_seen("stop b", 2)


@pytest.mark.rule("supervisor.hanging-loop-stops")
def test_a_tree_in_the_middle_of_a_delay_can_be_stopped(grove: Grove) -> None:
    tree = start(grove.tree(grove.spec("a", [passes, fails]), intensity=Intensity(9, 60, 5)), "tree")
    end("a")
    grove.history.until_seen("failed a")
    assert grove.state(tree, "a") == "delayed"
    tree.stop()
    assert tree.join(PATIENCE) == Exit("shutdown", "shutdown")


def test_a_timer_that_ticked_before_it_was_unset_means_nothing(grove: Grove) -> None:
    """The start alarm of one start must not end the next one."""
    block = Gate()
    gate = threading.Event()
    spec = grove.spec("a", [passes, lambda: assert_set(gate)], start_timeout_s=5)
    with grove.growing(spec) as tree:
        stale = tree.ask(Run(lambda me: me.after(1, "") and _Alarms.of(me, "a")), PATIENCE)
        tree.tell(Run(block))
        assert block.begun.wait(PATIENCE)
        end("a")
        block.free.set()
        grove.history.until_seen("start a", 2)
        tree.tell(Tick(stale))
        assert grove.state(tree, "a") == "starting"
        gate.set()
        grove.history.until_seen("up a", 2)


class _Alarms:
    @staticmethod
    def of(tree: Tree, name: str) -> object:
        """An alarm like the one of that child's first start."""
        from aerix.actors.supervisor import _Alarm

        return _Alarm("start", tree._children[name])


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_a_stop_and_a_cancel_end_the_children_first(grove: Grove, how: str) -> None:
    tree = start(grove.tree(*grove.specs("ab")), "tree")
    getattr(tree, how)("enough")
    assert tree.join(PATIENCE) == Exit("shutdown", "enough")
    assert grove.history.events[-2:] == ["stop b", "stop a"]


def test_a_tree_that_crashes_itself_stops_its_children(grove: Grove) -> None:
    tree = start(grove.tree(*grove.specs("ab")), "tree")
    refs = [child("a"), child("b")]
    refusal(tree, Run(lambda _: fails()))
    for ref in refs:
        exit = ref.join(PATIENCE)
        assert exit == Exit("shutdown", "tree ended: OSError: no disk")


# --- significant and dynamic children -----------------------------------------------------------------------------


@pytest.mark.rule("supervisor.significant")
@pytest.mark.rule("supervisor.reason-upward")
@pytest.mark.parametrize(("kind", "why"), [("normal", "as planned"), ("crash", "ValueError: no luck")])
def test_the_end_of_a_significant_child_ends_the_tree_in_order(grove: Grove, kind: str, why: str) -> None:
    specs = [grove.spec("a"), grove.spec("b", restart="temporary", significant=True), grove.spec("c")]
    tree = start(grove.tree(*specs), "tree")
    end("b", kind)
    assert tree.join(PATIENCE) == Exit("shutdown", f"b ended: {why}")
    assert grove.history.events[-3:] == ["down b", "stop c", "stop a"]


@pytest.mark.rule("supervisor.dynamic")
def test_children_are_added_and_stopped_while_the_tree_runs(grove: Grove) -> None:
    with grove.growing(grove.spec("a")) as tree:
        ref = tree.ask(StartChild(grove.spec("x")), PATIENCE)
        assert child("x") is ref
        assert tree.ask(FindChild("x"), PATIENCE) is ref
        assert tree.ask(StopChild("x"), PATIENCE) is None
        assert ref.exit == Exit("shutdown", "shutdown")
        assert tree.ask(StopChild("x"), PATIENCE) is None  # there is none, and that is what was wanted
        assert refusal(tree, FindChild("x")).code == "no_child"
        assert tree.ask(StartChild(grove.spec("x")), PATIENCE) is not ref


@pytest.mark.rule("supervisor.dynamic")
@pytest.mark.parametrize("name", ["a", "x"])
def test_a_name_that_is_taken_is_refused(grove: Grove, name: str) -> None:
    with grove.growing(grove.spec("a")) as tree:
        tree.ask(StartChild(grove.spec("x")), PATIENCE)
        refused = refusal(tree, StartChild(grove.spec(name)))
    assert (refused.code, refused.message) == ("name_taken", f"tree has a child {name} already")


@pytest.mark.rule("supervisor.dynamic")
@pytest.mark.rule("supervisor.start-error")
def test_an_added_child_that_does_not_start_is_refused_and_forgotten(grove: Grove) -> None:
    with grove.growing() as tree:
        refused = refusal(tree, StartChild(grove.spec("x", [fails])))
        assert (refused.code, refused.message) == ("start_failed", "x did not start: OSError: no disk")
        assert tree.ask(StartChild(grove.spec("x")), PATIENCE)


@pytest.mark.rule("supervisor.dynamic")
@pytest.mark.parametrize("how", ["StopChild", "stop"])
def test_an_added_child_that_is_stopped_before_it_is_up_is_an_answer_too(grove: Grove, how: str) -> None:
    gate = threading.Event()
    answers: list[Refused] = []
    tree = start(grove.tree(), "tree")
    spec = grove.spec("x", [lambda: assert_set(gate)])
    threads = [threading.Thread(target=lambda: answers.append(refusal(tree, StartChild(spec))))]
    threads[0].start()
    grove.history.until_seen("start x")
    if how == "stop":
        tree.stop()
    else:
        threads.append(threading.Thread(target=lambda: tree.ask(StopChild("x"), PATIENCE)))
        threads[1].start()
    while grove.state(tree, "x") != "stopping":
        pass
    gate.set()
    for thread in threads:
        thread.join(PATIENCE)
    tree.stop()
    assert tree.join(PATIENCE)
    assert [(answer.code, answer.message) for answer in answers] == [
        ("start_failed", "x was stopped before it was up")
    ]


def test_asking_for_a_child_waits_for_its_restart(grove: Grove) -> None:
    with grove.growing(grove.spec("a"), intensity=Intensity(9, 60, 5)) as tree:
        end("a")
        grove.history.until_seen("up a", 2)
        end("a")
        grove.history.until_seen("down a", 2)
        found: list[Ref] = []
        asking = threading.Thread(target=lambda: found.append(tree.ask(FindChild("a"), PATIENCE)))
        asking.start()
        while not tree.ask(Run(lambda me: me._children["a"].awaited), PATIENCE):
            pass
        grove.turn(tree, 5)
        asking.join(PATIENCE)
        assert found == [child("a")]


def test_an_added_child_is_restarted_by_its_kind_even_while_another_hangs(grove: Grove) -> None:
    gate = threading.Event()
    with grove.growing(grove.spec("a", [passes, lambda: assert_set(gate)])) as tree:
        tree.ask(StartChild(grove.spec("x", restart="transient")), PATIENCE)
        tree.ask(StartChild(grove.spec("y", restart="temporary")), PATIENCE)
        end("a")
        grove.history.until_seen("start a", 2)
        end("x")
        end("y")
        grove.history.until_seen("down y")
        grove.turn(tree, 1)
        grove.history.until_seen("up x", 2)
        gate.set()
        grove.history.until_seen("up a", 2)
        assert set(grove.refs(tree)) == {"a", "x"}


def test_a_stopping_tree_starts_nothing(grove: Grove) -> None:
    gate = Gate()
    tree = start(grove.tree(grove.spec("a")), "tree")
    gate.hold(child("a"))
    tree.stop()
    assert refusal(tree, StartChild(grove.spec("x"))).code == "stopping"
    gate.free.set()
    assert tree.join(PATIENCE)
    with pytest.raises(Gone):
        tree.ask(StartChild(grove.spec("x")), PATIENCE)


@pytest.mark.rule("supervisor.dynamic")
def test_a_thousand_temporary_children_come_and_go(grove: Grove) -> None:
    with grove.growing() as tree:
        for n in range(1000):
            ref = tree.ask(StartChild(grove.spec(f"x{n}", restart="temporary")), PATIENCE)
            ref.tell(Run(lambda me: me.stop()))
        grove.history.until(lambda events: sum(event.startswith("down") for event in events) == 1000)
        assert tree.ask(Run(lambda me: len(me._children)), PATIENCE) == 0


def test_added_children_are_stopped_together_and_before_the_first_ones(grove: Grove) -> None:
    gate = Gate()
    tree = start(grove.tree(grove.spec("a")), "tree")
    for name in "xyz":
        tree.ask(StartChild(grove.spec(name)), PATIENCE)
    gate.hold(child("z"))
    tree.stop()
    grove.history.until(lambda events: {"stop x", "stop y"} <= set(events))
    assert "stop a" not in grove.history.events
    gate.free.set()
    assert tree.join(PATIENCE)
    assert grove.history.events[-2:] == ["stop z", "stop a"]
