"""The files that glob and grep see: what git tracks or would track inside a repository, else a plain walk."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from aerix.bounds import GIT_FILES, WALK_FILES
from aerix.git import GitError, git

SKIPPED = frozenset({".git", "target", "node_modules"})
"""Folders that a walk outside a repository leaves out."""


def files(folder: Path) -> list[str]:
    """The files below a folder, relative to it, sorted: tracked and untracked ones that are not ignored.

    Outside a repository, and in a folder that git ignores but that was asked for by name, every file but those in
    ``SKIPPED`` folders; at most so many as the bound says. Raises GitError ``git_timeout``.
    """
    found = _from_git(folder)
    if found is None or (not found and _is_ignored(folder)):
        found = set(islice(_walked(folder), WALK_FILES.count))
    return sorted(found)


def _from_git(folder: Path) -> set[str] | None:
    """None outside a repository."""
    if not any((above / ".git").exists() for above in (folder, *folder.parents)):
        return None
    try:
        listed = git(
            ["ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            folder,
            deadline_s=GIT_FILES.value,
        )
    except GitError as error:
        if error.code == "git_timeout":
            raise
        return None
    return {path for path in listed.paths() if not path.endswith("/")}


def _is_ignored(folder: Path) -> bool:
    return git(["check-ignore", "-q", "."], folder, may_fail=True).exit == 0


def _walked(folder: Path) -> Iterator[str]:
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        at = os.path.relpath(where, folder)
        yield from sorted(names if at == "." else (f"{at}/{name}" for name in names))
