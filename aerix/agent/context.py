"""An agent's context: its rows in the pool, its record in the log, and the room that is left in the window."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from aerix.actors import Left, Outcome
from aerix.agent.budget import Budget
from aerix.agent.ended import Ended
from aerix.agent.journal import Journal
from aerix.bounds import CUT_TURN, HARD_LIMIT_HITS
from aerix.pool.client import PoolContext
from aerix.pool.protocol import Constraint, Done, Role, Sampling
from aerix.pool.protocol import Segment as PoolSegment
from aerix.session.events import Event, Message, Segment

BYTES_A_TOKEN = 3
"""How many bytes of a result are taken for one token, before the pool has counted them."""
RESULT_SHARE = 0.15
"""A result takes at most this share of the window."""
TURN_SHARE = 4
"""A turn asks for at most the window divided by this."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A segment to add: what the model reads, and what the log calls it. ``message`` is its event, if it has one."""

    id: str
    role: Role
    text: str
    label: str
    pinned: bool = False
    message: Message | None = None


class Context:
    """Belongs to one agent's thread. Nothing is estimated: the pool counts every segment as it is added."""

    def __init__(
        self,
        pool: PoolContext,
        journal: Journal,
        budget: Budget,
        agent: str,
        window: int,
        max_new_tokens: int,
    ) -> None:
        self._pool = pool
        self._journal = journal
        self._budget = budget
        self._agent = agent
        self.window = window
        self._turn_tokens = min(max_new_tokens, window // TURN_SHARE)

    @property
    def tokens(self) -> int:
        """The prompt's length in tokens, with the marker that opens the model's turn."""
        return self._pool.tokens + self._pool.opening

    @property
    def left(self) -> int:
        """Tokens of the window that are free."""
        return self.window - self.tokens

    def open(self, entries: list[Entry]) -> None:
        """Make the context. Ends the agent where a turn would not fit, with the three numbers and what would help."""
        self._pool.create([_segment(entry) for entry in entries])
        self._record(entries)
        if self.left <= CUT_TURN.count:
            raise Ended(
                Outcome(
                    "refused",
                    f"the prompt takes {self.tokens:,} tokens and a turn needs at least {CUT_TURN.count}, but the window is "
                    f'{self.window:,}; shorten the prompt or set [models."…"] window to a larger one',
                )
            )

    def add(self, *entries: Entry) -> None:
        """Append segments, in order."""
        if entries:
            self._pool.append(*map(_segment, entries))
            self._record(list(entries))

    def add_turn(self, segment_id: str, done: Done) -> None:
        """Append a generated turn, with exactly its tokens."""
        self._pool.append(
            PoolSegment(segment_id, "assistant", done.text, tokens=done.tokens, vocab=done.vocab)
        )
        self._journal.write(
            self.turn_message(segment_id, done), self._counted(segment_id, "assistant", "turn")
        )

    def leave_out(self, segment_id: str, done: Done) -> None:
        """Log a generated turn that does not join the context."""
        self._journal.write(self.turn_message(segment_id, done, kept=False))

    def ask(self, sampling: Sampling, constraint: Constraint | None, on_event: Callable[[Any], None]) -> Done:
        """Generate a turn in the room there is."""
        return self._pool.generate(self._room_for_turn(), sampling, constraint, on_event)

    def result_bytes(self, taken: int = 0) -> int:
        """How many bytes of a result the context takes now: 15 % of the window, or the room before the next turn.

        ``taken`` are the bytes of earlier results of the same turn, which are not in the context yet.
        """
        room = BYTES_A_TOKEN * (self.left - self._turn_tokens) - taken
        return max(0, min(BYTES_A_TOKEN * int(self.window * RESULT_SHARE), room))

    def drop(self) -> None:
        """Let the pool forget it."""
        self._pool.drop()

    def _room_for_turn(self) -> int:
        """Tokens that the next turn may take; a hard-limit hit cuts it, the second one ends the agent."""
        if self.left > self._turn_tokens:
            return self._turn_tokens
        taken = self._budget.spend(HARD_LIMIT_HITS)
        room = self.left - 1
        if isinstance(taken, Left) and taken.count > 0 and room >= CUT_TURN.count:
            return room
        raise Ended(
            Outcome(
                "killed",
                f"context floor: no room for a turn: {self.tokens:,} of {self.window:,} tokens are used",
            )
        )

    def _record(self, entries: list[Entry]) -> None:
        events: list[Event] = []
        for entry in entries:
            if entry.message is not None:
                events.append(entry.message)
            text = None if entry.message is not None else entry.text
            events.append(self._counted(entry.id, entry.role, entry.label, pinned=entry.pinned, text=text))
        self._journal.write(*events)

    def _counted(
        self, segment_id: str, role: str, label: str, *, pinned: bool = False, text: str | None = None
    ) -> Segment:
        tokens = self._pool.counts.get(segment_id, 0)
        return Segment(
            agent=self._agent, id=segment_id, role=role, label=label, tokens=tokens, pinned=pinned, text=text
        )

    def turn_message(self, segment_id: str, done: Done, *, kept: bool = True) -> Message:
        """A turn as the log keeps it."""
        return Message(
            agent=self._agent,
            id=segment_id,
            role="assistant",
            text=done.text,
            tokens=done.tokens,
            vocab=done.vocab,
            thinking=done.thinking,
            thinking_tokens=done.thinking_tokens or None,
            stop=done.stop,
            usage=asdict(done.usage),
            kept=kept,
        )


def _segment(entry: Entry) -> PoolSegment:
    return PoolSegment(entry.id, entry.role, entry.text, entry.pinned)
