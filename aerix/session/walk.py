"""What a working tree holds, told by looking at every file's status: quick, and nothing of git runs.

Whether anything changed since the last look is told by the times of change, which nobody can set back.
"""

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field

Stamp = tuple[int, int, int, int]
"""Of a file: inode, time of change in ns, size, mode."""
_KIND = 0o170000  # the bits of a mode that tell what it is
_FILES = (stat.S_IFREG, stat.S_IFLNK)


@dataclass(slots=True)
class Found:
    """Files and folders by their paths below the root; ``""`` is the root itself."""

    files: dict[str, Stamp] = field(default_factory=dict)
    """Regular files and symbolic links."""
    folders: dict[str, int] = field(default_factory=dict)
    """With their modes."""
    nested: list[str] = field(default_factory=list)
    """Folders that are repositories of their own; they are not entered."""
    closed: list[str] = field(default_factory=list)
    """Folders that cannot be read."""


def walk(root: str, skipped: Collection[str], most: int) -> Found | None:
    """Look at everything below a folder but ``skipped`` paths, git's own folder and nested repositories.

    None where that is more than ``most`` files and folders. However deep they are: it does not call itself.
    """
    found = Found()
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            inside = _inside(root, folder)
        except FileNotFoundError:  # it went meanwhile
            del found.folders[folder]
            continue
        except OSError:
            found.closed.append(folder)
            continue
        if folder and _is_repository(inside):
            del found.folders[folder]
            found.nested.append(folder)
        else:
            waiting += _look(folder, inside, skipped, found)
        if len(found.files) + len(found.folders) > most:
            return None
    return found


def _inside(root: str, folder: str) -> "list[os.DirEntry[str]]":
    with os.scandir(f"{root}/{folder}" if folder else root) as entries:
        return list(entries)


def _is_repository(inside: "list[os.DirEntry[str]]") -> bool:
    marker = next((entry for entry in inside if entry.name == ".git"), None)
    return marker is not None and (marker.is_file() or os.path.isfile(f"{marker.path}/HEAD"))  # noqa: PTH113 - no Path for each file


def _look(folder: str, inside: "list[os.DirEntry[str]]", skipped: Collection[str], found: Found) -> list[str]:
    """Take in a folder's entries; the folders among them. Short, because it runs for every file at every call."""
    below = f"{folder}/" if folder else ""
    files, folders = found.files, []
    for entry in inside:
        path = below + entry.name
        if path in skipped or entry.name == ".git":
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # it went meanwhile
            continue
        mode = status.st_mode
        kind = mode & _KIND
        if kind in _FILES:
            files[path] = (status.st_ino, status.st_ctime_ns, status.st_size, mode)
        elif kind == stat.S_IFDIR:
            found.folders[path] = stat.S_IMODE(mode)
            folders.append(path)
    return folders
