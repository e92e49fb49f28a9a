"""The worker's contexts: segments and their exact tokens. Used by one thread, which no decode ever holds up.

A context id is random, so that one from before a restart is unknown and never another's.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, takewhile

from aerix.actors import Refused
from aerix.actors.log import log
from aerix.pool import protocol as p
from aerix.pool.bounds import CONTEXTS
from aerix.pool.rows import Vocabulary
from aerix.pool.segments import check_segments, index_of
from aerix.pool.template import Template
from aerix.pool.thinking import Opening, Thinking


@dataclass(slots=True)
class Context:
    """Segments in order, with the tokens each has: what the template writes before its text, then the text."""

    id: str
    segments: list[p.Segment] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    flat: list[int] = field(default_factory=list)
    """The context's token ids, without the opening of the model's turn."""
    roles: tuple[p.Role, ...] = ()
    """The segments' roles, which are all that a template sees of them."""
    ids: set[str] = field(default_factory=set)
    """The segments' ids."""

    def upto(self, end: int) -> "Context":
        """Another one with its leading segments."""
        other = Context(uuid.uuid4().hex)
        other.put(0, self.segments[:end], self.tokens[:end])
        return other

    def put(self, at: int, segments: list[p.Segment], tokens: list[tuple[int, ...]]) -> None:
        """Everything from segment ``at`` on is these."""
        del self.flat[len(self.flat) - sum(map(len, self.tokens[at:])) :]
        self.ids.difference_update(segment.id for segment in self.segments[at:])
        self.ids.update(segment.id for segment in segments)
        self.roles = (*self.roles[:at], *(segment.role for segment in segments))
        self.segments[at:], self.tokens[at:] = segments, tokens
        self.flat += chain.from_iterable(tokens)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A context at the moment a generation was asked for."""

    segments: tuple[p.Segment, ...]
    tokens: Sequence[int]
    """Never changed. With the opening of the model's turn, where the answer follows at once."""
    thinking: Thinking | None = None
    """The same with the opening of a thinking stretch, for a model that thinks first."""
    ends: tuple[int, ...] = ()
    """Rows up to the end of each segment."""
    head: int = 0
    """Rows of the pinned head: what other contexts begin with too."""


class Contexts:
    """All contexts of a worker, and the requests that change and read them."""

    def __init__(self, vocabulary: Vocabulary, template: Template) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._contexts: dict[str, Context] = {}

    @property
    def thinking(self) -> int:
        """Tokens that the model may think with before a turn."""
        return self._template.thinking

    def __len__(self) -> int:
        return len(self._contexts)

    def handle(self, request: object) -> object:
        """Answer a context request, or raise Refused. Nothing has changed after a refusal."""
        match request:
            case p.ContextCreate(id, _, segments):
                context = Context(uuid.uuid4().hex)
                context.put(0, segments, self._tokenized(context, 0, segments))
                return self._state(id, self._add(context))
            case p.ContextAppend(id, name, segments):
                context = self._find(name)
                return self._changed(id, context, len(context.segments), segments)
            case p.ContextReplace(id, name, segment):
                context = self._find(name)
                at = index_of(context.segments, segment.id)
                return self._changed(id, context, at, [segment, *context.segments[at + 1 :]])
            case p.ContextRemove(id, name, names):
                context = self._find(name)
                at = min((index_of(context.segments, one) for one in names), default=len(context.segments))
                return self._changed(
                    id, context, at, [one for one in context.segments[at:] if one.id not in names]
                )
            case p.ContextFork(id, name, upto):
                return self._state(id, self._fork(self._find(name), upto))
            case p.ContextDrop(id, name):
                del self._contexts[self._find(name).id]
                return p.Ok(id)
            case p.ContextRead(id, name):
                context = self._find(name)
                return p.ContextText(id, context.id, list(context.segments), list(context.flat))
        raise Refused("unknown_request", f"A worker does not know the request {type(request).__name__}.")

    def prompt(self, name: str) -> Prompt:
        """What a generation on the context starts from. Raises Refused ``unknown_context``, ``empty_context``."""
        context = self._find(name)
        if not context.segments:
            raise Refused("empty_context", "The context has no segment: there is nothing to answer to.")
        opening, tokens = self._template.opening(context.roles), context.flat
        ends = tuple(accumulate(map(len, context.tokens)))
        return Prompt(
            tuple(context.segments),
            tokens + list(self._template.tokens(opening.answer)),  # a tuple of them takes four times as long
            self._thinking(tokens, opening),
            ends,
            head_of(context.segments, ends),
        )

    # --- private --------------------------------------------------------------------------------------------------

    def _thinking(self, tokens: list[int], opening: Opening) -> Thinking | None:
        if opening.closing is None:
            return None
        closing, ids = opening.closing, self._template.tokens
        return Thinking(
            tokens + list(ids(opening.thought)),
            closing.mark,
            ids(closing.mark),
            ids(closing.after) if closing.after else (),
            ids(closing.forced),
            self._template.thinking,
        )

    def _find(self, name: str) -> Context:
        context = self._contexts.get(name)
        if context is None:
            raise Refused("unknown_context", f"There is no context {name} here; create it again.")
        return context

    def _add(self, context: Context) -> Context:
        if len(self._contexts) >= CONTEXTS.count:
            raise Refused("too_many_contexts", f"There are {CONTEXTS.count} contexts already; drop one.")
        self._contexts[context.id] = context
        return context

    def _fork(self, context: Context, upto: str | None) -> Context:
        end = len(context.segments) if upto is None else index_of(context.segments, upto) + 1
        return self._add(context.upto(end))

    def _changed(self, id: int, context: Context, at: int, segments: list[p.Segment]) -> p.ContextState:  # noqa: A002 - the field's name
        """Everything from segment ``at`` on is these."""
        context.put(at, segments, self._tokenized(context, at, segments))
        return self._state(id, context, at)

    def _tokenized(self, context: Context, at: int, added: list[p.Segment]) -> list[tuple[int, ...]]:
        """The tokens of segments that are to stand from ``at`` on."""
        roles = context.roles[:at]
        kept = context.ids.difference(segment.id for segment in context.segments[at:])
        check_segments(added, kept, roles[-1] if roles else None)
        self._note_foreign(added)
        tokens = []
        for segment in added:
            tokens.append((*self._template.segment(roles, segment.role), *self._text(segment)))
            roles = (*roles, segment.role)
        return tokens

    def _note_foreign(self, added: list[p.Segment]) -> None:
        """One line for the ids of another vocabulary, in whose place the texts are used."""
        foreign = sum(s.tokens is not None and s.vocab != self._vocabulary.digest for s in added)
        if foreign:
            log("context.other_vocabulary", level="warning", segments=foreign)

    def _text(self, segment: p.Segment) -> list[int]:
        """A text's tokens: the exact ones where they are of this vocabulary."""
        if segment.tokens is None or segment.vocab != self._vocabulary.digest:
            return self._vocabulary.tokenize(segment.text, special=False)
        check_tokens(segment.tokens, self._vocabulary)
        return segment.tokens

    def _state(self, id: int, context: Context, at: int = 0) -> p.ContextState:  # noqa: A002 - the field's name
        """The context, with the counts of the segments from ``at`` on: those before are as they were."""
        changed = zip(context.segments[at:], context.tokens[at:], strict=True)
        counts = [p.SegmentCount(segment.id, len(tokens)) for segment, tokens in changed]
        opening = self._template.opening(context.roles) if context.segments else None
        return p.ContextState(id, context.id, counts, len(context.flat), self._length(opening))

    def _length(self, opening: Opening | None) -> int:
        """Tokens of the opening of the model's turn, at most."""
        openings = () if opening is None else (opening.answer, opening.thought)
        return max((len(self._template.tokens(text)) for text in openings), default=0)


def head_of(segments: list[p.Segment], ends: Sequence[int]) -> int:
    """Rows of the pinned segments that a context begins with, but for the question that its first turn answers."""
    pinned = sum(1 for _ in takewhile(lambda segment: segment.pinned, segments))
    turn = next((at for at, segment in enumerate(segments) if segment.role == "assistant"), len(segments))
    if pinned >= turn > 0 and segments[turn - 1].role == "user":
        pinned = turn - 1
    return ends[pinned - 1] if pinned else 0


def check_tokens(tokens: list[int], vocabulary: Vocabulary) -> None:
    """Refuse ids that the vocabulary does not have."""
    if not all(0 <= token < vocabulary.size for token in tokens):
        raise Refused("bad_tokens", f"Token ids must be at least 0 and below {vocabulary.size}.")
