"""Reading what a session's snapshots refer to: from its own store, and, where a repository has it, with git."""

import os
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from aerix.bounds import SNAPSHOT_FILE
from aerix.git import GitError, git
from aerix.session.objects import algorithm_of, object_id, read_object
from aerix.session.snapshot import objects_of

_AT_ONCE = 32 * 1024 * 1024  # bytes that git is asked for in one call

Row = tuple[str, str, str, str, str]
"""What differs between two trees: both of git's modes, both ids, the path. A mode of zeros: it is not there."""


class Stored:
    """The objects of a session; ``root`` is None outside a repository. Raises GitError."""

    def __init__(self, store: Path, root: Path | None) -> None:
        self.store = store
        self._root = root
        self._folders: dict[str, frozenset[str]] = {}

    def blobs(self, names: Sequence[str]) -> Iterator[bytes | None]:
        """The contents of blobs, in order; None for one that is not there any more."""
        elsewhere = [name for name in dict.fromkeys(names) if not self._is_here(name)]
        found: dict[str, bytes] = {}
        for name in names:
            if name in elsewhere and name not in found:
                found = self._fetch(elsewhere[elsewhere.index(name) :])
            data = (
                found.get(name) if name in elsewhere else read_object(self.store, name, SNAPSHOT_FILE.count)
            )
            yield data

    def differences(self, old: str, new: str) -> list[Row]:
        """What differs between two trees."""
        if old == new:
            return []
        told = self._git("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", old, new).split(
            b"\0"
        )
        return [
            (*(part.decode() for part in about[1:].split()[:4]), os.fsdecode(path))  # type: ignore[misc]
            for about, path in zip(told[::2], told[1::2], strict=False)
        ]

    def folders(self, tree: str) -> frozenset[str]:
        """The folders that hold files of a tree."""
        if tree not in self._folders:
            told = self._git("ls-tree", "-r", "-d", "-z", "--name-only", tree).split(b"\0")
            self._folders[tree] = frozenset(os.fsdecode(path) for path in told if path)
        return self._folders[tree]

    def entries(self, tree: str, paths: Collection[str]) -> dict[str, tuple[str, str]]:
        """Files of a tree, each with git's mode and its blob."""
        if not paths:
            return {}
        found = {}
        for row in self._git("ls-tree", "-r", "-z", tree).split(b"\0"):
            about, _, name = row.partition(b"\t")
            if (path := os.fsdecode(name)) in paths:
                mode, _, blob = about.decode().split()
                found[path] = mode, blob
        return found

    def _is_here(self, name: str) -> bool:
        return (self.store / "objects" / name[:2] / name[2:]).exists()

    def _fetch(self, names: list[str]) -> dict[str, bytes]:
        """The first of the blobs, as many as are read at once; each is what its id says, or is not there."""
        feed = "".join(f"{name}\n" for name in names).encode()
        rows = [
            line.split() for line in self._git("cat-file", "--batch-check", feed=feed).decode().splitlines()
        ]
        wanted: list[str] = []
        room = _AT_ONCE
        for row in rows:
            if len(row) == 3 and int(row[2]) <= SNAPSHOT_FILE.count:
                room -= int(row[2])
                if room < 0 and wanted:
                    break
                wanted.append(row[0])
        told = self._git("cat-file", "--batch", feed="".join(f"{name}\n" for name in wanted).encode())
        return dict(_contents(told))

    @cached_property
    def _env(self) -> dict[str, str]:
        assert self._root is not None
        told = git(["rev-parse", "--git-path", "objects"], self._root).out
        return objects_of(self.store, self._root / os.fsdecode(told.rstrip(b"\n")))

    def _git(self, *args: str, feed: bytes = b"") -> bytes:
        if self._root is None:
            raise GitError(
                "git_failed", "the session's trees are those of a repository that is not here any more"
            )
        return git(args, self._root, env=self._env, feed=feed).out


def _contents(told: bytes) -> Iterator[tuple[str, bytes]]:
    """What ``cat-file --batch`` says: a line with id, type and size before each content."""
    at = 0
    while at < len(told):
        end = told.index(b"\n", at)
        head = told[at:end].split()
        at = end + 1
        if len(head) != 3:  # missing
            continue
        name, size = head[0].decode(), int(head[2])
        data = told[at : at + size]
        at += size + 1
        if object_id("blob", data, algorithm_of(name)) == name:
            yield name, data
