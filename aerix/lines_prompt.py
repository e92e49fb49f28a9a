"""The input line of an interactive session on a real terminal: prompt_toolkit edits it, and all else goes above it.

What is written now, and what goes on, stand between the lines that stay and the input; both are drawn again when they
change. Nothing asks the terminal where its cursor is: not every one answers.
"""

import os
import signal
import sys
import termios
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from select import select
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.renderer import print_formatted_text
from prompt_toolkit.styles import Style

from aerix.exits import CANCELS, TERMINATED
from aerix.git import GitError
from aerix.lines_history import LinesHistory
from aerix.lines_session import Session
from aerix.lines_view import Line
from aerix.shown import clip
from aerix.tools.gitfiles import files

_STYLE = Style.from_dict({
    "dim": "ansibrightblack", "error": "ansired", "good": "ansigreen", "prompt": "bold", "question": "bold ansiyellow",
    "status": "ansicyan",
})  # fmt: skip
_STEER = Keys.F24  # no keyboard has it: what terminals send for Ctrl-Enter stands for it
_CTRL_ENTER = ("\x1b[27;5;13~", "\x1b[13;5u")
_ESCAPE_S = 0.1  # how long an Esc may be the beginning of something longer
_BURST_S = 0.01
"""What comes so soon behind a line's end is no typing: it belongs to the same paste."""
_MENU_ROWS = 6
_LIVE_ROWS = 4
"""Rows that the line which is being written may take while it is."""
_TICK_S = 1.0
_PLAIN_AGAIN = b"\x1b[?2004l\x1b[?25h\x1b[0m\r\n"
"""No more bracketed paste, the cursor is seen, no colour."""
_SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "terminated"}


class Prompt:
    """A front of a session (``lines_session.Front``). Belongs to the main thread, but for ``post``."""

    def __init__(self, history: Path, cwd: Path) -> None:
        """``history`` is the file that keeps what was sent; files below ``cwd`` are completed."""
        for sent in _CTRL_ENTER:
            ANSI_SEQUENCES[sent] = _STEER
        self._output = Vt100_Output.from_pty(sys.stdout, term=os.environ.get("TERM"))
        self._output.enable_cpr = False
        self._saved = termios.tcgetattr(0)
        self._ticks = False
        self._seen = ""
        """The signal that has come."""
        self._session: Session
        self._line: PromptSession[int] = PromptSession(
            self._message,
            multiline=True,
            prompt_continuation="  ",
            history=LinesHistory(history),
            completer=FileCompleter(cwd),
            complete_while_typing=False,
            reserve_space_for_menu=_MENU_ROWS,
            key_bindings=self._keys(),
            style=_STYLE,
            include_default_pygments_style=False,
            enable_suspend=True,
            erase_when_done=True,
            output=self._output,
        )
        self._app = self._line.app
        self._app.terminal_size_polling_interval = None  # a resize is a signal
        self._app.ttimeoutlen = self._app.timeoutlen = _ESCAPE_S
        self._line.default_buffer.accept_handler = self._send

    @property
    def columns(self) -> int:
        """The terminal's width."""
        return self._output.get_size().columns

    def run(self, session: Session, begin: Callable[[], object]) -> int:
        """Serve the terminal until the session leaves; its exit code. ``begin`` is called when that has begun."""
        self._session = session
        try:
            code: int = self._app.run(
                partial(self._begun, begin), set_exception_handler=False, handle_sigint=False
            )
        except (EOFError, OSError):
            session.hang_up()
            return TERMINATED
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return code

    def _begun(self, begin: Callable[[], object]) -> None:
        assert self._app.loop is not None
        self._app.loop.set_exception_handler(self._crashed)
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._signalled)
        begin()

    # --- the front

    def post(self, job: Callable[[], object]) -> bool:
        """Run something in the front's thread."""
        loop = self._app.loop
        if loop is None:
            return False
        try:
            loop.call_soon_threadsafe(job, context=self._app.context)
        except RuntimeError:  # it was closed just now
            return False
        return True

    def show(self, lines: Sequence[Line]) -> None:
        """Write whole lines above the input line."""
        if not lines:
            return
        if self._app.is_running:
            self._app.renderer.erase()
        shown: StyleAndTextTuples = [part for line in lines for part in (*line, ("", "\n"))]
        print_formatted_text(self._output, shown, _STYLE)
        self._app.invalidate()

    def refresh(self) -> None:
        """Draw what stands around the input line anew, and while something runs once a second."""
        self._app.invalidate()
        if self._session.busy and not self._ticks and self._app.loop is not None:
            self._ticks = True
            self._app.loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticks = False
        self.refresh()

    def swap(self, text: str) -> str:
        """Put a text into the input line; what stood there."""
        buffer = self._line.default_buffer
        before = buffer.text
        buffer.document = Document(text)
        return before

    def leave(self, code: int) -> None:
        """End the loop, once."""
        if self._app.future is not None and not self._app.future.done():
            self._app.exit(result=code)

    def die(self, code: int) -> None:
        """End the process at once, the terminal as it was."""
        with suppress(OSError, termios.error):
            os.set_blocking(1, False)  # a terminal that takes nothing holds nobody
            os.write(1, _PLAIN_AGAIN)
            termios.tcsetattr(0, termios.TCSANOW, self._saved)
            os.set_blocking(1, True)
        os._exit(code)

    # --- what is drawn

    def _message(self) -> StyleAndTextTuples:
        """What stands before the input: the line that is being written, what goes on, and the label."""
        parts: StyleAndTextTuples = []
        for style, text in self._session.live:
            parts.append((style, text[-_LIVE_ROWS * max(1, self.columns - 1) :] + "\n"))
        if status := self._session.status:
            parts.append(("class:status", clip(status, self.columns - 1) + "\n"))
        return [*parts, ("class:prompt", self._session.label)]

    # --- what is typed

    def _send(self, buffer: Buffer) -> bool:
        """Send what is on the input line; what is there afterwards was put there since, and stays."""
        text = buffer.text
        if not self._session.asks:
            buffer.append_to_history()
        buffer.reset()
        self._session.enter(text)
        return True

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        busy = Condition(lambda: self._session.busy)
        plan = Condition(lambda: self._session.plans and not self._line.default_buffer.text)

        @keys.add("enter")
        def _enter(event: KeyPressEvent) -> None:
            """Send; in the middle of a paste that the terminal does not mark as one, a new line."""
            if event.app.key_processor.input_queue or select([0], [], [], _BURST_S)[0]:
                event.current_buffer.insert_text("\n")
            else:
                self._send(event.current_buffer)

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _newline(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add(_STEER)
        def _steer(event: KeyPressEvent) -> None:
            text = self.swap("").strip()
            if text:
                self._line.history.append_string(text)
                self._session.steer(text)

        @keys.add("escape", filter=busy)
        def _escape(event: KeyPressEvent) -> None:
            self._session.cancel()

        @keys.add("e", filter=plan)
        def _edit(event: KeyPressEvent) -> None:
            self._session.enter("e")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _interrupt(event: KeyPressEvent) -> None:
            self._session.interrupt()

        @keys.add("c-d", filter=Condition(lambda: not self._line.default_buffer.text))
        def _end(event: KeyPressEvent) -> None:
            self._session.end()

        return keys

    # --- what goes wrong

    def _signalled(self, number: int, _frame: object) -> None:
        """The first signal is passed on; the second one ends the process, whatever holds this thread."""
        reason = _SIGNALS[signal.Signals(number)]
        if self._seen and reason == "terminated":
            self.die(CANCELS[reason])
        self._seen = self._seen or reason * (reason == "terminated")
        job = partial(self._session.end, reason) if reason == "terminated" else self._session.interrupt
        self.post(job)

    def _crashed(self, _loop: object, context: dict[str, Any]) -> None:
        """A fault in what the loop ran: it ends the session, whose caller tells it."""
        error = context.get("exception") or RuntimeError(str(context.get("message")))
        if self._app.future is not None and not self._app.future.done():
            self._app.exit(exception=error)


class FileCompleter(Completer):
    """Completes ``@path`` from the files that git tracks or would track."""

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Files whose path begins so come first, then those which have it inside."""
        word = document.get_word_before_cursor(WORD=True)
        if not word.startswith("@"):
            return
        begun = word[1:].removeprefix('"')
        try:
            found = files(self._cwd)
        except GitError:
            return
        inside = [path for path in found if begun.lower() in path.lower() and path.isprintable()]
        inside.sort(key=lambda path: not path.startswith(begun))
        for path in inside[:100]:
            yield Completion(f'@"{path}"' if " " in path else f"@{path}", -len(word), display=path)
