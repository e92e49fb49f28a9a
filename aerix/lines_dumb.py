"""An interactive session on a terminal that can do nothing (``TERM=dumb``): the terminal edits lines, whole ones come in.

Nothing is drawn over. What several lines bring at once, as a paste does, is one input.
"""

import os
import select
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

from aerix.exits import CANCELS
from aerix.lines_session import Session
from aerix.lines_view import Line

_READ = 65_536
_BURST_S = 0.02
"""What comes so soon behind a line is no typing: it belongs to the same paste."""
_SAID_S = 5.0
"""Seconds of silence after which a line tells what goes on."""
_SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "terminated"}


class Dumb:
    """A front of a session (``lines_session.Front``). Belongs to the main thread, but for ``post``."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], object]] = deque()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._code: int | None = None
        self._seen = ""
        self._said = monotonic()
        self._label = ""
        """The label that waits for an answer on the terminal."""
        self._session: Session

    @property
    def columns(self) -> int:
        """The terminal's width, where it knows it."""
        return shutil.get_terminal_size().columns

    def run(self, session: Session, begin: Callable[[], object]) -> int:
        """Serve the terminal until the session leaves; its exit code."""
        self._session = session
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._signalled)
        begin()
        reading = [0, self._reader.fileno()]
        while self._code is None:
            self.refresh()
            ready, _, _ = select.select(reading, [], [])
            if self._reader.fileno() in ready:
                self._reader.recv(_READ)
                self._do_jobs()
            if 0 in ready and not self._take_lines():
                reading.remove(0)
                session.end()
        code, self._code = self._code, None
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._writer.close()
        return code

    def _do_jobs(self) -> None:
        while self._jobs:
            self._jobs.popleft()()

    def _take_lines(self) -> bool:
        """What was typed, or pasted; false at the end of the input."""
        data = b""
        while select.select([0], [], [], _BURST_S if data else 0)[0]:
            try:
                part = os.read(0, _READ)
            except OSError:
                part = b""
            if not part:
                break
            data += part
        if data:
            self._label = ""
            self._session.enter(data.decode("utf-8", "replace").removesuffix("\n"))
        return bool(data)

    # --- the front

    def post(self, job: Callable[[], object]) -> bool:
        """Run something in the front's thread."""
        self._jobs.append(job)
        try:
            self._writer.send(b"\0")
        except BlockingIOError:  # it is to wake up already
            return True
        except OSError:
            return False
        return True

    def show(self, lines: Sequence[Line]) -> None:
        """Print lines; what waits for an answer is asked again below them."""
        self._said = monotonic()
        text = "".join("".join(part for _, part in line) + "\n" for line in lines)
        sys.stdout.write("\n" * bool(self._label) + text)
        sys.stdout.flush()
        self._label = ""

    def refresh(self) -> None:
        """Ask for input where it is the user's turn; say now and then what goes on."""
        status = self._session.status
        if status and monotonic() - self._said >= _SAID_S:
            self.show([[("", status)]])
        label = self._session.label
        if label != self._label and (not self._session.busy or label != "> "):
            sys.stdout.write(label)
            sys.stdout.flush()
            self._label = label

    def swap(self, text: str) -> str:
        """Nothing can be put on the terminal's own line: it is printed, to be typed or pasted again."""
        if text:
            self.show([[("", line)] for line in text.split("\n")])
        return ""

    def leave(self, code: int) -> None:
        """End the loop."""
        self._code = code if self._code is None else self._code

    def die(self, code: int) -> None:
        """End the process at once."""
        os._exit(code)

    def _signalled(self, number: int, _frame: object) -> None:
        reason = _SIGNALS[signal.Signals(number)]
        if reason == "interrupted":
            self.post(self._session.interrupt)
            return
        if self._seen:
            self.die(CANCELS[reason])
        self._seen = reason
        self.post(lambda: self._session.end(reason))
