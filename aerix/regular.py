"""Reading a file that anybody may have put there: a regular file, bounded, and never a wait."""

import os
import stat
from pathlib import Path


class NotRead(Exception):
    """A file was not read; the text says why, as the end of a sentence about it."""


def read(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes.

    Raises FileNotFoundError where there is nothing, and NotRead for all else: a folder, a FIFO (on which a plain
    open would wait for ever), a file that is too large or may not be read.
    """
    try:
        found = _read(path, limit + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(str(path)) from error
    except OSError as error:
        raise NotRead(error.strerror or type(error).__name__) from error
    except ValueError as error:  # a name that no file can have
        raise FileNotFoundError(str(path)) from error
    if len(found) > limit:
        raise NotRead(f"it is larger than {limit} bytes")
    return found


def _read(path: Path, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRead("it is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(size)
    finally:
        os.close(descriptor)
