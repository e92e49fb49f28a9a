"""An agent's context: its rows in the pool, its record in the log, and the room that is left in the window.

It only grows at its end, but for a compaction and for what the agent asks of the ``context`` tool: both are events.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

from aerix.actors import Left, Outcome, Refused
from aerix.agent.budget import Budget
from aerix.agent.compaction import changes, compact, freed
from aerix.agent.ended import Ended
from aerix.agent.fitting import fitted
from aerix.agent.journal import Journal
from aerix.agent.room import BYTES_A_TOKEN, Limits
from aerix.bounds import APPENDS, CUT_TURN, HARD_LIMIT_HITS
from aerix.hooks import events as hooks
from aerix.pool.client import PoolContext
from aerix.pool.protocol import Constraint, ContextState, Done, Role, Sampling
from aerix.pool.protocol import Segment as PoolSegment
from aerix.session.events import Compaction, ContextOp, Event, Message, Segment
from aerix.session.replay import Held
from aerix.tools.messages import ToolResult
from aerix.turn import prompt

_OVERFLOW = "context_overflow"
_AROUND = 48  # tokens around a result: its heading, and its role's markers
_POINTER = 64  # tokens of a result that is its pointer alone
_MEASURED = 200  # bytes of a result whose tokens tell how dense such texts are


@dataclass(frozen=True, slots=True)
class Entry:
    """A segment to add: what the model reads, and what the log calls it. ``message`` is its event, if it has one."""

    id: str
    role: Role
    text: str
    label: str
    pinned: bool = False
    message: Message | None = None


@dataclass(frozen=True, slots=True)
class _Owed:
    """A segment that the pool does not have yet: a turn, which the log has, or an ``entry``, which it has not."""

    segment: PoolSegment
    most: int
    """Tokens that it may take."""
    entry: Entry | None = None


class Context:
    """Belongs to one agent's thread. Nothing is estimated: the pool counts every segment as it is added."""

    def __init__(
        self,
        pool: PoolContext,
        journal: Journal,
        budget: Budget,
        agent: str,
        limits: Limits,
        spool: Path,
        on_cut: Callable[[], None],
        fire: Callable[[hooks.Event], hooks.Decision],
        notes: int = 0,
    ) -> None:
        """``spool`` takes the whole of results that were cut; ``on_cut`` hears of each change before the end; ``fire`` fires
        hooks; ``notes`` were made before.
        """
        self._pool = pool
        self._journal = journal
        self._budget = budget
        self._agent = agent
        self.limits = limits
        self._spool = spool
        self._on_cut = on_cut
        self._fire = fire
        self._about: dict[str, tuple[str, str | None]] = {}
        self._notes = count(notes + 1)
        self._not_before = 0
        self._owed: list[_Owed] = []
        """What the pool gets with what comes next: a turn with its result, and that with the next turn that is asked."""
        self._rate = float(BYTES_A_TOKEN)

    @property
    def tokens(self) -> int:
        """The prompt's length in tokens, with the marker that opens the model's turn: at most, before the pool counts."""
        return self._pool.tokens + self._pool.opening + sum(one.most for one in self._owed)

    @property
    def result_bytes(self) -> int:
        """The most bytes of one result: 15 % of the window, at 3 bytes a token, or as many as the last one had."""
        return int(self._rate * self.limits.result)

    @property
    def left(self) -> int:
        """Tokens of the window that are free."""
        return self.limits.window - self.tokens

    @property
    def held(self) -> list[Held]:
        """Its segments, in order."""
        self.settle()
        counts = self._pool.counts
        return [Held(one, *self._labelled(one.id, counts.get(one.id, 0))) for one in self._pool.segments]

    def open(self, entries: list[Entry], before: Sequence[Held] = ()) -> None:
        """Make the context: ``before``, which the log has already, and ``entries``.

        Ends the agent where a turn would not fit, with the three numbers and what would help.
        """
        if held := len(self._pool.segments):  # a fork has the first of them
            self._pool.append(*map(_segment, entries[held:]))
        else:
            self._pool.create([*(one.segment for one in before), *map(_segment, entries)])
        self._about = {one.id: (one.label, one.tool) for one in before}
        self._journal.write(*self._events(entries))
        if not self._has_room(entries, begun=bool(before)):
            raise self._too_long({one.id for one in entries}, begun=bool(before))

    def _has_room(self, entries: Sequence[Entry], *, begun: bool) -> bool:
        """Whether a turn fits behind what was just added; where there is a past, it gives way first."""
        new = sum(self._pool.counts.get(one.id, 0) for one in entries)
        if begun and self.left <= CUT_TURN.count and new < self.limits.window:
            self._compact(unread=True)
        return self.left > CUT_TURN.count

    def _leave_prompt_out(self, new: set[str]) -> None:
        """The session goes on without the user's words that were too long for it: the next ones may fit."""
        before = self.tokens
        put, removed = self.rewrite([one for one in self.held if one.label != "prompt" or one.id not in new])
        self._journal.write(
            Compaction(agent=self._agent, before=before, after=self.tokens, put=put, removed=removed)
        )

    def _too_long(self, new: set[str], *, begun: bool) -> Ended:
        before = self.tokens
        self._leave_prompt_out(new)
        what, begin = (
            ("the session with this prompt", ", begin a new session") if begun else ("the prompt", "")
        )
        return Ended(
            Outcome(
                "refused",
                f"{what} takes {before:,} tokens and a turn needs at least {CUT_TURN.count}, but the window is "
                f'{self.limits.window:,}; shorten the prompt{begin} or set [models."…"] window to a larger one',
            )
        )

    # --- at its end

    def add(self, *entries: Entry) -> None:
        """Append segments, in order."""
        if entries:
            before = self._append(*map(_segment, entries))
            self._journal.write(*before, *self._events(entries))

    def say(self, entry: Entry) -> bool:
        """Append what the user says meanwhile; false where no turn would fit behind it, so that it was left out again:
        it is pinned, and would be in the way for ever.
        """
        self.add(entry)
        size = self._pool.counts.get(entry.id, 0)
        if self._has_room([entry], begun=True):
            return True
        self._leave_prompt_out({entry.id})
        why = f"it takes {size:,} tokens, which leave no room for a turn in the window of {self.limits.window:,}"
        self._journal.note(f"what you said meanwhile was left out: {why}")
        return False

    def note(self, text: str) -> None:
        """Append a sentence of Aerix's own for the model."""
        self.add(Entry(f"n{next(self._notes)}", "user", text, "note"))

    def add_turn(self, segment_id: str, done: Done) -> None:
        """Append a generated turn, with exactly its tokens. It is logged now; its count comes with what is added next."""
        self.settle()
        self._about[segment_id] = "turn", None
        segment = PoolSegment(segment_id, "assistant", done.text, tokens=done.tokens, vocab=done.vocab)
        length = len(done.tokens) or done.usage.completion_tokens  # a model on a server has no ids
        self._owed = [_Owed(segment, self._pool.opening + length)]
        self._journal.tell(self._turn(segment_id, done))

    def settle(self) -> None:
        """No turn is asked for now: let the pool have what it is owed."""
        if self._owed:
            self._journal.write(*self._append())

    def _append(self, *segments: PoolSegment) -> list[Event]:
        """Append segments behind what waits for them; what the log is to say of that."""
        self._pool.append(*(one.segment for one in self._owed), *segments)
        return self._settled()

    def _settled(self) -> list[Event]:
        """The pool has what it was owed: what the log is to say of it."""
        owed, self._owed = self._owed, []
        return [event for one in owed for event in self._events_of(one)]

    def _events_of(self, owed: "_Owed") -> list[Event]:
        if owed.entry is None:
            return [self._counted(owed.segment.id, "assistant", "turn")]
        self._learn_rate(owed.entry)
        return self._events([owed.entry])

    def leave_out(self, segment_id: str, done: Done) -> None:
        """Log a generated turn that does not join the context."""
        self._journal.write(self._turn(segment_id, done, kept=False))

    def add_result(
        self,
        call: str,
        result: ToolResult,
        entry: Callable[[ToolResult], Entry],
        later: int = 0,
        *,
        last: bool = False,
    ) -> None:
        """Append a result in the first form that leaves room for a turn: as it is; fitted, after a compaction where
        there is one to make; its pointer alone, whatever room there is.

        ``entry`` makes a segment of a result. ``later`` results of the same turn are to come: room for their pointers
        is left, else what was read first would have to give way for them. Behind the ``last`` one another turn is asked
        for, or the agent ends: one that surely fits goes to the pool, and to the log, with that.
        """
        most = self.limits.with_results - later * _POINTER
        for form in range(min(2, APPENDS.count - 1)):
            room = self.limits.result
            if form > 0:
                if self.tokens + _AROUND + len(result.text.encode()) / self._rate > most:
                    self._compact()
                room = min(room, most - _AROUND - self.tokens)
            result = fitted(result, max(0, int(self._rate * room)), self._spool, call)
            made = entry(result)
            if (last and self._owes(made, most)) or self._fits(made, most):
                return
        self.add(entry(fitted(result, 0, self._spool, call)))

    def _owes(self, entry: Entry, most: int) -> bool:
        """Let an entry wait for the next turn where it fits however it is counted: a token is a byte at least."""
        bound = len(entry.text.encode()) + _AROUND
        if self.tokens + bound > most or bound > self.limits.result:
            return False
        self._owed.append(_Owed(_segment(entry), bound, entry))
        return True

    def keep(self, entry: Entry) -> None:
        """Have a result logged when the context is dropped, which comes next."""
        self._owed.append(_Owed(_segment(entry), 0, entry))

    def _fits(self, entry: Entry, most: int) -> bool:
        """Append a result where the context then has at most so many tokens, by the pool's count; else it stays as it is."""
        size = len(entry.text.encode())
        if self.tokens + size / self._rate > most:
            return False
        before = self._append(_segment(entry))
        count = self._learn_rate(entry)
        if self.tokens > most or count > self.limits.result + _AROUND:
            self._pool.remove(entry.id)
            self._journal.write(*before)
            return False
        self._journal.write(*before, *self._events([entry]))
        return True

    def _learn_rate(self, entry: Entry) -> int:
        """How many tokens the pool counted; of a text that tells, how many bytes one has."""
        count, size = self._pool.counts.get(entry.id, 0), len(entry.text.encode())
        if count and size > _MEASURED:
            self._rate = min(float(BYTES_A_TOKEN), size / count)
        return count

    # --- a turn

    def ask(self, sampling: Sampling, constraint: Constraint | None, on_event: Callable[[Any], None]) -> Done:
        """Make room, and generate a turn in it."""
        if self.tokens > min(self.limits.soft, self.limits.full):
            self.settle()
            if self.tokens > min(self.limits.soft, self.limits.full):
                self._compact(unread=self.tokens > self.limits.full)

        def heard(event: Any) -> None:
            if isinstance(event, ContextState):
                self._journal.write(*self._settled())
            else:
                on_event(event)

        if not self._owed:
            self._journal.write()
        while True:
            room = self._room_for_turn()
            owed = [one.segment for one in self._owed]
            try:
                return self._pool.generate(room, sampling, constraint, heard, owed)
            except Refused as refused:
                if refused.code != _OVERFLOW:
                    raise
                self._overflowed(refused)

    def drop(self) -> None:
        """Let the pool forget it. A result that it was not told of, or that it has not counted, is logged all the same."""
        if any(one.entry for one in self._owed):
            self._journal.keep(*self._settled())
        self._pool.drop()

    def _room_for_turn(self) -> int:
        """Tokens that the next turn may take; a hard-limit hit cuts it, the second one ends the agent."""
        if self.tokens <= self.limits.full:
            return self.limits.turn
        room = self.left - 1
        if self._hit() and room >= CUT_TURN.count:
            return room
        raise self._floor(f"{self.tokens:,} of {self.limits.window:,} tokens are used")

    def _hit(self) -> bool:
        """Count a hard-limit hit; whether it was not the last one."""
        taken = self._budget.spend(HARD_LIMIT_HITS)
        return isinstance(taken, Left) and taken.count > 0

    def _overflowed(self, refused: Refused) -> None:
        """The pool has less room than its counts say, as a server may whose counts are estimates."""
        before = self.tokens
        if self._hit():
            self._compact(min(self.limits.target, before // 2), unread=True)
        if self.tokens >= before:
            raise self._floor(refused.message)

    def _floor(self, why: str) -> Ended:
        return Ended(Outcome("killed", f"context floor: no room for a turn: {why}"))

    # --- before its end

    def rewrite(self, held: Sequence[Held]) -> tuple[list[dict[str, Any]], list[str]]:
        """Make the context of these segments; what the log is to say of it. One change, wherever they differ."""
        before = self.held
        self._pool.create([one.segment for one in held])
        self._about = {one.id: (one.label, one.tool) for one in held}
        after = self.held
        if [one.segment.text for one in before] != [one.segment.text for one in after]:
            self._on_cut()
        return changes(before, after)

    def record(self, op: ContextOp) -> None:
        """Log what the agent did to its context."""
        self._journal.write(op)

    def compact(self) -> None:
        """The user wants it shorter: half of what it is, or the target where that is less."""
        before = self.tokens
        self._compact(min(self.limits.target, before // 2), trigger="manual")
        if self.tokens == before:
            self._journal.note("there is nothing in the context that is worth compacting")

    def _compact(
        self, goal: int | None = None, *, unread: bool = False, trigger: Literal["auto", "manual"] = "auto"
    ) -> None:
        """Compact down to ``goal``, or the target, where that is worth a cut. ``unread``: there is no other room, so
        results that were not read yet give way too until a turn fits; where that freed little, it is not tried again
        until the context has grown.
        """
        goal = self.limits.target if goal is None else goal
        old, before, step = self.held, self.tokens, self.limits.step
        if before < self._not_before or (not unread and freed(old, compact(old, before - goal)) < step):
            return
        if self._fire(hooks.PreCompact(trigger)).block is not None:
            return
        self._shrink(goal, unread=False)
        if unread:
            self._shrink(self.limits.with_results, unread=True)
        after = self.tokens
        self._not_before = after + step if before - after < step else 0
        put, removed = changes(old, self.held)
        if put or removed:
            self._journal.write(
                Compaction(agent=self._agent, before=before, after=after, put=put, removed=removed)
            )
            self.note(prompt.compacted(before, after))
        self._fire(hooks.ContextCompact(trigger, before, after))

    def _shrink(self, goal: int, *, unread: bool) -> None:
        """Each round gives way more than the last one, until the pool's own count is at the goal."""
        while (excess := self.tokens - goal) > 0:
            held = self.held
            smaller = compact(held, excess, unread=unread)
            if smaller == held:
                return
            self.rewrite(smaller)

    # --- its record

    def _labelled(self, segment_id: str, tokens: int) -> tuple[str, int, str | None]:
        label, tool = self._about[segment_id]
        return label, tokens, tool

    def _events(self, entries: Iterable[Entry]) -> list[Event]:
        """What the log is to say of entries that were added."""
        events: list[Event] = []
        for entry in entries:
            tool = None if entry.message is None else entry.message.tool
            self._about[entry.id] = entry.label, tool
            if entry.message is not None:
                events.append(entry.message)
            text = None if entry.message is not None else entry.text
            events.append(self._counted(entry.id, entry.role, entry.label, pinned=entry.pinned, text=text))
        return events

    def _counted(
        self, segment_id: str, role: str, label: str, *, pinned: bool = False, text: str | None = None
    ) -> Segment:
        tokens = self._pool.counts.get(segment_id, 0)
        return Segment(
            agent=self._agent, id=segment_id, role=role, label=label, tokens=tokens, pinned=pinned, text=text
        )

    def _turn(self, segment_id: str, done: Done, *, kept: bool = True) -> Message:
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
