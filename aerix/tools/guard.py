"""Guard: what the call that runs may touch, looked at again where it is touched: a link may have changed meanwhile."""

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from aerix.permissions import Permissions

if TYPE_CHECKING:
    from aerix.tools.permissions import Judge


class NotPermitted(Exception):
    """A path leads elsewhere than where it led when the call was permitted."""


class Guard:
    """Belongs to a runner's workspace. Before the first call, and for one without permissions, everything is open."""

    def __init__(self) -> None:
        self._permissions: Permissions | None = None
        self._permitted: str | None = None
        self._tool = ""
        self._cwd = Path()

    def begin(self, tool: str, permissions: Permissions | None, permitted: str | None, cwd: Path) -> None:
        """A call begins. ``permitted`` is the path that it may work on, absolute and with links followed; None: any."""
        self._tool, self._permissions, self._permitted, self._cwd = tool, permissions, permitted, cwd

    def check(self, path: str | os.PathLike[str]) -> None:
        """Raises NotPermitted unless a path leads to where it is permitted."""
        if self._permitted is not None and os.path.realpath(path) != self._permitted:
            raise NotPermitted

    def shown(self, folder: Path, paths: list[str]) -> list[str]:
        """Of the files that a search found below a folder those that it may show."""
        if self._permissions is None:
            return paths
        judge, real = _judge(self._permissions, self._cwd), os.path.realpath(folder)
        return [path for path in paths if not judge.hides(self._tool, f"{real}/{path}")]


@lru_cache(maxsize=2)
def _judge(permissions: Permissions, cwd: Path) -> "Judge":
    from aerix.tools.permissions import Judge

    return Judge(permissions, cwd)


def open_folder(path: Path) -> int:
    """A descriptor of a folder to work in, which is made where it is not there. No link on the way is followed, so it is
    that of this path, whoever moves things meanwhile. Raises OSError.
    """
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in path.parts[1:]:
        try:
            below = _enter(fd, name)
        finally:
            os.close(fd)
        fd = below
    return fd


def _enter(fd: int, name: str) -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=fd)
    except FileNotFoundError:
        with suppress(FileExistsError):  # somebody else made it just now
            os.mkdir(name, dir_fd=fd)
        return os.open(name, flags, dir_fd=fd)
