"""Supervisor: children in start order, restart policies, and shutdown in reverse (spec/actors.md 3.1).

It never blocks: a child's start, its grace and a restart's delay are messages, so that a supervisor whose child
hangs can still be stopped.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from aerix.actors.actor import Actor, Answer, Ref, Unstartable, launch, on
from aerix.actors.bounds import GRACE, RESTART_DELAY, RESTART_WINDOW, RESTARTS, START
from aerix.actors.clock import Timer
from aerix.actors.messages import Cancel, Down, Exit, Refused, Started, Stop, Tick

Restart = Literal["permanent", "transient", "temporary"]
Strategy = Literal["one_for_one", "rest_for_one", "one_for_all"]


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A child: how to build it anew for each start, and what its supervisor does at its end."""

    name: str
    build: Callable[[], Actor]
    restart: Restart = "permanent"
    grace_s: float | None = field(default_factory=lambda: GRACE.value)
    """Seconds between asking it to stop and abandoning it, its process killed; None waits (for a supervisor, whose
    children are bounded)."""
    start_timeout_s: float = field(default_factory=lambda: START.value)
    significant: bool = False
    """Whether the supervisor ends, in order, when this child ends."""


@dataclass(frozen=True, slots=True)
class Intensity:
    """At most so many restarts in so many seconds; the first at once, the next ones with doubling delays."""

    restarts: int = field(default_factory=lambda: RESTARTS.count)
    window_s: float = field(default_factory=lambda: RESTART_WINDOW.value)
    delay_s: float = 0.1
    """The delay of the second restart in the window."""


class RestartWindow:
    """Counts restarts in a moving window; pure, the caller gives the time."""

    def __init__(self, intensity: Intensity) -> None:
        self._intensity = intensity
        self._times: deque[float] = deque()

    def record(self, now: float) -> float | None:
        """The delay before this restart, in seconds; None when there were too many. Quiet time resets the delay."""
        while self._times and now - self._times[0] > self._intensity.window_s:
            self._times.popleft()
        earlier = len(self._times)
        if earlier >= self._intensity.restarts:
            return None
        self._times.append(now)
        if earlier == 0:
            return 0.0
        return min(RESTART_DELAY.value, float(self._intensity.delay_s * 2 ** (earlier - 1)))


@dataclass(frozen=True, slots=True)
class StartChild:
    """Add a child while running; answered by its Ref when it is up, refused when it does not start or the name is taken."""

    spec: ChildSpec


@dataclass(frozen=True, slots=True)
class StopChild:
    """Stop a child and forget it; answered when it is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class FindChild:
    """Asks for a child's Ref: answered when it is up, also after a restart; refused with ``no_child``."""

    name: str


@dataclass(slots=True, eq=False)
class _Child:
    spec: ChildSpec
    dynamic: bool
    state: Literal["down", "delayed", "starting", "up", "stopping"] = "down"
    wanted: bool = True
    recycled: bool = False
    """To be stopped and started again, as the strategy demands."""
    why: str = "shutdown"
    """What it is told when it is stopped."""
    ref: Ref | None = None
    timer: Timer | None = None
    starting: Answer | None = None
    awaited: list[Answer] = field(default_factory=list)
    stopped: list[Answer] = field(default_factory=list)
    restarts: int = 0

    def unset_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass(frozen=True, slots=True)
class _Alarm:
    """What a timer of a child means when it ticks."""

    what: Literal["delay", "start", "grace"]
    child: _Child


class Supervisor(Actor):
    """Starts its children in order, restarts them by their policy, and stops them in reverse.

    It is up when its first children all are. More restarts than ``intensity`` allows end it with a crash that names
    the child and what it died of, for the level above to decide; whoever is stopped for another's sake is told so.
    """

    starts_later = True

    def __init__(
        self,
        specs: Sequence[ChildSpec] = (),
        strategy: Strategy = "one_for_one",
        intensity: Intensity | None = None,
    ) -> None:
        names = [spec.name for spec in specs]
        if len(set(names)) < len(names):
            raise ValueError(f"two children have one name among {', '.join(names)}")
        self._children = {spec.name: _Child(spec, dynamic=False) for spec in specs}
        self._strategy = strategy
        self._window = RestartWindow(intensity or Intensity())
        self._ending: Exit | None = None

    # --- for subclasses

    def child_up(self, name: str, ref: Ref) -> None:
        """Called when a child is up, at first and again."""

    def child_down(self, name: str, exit: Exit, *, started: bool) -> None:
        """Called when a child ended that was not asked to."""

    def restarts(self, name: str) -> int:
        """How often a child was restarted."""
        return self._children[name].restarts

    def refs(self) -> dict[str, Ref]:
        """The children that are up."""
        return {
            n: child.ref
            for n, child in self._children.items()
            if child.state == "up" and child.ref is not None
        }

    # --- messages

    def setup(self) -> None:
        """Start the first child; the others follow as each is up."""
        self._advance()

    @on(StartChild)
    def _add(self, message: StartChild) -> None:
        name = message.spec.name
        if self._ending is not None:
            raise Refused("stopping", f"{self.name} is stopping and starts nothing")
        if name in self._children:
            raise Refused("name_taken", f"{self.name} has a child {name} already")
        self._children[name] = _Child(message.spec, dynamic=True, starting=self.later())
        self._advance()  # not at once while siblings are stopped for a restart

    @on(StopChild)
    def _remove(self, message: StopChild) -> None:
        child = self._children.get(message.name)
        if child is None:
            return
        child.stopped.append(self.later())
        self._unwant(child)
        self._advance()

    @on(FindChild)
    def _find(self, message: FindChild) -> Ref | None:
        child = self._children.get(message.name)
        if child is None or not child.wanted:
            raise Refused("no_child", f"{self.name} has no child {message.name}")
        if child.state == "up":
            return child.ref
        child.awaited.append(self.later())
        return None

    @on(Started)
    def _started(self, message: Started) -> None:
        child = self._known(message.name, message.incarnation)
        if child is None or child.state != "starting":
            return
        child.unset_timer()
        child.state = "up"
        assert child.ref is not None
        if child.starting is not None:
            child.starting.reply(child.ref)
            child.starting = None
        while child.awaited:
            child.awaited.pop().reply(child.ref)
        self.child_up(message.name, child.ref)
        self._advance()

    @on(Down)
    def _ended(self, message: Down) -> None:
        child = self._known(message.name, message.incarnation)
        if child is None or child.ref is None:
            return
        self._down(child, message, child.ref.refusal)
        self._advance()

    def _down(self, child: _Child, down: Down, refusal: Refused | None = None) -> None:
        asked = child.state == "stopping"
        # One that was to be stopped anyway is no failure of its own.
        own = child.wanted and not child.recycled
        child.unset_timer()
        child.state, child.ref, child.recycled = "down", None, False
        if asked:
            return
        self.child_down(down.name, down.exit, started=down.started)
        if own:
            self._decide(child, down, refusal)

    @on(Tick)
    def _tick(self, message: Tick) -> None:
        alarm = message.token
        if not isinstance(alarm, _Alarm):
            return
        what, child = alarm.what, alarm.child
        if child.timer is None or child.timer.token is not alarm:  # it was unset when it ticked already
            return
        child.timer = None
        if what == "delay" and child.state == "delayed":
            child.state = "down"
        elif what == "start" and child.state == "starting":
            self._abandon(child, f"was not up in {child.spec.start_timeout_s:g} s")
        elif what == "grace" and child.state == "stopping":
            self._abandon(child, f"did not stop in {child.spec.grace_s:g} s")
        self._advance()

    @on(Stop)
    def _stop_all(self, message: Stop) -> None:
        self._finish(Exit("shutdown", message.reason))
        if message.force:
            self._force_all(message)
        self._advance()

    def _force_all(self, stop: Stop) -> None:
        """Its own grace has run out: whoever owns a process below it kills it now, in no order."""
        for child in self._children.values():
            if child.state in ("up", "starting"):
                self._ask_to_stop(child)
            if child.ref is not None:
                child.ref.stop(stop.reason, force=True)

    @on(Cancel)
    def _cancel_all(self, message: Cancel) -> None:
        self._stop_all(Stop(message.reason))

    def teardown(self, exit: Exit) -> None:
        """Leave no child behind, whatever the end was."""
        for child in self._children.values():
            if child.ref is not None:
                child.ref.stop(f"{self.name} ended: {exit.why}")

    # --- decisions

    def _known(self, name: str, incarnation: int) -> _Child | None:
        """The child a notice is about; None for one of an older incarnation."""
        child = self._children.get(name)
        if child is None or child.ref is None or child.ref.incarnation != incarnation:
            return None
        return child

    def _decide(self, child: _Child, down: Down, refusal: Refused | None) -> None:
        name = child.spec.name
        if child.starting is not None:
            child.starting.refuse(Refused("start_failed", f"{name} did not start: {down.exit.why}"))
            child.starting = None
            child.wanted = False
        elif not down.started and not self.ref.started.is_set():
            self.ref.refusal = refusal
            self._finish(Exit("crash", f"{name} did not start: {down.exit.detail or down.exit.kind}"))
        elif child.spec.significant:
            child.wanted = False
            self._finish(Exit("shutdown", f"{name} ended: {down.exit.why}"))
        elif child.spec.restart == "permanent" or (child.spec.restart == "transient" and down.exit.abnormal):
            self._restart(child, down.exit)
        else:
            child.wanted = False

    def _restart(self, child: _Child, exit: Exit) -> None:
        delay = self._window.record(self.clock.now())
        if delay is None:
            self._finish(Exit("crash", f"restart limit: {child.spec.name} ended again: {exit.why}"))
            return
        child.restarts += 1
        if delay > 0:
            child.state = "delayed"
            child.timer = self.after(delay, _Alarm("delay", child))
        for other in self._affected(child):
            other.recycled = other.state in ("up", "starting", "stopping")
            other.why = f"{child.spec.name} ended: {exit.why}"
            if other.spec.restart == "temporary":
                self._unwant(other)

    def _affected(self, child: _Child) -> list[_Child]:
        """Whom the strategy stops with it."""
        order = list(self._children.values())
        if self._strategy == "one_for_one":
            return []
        later = order if self._strategy == "one_for_all" else order[order.index(child) + 1 :]
        return [other for other in later if other is not child]

    def _finish(self, exit: Exit) -> None:
        """End, after all children, with that exit."""
        self._ending = self._ending or exit
        for child in self._children.values():
            child.why = self._ending.why
            self._unwant(child)

    def _unwant(self, child: _Child) -> None:
        child.wanted = False
        if child.state == "delayed":
            child.unset_timer()
            child.state = "down"

    # --- steps

    def _advance(self) -> None:
        """Do whatever can be done now: stop who must go (in reverse), start who is wanted (in order), or end."""
        for name in [n for n, c in self._children.items() if c.state == "down" and not c.wanted]:
            self._forget(self._children.pop(name))
        order = list(self._children.values())
        self._stop_some(order)
        if self._ending is not None and not order:
            self.stop(self._ending.kind, self._ending.detail)
        elif self._ending is None and not any(child.recycled for child in order):
            self._start_some(order)

    def _forget(self, child: _Child) -> None:
        name = child.spec.name
        for answer in child.stopped:
            answer.reply()
        for answer in child.awaited:
            answer.refuse(Refused("no_child", f"{name} has ended"))
        if child.starting is not None:
            child.starting.refuse(Refused("start_failed", f"{name} was stopped before it was up"))

    def _stop_some(self, order: list[_Child]) -> None:
        """Stop who must go: the dynamic ones together, then the others one by one, last first."""
        leaving = False
        for child in reversed(order):
            if child.wanted and not child.recycled:
                continue
            if leaving and not child.dynamic:
                return
            if child.state in ("up", "starting"):
                self._ask_to_stop(child)
            leaving = leaving or child.state == "stopping"

    def _start_some(self, order: list[_Child]) -> None:
        """Start the next child in order, once those before it are up; the dynamic ones wait for nobody."""
        blocked = False
        for child in order:
            if child.state == "down" and (child.dynamic or not blocked):
                self._start(child)
            waits = child.state == "starting" or (
                child.state == "delayed" and self._strategy != "one_for_one"
            )
            blocked = blocked or (waits and not child.dynamic)
        if not blocked:
            self.declare_started()

    def _start(self, child: _Child) -> None:
        child.state = "starting"
        try:
            actor = child.spec.build()
        except Exception as error:  # noqa: BLE001  # a child that cannot be built fails to start, like one whose setup fails
            actor = Unstartable(error)
        child.ref = launch(actor, child.spec.name, self.ref)
        child.timer = self.after(child.spec.start_timeout_s, _Alarm("start", child))

    def _ask_to_stop(self, child: _Child) -> None:
        assert child.ref is not None
        child.unset_timer()
        child.state = "stopping"
        child.ref.stop(child.why)
        if child.spec.grace_s is not None:
            child.timer = self.after(child.spec.grace_s, _Alarm("grace", child))

    def _abandon(self, child: _Child, why: str) -> None:
        """A thread cannot be killed: forget it (its later notices are stale) and say so."""
        from aerix.actors.log import log

        log("actor.abandoned", level="warning", actor=child.spec.name, why=why)
        assert child.ref is not None
        child.ref.abandon("abandoned", force=True)
        self._down(child, Down(child.spec.name, child.ref.incarnation, Exit("killed", why), started=False))
