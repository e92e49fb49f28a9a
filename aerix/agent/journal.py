"""Journal: what an agent tells, in the order it happens: events to the session log, and what is streamed to a screen.

An event is logged before the agent goes on, and only then shown; an agent waits for a slow reader of its stream
instead of piling up what it has to say.
"""

import codecs
from dataclasses import dataclass, replace

from aerix.actors import Actor, Call, Cancelled, DeadlineExceeded, Ref, Refused
from aerix.bounds import JOURNAL
from aerix.session.events import Event, Note, Reading, Token
from aerix.session.log import Write
from aerix.session.show import OUTPUT_LOST, STORAGE_LOST, Show


@dataclass(frozen=True, slots=True)
class _End:
    """Where events go: what it is called, and how its failure is."""

    name: str
    codes: frozenset[str]
    code: str


_LOG = _End("the session log", STORAGE_LOST, "session_storage")
_READER = _End("the output", OUTPUT_LOST, "stdout_failed")


class Journal:
    """Belongs to one actor and blocks it in ``wait``.

    Raises Refused, whatever has failed, with a code of ``STORAGE_LOST`` or ``OUTPUT_LOST``. Raises Cancelled: what was
    to be written is then in the log, and is shown with the next event.
    """

    def __init__(self, actor: Actor, log: Ref, screen: Ref, agent: str) -> None:
        self._actor = actor
        self._log: Ref | None = log
        self._screen: Ref | None = screen
        self._agent = agent
        self._patience_s = JOURNAL.value
        self._queue: list[Event] = []
        self._kept: tuple[Event, ...] = ()
        self._showing: Call | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def mute(self) -> None:
        """Show nothing any more: nobody reads it. The log goes on."""
        self._screen = self._showing = None
        self._queue.clear()

    def stop_logging(self) -> None:
        """Log nothing any more: it cannot be written. What is told is still shown."""
        self._log = None

    def hurry(self, patience_s: float) -> None:
        """From now on wait at most so long for a reader."""
        self._patience_s = patience_s

    def keep(self, *events: Event) -> None:
        """Log and show these with what is written next, which must come before anything is done that they are to precede."""
        self._kept += events

    def write(self, *events: Event) -> None:
        """Log events, then show them, after all that was streamed before."""
        self._log_all(events)
        self.flush()

    def tell(self, *events: Event) -> None:
        """The same, but wait for the reader only where it has not taken what was told before."""
        self._log_all(events)
        self._wait_for_reader()
        self._show()

    def _log_all(self, events: tuple[Event, ...]) -> None:
        events, self._kept = (*self._kept, *events), ()
        logged = self._actor.request(self._log, Write(events)) if events and self._log is not None else None
        self._say(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        self._queue += events
        if logged is not None:
            try:
                self._wait_for_log(logged)
            except Refused:  # only what is logged is shown
                del self._queue[-len(events) :]
                raise

    def note(self, text: str) -> None:
        """Tell the user something; it is not logged. Does not wait: it goes out with what is streamed."""
        self._queue.append(Note(agent=self._agent, text=text))
        self._show_if_idle()

    def stream(self, data: bytes, tokens: int = 0) -> None:
        """Show generated text. Does not wait: what comes while the reader is busy is shown together."""
        self._say(self._decoder.decode(data), tokens)
        self._show_if_idle()

    def reading(self, done: int, total: int, *, anew: bool = False) -> None:
        """Show how far a prompt is read. Does not wait: of what comes while the reader is busy, the last is shown."""
        if self._queue and isinstance(last := self._queue[-1], Reading):
            del self._queue[-1]
            anew = anew or last.anew
        self._queue.append(Reading(agent=self._agent, done=done, total=total, anew=anew))
        self._show_if_idle()

    def flush(self) -> None:
        """Wait until everything is shown."""
        while self._showing is not None or self._queue:
            self._wait_for_reader()
            self._show()

    def _say(self, text: str, tokens: int = 0) -> None:
        """Text of one turn is one event until it is shown."""
        if not text and not tokens:
            return
        if self._queue and isinstance(last := self._queue[-1], Token):
            self._queue[-1] = replace(last, text=last.text + text, tokens=last.tokens + tokens)
        else:
            self._queue.append(Token(agent=self._agent, text=text, tokens=tokens))

    def _show_if_idle(self) -> None:
        if self._showing is None or self._showing.done:
            self._wait_for_reader()
            self._show()

    def _show(self) -> None:
        events, self._queue = tuple(self._queue), []
        if events and self._screen is not None:
            self._showing = self._actor.request(self._screen, Show(events))

    def _wait_for_reader(self) -> None:
        if self._showing is not None:
            self._wait(self._showing, self._patience_s, _READER)
            self._showing = None

    def _wait_for_log(self, call: Call) -> None:
        """A cancel waits for the line: the log would drop what an actor that ends no longer asks for."""
        cancelled: Cancelled | None = None
        while True:
            try:
                self._wait(call, JOURNAL.value, _LOG)
                break
            except Cancelled as reason:
                cancelled = reason
        if cancelled is not None:
            raise cancelled

    def _wait(self, call: Call, patience_s: float, end: _End) -> None:
        try:
            self._actor.wait(call, deadline_s=patience_s)
            call.result()
        except DeadlineExceeded:
            raise Refused(end.code, f"{end.name} took nothing for {patience_s:g} s") from None
        except Refused as refused:
            if refused.code in end.codes:
                raise
            raise Refused(end.code, f"{end.name} has failed: {refused.message}") from None
