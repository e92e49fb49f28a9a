"""Replay: every agent's context and plan, built again from a session's log. Pure.

It gives what the live agent had: the same segments in the same order, a turn with its exact token ids, and the counts
that the pool gave. Read tolerantly: a line that is not what its type says is passed over.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aerix.pool.protocol import Segment
from aerix.session import events

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """A segment of a context: what the pool holds, what the log calls it, how many tokens the pool counted."""

    segment: Segment
    label: str
    tokens: int
    tool: str | None = None
    """The tool of a result."""

    @property
    def id(self) -> str:
        """Its segment's id."""
        return self.segment.id


@dataclass(slots=True)
class Replayed:
    """What one agent had at the log's end."""

    held: dict[str, Held] = field(default_factory=dict)
    """By id, in order."""
    plan: str = ""

    @property
    def segments(self) -> list[Segment]:
        """What the pool is to be given."""
        return [one.segment for one in self.held.values()]

    @property
    def counts(self) -> dict[str, int]:
        """Tokens by segment id."""
        return {name: one.tokens for name, one in self.held.items()}


def replay(lines: Iterable[Line]) -> dict[str, Replayed]:
    """The contexts by agent, in the order in which the agents began. ``lines`` are the events of a session, in order."""
    found: dict[str, Replayed] = {}
    messages: dict[tuple[str, str], Line] = {}
    alone: dict[str, dict[str, Line]] = {}  # by agent: what a kill has left without its segment
    for line in lines:
        match line:
            case {"type": events.AgentSpawn.type, "agent": str(agent)} if line.get("resumed") is True:
                _join_torn(found.setdefault(agent, Replayed()), alone.pop(agent, {}))
            case {"type": events.AgentSpawn.type, "agent": str(agent)}:
                found.pop(agent, None)  # one that begins anew
                found[agent] = Replayed()
                alone.pop(agent, None)
            case {"type": events.Message.type, "agent": str(agent), "id": str(name), "text": str()}:
                messages[agent, name] = line
                if line.get("kept") is not False:
                    alone.setdefault(agent, {})[name] = line
            case {"type": events.Segment.type, "agent": str(agent), "id": str(name)}:
                _join(found.setdefault(agent, Replayed()), line, messages.get((agent, name), {}))
                alone.get(agent, {}).pop(name, None)
            case {"type": events.Compaction.type | events.ContextOp.type, "agent": str(agent)}:
                _rewrite(found.setdefault(agent, Replayed()), line)
            case {"type": events.Plan.type, "agent": str(agent), "text": str(text)}:
                found.setdefault(agent, Replayed()).plan = text
    for agent, replayed in found.items():
        _join_torn(replayed, alone.get(agent, {}))
    return found


def _join(agent: Replayed, line: Line, message: Line) -> None:
    """A segment at the end; its text stands in a message where it has one of its own."""
    one = _held({"text": message.get("text"), **line})
    if one is not None:
        segment = replace(one.segment, **_exact(message))
        agent.held[one.id] = replace(one, segment=segment, tool=message.get("tool"))


def _join_torn(agent: Replayed, messages: Mapping[str, Line]) -> None:
    """A turn is logged before its segment is counted; where Aerix was stopped between both, it joins all the same."""
    for name, message in messages.items():
        turn = message.get("role") == "assistant"
        label = "turn" if turn else "job" if message.get("tool") == "job" else "result"
        tokens = len(message["tokens"]) if turn and _exact(message) else 0
        _join(agent, {"id": name, "role": message.get("role"), "label": label, "tokens": tokens}, message)


def _exact(message: Line) -> dict[str, Any]:
    """The token ids of a turn and whose they are, where the log has them."""
    match message:
        case {"tokens": list(ids), "vocab": str(vocab)} if all(type(one) is int for one in ids):
            return {"tokens": ids, "vocab": vocab}
    return {}


def _rewrite(agent: Replayed, line: Line) -> None:
    removed, put = line.get("removed"), line.get("put")
    for name in removed if isinstance(removed, list) else ():
        if isinstance(name, str):
            agent.held.pop(name, None)
    for each in put if isinstance(put, list) else ():
        one = _held(each) if isinstance(each, dict) else None
        old = agent.held.get(one.id) if one is not None else None
        if old is None or one is None:
            continue
        if one.segment.text == old.segment.text:
            exact = replace(one.segment, tokens=old.segment.tokens, vocab=old.segment.vocab)
            one = replace(one, segment=exact)
        agent.held[one.id] = replace(one, tool=old.tool)


def _held(line: Line) -> Held | None:
    match line:
        case {
            "id": str(name),
            "role": "system" | "user" | "assistant" as role,
            "text": str(text),
            "label": str(label),
            "tokens": int(tokens),
        }:
            return Held(Segment(name, role, text, bool(line.get("pinned"))), label, tokens)
    return None
