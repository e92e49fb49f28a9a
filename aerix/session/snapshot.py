"""Snapshots of a working tree as git trees, and the difference of two (DESIGN section 5, "Snapshots").

A tree is made from a copy of the user's index, to which every changed, deleted and new file is added that git does
not ignore, as ``git add -A`` would. The index and the objects of the repository are only read: new objects go to a
store of the session. Nothing that the repository configures is run (``aerix.git``). ``git add`` itself is not used: it
looks into submodules with their own settings, and one unreadable file or empty nested repository makes it fail as a
whole.
"""

import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from aerix.actors import Actor, Exit, Refused, on
from aerix.bounds import DIFF_BYTES, SNAPSHOT_FILE, SNAPSHOT_FILES, SNAPSHOT_NESTED, SNAPSHOT_TOTAL
from aerix.git import GitError, filters_off, git
from aerix.session.project import repository_root

_UNKNOWN = "?"
_NESTED = b"160000"
_CHANGED = (b"C", b"R", b"M")  # changed, removed, unmerged


@dataclass(frozen=True, slots=True)
class Tree:
    """A working tree at one time: the id of its git tree, and what is not in it."""

    id: str
    root: str
    left_out: dict[str, str] = field(default_factory=dict)
    """Files over the bound, files that cannot be read and nested repositories, by path, each with a stamp that
    changes when it does."""


@dataclass(frozen=True, slots=True)
class DiffText:
    """What changed between two trees."""

    text: str
    """A unified diff, new files included; empty where nothing changed."""
    untracked: list[str] = field(default_factory=list)
    """What changed, or may have, and is not in ``text``: over the bound, unreadable, nested repositories."""
    cut: bool = False
    """The diff was over its bound; a line at its end says so."""


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Take one; answered by a ``Tree``, or None outside a repository."""


@dataclass(frozen=True, slots=True)
class DiffTrees:
    """Compare two trees; answered by ``DiffText``."""

    before: Tree
    after: Tree


class Snapshots(Actor):
    """Takes and compares snapshots for a request, so that nobody else waits in git.

    Refuses with a code of ``GitError`` (``git_missing``, ``git_timeout``, ``git_failed``, ``git_filter``): the request
    goes on without a diff, and says why.
    """

    def __init__(self, cwd: Path, store: Path, leash: int | None = None) -> None:
        """``store`` is the session's folder for objects; it is created with the first snapshot. ``leash``, as git takes
        it, is closed here: a call of git cannot hear messages.
        """
        self._cwd = cwd
        self._store = store
        self._leash = leash

    @on(TakeSnapshot)
    def take(self, _message: TakeSnapshot) -> Tree | None:
        """Take a snapshot."""
        try:
            return take(self._cwd, self._store, self._leash)
        except GitError as error:
            raise Refused(error.code, error.message) from None

    @on(DiffTrees)
    def diff(self, message: DiffTrees) -> DiffText:
        """Compare two snapshots."""
        try:
            return diff(message.before, message.after, self._store, self._leash)
        except GitError as error:
            raise Refused(error.code, error.message) from None

    def teardown(self, exit: Exit) -> None:
        """Let go of the leash."""
        if self._leash is not None:
            os.close(self._leash)


def take(cwd: Path, store: Path, leash: int | None = None) -> Tree | None:
    """Take a snapshot of the working tree around ``cwd``; None where there is none. Raises GitError."""
    root = repository_root(cwd)
    if root is None:
        return None
    try:
        store.mkdir(parents=True, exist_ok=True, mode=0o700)
        index = store / f"index-{secrets.token_hex(4)}"
        try:
            return _Taking(root, store, index, leash).tree()
        finally:
            for path in (index, index.with_name(f"{index.name}.lock")):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise GitError("git_failed", f"the snapshot could not be stored: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class _Changes:
    """Paths: files that are there and new or changed, files that are gone, nested repositories."""

    there: list[str]
    gone: list[str]
    nested: list[str]


class _Taking:
    """One snapshot on its way."""

    def __init__(self, root: Path, store: Path, index: Path, leash: int | None) -> None:
        self._root = root
        self._leash = leash
        asked = ["rev-parse", "--git-path", "index", "--git-path", "objects"]
        told = git(asked, root, leash=leash).out
        theirs, objects = (root / os.fsdecode(line) for line in told.splitlines())
        self._env = {"GIT_INDEX_FILE": str(index), **_objects(store, objects)}
        self._config = filters_off(root, leash)
        if theirs.is_file():
            _copy_index(theirs, index)

    def tree(self) -> Tree:
        """Add what changed, and write the tree."""
        changes = self._changes()
        left_out = {path: _nested_stamp(self._root / path) for path in changes.nested}
        taken = self._taken(changes.there, left_out)
        for option, paths in (("--force-remove", changes.gone), ("--add", taken)):
            if paths:
                feed = b"".join(os.fsencode(path) + b"\0" for path in paths)
                self._git("update-index", "--remove", "--replace", option, "-z", "--stdin", feed=feed)
        made = self._git("write-tree", "--missing-ok").decode().strip()
        return Tree(made, str(self._root), left_out)

    def _taken(self, paths: list[str], left_out: dict[str, str]) -> list[str]:
        """The files that go in; the others join ``left_out``."""
        taken: list[str] = []
        room = SNAPSHOT_TOTAL.count
        for path in paths:
            size = _size(self._root / path)
            if size is None or size > min(room, SNAPSHOT_FILE.count) or len(taken) >= SNAPSHOT_FILES.count:
                left_out[path] = _stamp(self._root / path)
            else:
                room -= size
                taken.append(path)
        return taken

    def _changes(self) -> "_Changes":
        """What is not as the index has it: ``-t`` marks each entry, ``--stage`` shows the nested repositories."""
        options = ("-z", "-t", "--stage", "--modified", "--deleted", "--others", "--exclude-standard")
        there, gone, nested = set[str](), set[str](), set[str]()
        for line in self._git("ls-files", *options).split(b"\0"):
            mark, rest = line[:1], line[2:]
            about, _, name = rest.rpartition(b"\t") if mark != b"?" else (b"", b"", rest)
            path = os.fsdecode(name)
            if about.startswith(_NESTED) or path.endswith("/"):
                nested.add(path)
            elif mark == b"?" or (mark in _CHANGED and _can_be_taken(self._root / path)):
                there.add(path)
            elif mark in _CHANGED:
                gone.add(path)
        return _Changes(sorted(there), sorted(gone), sorted(nested))

    def _git(self, *args: str, feed: bytes = b"") -> bytes:
        return git(args, self._root, config=self._config, env=self._env, feed=feed, leash=self._leash).out


def diff(before: Tree, after: Tree, store: Path, leash: int | None = None) -> DiffText:
    """What changed from one tree to another. Raises GitError."""
    stamps = before.left_out, after.left_out
    changed = sorted(p for p in stamps[0].keys() | stamps[1].keys() if _may_differ(p, *stamps))
    if before.id == after.id:
        return DiffText("", changed)
    root = Path(after.root)
    told = git(["rev-parse", "--git-path", "objects"], root, leash=leash).out
    objects = root / os.fsdecode(told.rstrip(b"\n"))
    done = git(
        [
            "diff-tree",
            "-r",
            "-p",
            "--no-color",
            "--no-ext-diff",
            "--no-textconv",
            "--no-renames",
            before.id,
            after.id,
        ],
        root,
        env=_objects(store, objects),
        max_bytes=DIFF_BYTES.count,
        leash=leash,
    )
    text = done.out.decode("utf-8", "replace")
    if done.cut:
        text = f"{text[: text.rfind(chr(10)) + 1]}[the diff is cut here, at {DIFF_BYTES.count:,} bytes]\n"
    return DiffText(text, changed, done.cut)


def _may_differ(path: str, before: dict[str, str], after: dict[str, str]) -> bool:
    return before.get(path) != after.get(path) or after.get(path) == _UNKNOWN


def _objects(store: Path, theirs: Path) -> dict[str, str]:
    """New objects go to the store; the repository's own are read, and never written."""
    made = store / "objects"
    made.mkdir(exist_ok=True, mode=0o700)
    quoted = str(theirs).replace("\\", "\\\\").replace('"', '\\"')
    return {"GIT_OBJECT_DIRECTORY": str(made), "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{quoted}"'}


def _copy_index(theirs: Path, ours: Path) -> None:
    """With its time: git trusts an entry that is older than the index, so a younger copy would hide changes."""
    with theirs.open("rb") as file:
        ours.write_bytes(file.read())
        status = os.fstat(file.fileno())
    os.utime(ours, ns=(status.st_atime_ns, status.st_mtime_ns))


def _can_be_taken(path: Path) -> bool:
    """Whether a tracked file is still a file or a link, and not beyond a link."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) and Path(os.path.realpath(path.parent)) == path.parent


def _size(path: Path) -> int | None:
    """The bytes of a file; None where it cannot be read."""
    try:
        return path.lstat().st_size if path.is_symlink() or os.access(path, os.R_OK) else None
    except OSError:
        return None


def _stamp(path: Path) -> str:
    try:
        status = path.lstat()
    except OSError:
        return "gone"
    return f"{status.st_mtime_ns}.{status.st_size}"


def _nested_stamp(folder: Path) -> str:
    """Of the files in it, but for git's own; unknown where there are too many to look at."""
    digest = hashlib.sha256()
    entries = list(islice(_entries(folder), SNAPSHOT_NESTED.count + 1))
    for path in entries:
        digest.update(f"{path} {_stamp(path)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest() if len(entries) <= SNAPSHOT_NESTED.count else _UNKNOWN


def _entries(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != ".git")
        yield from (Path(where) / name for name in sorted(names))
