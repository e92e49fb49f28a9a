"""The git folder of a working tree, which of a worktree and of a submodule lies elsewhere: found without asking git.

A ``.git`` file may name any folder. What it names is believed only where that folder, which git made for its user, names
the tree too.
"""

import os
import re
from pathlib import Path

from aerix import regular
from aerix.bounds import GIT_FOLDER_FILE

_WORKTREE = re.compile(r"^\s*worktree\s*=\s*(.+?)\s*$", re.MULTILINE)


def git_folder(tree: Path) -> Path | None:
    """The folder with a tree's objects, refs and hooks, links resolved; None where there is none of its own."""
    marker = tree / ".git"
    if marker.is_dir():
        folder = Path(os.path.realpath(marker))
        return folder if folder.is_relative_to(tree) else None
    named = _read(marker)
    if not named.startswith("gitdir:"):
        return None
    folder = Path(os.path.realpath(tree / named.removeprefix("gitdir:").strip()))
    return _of_worktree(folder, marker) or _of_submodule(folder, tree)


def _of_worktree(folder: Path, marker: Path) -> Path | None:
    common = folder.parent.parent
    is_one = (
        folder.parent.name == "worktrees" and common.name.endswith(".git") and (common / "HEAD").is_file()
    )
    back = _read(folder / "gitdir").strip()
    return common if is_one and back and os.path.realpath(folder / back) == os.path.realpath(marker) else None


def _of_submodule(folder: Path, tree: Path) -> Path | None:
    is_one = "/.git/modules/" in str(folder) and (folder / "HEAD").is_file()
    back = _WORKTREE.search(_read(folder / "config"))
    return (
        folder if is_one and back and os.path.realpath(folder / back[1]) == os.path.realpath(tree) else None
    )


def _read(path: Path) -> str:
    try:
        return regular.read(path, GIT_FOLDER_FILE.count).decode("utf-8", "surrogateescape")
    except (FileNotFoundError, regular.NotRead):
        return ""
