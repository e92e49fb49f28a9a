"""``OneOf``: each text is scored after the same prompt, and the best one is the answer."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.bounds import UNSCORED
from aerix.pool.generation import Bench, Job, Times, Turn, check_window
from aerix.pool.matching import matching
from aerix.pool.prefix import Lease
from aerix.pool.rows import Row, Scene
from aerix.pool.sampling import log_probabilities

if TYPE_CHECKING:
    from aerix.pool.rows import Logits

_AT_ONCE = 4
"""Forks that are decoded side by side: each may push a resident context out."""


class Choice:
    """Scores texts as forks of the prompt: the sum of their log-probabilities, the end of the turn included.

    ``max_tokens`` does not cut a text. The prompt's rows stay on the shelf, the texts' rows do not.
    """

    def __init__(self, job: Job, bench: Bench, send: Callable[[object], None], texts: list[str]) -> None:
        self.job = job
        self.done: p.Done | None = None
        self._bench, self._send = bench, send
        self._vocabulary = bench.engine.vocabulary
        self._texts = texts
        self._tokens = [self._vocabulary.tokenize(text, special=False) for text in texts]
        self._scores: list[float] = []
        self._lease: Lease | None = None
        self._forks: dict[int, int] = {}
        """The sequence of each text that is being scored."""
        self._waiting: list[Row] = []
        self._times = Times()
        longest = max(len(tokens) for tokens in self._tokens)
        check_window(job, bench.engine.facts.window, longest, len(job.request.start))

    def open(self) -> bool:
        """See Generation. The texts ask for their cells when their turn comes."""
        prompt = self.job.prompt
        self._lease = self._bench.store.admit(prompt.tokens, reserve=0, prompt=prompt)
        if self._lease:
            self._times.restored()
            scene = Scene(prompt.segments, len(prompt.tokens), resumed=False, texts=tuple(self._texts))
            self._bench.engine.begin(self._lease.sequence, scene)
        return self._lease is not None

    @property
    def filling(self) -> bool:
        """See Generation."""
        return len(self._bench.shelf.tokens(self._leased.sequence)) < len(self.job.prompt.tokens) - 1

    def rows(self, limit: int, _ahead: int = 0, /) -> list[Row]:
        """First the prompt's, then those of the texts."""
        if not self._scores:
            sequence, tokens = self._leased.sequence, self.job.prompt.tokens
            at = len(self._bench.shelf.tokens(sequence))
            end = self._bench.store.until(sequence, min(at + limit, len(tokens)))
            return [Row(tokens[i], i, sequence, i == len(tokens) - 1) for i in range(at, end)]
        return self._waiting[:limit]

    def take(self, rows: list[Row], logits: "list[Logits]") -> None:
        """See Generation."""
        if self._scores:
            self._take_texts(rows, logits)
        else:
            self._take_prompt(rows, logits)

    def end(self, stop: p.Stop) -> None:
        """See Generation. Without scores of all the texts there is no choice."""
        best = int(np.argmax(self._scores)) if stop == "final" else None
        tokens = [] if best is None else self._tokens[best]
        if tokens and not self.job.request.start:
            data = b"".join(self._vocabulary.piece(token) for token in tokens)
            self._send(p.Token(self.job.request.id, tokens, data))
        self.done = p.Done(
            self.job.request.id,
            stop,
            "" if best is None else self._texts[best],
            tokens,
            self._times.usage(len(self.job.prompt.tokens), len(tokens), self._lease),
            self._vocabulary.digest,
            choice=best,
            scores=None if best is None else self._scores,
        )

    def close(self) -> None:
        """See Generation."""
        self._drop_forks()
        if self._lease:
            self._bench.release(self._lease.sequence)

    # --- private --------------------------------------------------------------------------------------------------

    @property
    def _leased(self) -> Lease:
        assert self._lease is not None
        return self._lease

    def _take_prompt(self, rows: list[Row], logits: "list[Logits]") -> None:
        self._bench.store.commit(self._leased.sequence, [row.token for row in rows])
        if logits:
            self._times.filled()
            self._scores = log_probabilities(logits[0], [tokens[0] for tokens in self._tokens])
            self._next_group(0)
        else:
            start, total = self._leased.start, len(self.job.prompt.tokens)
            self._send(p.Progress(self.job.request.id, rows[-1].position + 1 - start, total - start))

    def _take_texts(self, rows: list[Row], logits: "list[Logits]") -> None:
        """Each row tells the probability of its text's next token, the last one that of the turn's end."""
        texts = {sequence: text for text, sequence in self._forks.items()}
        for row, after in zip(rows, logits, strict=True):
            self._bench.store.commit(row.sequence, [row.token])
            text = texts[row.sequence]
            at = row.position - len(self.job.prompt.tokens) + 1
            self._scores[text] += self._next_score(self._tokens[text][at : at + 1], after)
        del self._waiting[: len(rows)]
        if not self._waiting:
            self._next_group(max(self._forks) + 1)

    def _next_score(self, token: list[int], after: "Logits") -> float:
        if token:
            return log_probabilities(after, token)[0]
        return float(np.logaddexp.reduce(log_probabilities(after, list(self._vocabulary.ends))))

    def _next_group(self, first: int) -> None:
        """Fork the prompt for the next few texts; after the last of them comes the end."""
        self._drop_forks()
        if first == len(self._texts):
            self.end("final")
            return
        for text in range(first, min(first + _AT_ONCE, len(self._texts))):
            if not self._fork(text):
                break
        if not self._forks:
            raise Refused(
                "no_room", "No sequence is free to score a text in; ask again when others have ended."
            )

    def _fork(self, text: int) -> bool:
        prompt, tokens = self.job.prompt.tokens, self._tokens[text]
        lease = self._bench.store.admit([*prompt, *tokens], reserve=0, latest=len(prompt))
        if lease:
            self._forks[text] = lease.sequence
            self._waiting += [
                Row(token, len(prompt) + at, lease.sequence, logits=True) for at, token in enumerate(tokens)
            ]
        return lease is not None

    def _drop_forks(self) -> None:
        for sequence in self._forks.values():
            self._bench.release(sequence, keep=False)
        self._forks, self._waiting = {}, []


class Unscored(Turn):
    """A choice of a member that cannot score: a few tokens are generated freely, and may match one of the texts."""

    def __init__(self, job: Job, bench: Bench, send: Callable[[object], None], texts: list[str]) -> None:
        self._texts = texts
        tokens = min(job.request.max_tokens, UNSCORED.count)
        super().__init__(replace(job, request=replace(job.request, max_tokens=tokens)), bench, send)

    def end(self, stop: p.Stop) -> None:
        """See Generation. An answer that matches none is no choice, and its stop is its own."""
        super().end(stop)
        assert self.done is not None
        choice = None if stop == "cancelled" else matching(self._texts, self.done.text)
        if choice is not None:
            self.done = replace(self.done, stop="final", choice=choice)
