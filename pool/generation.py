"""One generation, step by step: which rows to compute next, and what their logits mean.

A scheduler asks ``rows``, decodes them, and hands the logits to ``take``, until ``done`` is there. Nothing here waits.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.constraint import Json
from aerix.pool.contexts import Prompt
from aerix.pool.draft import Drafts
from aerix.pool.prefix import Lease, common
from aerix.pool.rows import (
    Aborted,
    Engine,
    EngineFacts,
    EngineFailed,
    Failed,
    OutOfRoom,
    Row,
    Scene,
    Vocabulary,
)
from aerix.pool.sampling import Sampler
from aerix.pool.store import Store
from aerix.pool.thinking import Thoughts

if TYPE_CHECKING:
    from aerix.pool.rows import Logits


_FOUR = 4
"""llama.cpp computes few rows by fours: five take as long as seven or eight."""


@dataclass(frozen=True, slots=True)
class Job:
    """A ``Generate`` with the prompt as it was when the request came."""

    call: int
    request: p.Generate
    prompt: Prompt
    cancelled: threading.Event = field(default_factory=threading.Event)

    def thinking(self, facts: EngineFacts) -> int:
        """Tokens to think with: the budget, or what window and cells leave. A choice is made without thinking."""
        thinking, constraint = self.prompt.thinking, self.request.constraint
        if thinking is None or (constraint is not None and constraint.texts is not None):
            return 0
        rows = len(thinking.tokens) + len(thinking.forced) + self.request.max_tokens
        return max(min(thinking.budget, facts.window - rows, facts.cells - rows), 0)

    def rows(self, facts: EngineFacts) -> tuple[list[int], int]:
        """What is known of its sequence before it begins, and how many rows may follow."""
        reply, budget = self.request.max_tokens, self.thinking(facts)
        if budget and self.prompt.thinking:
            prompt, reply = self.prompt.thinking.tokens, reply + budget + len(self.prompt.thinking.forced)
        else:
            prompt = self.prompt.tokens
        start = self.request.start
        return [*prompt, *start], max(0, reply - len(start))

    def split(self, engine: Engine) -> tuple[Sequence[int], Thoughts | None, list[int]]:
        """The prompt to use, and of what the client brought the thoughts and the answer. Raises Refused."""
        start, budget = self.request.start, self.thinking(engine.facts)
        if not budget or self.prompt.thinking is None:
            return self.prompt.tokens, None, list(start)
        thoughts = Thoughts(self.prompt.thinking, budget, engine.vocabulary)
        return self.prompt.thinking.tokens, thoughts, start[thoughts.replay(start) :]


class Bench:
    """The engine and the shelf that mirrors its cache: every operation of one is done on the other."""

    def __init__(self, engine: Engine, store: Store | None = None) -> None:
        self.engine = engine
        self.store = store or Store(engine)
        self.shelf = self.store.shelf

    def decode(self, rows: list[Row]) -> "list[Logits]":
        """See Engine.decode. After what it raises the engine holds what the shelf says, no more."""
        began = time.perf_counter()
        try:
            logits = self.engine.decode(rows)
            self.store.rates = self.store.rates.filled(len(rows), time.perf_counter() - began)
            return logits
        except (Aborted, Failed, OutOfRoom):
            self.engine.resume()
            for sequence in {row.sequence for row in rows}:
                if not self.engine.cut(sequence, len(self.shelf.tokens(sequence))):
                    raise EngineFailed("a sequence cannot be cut after an interrupted step") from None
            raise

    def keep(self, sequence: int, drafted: list[int], right: int) -> None:
        """Of the rows that were drafted behind the sequence, the first so many count; the others are cut."""
        self.store.commit(sequence, drafted[:right])
        if right < len(drafted) and not self.engine.cut(sequence, len(self.shelf.tokens(sequence))):
            raise EngineFailed("a sequence cannot be cut behind a draft")

    def release(self, sequence: int, *, keep: bool = True) -> None:
        """See Shelf.release. Rows that the engine has computed and nobody counted are cut."""
        whole = self.engine.cut(sequence, len(self.shelf.tokens(sequence)))
        self.store.release(sequence, keep=keep and whole)


class Generation(Protocol):
    """What a scheduler drives."""

    job: Job
    done: p.Done | None

    def open(self) -> bool:
        """Take cells and a sequence; False where there is no room yet. Raises Refused."""
        ...

    @property
    def filling(self) -> bool:
        """Whether more of the prompt is to be computed than the row that is asked what comes next."""
        ...

    def rows(self, limit: int, ahead: int = 0, /) -> list[Row]:
        """The next rows to compute, at most ``limit``; so many of them ``ahead`` of what is known, if that is worth it."""
        ...

    def take(self, rows: list[Row], logits: "list[Logits]") -> None:
        """The rows are computed; these are the logits of those that asked."""
        ...

    def end(self, stop: p.Stop) -> None:
        """End now. Sets ``done``."""
        ...

    def close(self) -> None:
        """Give the sequences back. Must be called once the generation is over, however it ended."""
        ...


def start(job: Job, bench: Bench, send: Callable[[object], None]) -> Generation:
    """The generation that a request asks for. Raises Refused."""
    from aerix.pool.choice import Choice, Unscored

    constraint = job.request.constraint
    if constraint is None or constraint.texts is None:
        return Turn(job, bench, send)
    if bench.engine.facts.scores:
        return Choice(job, bench, send, constraint.texts)
    return Unscored(job, bench, send, constraint.texts)


def cancelled(job: Job, engine: Engine) -> p.Done:
    """The end of a generation that was cancelled before it began."""
    prompt, thoughts, answer = job.split(engine)
    usage = Times().usage(len(prompt), len(job.request.start), None)
    return _done(job, engine.vocabulary, "cancelled", thoughts, answer, usage)


def _done(
    job: Job,
    vocabulary: Vocabulary,
    stop: p.Stop,
    thoughts: Thoughts | None,
    answer: list[int],
    usage: p.Usage,
) -> p.Done:
    text = b"".join(vocabulary.piece(token) for token in answer).decode("utf-8", "replace")
    done = p.Done(job.request.id, stop, text, answer, usage, vocabulary.digest)
    return replace(done, thinking=thoughts.text, thinking_tokens=thoughts.tokens) if thoughts else done


class Turn:
    """A generated turn, free or held to a schema. Forced stretches are appended without sampling.

    A model that thinks first thinks freely, then the schema begins.
    """

    def __init__(self, job: Job, bench: Bench, send: Callable[[object], None]) -> None:
        self.job = job
        self.done: p.Done | None = None
        self._bench, self._send = bench, send
        self._vocabulary = bench.engine.vocabulary
        self._sampler = Sampler(job.request.sampling)
        self._prompt, self._thoughts, self._generated = job.split(bench.engine)
        if not set(self._generated).isdisjoint(self._vocabulary.ends):
            raise Refused("bad_start", "The ids in `start` end the turn: there is nothing to go on with.")
        self._sent = len(job.request.start)
        self._forced = 0
        self._lease: Lease | None = None
        self._times = Times()
        facts = bench.engine.facts
        self._drafts = Drafts(facts.window) if facts.drafts and facts.cuttable else None
        self._drafted: list[int] = []
        self._right = 0
        check_window(job, bench.engine.facts.window, job.request.max_tokens, len(self._generated))
        self._json = self._constraint()

    def open(self) -> bool:
        """See Generation. A turn that is whole with what the client brought needs no room at all."""
        if self._json and self._json.complete:
            self.end("final")
            return True
        if not self._thinks:
            self._extend()
        if self.done:
            return True
        room = self.job.request.max_tokens - len(self._generated)
        if self._thoughts:
            room += self._thoughts.left
        tokens = self._known(0, self._total)
        self._lease = self._bench.store.admit(tokens, reserve=room, prompt=self.job.prompt)
        if self._lease:
            self._times.restored()
            self._bench.engine.begin(self._lease.sequence, self._scene())
        return self._lease is not None

    @property
    def filling(self) -> bool:
        """See Generation."""
        return len(self._bench.shelf.tokens(self._leased.sequence)) < len(self._prompt) - 1

    def rows(self, limit: int, ahead: int = 0, /) -> list[Row]:
        """What is known and not yet computed; the last of it, and what is drafted, is asked what comes next."""
        sequence = self._leased.sequence
        at, total = len(self._bench.shelf.tokens(sequence)), self._total
        end = self._bench.store.until(sequence, min(at + limit, total))
        tokens = self._known(at, end)
        most = min(limit - len(tokens), ahead)
        self._drafted = self._draft(len(tokens), most) if end == total else []
        return [
            Row(token, i, sequence, i >= total - 1) for i, token in enumerate([*tokens, *self._drafted], at)
        ]

    def take(self, rows: list[Row], logits: "list[Logits]") -> None:
        """See Generation: count the rows, then draw, or tell how far the prompt is."""
        known = rows[: len(rows) - len(self._drafted)]
        self._bench.store.commit(self._leased.sequence, [row.token for row in known])
        if logits:
            self._times.filled()
            self._go_on(logits)
        else:
            start, total = self._leased.start, self._total
            self._send(p.Progress(self.job.request.id, rows[-1].position + 1 - start, total - start))

    def end(self, stop: p.Stop) -> None:
        """See Generation."""
        self._flush()
        self.done = _done(self.job, self._vocabulary, stop, self._thoughts, self._generated, self._usage())

    def close(self) -> None:
        """See Generation. Prompt and output stay on the shelf."""
        if self._lease:
            self._bench.release(self._lease.sequence)

    # --- private --------------------------------------------------------------------------------------------------

    @property
    def _leased(self) -> Lease:
        assert self._lease is not None
        return self._lease

    def _constraint(self) -> Json | None:
        """The schema, followed through the ids that the client brought."""
        constraint = self.job.request.constraint
        if constraint is None or constraint.schema is None:
            return None
        follower = Json(constraint.schema, self._vocabulary.guide())
        if follower.take(self._generated) < len(self._generated):
            raise Refused("bad_start", "The ids in `start` are no beginning of what the schema allows.")
        return follower

    @property
    def _thinks(self) -> bool:
        """Whether the answer has not begun."""
        return self._thoughts is not None and self._thoughts.open

    def _thought(self) -> list[int]:
        return self._thoughts.tokens if self._thoughts else []

    def _scene(self) -> Scene:
        """What is generated now: a thinking stretch, or the answer."""
        prompt = self.job.prompt
        closing = prompt.thinking.mark if prompt.thinking and self._thinks else ""
        start = len(self._prompt) + (0 if closing else len(self._thought()))
        return Scene(prompt.segments, start, resumed=bool(self.job.request.start), closing=closing)

    @property
    def _total(self) -> int:
        """Rows that are known: the prompt's, and what was generated."""
        return len(self._prompt) + len(self._thought()) + len(self._generated)

    def _known(self, start: int, end: int) -> list[int]:
        """Their tokens from one row to another; those of a reply cost the same behind any prompt."""
        before = len(self._prompt)
        reply = [*self._thought(), *self._generated][max(start - before, 0) : max(end - before, 0)]
        return [*self._prompt[start:end], *reply]

    def _draft(self, known: int, most: int) -> list[int]:
        """What may come behind so many known rows and the schema allows; a full reply draws its last token itself."""
        left = self.job.request.max_tokens - len(self._generated)
        if self._thoughts:
            left += self._thoughts.left
        most = min(most, left - 1)
        if self._drafts is None or most < 1:
            return []
        self._drafts.extend(self._known(len(self._drafts), self._total))
        drafted = self._drafts.next(most)
        if drafted and self._json and not self._thinks:
            del drafted[self._json.fitting(drafted) :]
        over = (known + len(drafted)) % _FOUR
        return drafted[: len(drafted) - over] if over < len(drafted) else drafted

    def _go_on(self, logits: "list[Logits]") -> None:
        """Draw what comes next, and behind each drafted token that this turns out to be, what comes after it."""
        base, drafted, right = self._total, self._drafted, 0
        for _ in logits:
            self._draw(logits[right])
            known = self._known(base, self._total)
            more = common(known, drafted) - right
            right, self._right = right + more, self._right + more
            if self.done or right < len(known):
                break
        if self._drafts is not None:
            self._drafts.judge(len(drafted), right)
        if self.done:  # told before the last of the draft was counted
            self.done = replace(self.done, usage=replace(self.done.usage, drafted_tokens=self._right))
        self._bench.keep(self._leased.sequence, drafted, right)

    def _draw(self, logits: "Logits") -> None:
        json = None if self._thinks else self._json
        token = self._sampler.best(logits)
        if token is None or (json and not json.allows(token)):
            place = len(self._thought()) + len(self._generated)
            token = self._sampler.draw(logits, place, json.allowed() if json else None)
        if token is None:
            some = json.some_allowed() if json else []
            raise self._bench.engine.stuck(self._leased.sequence, some)
        if self._thoughts and self._thoughts.open:
            self._think(self._thoughts, token)
            return
        if token in self._vocabulary.ends:
            self.end("final" if self._json else "stop")
            return
        self._generated.append(token)
        if self._json:
            self._json.take([token])
        self._extend()
        self._flush()

    def _think(self, thoughts: Thoughts, token: int) -> None:
        """One more token of the thinking; behind its end the answer begins."""
        if token in self._vocabulary.ends:
            thoughts.end()
        else:
            thoughts.take(token)
        if not thoughts.open:
            self._bench.engine.begin(self._leased.sequence, self._scene())
            self._extend()
        self._flush()

    def _extend(self) -> None:
        """Append what the schema forces, and see whether that, or the limit, is the end."""
        if self._json and not self._json.complete:
            forced = self._json.forced()
            self._forced += len(forced)
            self._generated += forced
        limit = self.job.request.max_tokens
        if len(self._generated) > limit or (len(self._generated) == limit and not self._complete):
            self._forced -= min(len(self._generated) - limit, self._forced)
            del self._generated[limit:]
            self.end("length")
        elif self._complete:
            self.end("final")

    @property
    def _complete(self) -> bool:
        return self._json is not None and self._json.complete

    def _flush(self) -> None:
        """Send what was generated and not sent."""
        thought = self._thought()
        for tokens, thinking in (
            (thought[self._sent :], True),
            (self._generated[max(self._sent - len(thought), 0) :], False),
        ):
            if tokens:
                data = b"".join(self._vocabulary.piece(token) for token in tokens)
                self._send(p.Token(self.job.request.id, tokens, data, thinking))
        self._sent = max(self._sent, len(thought) + len(self._generated))

    def _usage(self) -> p.Usage:
        thought = len(self._thought())
        usage = self._times.usage(
            len(self._prompt), thought + len(self._generated), self._lease, self._forced
        )
        return replace(usage, thinking_tokens=thought, drafted_tokens=self._right)


class Times:
    """What a generation took: restoring rows, filling the prompt, decoding."""

    def __init__(self) -> None:
        self._restored = self._filled = time.perf_counter()
        self._filling = True

    def restored(self) -> None:
        """The rows that were there are in place."""
        self._restored = time.perf_counter()

    def filled(self) -> None:
        """The prompt is computed. Later calls change nothing."""
        if self._filling:
            self._filled, self._filling = time.perf_counter(), False

    def usage(self, prompt: int, completion: int, lease: Lease | None, forced: int = 0) -> p.Usage:
        """All of it until now."""
        now = time.perf_counter()
        filled = now if self._filling else self._filled
        return p.Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            recomputed_from=min(lease.start, prompt) if lease else 0,
            shelf=lease.shelf if lease else "none",
            restore_ms=_ms(lease.seconds) if lease else 0,
            fill_ms=_ms(max(filled - self._restored, 0)),
            decode_ms=_ms(now - filled),
            forced_tokens=forced,
        )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def check_window(job: Job, window: int, reply: int, brought: int) -> None:
    """Refuse what cannot fit: nothing is shortened silently. ``brought`` ids of the reply are the client's."""
    if reply < 1:
        raise Refused("bad_request", f"max_tokens is {reply}; it must be at least 1.")
    if brought > reply:
        raise Refused("bad_request", f"`start` has {brought} ids, more than the {reply} of max_tokens.")
    prompt = len(job.prompt.tokens)
    if prompt + reply > window:
        raise Refused(
            "context_overflow",
            f"The prompt's {prompt} tokens and a reply of up to {reply} are {prompt + reply}, "
            f"more than the window's {window}.",
        )
