"""What the commands of the pool print, and how they say no."""

import re
import sys
from contextlib import suppress
from typing import Self

FAILED, UNREACHABLE = 1, 4
"""Exit codes: it failed; there is no pool or no model."""
_BAR = 20  # characters
_SHARE = re.compile(r"\((\d{1,3}) %\)$")


def version() -> str:
    """The release of this program."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("aerix")
    except PackageNotFoundError:  # run from a folder, not installed
        return "uninstalled"


def out(text: str) -> None:
    """A line of the answer."""
    sys.stdout.write(f"{text}\n")


def say(text: str) -> None:
    """A line of the daemon to whoever started it."""
    with suppress(OSError):  # whoever started the pool may have closed its end; the pool goes on
        sys.stderr.write(f"aerix pool: {text}\n")
        sys.stderr.flush()


def note(text: str) -> None:
    """A line beside the answer."""
    sys.stderr.write(f"aerix: {text}\n")


class Ticker:
    """Shows how far something is: a line each time, and on a terminal one line with a bar, in its own place.

    A context manager: its end leaves the cursor on a line of its own.
    """

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __call__(self, text: str) -> None:
        """Show a line; one that ends with a share, as ``(12 %)``, gives its place to the next."""
        share = _SHARE.search(text) if self._terminal else None
        if share is None:
            self.__exit__()
            note(text)
            return
        full = int(share[1]) * _BAR // 100
        sys.stderr.write(f"\r\x1b[Kaerix: [{'#' * full}{'.' * (_BAR - full)}] {text}")
        sys.stderr.flush()
        self._open = True

    def __exit__(self, *_: object) -> None:
        if self._open:
            sys.stderr.write("\n")
            self._open = False


def complain(text: str, code: int) -> int:
    """Say what is wrong; the exit code."""
    note(text)
    return code
