"""What a worker has done since it came up, for its status: counted where a generation ends, by any thread."""

import threading
from dataclasses import replace

from aerix.pool.protocol import Done, Totals, Usage


class Tally:
    """Counts generations, their tokens and their time."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._lock = threading.Lock()

    def done(self, done: Done) -> None:
        """A generation ended, by itself or by a cancel; of one that said nothing before it, no token counts."""
        usage = done.usage
        if done.stop == "cancelled" and not usage.completion_tokens:
            usage = Usage(0, 0, 0, "none", 0, 0, 0)
        with self._lock:
            old = self._totals
            self._totals = replace(
                old,
                generations=old.generations + 1,
                cancelled=old.cancelled + (done.stop == "cancelled"),
                prompt_tokens=old.prompt_tokens + usage.prompt_tokens,
                resumed_tokens=old.resumed_tokens + usage.recomputed_from,
                generated_tokens=old.generated_tokens + usage.completion_tokens,
                drafted_tokens=old.drafted_tokens + usage.drafted_tokens,
                fill_ms=old.fill_ms + usage.fill_ms,
                decode_ms=old.decode_ms + usage.decode_ms,
            )

    def refused(self) -> None:
        """A generation was refused."""
        with self._lock:
            self._totals = replace(self._totals, refused=self._totals.refused + 1)

    @property
    def totals(self) -> Totals:
        """All of it until now."""
        return self._totals
