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
    for line in lines:
        match line:
            case {"type": events.AgentSpawn.type, "agent": str(agent)}:
                found.pop(agent, None)  # of an earlier prompt of the session: each begins anew
                found[agent] = Replayed()
            case {"type": events.Message.type, "agent": str(agent), "id": str(name), "text": str()}:
                messages[agent, name] = line
            case {"type": events.Segment.type, "agent": str(agent), "id": str(name)}:
                _join(found.setdefault(agent, Replayed()), line, messages.get((agent, name), {}))
            case {"type": events.Compaction.type | events.ContextOp.type, "agent": str(agent)}:
                _rewrite(found.setdefault(agent, Replayed()), line)
            case {"type": events.Plan.type, "agent": str(agent), "text": str(text)}:
                found.setdefault(agent, Replayed()).plan = text
    return found


def _join(agent: Replayed, line: Line, message: Line) -> None:
    """A segment at the end; its text stands in a message where it has one of its own."""
    one = _held({"text": message.get("text"), **line})
    if one is not None:
        ids, vocab = message.get("tokens"), message.get("vocab")
        segment = replace(one.segment, tokens=ids, vocab=vocab)
        agent.held[one.id] = replace(one, segment=segment, tool=message.get("tool"))


def _rewrite(agent: Replayed, line: Line) -> None:
    for name in line.get("removed") or ():
        agent.held.pop(name, None)
    for each in line.get("put") or ():
        old, one = agent.held.get(each.get("id")), _held(each)
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
