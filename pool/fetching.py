"""What fetching from anywhere needs: one at a time in a folder, and progress that is told and not flooded."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

from aerix.actors import Refused
from aerix.actors.os_linux import lock
from aerix.pool.bounds import PULL_LOCK

Progress = Callable[[str], None]
"""Takes whole lines."""
LOOK_EVERY = 0.5  # seconds between two looks at another one's lock, and between two lines of progress

_nothing = threading.Event()


def pause(seconds: float) -> None:
    """Wait where no event can be waited for: another process's lock, a server that asked for time."""
    _nothing.wait(seconds)


@contextlib.contextmanager
def alone(folder: Path, name: str, progress: Progress, failed: Callable[[str], Refused]) -> Iterator[None]:
    """One pull at a time in this folder; a second one waits for the first, which may be all it wanted.

    Raises what ``failed`` makes of the reason.
    """
    with (folder / ".pull.lock").open("a") as file:

        def waits() -> None:
            progress(f"another aerix is fetching {name}; waiting for it")

        if not lock(file.fileno(), PULL_LOCK.value, LOOK_EVERY, waits):
            raise failed(f"another process has held {file.name} for {PULL_LOCK.value:g} s")
        yield


class Meter:
    """Tells how far a download is: a line a percent, at most two a second. Sizes are bytes."""

    def __init__(self, name: str, total: int, progress: Progress) -> None:
        self._name, self._total, self._progress = name, total, progress
        self._before = 0
        """Of the files that are done."""
        self._percent, self._told = -1, 0.0

    def done(self, size: int) -> None:
        """One of the files is there."""
        self._before += size

    def at(self, size: int) -> None:
        """So much of the present file has come."""
        sofar, now = self._before + size, monotonic()
        percent = 100 * sofar // max(self._total, 1)
        if percent > self._percent and (now - self._told >= LOOK_EVERY or sofar >= self._total):
            self._percent, self._told = percent, now
            self._progress(
                f"fetching {self._name}: {sofar / 1e6:,.0f} of {self._total / 1e6:,.0f} MB ({percent} %)"
            )
