"""One turn that a server is asked for: what comes goes on to the client as it comes, and at the end there is a Done."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.asked import check_constraint, check_sampling
from aerix.pool.bounds import REMOTE_TEXT, UNSCORED
from aerix.pool.matching import matching
from aerix.pool.remote_chat import request
from aerix.pool.remote_http import Server
from aerix.pool.remote_load import Facts
from aerix.pool.remote_stream import Finished, Spent, Text


class Turn:
    """A generation on a server. Raises Refused where the request cannot be served."""

    def __init__(
        self,
        server: Server,
        facts: Facts,
        asked: p.Generate,
        segments: Sequence[p.Segment],
        send: Callable[[p.ContextState | p.Token], None],
    ) -> None:
        self.asked = asked
        self._server, self._facts, self._send = server, facts, send
        self._segments = segments
        self._answer = self._thought = ""
        self._spent: Spent | None = None
        self._prompt = 0
        self._begun = self._first = time.perf_counter()
        self._check()

    async def count(self) -> None:
        """Before ``run``: count the prompt, and tell of it where segments were appended. Raises Refused."""
        asked = self.asked
        state = await self._facts.counts.state(asked.id, asked.context, self._segments)
        self._prompt = state.tokens + state.opening
        if asked.append:
            self._send(state)
        self._check_window()

    async def run(self) -> p.Done:
        """Ask, and hand on what comes. Raises Refused."""
        self._begun = self._first = time.perf_counter()
        reason = await self._ask()
        if self._spent is not None and self._spent.prompt:
            self._facts.counts.learn(self._segments, self._spent.prompt)
        return self.done(self._stop(reason))

    def done(self, stop: p.Stop) -> p.Done:
        """The end, with what there is."""
        return p.Done(
            self.asked.id,
            stop,
            self._answer,
            [],
            self._usage(),
            "",
            choice=None if stop == "cancelled" else self._choice,
            thinking=self._thought or None,
        )

    # --- what is asked

    @property
    def _texts(self) -> list[str] | None:
        return self.asked.constraint.texts if self.asked.constraint else None

    @property
    def _schema(self) -> str | None:
        return self.asked.constraint.schema if self.asked.constraint else None

    @property
    def _limit(self) -> int:
        """Tokens of the answer."""
        return self.asked.max_tokens if self._texts is None else min(self.asked.max_tokens, UNSCORED.count)

    def _check(self) -> None:
        asked = self.asked
        if not self._segments:
            raise Refused("empty_context", "The context has no segment: there is nothing to answer to.")
        if asked.max_tokens < 1:
            raise Refused("bad_request", f"max_tokens is {asked.max_tokens}; it must be at least 1.")
        if asked.start:
            raise Refused(
                "bad_start", "A turn on a server cannot go on from token ids: ask for it without `start`."
            )
        check_sampling(asked.sampling)
        if asked.constraint is not None:
            check_constraint(asked.constraint, json_able=self._facts.json)

    def _check_window(self) -> None:
        """Some servers shorten what does not fit, and say nothing."""
        reply, window = self._limit, self._facts.window
        if self._prompt + reply > window:
            about = "" if self._facts.counts.exact else "about "
            raise Refused(
                "context_overflow",
                f"The prompt's {about}{self._prompt} tokens and a reply of up to {reply} are {self._prompt + reply}, "
                f"more than the window's {window}.",
            )

    # --- what comes

    async def _ask(self) -> str:
        """Why it ended, in the server's word."""
        facts, reason = self._facts, ""
        body = request(
            self._server.address.model,
            facts.way,
            self._segments,
            self._limit + facts.thinking,
            self.asked.sampling,
            self._schema,
        )
        async with aclosing(self._server.chat(body)) as answer:
            async for one in answer:
                match one:
                    case Text():
                        self._take(one)
                    case Finished():
                        reason = reason or one.reason
                    case Spent():
                        self._spent = one
                if len(self._answer) + len(self._thought) > REMOTE_TEXT.count:
                    return "length"
        return reason

    def _take(self, text: Text) -> None:
        if not self._answer and not self._thought:
            self._first = time.perf_counter()
        if text.thinking:
            self._thought += text.text
        else:
            self._answer += text.text
        self._send(p.Token(self.asked.id, [], text.text.encode(), thinking=text.thinking))

    def _stop(self, reason: str) -> p.Stop:
        if self._choice is not None:
            return "final"
        if reason == "length":
            return "length"
        return "final" if self._schema is not None and _is_json(self._answer) else "stop"

    @property
    def _choice(self) -> int | None:
        return None if self._texts is None else matching(self._texts, self._answer)

    def _usage(self) -> p.Usage:
        now = time.perf_counter()
        estimate, spent = self._facts.counts.estimate, self._spent or Spent(0, 0, 0, 0)
        thinking = spent.thinking or estimate(self._thought)
        first = self._first if self._answer or self._thought else now
        return p.Usage(
            prompt_tokens=spent.prompt or self._prompt,
            completion_tokens=spent.completion or thinking + estimate(self._answer),
            recomputed_from=spent.cached,
            shelf="resident" if spent.cached else "none",
            restore_ms=0.0,
            fill_ms=round((first - self._begun) * 1000, 3),
            decode_ms=round((now - first) * 1000, 3),
            thinking_tokens=thinking,
        )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
