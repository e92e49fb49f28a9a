"""How a path was at one time: the values of which snapshots, what is kept of files, and undo's records are made. Pure."""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

Kind = Literal["none", "file", "link", "folder", "unknown"]
LINK = "120000"
PROGRAM = "100755"
PLAIN = "100644"


class Was(NamedTuple):
    """What was at a path. ``unknown``: something, but not what (too large, or not to be read)."""

    kind: Kind = "none"
    blob: str = ""
    """The id of a file's content, or of a link's target."""
    mode: int = 0
    """The permission bits of a file or a folder."""


NOTHING = Was()


def dump(value: object) -> bytes:
    """A record as bytes; paths that are no text survive it."""
    return json.dumps(value, separators=(",", ":")).encode()


def was_of(found: object) -> Was:
    """What ``dump`` made of one; anything else is ``unknown``."""
    match found:
        case ["none" | "file" | "link" | "folder" as kind, str(blob), int(mode)]:
            return Was(kind, blob, mode & 0o7777)
    return Was("unknown")


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a path. ``tried``: it may not have been brought about, since whoever did it may have been killed."""

    path: str
    """Absolute, its links resolved."""
    old: Was
    new: Was
    tried: bool = False


@dataclass(frozen=True, slots=True)
class About:
    """What a git tree does not tell of a working tree."""

    root: str
    umask: int
    files: Mapping[str, int] = field(default_factory=dict)
    """The modes of files that are not as git would make them."""
    folders: Mapping[str, int] = field(default_factory=dict)
    """The same of folders."""
    bare: frozenset[str] = frozenset()
    """Folders that hold no file of the tree."""
    uncovered: frozenset[str] = frozenset()
    """Files and folders whose content is not in the tree."""

    def file(self, path: str, mode: str, blob: str) -> Was:
        """A file of the tree, by git's mode of it."""
        if mode == LINK:
            return Was("link", blob)
        return Was("file", blob, self.files.get(path, plain_mode(mode, self.umask)))

    def folder(self, path: str) -> Was:
        """A folder that was there."""
        return Was("folder", "", self.folders.get(path, 0o777 & ~self.umask))

    def covers(self, path: str) -> bool:
        """Whether a path that the tree does not have was not there."""
        parts = path.split("/")
        return not any("/".join(parts[:n]) in self.uncovered for n in range(1, len(parts) + 1))

    def dump(self) -> bytes:
        """As bytes, the same for the same values."""
        return dump({
            "root": self.root,
            "umask": self.umask,
            "files": dict(sorted(self.files.items())),
            "folders": dict(sorted(self.folders.items())),
            "bare": sorted(self.bare),
            "uncovered": sorted(self.uncovered),
        })  # fmt: skip

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Raises ValueError for what ``dump`` did not make."""
        found = json.loads(data)
        match found:
            case {
                "root": str(root),
                "umask": int(umask),
                "files": dict(files),
                "folders": dict(folders),
                "bare": list(bare),
                "uncovered": list(uncovered),
            }:
                return cls(root, umask, _modes(files), _modes(folders), frozenset(bare), frozenset(uncovered))
        raise ValueError("it is no description of a tree")


def _modes(found: dict[str, Any]) -> dict[str, int]:
    return {path: int(mode) & 0o7777 for path, mode in found.items()}


def plain_mode(mode: str, umask: int) -> int:
    """The permission bits that git would give a file."""
    return (0o777 if mode == PROGRAM else 0o666) & ~umask


def git_mode(mode: int) -> str:
    """How git has a file's mode."""
    if stat.S_ISLNK(mode):
        return LINK
    return PROGRAM if mode & stat.S_IXUSR else PLAIN
