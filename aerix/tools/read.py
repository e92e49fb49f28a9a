"""read: a file's lines with their numbers, or a folder's entries, as many as fit.

What does not fit is not copied anywhere: the file itself is there, and the pointer line says where to go on.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path

from aerix.bounds import EDIT_BYTES, READ_CHARS, READ_LINES, READ_SCAN
from aerix.tools.caps import pointer
from aerix.tools.textfile import (
    BINARY_LOOK,
    UTF8_MARK,
    WIDE_MARKS,
    decode,
    decode_line,
    missing,
    open_regular,
)
from aerix.tools.workspace import Given, Output, ToolError, Workspace, clean, sentence

_PIECE = 65_536  # bytes of a line kept in memory
_LEAST = 80  # characters of a line shown however little room there is


def read(ws: Workspace, given: Given) -> Output:
    """The tool: ``path``, ``offset`` (the first line, from 1), ``limit`` (lines)."""
    path = ws.resolve(given.text("path"))
    first = max(1, given.number("offset", 1))
    limit = max(1, given.number("limit", READ_LINES.count))
    try:
        if path.is_dir():
            ws.check(path)
            return Output(_entries(path, first, limit))
        with open_regular(ws, path) as file:
            ws.saw(path, os.fstat(file.fileno()))
            return Output(_page(ws, path, file, first, limit, given.room))
    except FileNotFoundError:
        raise missing(ws, path) from None
    except OSError as error:
        raise sentence(error, f"read {ws.shown(path)}") from None


def _entries(folder: Path, first: int, limit: int) -> str:
    names = sorted(_entry(entry) for entry in os.scandir(folder))
    shown = names[first - 1 : first - 1 + limit]
    left = len(names) - (first - 1) - len(shown)
    more = [f"[{left} more entries; go on with offset={first + len(shown)}]"] if left > 0 else []
    return clean("\n".join(shown + more)) or "(empty folder)"


def _entry(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return f"{entry.name} -> {Path(entry.path).readlink()}"
    return f"{entry.name}/" if entry.is_dir() else entry.name


@dataclass(frozen=True, slots=True)
class _Line:
    """A line's text (of a long one the beginning), and its bytes with the line end."""

    text: str
    size: int
    encoding: str = "utf-8"


def _page(ws: Workspace, path: Path, file: BufferedReader, first: int, limit: int, room: int) -> str:
    name = ws.shown(path)
    lines = _lines(ws, path, file)
    passed = [line.size for line in islice(lines, first - 1)]
    left = os.fstat(file.fileno()).st_size - sum(passed)
    room -= len(pointer(left, name, first + limit)) + 1
    shown: list[str] = []
    notes: list[str] = []
    for line in lines:
        text = _numbered(first + len(shown), line, room)
        room -= len(text.encode()) + 1
        if shown and (room < 0 or len(shown) == limit):
            notes.append(pointer(max(1, left), name, first + len(shown)))
            break
        shown.append(text)
        left -= line.size
        if line.encoding != "utf-8" and not notes:
            notes.append(f"[encoding: {line.encoding}]")
            room -= len(notes[0]) + 1
    if not shown and first > 1:
        raise ToolError(f"{name} has {len(passed)} lines; offset {first} is past its end.")
    return "\n".join(shown + notes) or "(empty file)"


def _numbered(number: int, line: _Line, room: int) -> str:
    text = line.text[: min(READ_CHARS.count, max(_LEAST, room // 4))]
    if len(text) == len(line.text) and line.size <= _PIECE:
        return f"{number}\t{text}"
    return f"{number}\t{text}… [{line.size - len(text.encode())} more bytes in this line]"


def _lines(ws: Workspace, path: Path, file: BufferedReader) -> Iterator[_Line]:
    """The lines of a file, one at a time; of a long one only the beginning is kept in memory."""
    head = file.peek(BINARY_LOOK)[:BINARY_LOOK]
    if head.startswith(WIDE_MARKS):
        yield from _wide(ws, path, file.read(EDIT_BYTES.count))
    elif b"\0" in head:
        size = os.fstat(file.fileno()).st_size
        raise ToolError(f"{ws.shown(path)} is a binary file of {size:,} bytes.")
    else:
        file.read(len(UTF8_MARK) if head.startswith(UTF8_MARK) else 0)
        yield from _narrow(ws, path, file)


def _narrow(ws: Workspace, path: Path, file: BufferedReader) -> Iterator[_Line]:
    scanned, most = 0, READ_SCAN.count
    for start in iter(lambda: file.readline(_PIECE), b""):
        piece, size = start, len(start)
        while not piece.endswith(b"\n") and (piece := file.readline(_PIECE)):
            size += len(piece)
        scanned += size
        if scanned > most:
            raise ToolError(f"{ws.shown(path)}: only its first {most:,} bytes can be read.")
        line = decode_line(start.rstrip(b"\r\n"))
        yield _Line(clean(line.text), size, line.encoding)


def _wide(ws: Workspace, path: Path, data: bytes) -> Iterator[_Line]:
    decoded = decode(data)
    if decoded is None:
        raise ToolError(f"{ws.shown(path)} is a binary file of {len(data):,} bytes.")
    for line in decoded.text.splitlines(keepends=True):
        yield _Line(line.rstrip("\r\n"), len(line.encode(decoded.encoding)), decoded.encoding)
