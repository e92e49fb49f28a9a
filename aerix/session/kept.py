"""Files that ``write`` and ``edit`` touch and no tree has, as they were before: outside a repository, and in one those that
git ignores, that are in a nested repository, or over a bound.
"""

import json
import os
from pathlib import Path
from typing import Any

from aerix.bounds import UNDO_KEPT
from aerix.git import GitError
from aerix.session.objects import Objects, read_object
from aerix.session.paths import look
from aerix.session.was import Change, Was, dump, was_of
from aerix.session.worktree import WorkingTree

_RECORD = 64 * 1024 * 1024  # bytes of a record: as many paths as there may be, each as long as it may be


class Keeper:
    """What one request touched. Raises GitError, OSError."""

    def __init__(self, cwd: Path, objects: Objects) -> None:
        self._cwd = cwd
        self._objects = objects
        self._touched: dict[str, None] = {}

    @property
    def size(self) -> int:
        """Bytes of the store."""
        return self._objects.size

    def before(self, name: str, tree: WorkingTree | None) -> str | None:
        """A call names this file: keep it, and the folders that it makes; the id of the record, None where a tree has it."""
        path = touched(self._cwd, name)
        if path is None or (tree is not None and _is_covered(path, tree)):
            return None
        if path not in self._touched and len(self._touched) >= UNDO_KEPT.count:
            raise GitError(
                "undo_kept", f"undo keeps at most {UNDO_KEPT.count:,} files of a request (undo.kept)"
            )
        made = []
        above = os.path.dirname(path)  # noqa: PTH120 - paths that are no text, as they came
        while not os.path.lexists(above):
            made.append(above)
            above = os.path.dirname(above)  # noqa: PTH120
        self._touched |= dict.fromkeys([*reversed(made), path])
        return self._record([*reversed(made), path])

    def after(self) -> str | None:
        """The request ends: keep all that it touched as it is now."""
        return self._record(list(self._touched)) if self._touched else None

    def _record(self, paths: list[str]) -> str:
        return self._objects.put("blob", dump([[path, *self._was(path)] for path in paths]))

    def _was(self, path: str) -> Was:
        found, data = look(path)
        return found._replace(blob=self._objects.put("blob", data)) if data is not None else found


def _is_covered(path: str, tree: WorkingTree) -> bool:
    below = f"{tree.root}/"
    return path.startswith(below) and tree.covers(path.removeprefix(below))


def touched(cwd: Path, name: str) -> str | None:
    """The file that a call with such a path would write, its links resolved; None where there is no such path."""
    if "\0" in name:
        return None
    expanded = os.path.expanduser(name) if name.startswith("~/") else name  # noqa: PTH111 - as the tools read it
    return os.path.realpath(cwd / expanded)


def read_record(store: Path, name: str) -> list[tuple[str, Was]]:
    """The paths of a record, each as it was; empty where it is not there any more."""
    return [(row[0], was_of(row[1:])) for row in _rows(store, name, 4)]


def read_changes(store: Path, name: str) -> list[Change]:
    """What an undo was to do, from its record."""
    return [Change(row[0], was_of(row[1]), was_of(row[2]), tried=True) for row in _rows(store, name, 3)]


def _rows(store: Path, name: str, length: int) -> list[list[Any]]:
    data = read_object(store, name, _RECORD)
    try:
        found = json.loads(data) if data is not None else []
    except ValueError:
        return []
    return [row for row in found if isinstance(row, list) and len(row) == length and isinstance(row[0], str)]
