"""What needs an allow rule in every mode: writing outside the working tree, secrets, and what grants permissions.

Secrets are listed in ``secrets.py``; docs/permissions.md has all of it.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from aerix import folders
from aerix.session.project import repository_root
from aerix.tools.secrets import is_secret

_OF_PROCESSES = re.compile(r"/proc/.*/(environ|mem|cmdline)")
_GRANTS = re.compile(
    r"(.*/)?(\.git(/.*)?|\.aerix/settings[^/]*\.toml|\.claude/settings[^/]*\.json)", re.DOTALL | re.IGNORECASE
)
"""git's folder, or the file in its place, and the settings of a project; in any case, as some file systems have it."""


def working_tree(cwd: Path) -> str:
    """The repository around a working directory, else that itself. A repository that holds the whole home folder is not
    meant where somebody works in a part of it.
    """
    real = os.path.realpath(cwd)
    root = repository_root(cwd)
    home = os.path.realpath(folders.home())
    return real if root is None or is_below(home, str(root)) else str(root)


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or stands below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@dataclass(frozen=True, slots=True)
class Protected:
    """What is protected for a user; paths are absolute and without ``..``, with their links followed and as they are named."""

    home: Path
    own: tuple[str, ...]
    """The folders of Aerix: whoever writes there can permit more."""
    writable: tuple[str, ...]
    """The working tree, and what else may be written in."""

    @classmethod
    def of(cls, tree: str, added: tuple[str, ...]) -> "Protected":
        """That of the user of now."""
        own = [str(folder()) for folder in (folders.config, folders.data, folders.state, folders.cache)]
        others = [os.path.realpath(folder) for folder in (*map(str, folders.temporary()), *added)]
        return cls(folders.home(), (*own, *map(os.path.realpath, own)), (tree, *others))

    def secret(self, *paths: str) -> bool:
        """Whether one of them is that of a file with secrets, or of a folder of such."""
        return any(is_secret(path, self.home) or _OF_PROCESSES.fullmatch(path) for path in paths)

    def grants(self, *paths: str) -> bool:
        """Whether whoever changes one of them may get more than was permitted."""
        return any(
            _GRANTS.fullmatch(path) or any(is_below(path, folder) for folder in self.own) for path in paths
        )

    def outside(self, real: str) -> bool:
        """Whether it lies where nothing is to be written."""
        return not any(is_below(real, folder) for folder in self.writable)
