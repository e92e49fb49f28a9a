"""Paths that are looked at and changed without ever following a symbolic link: each folder on the way is opened by itself.

What is between a snapshot and an undo may have been anything; whoever put a link in a folder's place must not have files
written somewhere else.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ELOOP

from aerix.bounds import SNAPSHOT_FILE
from aerix.session.was import NOTHING, Was

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


@contextmanager
def parent_of(path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """The folder of an absolute path, opened, and the name in it. ``make``: folders that are not there are made.

    Raises OSError, also where there is a link on the way.
    """
    *above, name = path.strip("/").split("/")
    fd = os.open("/", _FOLDER)
    try:
        for part in above:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=fd)
            inner = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd, name
    finally:
        os.close(fd)


def look(path: str) -> tuple[Was, bytes | None]:
    """What is at a path, and the content of a file or link, whose id is not made. Behind a link there is nothing."""
    try:
        with parent_of(path) as (folder, name):
            return _look(folder, name)
    except (FileNotFoundError, NotADirectoryError):
        return NOTHING, None
    except OSError as error:
        return (NOTHING if error.errno == ELOOP else Was("unknown")), None


def _look(folder: int, name: str) -> tuple[Was, bytes | None]:
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    bits = stat.S_IMODE(mode)
    if stat.S_ISDIR(mode):
        return Was("folder", "", bits), None
    if stat.S_ISLNK(mode):
        return Was("link"), os.fsencode(os.readlink(name, dir_fd=folder))
    data = read_regular(name, SNAPSHOT_FILE.count, folder) if stat.S_ISREG(mode) else None
    return (Was("unknown"), None) if data is None else (Was("file", "", bits), data)


def read_regular(path: str, most: int, folder: int | None = None) -> bytes | None:
    """The bytes of a regular file, which is no link; None where it is none, or has more. Raises OSError."""
    fd = os.open(path, _FILE, dir_fd=folder)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        data = file.read(most + 1)
    return data if len(data) <= most else None
