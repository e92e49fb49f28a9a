"""`aerix` in a pseudo-terminal: a test types, and waits for text."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path
from time import monotonic
from typing import Any

from tests.pool.daemons import AERIX, PATIENCE

_OWN_TERMINAL = """\
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
_OVER = re.compile(r" s · \d\d:\d\d\n$")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>]")
ENTER, ESC, CTRL_C, CTRL_D, CTRL_J, CTRL_Z = "\r", "\x1b", "\x03", "\x04", "\n", "\x1a"
CTRL_ENTER, TAB, UP, CLEAR = "\x1b[27;5;13~", "\t", "\x1b[A", "\x15"


class Terminal:
    """A terminal with the program in it. What it has shown is text without escapes; what was waited for is passed."""

    def __init__(self, cwd: Path, *args: str, columns: int = 80, rows: int = 24, **env: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.slave = slave
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWN_TERMINAL, *AERIX, *args],
            cwd=cwd,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | {"TERM": "xterm", "SHELL": "/bin/sh"} | env,
            start_new_session=True,
        )
        self.raw = b""
        self._passed = 0

    @property
    def text(self) -> str:
        """All that it has shown so far."""
        return _ESCAPES.sub("", self.raw.decode("utf-8", "replace")).replace("\r", "").replace("\b", "")

    def read(self, within_s: float) -> bool:
        """Take what it shows next; false at its end."""
        if self.process.poll() is not None:  # it does not say so while this side holds the terminal open
            within_s = 0.0
        if not select.select([self.master], [], [], within_s)[0]:
            raise AssertionError(f"nothing more came within {within_s:g} s: {self.text[-1500:]!r}")
        try:
            data = os.read(self.master, 65_536)
        except OSError:  # nobody has the terminal open any more
            return False
        self.raw += data
        return bool(data)

    def until(self, wanted: str) -> str:
        """Wait until it shows that, behind what was waited for before; what came up to there."""
        end = monotonic() + PATIENCE
        while (at := self.text.find(wanted, self._passed)) < 0:
            assert self.read(max(0.0, end - monotonic())), (
                f"it ended without {wanted!r}: {self.text[-1500:]!r}"
            )
        start, self._passed = self._passed, at + len(wanted)
        return self.text[start : self._passed]

    def until_over(self) -> str:
        """Wait for the end of a request: its last line tells what it took, and the time of day."""
        shown = ""
        while not _OVER.search(shown):
            shown += self.until("\n")
        return shown

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.master, keys.encode())

    def say(self, text: str) -> None:
        """Type a line; once the terminal shows it, send it."""
        self.type(text)
        self.until(text[-8:])
        self.type(ENTER)

    def hang_up(self) -> None:
        """Close the terminal."""
        os.close(self.master)
        os.close(self.slave)
        self.master = self.slave = -1

    def end(self) -> int:
        """Its exit code, once it has ended."""
        os.close(self.slave)
        self.slave = -1
        end = monotonic() + PATIENCE
        while self.read(max(0.0, end - monotonic())):
            pass
        return self.process.wait(PATIENCE)

    def left(self) -> list[Any]:
        """What the program has left of the terminal's state, while this side still holds it open."""
        return termios.tcgetattr(self.slave)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for fd in (self.master, self.slave):
            if fd >= 0:
                os.close(fd)
