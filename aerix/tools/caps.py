"""Caps of results: what is over one is cut, and the whole of it is kept once in the session's spool."""

import os
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO

from aerix.bounds import SPOOL

UNSET = 8192  # bytes of a result of a tool that no setting names
DROPPED = b"\n[what followed was dropped]\n"
_CHARACTER = 3  # bytes of a character after its first


def pointer(more: int, path: str | os.PathLike[str], offset: int = 1) -> str:
    """The line that stands where a result was cut."""
    return f'[truncated: {more} more bytes; read with read(path="{os.fspath(path)}", offset={offset})]'


@dataclass(frozen=True, slots=True)
class Capped:
    """A result as the model gets it, and the file with the whole of it where it was cut."""

    text: str
    spool: Path | None = None


def cap(text: str, limit: int, spool: Path) -> Capped:
    """Cut a text that is over ``limit`` bytes at a character's end, behind it the pointer line.

    The whole is written to ``spool``. Where not even the pointer fits, it alone is the result.
    """
    data = text.encode()
    if len(data) <= max(limit, len(pointer(len(data), spool))):
        return Capped(text)  # a pointer to it would be no shorter
    try:
        with private_file(spool) as file:
            file.write(head(data, SPOOL.count))
            file.write(DROPPED if len(data) > SPOOL.count else b"")
    except OSError as error:
        return _unkept(data, limit, error)
    kept = head(data, limit - len(pointer(len(data), spool)) - 1)
    line = pointer(len(data) - len(kept), spool)
    return Capped(f"{kept.decode()}\n{line}" if kept else line, spool)


def not_kept(size: int, error: OSError) -> str:
    """The line in a pointer's place, where the whole could not be written."""
    return f"[truncated: {size} bytes; the whole was not kept: {(error.strerror or str(error)).lower()}]"


def _unkept(data: bytes, limit: int, error: OSError) -> Capped:
    line = not_kept(len(data), error)
    return Capped(f"{head(data, limit - len(line) - 1).decode()}\n{line}".lstrip("\n"))


def head(data: bytes, limit: int) -> bytes:
    """The first bytes, at most ``limit``, that end with a whole character."""
    end = min(max(0, limit), len(data))
    least = max(0, end - _CHARACTER)
    while least < end < len(data) and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end]


def tail(data: bytes, limit: int) -> bytes:
    """The last bytes, at most ``limit``, that begin with a whole character."""
    start = max(0, len(data) - max(0, limit))
    most = min(len(data), start + _CHARACTER)
    while start < most and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def free_file(folder: Path, call: str) -> Path:
    """A name for a call's text that is free: call ids begin anew with each request of a session."""
    name = call.replace("/", "_")
    names = (f"{name}.txt" if n == 1 else f"{name}.{n}.txt" for n in count(1))
    return next(path for each in names if not os.path.lexists(path := folder / each))


def private_file(path: Path) -> BinaryIO:
    """A new file for its owner's eyes only, in a folder that is created so, too."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "wb")
