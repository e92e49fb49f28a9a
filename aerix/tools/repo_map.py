"""repo_map: a project's folders with their files, sizes and languages, in the bytes there are, the most useful first."""

import os
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from aerix.tools.glob import listed
from aerix.tools.languages import language, usefulness
from aerix.tools.workspace import Given, Output, Workspace, clean

_LANGUAGES = 6  # named at the head
_FOLDER_SHARE = 4  # the part of the room that one folder's files may take
_END = 60  # bytes for what says how much is left out


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    size: int
    value: int

    def __str__(self) -> str:
        return f"{self.name} {_size(self.size)}"


@dataclass(slots=True)
class _Folder:
    path: str
    files: list[_File] = field(default_factory=list)

    @property
    def rank(self) -> tuple[int, int, str]:
        """Where it stands: the best file first, then the best of it all together."""
        values = sorted((file.value for file in self.files), reverse=True)
        return -values[0], -sum(values[:20]), self.path

    @property
    def head(self) -> str:
        size = _size(sum(file.size for file in self.files))
        kinds = Counter(kind for file in self.files if (kind := language(file.name)))
        kind = f", {kinds.most_common(1)[0][0]}" if kinds else ""
        return f"{self.path} ({_count(len(self.files), 'file')}, {size}{kind})"

    def names(self, room: int) -> str:
        """Its files in so many bytes, the most useful first; empty where none fits."""
        files = sorted(self.files, key=lambda file: (-file.value, file.name))
        shown = list[str]()
        for file in files:
            room -= len(str(file).encode()) + 2
            if room < (8 if len(shown) + 1 < len(files) else 0):
                break
            shown.append(str(file))
        left = len(files) - len(shown)
        return ", ".join([*shown, *([f"+{left}"] if left else [])]) if shown else ""


def repo_map(ws: Workspace, given: Given) -> Output:
    """The tool; it takes no input."""
    folders = sorted(_folders(ws), key=lambda folder: folder.rank)
    if not folders:
        return Output("there is no file here.")
    return Output("\n".join(_fitted(_summary(folders), folders, given.room)))


def _folders(ws: Workspace) -> Iterable[_Folder]:
    found: dict[str, _Folder] = {}
    for path in listed(ws.cwd):
        where, _, name = path.rpartition("/")
        with suppress(OSError):  # deleted, and still tracked
            status = os.lstat(ws.cwd / path)
            if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                parts = tuple(where.split("/")) if where else ()
                folder = found.setdefault(where, _Folder(_shown(f"{where}/" if where else "./")))
                folder.files.append(_File(_shown(name), status.st_size, usefulness(parts, name)))
    return found.values()


def _summary(folders: list[_Folder]) -> str:
    """How much there is, and what of it by language."""
    sizes: dict[str, int] = defaultdict(int)
    for folder in folders:
        for file in folder.files:
            sizes[language(file.name) or "other"] += file.size
    total = sum(sizes.values())
    kinds = sorted(sizes, key=lambda kind: -sizes[kind])[:_LANGUAGES]
    parts = ", ".join(f"{kind} {_size(sizes[kind])}" for kind in kinds)
    files = sum(len(folder.files) for folder in folders)
    return f"{_count(files, 'file')} in {_count(len(folders), 'folder')}, {_size(total)}: {parts}"


def _fitted(first: str, folders: list[_Folder], room: int) -> Iterator[str]:
    """Lines in ``room`` bytes: as many folders as fit, and of the first of them the files too."""
    left = room - len(first.encode()) - 1
    heads = list[str]()
    for folder in folders:
        size = len(folder.head.encode()) + 1
        if left - size < _END * (len(heads) + 1 < len(folders)):
            break
        heads.append(folder.head)
        left -= size
    left -= _END * (len(heads) < len(folders))
    yield first
    for folder, head in zip(folders, heads, strict=False):
        names = folder.names(min(left, room // _FOLDER_SHARE) - 2)
        left -= len(names.encode()) + 2 if names else 0
        yield f"{head}: {names}" if names else head
    if rest := folders[len(heads) :]:
        files = sum(len(folder.files) for folder in rest)
        yield f"and {_count(len(rest), 'folder')} more with {_count(files, 'file')}"


def _size(count: int) -> str:
    for unit in ("", "k", "M"):
        if count < 1000:
            return f"{count}{unit}"
        count = round(count / 1000)
    return f"{count}G"


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _shown(name: str) -> str:
    """A name on one line, whatever is in it."""
    return clean(name) if name.isprintable() else "".join(c if c.isprintable() else "?" for c in clean(name))
