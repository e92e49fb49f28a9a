"""A note to a user whose command waits for the pool: silence looks like a fault."""

from collections.abc import Iterator
from contextlib import contextmanager

from aerix.actors import Actor, Tick, launch, on
from aerix.pool.bounds import PATIENCE_NOTE
from aerix.pool.cli_output import note


class _Note(Actor):
    def __init__(self, text: str) -> None:
        self._text = text

    def setup(self) -> None:
        self.after(PATIENCE_NOTE.value, None)

    @on(Tick)
    def _say(self, _: Tick) -> None:
        note(self._text)


@contextmanager
def patience(text: str) -> Iterator[None]:
    """Say ``text`` on standard error, once, when what is in the block takes longer than 2 s."""
    ref = launch(_Note(text), "patience")
    try:
        yield
    finally:
        ref.stop()
