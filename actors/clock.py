"""Timers, with a clock that tests can turn."""

import heapq
import itertools
import threading
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from aerix.actors.messages import Tick

if TYPE_CHECKING:
    from aerix.actors.actor import Ref

_SWEEP_FROM = 64  # timers; twice what was alive at the last sweep after that


class Timer:
    """One timer; it tells ``Tick(token)`` once, unless it was cancelled."""

    __slots__ = ("_ref", "cancelled", "token")

    def __init__(self, ref: "Ref", token: object) -> None:
        self._ref = ref
        self.token = token
        self.cancelled = False

    def cancel(self) -> None:
        """Do not tick. A tick that is in the mailbox already still comes."""
        self.cancelled = True

    def fire(self) -> None:
        """Tell the actor, unless cancelled."""
        if not self.cancelled:
            self._ref.tell_if_alive(Tick(self.token))


class Clock(Protocol):
    """What an actor needs of time."""

    def now(self) -> float:
        """Seconds that only grow."""
        ...

    def after(self, seconds: float, ref: "Ref", token: object) -> Timer:
        """Tell ``ref`` Tick(token) in that many seconds."""
        ...


class SystemClock:
    """Real time: one thread and one heap for all timers of a process, started by the first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._sweep_at = _SWEEP_FROM
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    now = staticmethod(monotonic)
    """Seconds that only grow."""

    def after(self, seconds: float, ref: "Ref", token: object) -> Timer:
        """Tell ``ref`` Tick(token) in that many seconds."""
        timer = Timer(ref, token)
        with self._changed:
            self._forget_cancelled()
            heapq.heappush(self._heap, (monotonic() + seconds, next(self._order), timer))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="clock", daemon=True)
                self._thread.start()
            elif self._heap[0][2] is timer:
                self._changed.notify()
        return timer

    def _forget_cancelled(self) -> None:
        """Long deadlines that are set and cancelled with every message must not pile up until they would be due."""
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if not entry[2].cancelled]
            heapq.heapify(self._heap)
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._heap))

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._heap and self._heap[0][2].cancelled:
                    heapq.heappop(self._heap)
                left = self._heap[0][0] - monotonic() if self._heap else None
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                timer = heapq.heappop(self._heap)[2]
            timer.fire()


class ManualClock:
    """Time that stands until a test turns it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._lock = threading.Lock()

    def now(self) -> float:
        """The seconds it was turned by so far."""
        return self._now

    def after(self, seconds: float, ref: "Ref", token: object) -> Timer:
        """Tell ``ref`` Tick(token) once the clock was turned that far."""
        timer = Timer(ref, token)
        with self._lock:
            heapq.heappush(self._heap, (self._now + seconds, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Turn the clock; timers that come due fire in order."""
        with self._lock:
            self._now += seconds
            due = []
            while self._heap and self._heap[0][0] <= self._now:
                due.append(heapq.heappop(self._heap)[2])
        for timer in due:
            timer.fire()

    @property
    def pending(self) -> int:
        """Timers that have not fired and were not cancelled."""
        with self._lock:
            return sum(not timer.cancelled for _, _, timer in self._heap)


SYSTEM_CLOCK = SystemClock()
