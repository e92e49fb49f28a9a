"""The ``context`` tool: an agent looks at its own context, and decides what it keeps in mind. Every call is an event."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aerix.agent.context import Context, Entry
from aerix.agent.room import BYTES_A_TOKEN
from aerix.bounds import OWN_WORDS
from aerix.pool.protocol import Segment
from aerix.session.events import ContextOp
from aerix.session.replay import Held
from aerix.tools.messages import ToolResult

_SCRATCHPAD = "scratchpad"
_KEPT = frozenset({"system", "instructions", _SCRATCHPAD, "prompt", "brief", "user"})
"""Labels of what an agent may not take out: among them are the user's own words."""


class _No(ValueError):
    """The operation is refused, with this sentence."""


class ContextTool:
    """Belongs to one agent's thread."""

    def __init__(self, context: Context, agent: str) -> None:
        self._context = context
        self._agent = agent
        self._ops: dict[str, Callable[[ContextOp], tuple[str, ContextOp]]] = {
            "status": self._status,
            "drop": self._drop,
            "summarize": self._summarize,
            "pin": self._pin,
            "unpin": self._pin,
            "note": self._note,
        }

    def run(self, given: dict[str, Any]) -> ToolResult:
        """Do what a call asks; ``given`` is its input, checked against the tool's schema."""
        ids = list(dict.fromkeys(str(one) for one in given.get("ids") or ()))
        op = ContextOp(agent=self._agent, op=given["op"], ids=ids, text=given.get("text"))
        try:
            said, done = self._ops[op.op](op)
        except _No as no:
            self._context.record(replace(op, error=str(no)))
            return ToolResult(f"error: {no}", error=True)
        self._context.record(done)
        if op.op == "note":
            self._context.add(self._page(op))
        return ToolResult(said)

    def _status(self, op: ContextOp) -> tuple[str, ContextOp]:
        limits = self._context.limits
        head = f"{self._context.tokens} of {limits.window} tokens are used; from {limits.soft} on old ones give way."
        lines = [
            f"{one.id} {one.label} {one.tokens}{' pinned' * one.segment.pinned}" for one in self._context.held
        ]
        return "\n".join([head, *lines]), op

    def _drop(self, op: ContextOp) -> tuple[str, ContextOp]:
        chosen = self._chosen(op, taken_out=True)
        return self._rewritten(op, [one for one in self._context.held if one.id not in chosen])

    def _summarize(self, op: ContextOp) -> tuple[str, ContextOp]:
        """The summary stands where the first of them stood, and has its id."""
        chosen, text = self._chosen(op, taken_out=True), self._text(op)
        held = self._context.held
        first = next(one for one in held if one.id in chosen)
        segment = Segment(first.id, "user", f"[summary]\n{text}", pinned=True)
        summary = replace(first, segment=segment, label="summary")
        kept = [summary if one is first else one for one in held if one is first or one.id not in chosen]
        return self._rewritten(op, kept)

    def _pin(self, op: ContextOp) -> tuple[str, ContextOp]:
        chosen, pinned = self._chosen(op), op.op == "pin"
        if not pinned and (kept := [one.id for one in chosen.values() if one.label in _KEPT]):
            raise _No(f"{', '.join(kept)} must stay pinned.")
        held = [
            replace(one, segment=replace(one.segment, pinned=pinned)) if one.id in chosen else one
            for one in self._context.held
        ]
        return self._rewritten(op, held)

    def _note(self, op: ContextOp) -> tuple[str, ContextOp]:
        self._text(op)
        return "The note is kept.", op

    def _page(self, op: ContextOp) -> Entry:
        """The scratchpad grows at the context's end, one segment a note: what is before it need not be read again."""
        pages = sum(one.label == _SCRATCHPAD for one in self._context.held)
        name = f"{_SCRATCHPAD}.{pages + 1}" if pages else _SCRATCHPAD
        return Entry(name, "user", f"[note] {op.text}", _SCRATCHPAD, pinned=True)

    # --- what a call says

    def _chosen(self, op: ContextOp, *, taken_out: bool = False) -> dict[str, Held]:
        held = {one.id: one for one in self._context.held}
        if not op.ids:
            raise _No(f"{op.op} needs ids; status lists them.")
        if unknown := [name for name in op.ids if name not in held]:
            raise _No(f"there is no segment {', '.join(unknown)}; status lists them.")
        chosen = {name: held[name] for name in op.ids}
        if taken_out and (kept := [name for name, one in chosen.items() if one.label in _KEPT]):
            raise _No(f"{', '.join(kept)} cannot be taken out.")
        return chosen

    def _text(self, op: ContextOp) -> str:
        """The text of a summary or a note. It is never compacted, so all of them together have a limit."""
        if not op.text:
            raise _No(f"{op.op} needs text.")
        limits = self._context.limits
        kept = sum(one.tokens for one in self._context.held if one.label in (_SCRATCHPAD, "summary"))
        room = limits.window // OWN_WORDS.count - kept - len(op.text.encode()) // BYTES_A_TOKEN
        if room < 0:
            raise _No(
                f"notes and summaries may take {limits.window // OWN_WORDS.count} tokens; say it shorter."
            )
        return op.text

    def _rewritten(self, op: ContextOp, held: list[Held]) -> tuple[str, ContextOp]:
        before = self._context.tokens
        put, removed = self._context.rewrite(held)
        said = f"Done: {before} -> {self._context.tokens} tokens."
        return said, replace(op, put=put, removed=removed)
