"""Journal: what an agent tells, in the order it happens: events to the session log, and what is streamed to a screen.

An event is written before the agent goes on, and only then shown; an agent waits for a slow reader of its stream
instead of piling up what it has to say.
"""

import codecs

from aerix.actors import Actor, Call, Ref
from aerix.bounds import JOURNAL
from aerix.session.events import Event, Note, Token
from aerix.session.log import Write
from aerix.session.show import Show


class Journal:
    """Belongs to one actor and blocks it in ``wait``. Raises Refused with a code of ``OUTPUT_LOST`` or ``STORAGE_LOST``."""

    def __init__(self, actor: Actor, log: Ref, screen: Ref, agent: str) -> None:
        self._actor = actor
        self._log = log
        self._screen = screen
        self._agent = agent
        self._streamed: Call | None = None
        self._muted = False
        self._text = ""
        self._waiting: list[Event] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def mute(self) -> None:
        """Show nothing any more: nobody reads it. The log goes on."""
        self._muted, self._streamed = True, None

    def write(self, *events: Event) -> None:
        """Log events, then show them, after all that was streamed before."""
        self._finish(self._actor.request(self._log, Write(events)))
        if self._muted:
            return
        self._flush()
        self._finish(self._actor.request(self._screen, Show(events)))

    def note(self, text: str) -> None:
        """Tell the user something; it is not logged. Does not wait: it goes out with what is streamed."""
        self._waiting.append(Note(agent=self._agent, text=text))
        self._send_if_idle()

    def stream(self, data: bytes) -> None:
        """Show generated text. Does not wait: what comes while the reader is busy is shown together."""
        self._text += self._decoder.decode(data)
        self._send_if_idle()

    def _send_if_idle(self) -> None:
        if not self._muted and (self._streamed is None or self._streamed.done):
            self._send()

    def _send(self) -> None:
        """Send what waits. Raises what the reader refused with the last time."""
        if self._streamed is not None:
            self._streamed.result()
        events: list[Event] = [*self._waiting]
        if self._text:
            events.append(Token(agent=self._agent, text=self._text))
        self._waiting.clear()
        self._text = ""
        if events:
            self._streamed = self._actor.request(self._screen, Show(tuple(events)))

    def _flush(self) -> None:
        self._text += self._decoder.decode(b"", final=True)
        self._decoder.reset()
        for _ in range(2):  # what is under way, then what waited behind it
            if self._streamed is not None:
                self._finish(self._streamed)
            self._send()
        if self._streamed is not None:
            self._finish(self._streamed)
            self._streamed = None

    def _finish(self, call: Call) -> None:
        self._actor.wait(call, deadline_s=JOURNAL.value)
        call.result()
