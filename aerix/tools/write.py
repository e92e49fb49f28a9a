"""write: create, replace or lengthen a file, at once."""

import os
from pathlib import Path

from aerix.tools import lineends
from aerix.tools.textfile import load, replace
from aerix.tools.workspace import Given, Output, ToolError, Workspace


def write(ws: Workspace, given: Given) -> Output:
    """The tool: ``path``, ``content``, ``append``."""
    name, content = given.text("path"), given.text("content")
    path = ws.resolve(name)
    if name.endswith("/") or path.is_dir():
        raise ToolError(f"{ws.shown(path)} is a folder; give the path of a file.")
    if given.flag("append") and os.path.lexists(path):
        return _append(ws, path, content)
    verb = "replaced" if path.exists() else "created"
    replace(ws, path, _bytes(content))
    return Output(f"{verb} {ws.shown(path)} ({_lines(content)}).", (path,))


def _append(ws: Workspace, path: Path, content: str) -> Output:
    """In the file's own encoding and line ends."""
    old, _ = load(ws, path)
    added = lineends.convert(content, lineends.at(old.text, len(old.text), len(old.text)))
    replace(ws, path, old.encode(old.text + added))
    return Output(
        f"appended {_lines(content)} to {ws.shown(path)} (now {_lines(old.text + added)}).", (path,)
    )


def _bytes(content: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise ToolError("`content` has half of a surrogate pair, which is no character.") from None


def _lines(text: str) -> str:
    count = text.count("\n") + (not text.endswith("\n") and text != "")
    return f"{count} line{'' if count == 1 else 's'}"
