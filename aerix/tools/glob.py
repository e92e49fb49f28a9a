"""glob: files by their names."""

import os
from pathlib import Path

from aerix.git import GitError
from aerix.tools import patterns
from aerix.tools.gitfiles import files
from aerix.tools.textfile import missing
from aerix.tools.workspace import Given, Output, ToolError, Workspace


def glob(ws: Workspace, given: Given) -> Output:
    """The tool: ``pattern``, ``path`` (the folder to look in)."""
    start, pattern = patterns.split(given.text("pattern"))
    folder = folder_of(ws, start or given.optional("path"))
    ws.check(folder)
    matches = patterns.matcher(pattern or "*")
    found = [path for path in listed(folder) if matches(path) and os.path.lexists(folder / path)]
    shown = ws.guard.shown(folder, found)
    notes = [left_out(len(found) - len(shown))] if len(found) > len(shown) else []
    if not shown:
        return Output("\n".join([f"no file matches {given.text('pattern')}.", *notes]))
    return Output("\n".join([*(ws.shown(folder / path) for path in shown), *notes]))


def left_out(count: int) -> str:
    """What a search says of the files that it may not show."""
    return f"[{count} file{'s' * (count != 1)} left out: they may hold secrets, or a rule leaves them out]"


def folder_of(ws: Workspace, path: str | None) -> Path:
    """The folder to look in: the working directory unless another is given. Raises ToolError where it is none."""
    folder = ws.resolve(path) if path else ws.cwd
    if not folder.exists():
        raise missing(ws, folder)
    if not folder.is_dir():
        raise ToolError(f"{ws.shown(folder)} is a file; give a folder.")
    return folder


def listed(folder: Path) -> list[str]:
    """The files below a folder, as a tool reports what goes wrong."""
    try:
        return files(folder)
    except GitError as error:
        raise ToolError(f"{error.message}.") from None
