"""PoolContext: an agent's context in the pool, mirrored, so that it can be made again after every kind of loss.

This is the one way back of DESIGN section 4: whatever was lost (a connection, a worker, the daemon), the context is
created again from the mirror, and a generation asks on with the token ids that it already received.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aerix.actors import Actor, Call, Ref, Refused, whereis
from aerix.pool.bounds import AUTOSTART, GENERATION, LOST_IN_A_ROW
from aerix.pool.dial import Starting
from aerix.pool.protocol import (
    BROKEN_OFF,
    LOST,
    Constraint,
    ContextAppend,
    ContextCreate,
    ContextDrop,
    ContextFork,
    ContextRemove,
    ContextReplace,
    ContextState,
    Done,
    Generate,
    MemberInfo,
    MemberLoad,
    MemberLoaded,
    Progress,
    Sampling,
    Segment,
    Token,
)


@dataclass(frozen=True, slots=True)
class Recreated:
    """A loss, which is made good; ``kept`` token ids of this generation go on as its start, and what followed is void.

    A model on a server has no ids: all that came of the turn is void, and comes anew.
    """

    code: str
    message: str
    kept: int


Event = ContextState | Token | Progress | Starting | Recreated
OnEvent = Callable[[Event], None]

# The link's own end is a loss like the daemon's: its supervisor starts another, which connects again.
_LOST = LOST | BROKEN_OFF | {"gone", "crashed"}


class PoolContext:
    """A context in the pool and its mirror here. Belongs to one actor, which blocks in ``wait`` while the pool works.

    Every method that asks raises Refused with the pool's or the link's code; Cancelled goes through, after the pool
    was told. ``member`` is the name that ``load_member`` returned.
    """

    def __init__(self, actor: Actor, link: Ref, member: str) -> None:
        self.member = member
        self.segments: tuple[Segment, ...] = ()
        self.counts: dict[str, int] = {}
        """Tokens by segment id; role markers count to the segment they open."""
        self.tokens = 0
        """Tokens of all segments: a prompt without the marker that opens the model's turn."""
        self.opening = 0
        """Tokens of that marker."""
        self._actor = actor
        self._link = link
        self._id: str | None = None

    def create(self, segments: Iterable[Segment]) -> ContextState:
        """Make the context anew with these segments."""
        self.drop()
        return self._edit(tuple(segments))

    def append(self, *segments: Segment) -> ContextState:
        """Add segments at the end. A generated turn brings its ``tokens`` and ``vocab``, and is kept exactly."""
        edit = self._id and ContextAppend(0, self._id, list(segments))
        return self._edit((*self.segments, *segments), edit)

    def replace(self, segment: Segment) -> ContextState:
        """Put ``segment`` in the place of the one with its id."""
        changed = tuple(segment if old.id == segment.id else old for old in self.segments)
        return self._edit(changed, self._id and ContextReplace(0, self._id, segment))

    def remove(self, *ids: str) -> ContextState:
        """Take segments out."""
        kept = tuple(old for old in self.segments if old.id not in ids)
        return self._edit(kept, self._id and ContextRemove(0, self._id, list(ids)))

    def fork(self, upto: str | None = None) -> "PoolContext":
        """A new context with the leading segments up to and including ``upto`` (all when absent)."""
        twin = PoolContext(self._actor, self._link, self.member)
        end = len(self.segments) if upto is None else [s.id for s in self.segments].index(upto) + 1
        twin._edit(self.segments[:end], self._id and ContextFork(0, self._id, upto))
        return twin

    def owned_by(self, actor: Actor) -> "PoolContext":
        """The same context for another actor; the one it came from must not be used any more."""
        self._actor = actor
        return self

    def drop(self) -> None:
        """Forget the context in the pool. Does not wait and never raises; the mirror stays."""
        id_, self._id = self._id, None
        if id_ is not None:
            self._actor.request(self._living_link(), ContextDrop(0, id_))

    def generate(
        self,
        max_tokens: int,
        sampling: Sampling | None = None,
        constraint: Constraint | None = None,
        on_event: OnEvent | None = None,
        append: Iterable[Segment] = (),
    ) -> Done:
        """Generate one turn; it is not appended. ``on_event`` gets Token, Progress, Starting and Recreated.

        Segments to ``append`` are added at the end first, without a wait of their own: ``on_event`` gets the
        ContextState when they are counted. Where that has not come, the mirror does not have them.

        A loss is made good; ``generation_lost`` when there were two in a row without a new token between them.
        The Done is that of the last generation asked; its tokens and text are the whole turn's.
        """
        tell: OnEvent = on_event or (lambda _: None)
        got: list[int] = []
        new = list(append)
        losses = _Losses("generation_lost")

        def heard(event: Event) -> None:
            if isinstance(event, ContextState):
                self._take(event, (*self.segments, *new))
                new.clear()
            elif isinstance(event, Token):
                got.extend(event.tokens)
                if event.tokens:
                    losses.forgive()
            tell(event)

        try:
            while True:
                try:
                    if self._id is None:
                        self._edit(self.segments, on_event=heard)
                    assert self._id is not None
                    asked = sampling or Sampling()
                    message = Generate(0, self._id, max_tokens, asked, constraint, list(got), list(new))
                    done = self._ask(message, heard, GENERATION.value)
                    assert isinstance(done, Done)
                    return done
                except Refused as refusal:
                    losses.count(refusal)
                    if new:  # whether the pool has them is not known
                        self.drop()
                    elif refusal.code not in BROKEN_OFF:
                        self._lose(refusal)
                    tell(Recreated(refusal.code, refusal.message, len(got)))
        finally:
            if new:
                self.drop()

    # --- asking

    def _edit(
        self, segments: tuple[Segment, ...], message: Any = None, on_event: OnEvent | None = None
    ) -> ContextState:
        """Change the context to ``segments``: by ``message``, or by creating it anew where the pool lost it."""
        losses = _Losses("context_lost")
        while True:
            ask = message or ContextCreate(0, self.member, list(segments))
            try:
                state = self._ask(ask, on_event, GENERATION.value)
                break
            except Refused as refusal:
                losses.count(refusal)
                self._lose(refusal)
                message = None
            except (
                BaseException
            ):  # cancelled: whether the pool made the change is not known, so it is made anew
                self.drop()
                raise
        assert isinstance(state, ContextState)
        self._take(state, segments)
        return state

    def _take(self, state: ContextState, segments: tuple[Segment, ...]) -> None:
        """The context has these segments now: take the counts of what has changed, leave out those of what is gone."""
        self._id, self.segments = state.context, segments
        self.counts.update({count.id: count.tokens for count in state.segments})
        if len(self.counts) > len(segments):
            self.counts = {segment.id: self.counts[segment.id] for segment in segments}
        self.tokens, self.opening = state.tokens, state.opening

    def _lose(self, refusal: Refused) -> None:
        """The context is gone; a pool whose member lost it still knows its name, and is told to forget that."""
        if refusal.code == "member_restarted":
            self.drop()
        self._id = None

    def _ask(self, message: Any, on_event: OnEvent | None, deadline_s: float) -> Any:
        return _ask(self._actor, self._living_link(), message, on_event, deadline_s)

    def _living_link(self) -> Ref:
        """The link, or the one that its supervisor started in its place."""
        return whereis(self._link.name) or self._link


class _Losses:
    """Counts losses in a row; raises what is none, and the named failure when there were too many."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._in_a_row = 0

    def forgive(self) -> None:
        self._in_a_row = 0

    def count(self, refusal: Refused) -> None:
        if refusal.code not in _LOST:
            raise refusal
        self._in_a_row += 1
        if self._in_a_row >= LOST_IN_A_ROW.count:
            why = f"lost {self._in_a_row} times in a row without a new token, last: {refusal.message}"
            raise Refused(self._code, why)


def load_member(
    actor: Actor,
    link: Ref,
    ref: str,
    flags: dict[str, Any] | None = None,
    on_event: OnEvent | None = None,
    deadline_s: float | None = None,
) -> MemberInfo:
    """Load a model, or find it loaded; blocks ``actor`` for at most ``deadline_s``. Raises Refused.

    A pool that is lost meanwhile is asked again, the next one most likely; ``member_lost`` after two losses.
    """
    from aerix.pool.models import resolve

    limit = AUTOSTART.value if deadline_s is None else deadline_s
    model = resolve(ref)
    file = str(model.path) if model.kind == "gguf" and model.present else ""
    losses = _Losses("member_lost")
    while True:
        try:
            loaded = _ask(actor, link, MemberLoad(0, model.name, flags or {}, file), on_event, 2 * limit)
        except Refused as refusal:
            losses.count(refusal)
        else:
            assert isinstance(loaded, MemberLoaded)
            return loaded.member


def _ask(actor: Actor, link: Ref, message: Any, on_event: OnEvent | None, deadline_s: float) -> Any:
    def heard(_: Call, value: Any) -> None:
        if on_event is not None:
            on_event(value)

    call = actor.request(link, message)
    try:
        actor.wait(call, deadline_s=deadline_s, on_piece=heard)
    except BaseException:  # cancelled, or too late: the pool must hear of it before anybody else does
        call.cancel()
        raise
    return call.result()
