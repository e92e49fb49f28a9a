"""Tree stamp: whether any file of a project has changed since somebody looked last, told by the files' times and sizes."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from aerix.bounds import TREE_LOOK


class TreeStamp:
    """Looks at every file below a folder but git's own. Where there are too many, everything counts as changed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._last: int | None = None
        self._too_many = False

    def look(self) -> None:
        """Look, where that was not done since ``forget``."""
        if self._last is None:
            self._last = self._stamp()

    def forget(self) -> None:
        """A change that somebody else tells of: it is not to be told again."""
        self._last = None

    def changed(self) -> bool:
        """Whether anything is not as it was at the last look; looks."""
        before, self._last = self._last, self._stamp()
        return self._last is None or before != self._last

    def _stamp(self) -> int | None:
        if self._too_many:  # once is enough: to look costs time
            return None
        entries = list(islice(_entries(str(self._root)), TREE_LOOK.count + 1))
        self._too_many = len(entries) > TREE_LOOK.count
        return None if self._too_many else hash(tuple(sorted(entries)))


def _entries(root: str) -> Iterator[tuple[str, int, int, int]]:
    """Each file and folder with its inode, its time of change, which cannot be set back, and its size.

    However deep they are: it does not call itself.
    """
    folders = [root]
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                inside = list(found)
        except OSError:  # gone, or not to be read: then it cannot have been changed here
            continue
        for entry in inside:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            yield entry.path, status.st_ino, 0 if is_folder else status.st_ctime_ns, status.st_size
            if is_folder and entry.name != ".git":
                folders.append(entry.path)
