"""Text files as bytes and back without a loss: encoding and byte order mark survive; replacing a file is atomic."""

import codecs
import difflib
import io
import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aerix.bounds import EDIT_BYTES
from aerix.tools.guard import open_folder
from aerix.tools.workspace import ToolError, Workspace, sentence

BINARY_LOOK = 8192  # bytes in which a zero byte means that a file is no text, as git has it
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark is its beginning
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
UTF8_MARK = codecs.BOM_UTF8
WIDE_MARKS = tuple(mark for mark, _ in _MARKS[1:])
_SURROGATES = range(0xDC80, 0xDD00)


@dataclass(frozen=True, slots=True)
class Text:
    """A file's text, and what it takes to write it back: ``encode`` gives the bytes it came from."""

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""
    errors: str = "strict"

    def encode(self, text: str) -> bytes:
        """Another text in this file's encoding. Raises ToolError for a character that it does not have."""
        try:
            return self.mark + text.encode(self.encoding, self.errors)
        except UnicodeEncodeError as error:
            odd = text[error.start : error.start + 1]
            raise ToolError(f"the file's encoding is {self.encoding}, which has no {odd!a}.") from None


def decode(data: bytes) -> Text | None:
    """The text of a file's bytes, or None for what is no text."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _marked(data, mark, encoding)
    if b"\0" in data[:BINARY_LOOK]:
        return None
    try:
        return Text(data.decode())
    except UnicodeDecodeError:
        return _unmarked(data)


def _marked(data: bytes, mark: bytes, encoding: str) -> Text | None:
    with suppress(UnicodeError):
        text = Text(data[len(mark) :].decode(encoding), encoding, mark)
        return text if text.encode(text.text) == data else None
    return None


def _unmarked(data: bytes) -> Text:
    """UTF-8 with a few bad bytes stays UTF-8; else it is a Windows file, or any 8-bit one."""
    text = data.decode("utf-8", "surrogateescape")
    bad = sum(ord(c) in _SURROGATES for c in text)
    if bad <= sum(ord(c) > 127 for c in text) - bad:
        return Text(text, errors="surrogateescape")
    for encoding in ("cp1252", "latin-1"):
        with suppress(UnicodeDecodeError):
            return Text(data.decode(encoding), encoding)
    raise AssertionError("latin-1 decodes every byte")


def decode_line(data: bytes) -> Text:
    """One line of a file whose encoding nobody looked up."""
    try:
        return Text(data.decode())
    except UnicodeDecodeError:
        return _unmarked(data)


def load(ws: Workspace, path: Path) -> tuple[Text, os.stat_result]:
    """A text file that is to be changed. Raises ToolError for what is none, is too large, or may not be written."""
    shown = ws.shown(path)
    try:
        with open_regular(ws, path) as file:
            status = os.fstat(file.fileno())
            if status.st_size > EDIT_BYTES.count:
                raise ToolError(
                    f"{shown} has {status.st_size:,} bytes; files over {EDIT_BYTES.count:,} are not edited."
                )
            data = file.read()
    except FileNotFoundError:
        raise missing(ws, path) from None
    except OSError as error:
        raise sentence(error, f"read {shown}") from None
    text = decode(data or b"")
    if text is None:
        raise ToolError(f"{shown} is a binary file.")
    return text, status


def open_regular(ws: Workspace, path: Path) -> io.BufferedReader:
    """Open a regular file to read. A device or a pipe is refused before it is opened: reading one may never end."""
    _refuse_special(ws, path, path.stat())
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        _refuse_special(ws, path, os.fstat(file.fileno()))
        ws.check(path, f"/proc/self/fd/{file.fileno()}")
    except ToolError:
        file.close()
        raise
    return file


def _refuse_special(ws: Workspace, path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, socket or device, no regular file"
        raise ToolError(f"{ws.shown(path)} is {kind}.")


def missing(ws: Workspace, path: Path) -> ToolError:
    """The sentence for a path that is not there, with the nearest name in its folder."""
    near: list[str] = []
    with suppress(OSError):
        near = difflib.get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], 1)
    hint = f"; did you mean {ws.shown(path.with_name(near[0]))}?" if near else "."
    return ToolError(f"no such file: {ws.shown(path)}{hint}")


def replace(ws: Workspace, path: Path, data: bytes) -> None:
    """Put ``data`` in a file's place at once: whoever looks sees the old content or the new, and never a part.

    A symbolic link stays one: its target is replaced. Mode and owner are kept. Parent folders are created.
    """
    shown = ws.shown(path)
    target = Path(os.path.realpath(path))
    ws.check(path, target)
    try:
        old = _status(ws, target)
        folder = open_folder(target.parent)
        try:
            _swap(folder, target.name, data, old)
        finally:
            os.close(folder)
        ws.saw(target, target.stat())
    except OSError as error:
        raise sentence(error, f"write {shown}") from None


def _status(ws: Workspace, target: Path) -> os.stat_result | None:
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    _refuse_special(ws, target, status)
    if not os.access(target, os.W_OK):
        raise ToolError(f"{ws.shown(target)} is read-only.")
    return status


def _swap(folder: int, name: str, data: bytes, old: os.stat_result | None) -> None:
    new = f".{name[:200]}.{secrets.token_hex(4)}.aerix"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if old is not None:
                with suppress(PermissionError):  # a file of another owner becomes ours, as with any editor
                    os.fchown(fd, old.st_uid, old.st_gid)
                os.fchmod(fd, stat.S_IMODE(old.st_mode))
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        raise
