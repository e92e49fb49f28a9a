"""Figures of a running request: what the model does now and how fast, how full its context is. Pure.

Each has one source: the pool's own counts, which come with the events. Times are seconds of a steady clock.
"""

from collections.abc import Iterator

from aerix.bounds import TURNS
from aerix.session import events
from aerix.session.events import ROOT, Event

_LEAST_TOKENS, _LEAST_S = 3, 0.2
"""Less than that gives no rate."""


class Figures:
    """Counts from a request's beginning."""

    def __init__(self, now: float = 0.0) -> None:
        self._begun = now
        self._state = "waiting for the model"
        self._since = now
        self._done = self._total = self._first = 0
        """Tokens of the prompt that the root has read, has to read, and had when that was first told."""
        self._written = 0
        self._streamed = 0
        self._streamed_s = 0.0
        self._streaming: set[str] = set()
        self._streaming_since = now
        self._turn = self._turns = self._window = 0
        self._used = 0
        """Tokens of the root's context, where the pool has told; what is being written is not among them."""
        self._about = ""
        """What marks that count where it is not the pool's own."""
        self._calls: list[str] = []
        self.verified = ""
        """What the last verifier found; empty where there was none."""

    # --- events

    def take(self, event: Event, now: float) -> None:
        """An event was shown."""
        match event:
            case events.Token():
                self._token(event, now)
            case events.Reading():
                self._stop_streaming(event.agent, now)
                if event.agent == ROOT:
                    self._reading(event, now)
            case events.Message(tool=None):
                self._stop_streaming(event.agent, now)
                if event.agent == ROOT:
                    self._turn_ended(event, now)
            case events.Message() if event.agent == ROOT:
                self._calls = self._calls[1:]
                self._go(f"running {self._calls[0]}" if self._calls else "waiting for the model", now)
            case events.SessionEnd():
                for agent in list(self._streaming):
                    self._stop_streaming(agent, now)
            case _:
                self._note(event)

    def _note(self, event: Event) -> None:
        """Events that tell of no generation."""
        match event:
            case events.AgentSpawn() if event.agent == ROOT:
                self._turns, self._window = event.max_turns, event.window
            case events.Spend(bound=TURNS.name) if event.agent == ROOT:
                self._turn += 1
            case events.AgentSpawn(kind="verifier"):
                self.verified = "verification pending"
            case events.Verdict():
                self.verified = f"verification {'passed' if event.verdict == 'pass' else 'failed'}"
            case events.Segment() if event.agent == ROOT and event.role != "assistant" and self._used:
                self._used += event.tokens
            case events.Compaction() if event.agent == ROOT:
                self._used, self._about = event.after, "≈"

    def name_call(self, tool: str) -> None:
        """The root writes a call of that tool."""
        self._calls.append(tool)

    def _go(self, state: str, now: float) -> None:
        self._state, self._since = state, now

    def _token(self, event: events.Token, now: float) -> None:
        if not self._streaming:
            self._streaming_since = now
        self._streaming.add(event.agent)
        self._streamed += event.tokens
        if event.agent != ROOT:
            return
        if self._state != "writing":
            self._go("writing", now)
            self._written, self._calls = 0, []
        self._written += event.tokens

    def _stop_streaming(self, agent: str, now: float) -> None:
        if agent in self._streaming:
            self._streaming.discard(agent)
            if not self._streaming:
                self._streamed_s += now - self._streaming_since

    def _reading(self, event: events.Reading, now: float) -> None:
        if not event.total:
            self._go("waiting for the model", now)
            return
        if self._state != "reading":
            self._go("reading", now)
            self._first = event.done
        self._done, self._total = event.done, event.total

    def _turn_ended(self, event: events.Message, now: float) -> None:
        usage = event.usage or {}
        used = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
        if used:
            self._used, self._about = used, ""
        self._go(f"running {self._calls[0]}" if self._calls else "waiting for the model", now)

    # --- in words

    def now(self, now: float) -> Iterator[str]:
        """What goes on, the most important first."""
        seconds = now - self._since
        if self._state == "reading":
            yield from self._read(seconds)
        elif self._state == "writing":
            yield f"writing {self._written:,} tok"
            yield _rate(self._written, seconds)
        else:
            yield self._state
        yield f"{now - self._begun:.0f} s"
        if self._turns:
            yield f"turn {self._turn}/{self._turns}"
        if self._used:
            now_written = self._written if self._state == "writing" else 0
            yield f"context {self._about}{self._used + now_written:,} of {self._window:,}"

    def _read(self, seconds: float) -> Iterator[str]:
        yield f"reading prompt {100 * self._done // self._total} %"
        read = self._done - self._first
        if rate := _rate(read, seconds):
            yield rate
            yield f"about {(self._total - self._done) * seconds / read:.0f} s"

    def stats(self, now: float) -> str:
        """What the request took: tokens that were streamed, over the time in which some were, and its whole duration."""
        rate = _rate(self._streamed, self._streamed_s) or "–"  # noqa: RUF001 - the specification's word
        return f"{self._streamed:,} tok · {rate} · {now - self._begun:.1f} s"


def _rate(tokens: int, seconds: float) -> str:
    """Empty where too little came to tell."""
    return f"{tokens / seconds:,.0f} tok/s" if tokens >= _LEAST_TOKENS and seconds >= _LEAST_S else ""
