"""Repeats: a call that was made twice with the same result, and nothing changed since, need not run a third time; and
who goes round in a circle of such calls gets no further.
"""

import json
import re
from dataclasses import dataclass, field

from aerix.bounds import CYCLE_CALLS, CYCLES, REPEATS
from aerix.tools.messages import ToolResult
from aerix.turn.parse import Call

_Key = tuple[str, str]
_WAIT = re.compile(r"\b(sleep|wait)\b")


@dataclass(slots=True)
class _Made:
    first: str
    result: str
    times: int = 1


@dataclass(slots=True)
class Repeats:
    """What one agent called since something changed last: a file, or its context. Pure."""

    _made: dict[_Key, _Made] = field(default_factory=dict)
    _order: list[tuple[_Key, str]] = field(default_factory=list)
    """Each call with its result, the latest last; of one that was not run the result that it would have had."""
    _refused: bool = False
    _told: bool = False

    def answer(self, call: Call) -> ToolResult | None:
        """The result of a call that is not to be run, pointing at the first; None for one that is."""
        made = self._made.get(_key(call))
        if made is None or made.times < REPEATS.count:
            return None
        self._refused = True
        self._order.append((_key(call), made.result))
        same = f"the same call gave the same result {made.times} times, first as {made.first}"
        return ToolResult(
            f"error: not run: {same}. Nothing has changed since: try something else.", error=True
        )

    def note(self, call: Call, result: ToolResult) -> None:
        """A call was run. One that may have changed files, or has another result now, begins the count anew."""
        if result.changed:
            self.clear()
        elif not _is_wait(call):
            key = _key(call)
            made = self._made.get(key)
            if made is not None and made.result == result.text:
                made.times += 1
            else:
                self._made[key] = _Made(call.id, result.text)
            self._order.append((key, result.text))

    def clear(self) -> None:
        """Something changed: what was called before may have another result now, or is not in the context any more."""
        self._made.clear()
        self._order.clear()
        self._refused = self._told = False

    def turn_over(self) -> tuple[str, ...]:
        """A turn's calls are made. The tools of those that came round and round, when that was seen often enough and the
        agent had been told in an earlier turn; else nothing.

        One call alone comes round when it was refused as often as a cycle must be seen.
        """
        told, self._told = self._told, self._refused
        return self._circle() if told else ()

    def _circle(self) -> tuple[str, ...]:
        for size in range(1, CYCLE_CALLS.count + 1):
            seen = max(size * CYCLES.count, REPEATS.count + CYCLES.count)
            latest = self._order[-seen:]
            if len(latest) == seen and latest[size:] == latest[:-size]:
                return tuple(tool for (tool, _), _ in latest[-size:])
        return ()


def _key(call: Call) -> _Key:
    return call.tool, json.dumps(call.input, sort_keys=True)


def _is_wait(call: Call) -> bool:
    """Whether a command only waits for something, as for a job: that is no repeat."""
    return call.tool == "bash" and bool(_WAIT.search(str(call.input.get("command", ""))))
