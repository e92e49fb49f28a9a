"""Repeats: a call that was made twice with the same result, and nothing changed since, need not run a third time."""

import json
from dataclasses import dataclass, field

from aerix.bounds import REPEATS
from aerix.tools.messages import ToolResult
from aerix.turn.parse import Call


@dataclass(slots=True)
class _Made:
    first: str
    result: str
    times: int = 1


@dataclass(slots=True)
class Repeats:
    """What one agent called since something changed last. Pure."""

    _made: dict[tuple[str, str], _Made] = field(default_factory=dict)

    def answer(self, call: Call) -> ToolResult | None:
        """The result of a call that is not to be run, pointing at the first; None for one that is."""
        made = self._made.get(_key(call))
        if made is None or made.times < REPEATS.count:
            return None
        same = f"the same call gave the same result {made.times} times, first as {made.first}"
        return ToolResult(
            f"error: not run: {same}. Nothing has changed since: try something else.", error=True
        )

    def note(self, call: Call, result: ToolResult) -> None:
        """A call was run. One that may have changed files, or has another result now, begins the count anew."""
        if result.changed:
            self._made.clear()
            return
        made = self._made.get(_key(call))
        if made is not None and made.result == result.text:
            made.times += 1
        else:
            self._made[_key(call)] = _Made(call.id, result.text)


def _key(call: Call) -> tuple[str, str]:
    return call.tool, json.dumps(call.input, sort_keys=True)
