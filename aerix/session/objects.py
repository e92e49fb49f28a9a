"""The objects of a session's store: blobs and trees as git keeps them, each a file of its own.

Written here and not by git, because a process for each would cost more than all the rest of a snapshot. git reads them
(``GIT_ALTERNATE_OBJECT_DIRECTORIES``).
"""

import hashlib
import os
import secrets
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from aerix.bounds import UNDO_STORE
from aerix.git import GitError

Entry = tuple[str, str]
"""Of a tree: git's mode (``100644``, ``100755``, ``120000``) and the id of the blob."""

_TREE = "40000"
_QUICK = 1  # zlib's level: what is stored is read seldom
_ALGORITHMS = {40: "sha1", 64: "sha256"}


def object_id(kind: str, data: bytes, algorithm: str = "sha1") -> str:
    """The id that git gives to an object."""
    return hashlib.new(algorithm, f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


def algorithm_of(name: str) -> str:
    """What an id was made with."""
    return _ALGORITHMS[len(name)]


class Objects:
    """The store of one session. Raises GitError ``undo_store`` where it is full, OSError where it cannot be written."""

    def __init__(self, store: Path, algorithm: str = "sha1") -> None:
        self.folder = store / "objects"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._algorithm = algorithm
        self._there: set[str] = set()
        self.size = stored_bytes(self.folder)
        """Bytes that it has."""

    def known(self, names: Iterable[str]) -> None:
        """Objects that are kept elsewhere and need not be stored."""
        self._there.update(names)

    def put(self, kind: str, data: bytes) -> str:
        """Store an object, and return its id."""
        name = object_id(kind, data, self._algorithm)
        if name not in self._there:
            path = self.folder / name[:2] / name[2:]
            if not path.exists():
                self._write(path, zlib.compress(f"{kind} {len(data)}\0".encode() + data, _QUICK))
            self._there.add(name)
        return name

    def _write(self, path: Path, data: bytes) -> None:
        if self.size + len(data) > UNDO_STORE.count:
            raise GitError(
                "undo_store",
                f"this session's store for undo is full ({UNDO_STORE.count:,} bytes, undo.store)",
            )
        path.parent.mkdir(exist_ok=True, mode=0o700)
        new = path.with_name(f"new-{secrets.token_hex(4)}")
        try:
            new.write_bytes(data)
            new.replace(path)
        except OSError:
            with suppress(OSError):
                new.unlink()
            raise
        self.size += len(data)


def read_object(store: Path, name: str, most: int) -> bytes | None:
    """The content of an object of the store; None where it is not there, damaged, or over ``most`` bytes."""
    try:
        packed = (store / "objects" / name[:2] / name[2:]).read_bytes()
        unpacked = zlib.decompressobj()
        head, _, data = unpacked.decompress(packed, most + 64).partition(b"\0")
    except (OSError, zlib.error):
        return None
    kind = head.partition(b" ")[0].decode("ascii", "replace")
    return data if object_id(kind, data, algorithm_of(name)) == name else None


def stored_bytes(folder: Path) -> int:
    """What the files below a folder have together."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(where) / name).lstat().st_size
    return total


class Trees:
    """The tree of all files of a working tree; after a change only the folders on its way are made anew."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._files: dict[str, dict[str, Entry]] = {"": {}}
        self._folders: dict[str, set[str]] = {"": set()}
        self._ids: dict[str, str] = {}
        """Of the folders that have not changed since they were stored."""

    def put(self, path: str, entry: Entry | None) -> None:
        """A file is so; None: it is gone."""
        folder, _, name = path.rpartition("/")
        if entry is not None:
            self._reach(folder)
            self._files[folder][name] = entry
        elif folder in self._files:
            self._files[folder].pop(name, None)
        self._touch(folder)

    def get(self, path: str) -> Entry | None:
        """How a file is."""
        folder, _, name = path.rpartition("/")
        return self._files.get(folder, {}).get(name)

    def write(self) -> str:
        """Store what is new, and return the id of the whole. Folders may be nested a thousand deep."""
        changed = self._files.keys() - self._ids.keys()
        for folder in sorted(changed, key=lambda path: path.count("/") + bool(path), reverse=True):
            self._ids[folder] = self._objects.put("tree", self._listing(folder))
        return self._ids[""]

    @property
    def folders(self) -> Mapping[str, object]:
        """Those that hold a file, and those around them."""
        return self._files

    def _reach(self, folder: str) -> None:
        missing = []
        while folder not in self._files:
            missing.append(folder)
            folder = folder.rpartition("/")[0]
        for each in reversed(missing):
            self._files[each], self._folders[each] = {}, set()
            above, _, name = each.rpartition("/")
            self._folders[above].add(name)

    def _touch(self, folder: str) -> None:
        """It changed, and so did those around it; one that is empty is gone."""
        while True:
            self._ids.pop(folder, None)
            if not folder:
                return
            above, _, name = folder.rpartition("/")
            if folder in self._files and not self._files[folder] and not self._folders[folder]:
                del self._files[folder], self._folders[folder]
                self._folders[above].discard(name)
            folder = above

    def _listing(self, folder: str) -> bytes:
        """A tree as git has it: sorted by name, that of a folder with a slash."""
        below = f"{folder}/" if folder else ""
        rows = [(name, name, *entry) for name, entry in self._files[folder].items()]
        rows += [(name + "/", name, _TREE, self._ids[below + name]) for name in self._folders[folder]]
        rows.sort(key=lambda row: os.fsencode(row[0]))
        return b"".join(
            mode.encode() + b" " + os.fsencode(name) + b"\0" + bytes.fromhex(blob)
            for _, name, mode, blob in rows
        )
