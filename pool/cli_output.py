"""What the commands of the pool print, and how they say no."""

import sys
from contextlib import suppress

FAILED, UNREACHABLE = 1, 4
"""Exit codes: it failed; there is no pool or no model."""


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


def complain(text: str, code: int) -> int:
    """Say what is wrong; the exit code."""
    note(text)
    return code
