"""Snapshots: an actor that takes the working tree as git trees, at a request's start and end and before each call that
may change it, and the difference of two (DESIGN section 5). The request's diff and undo live on the same trees.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from aerix.actors import Actor, Exit, Refused, on
from aerix.bounds import DIFF_BYTES, SNAPSHOT_NESTED, UNDO_ENTRIES
from aerix.git import GitError, git
from aerix.session.kept import Keeper
from aerix.session.objects import Objects
from aerix.session.project import repository_root
from aerix.session.stores import note_size, prune
from aerix.session.worktree import WorkingTree

_UNKNOWN = "?"


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
    """Take one for the diff; answered by a ``Tree``, or None outside a repository."""


@dataclass(frozen=True, slots=True)
class DiffTrees:
    """Compare two trees; answered by ``DiffText``."""

    before: Tree
    after: Tree


@dataclass(frozen=True, slots=True)
class TakePoint:
    """Take one for undo; answered by a ``Point``. ``path``: the file that the call behind it names, as it names it."""

    path: str | None = None


@dataclass(frozen=True, slots=True)
class TakeLastPoint:
    """The request ends; answered by a ``Point``, or None where none was taken in it."""


@dataclass(frozen=True, slots=True)
class Point:
    """How everything was that undo can go back to. What is None is not there: outside a repository there is no tree."""

    tree: str | None = None
    about: str | None = None
    """The id of what git does not keep of the tree (``session.was.About``)."""
    root: str | None = None
    kept: str | None = None
    """The id of a record of files that are not in the tree (``session.kept``)."""
    uncovered: list[str] | None = None
    """What is not in the tree; None where the tree is the one that was taken before."""
    problem: str = ""
    """Why there is no tree, where there ought to be one."""


class Snapshots(Actor):
    """Takes and compares snapshots for a request, so that nobody else waits in git.

    Refuses with a code of ``GitError`` (``git_missing``, ``git_timeout``, ``git_failed``, ``git_filter``,
    ``snapshot_entries``, ``undo_store``, ``undo_entries``): the request goes on without a diff, or with a call that cannot be
    undone, and says why.
    """

    def __init__(self, cwd: Path, store: Path, leash: int | None = None) -> None:
        """``store`` is the session's folder for objects; it is created with the first snapshot. ``leash``, as git takes
        it, is closed here: a call of git cannot hear messages.
        """
        self._cwd = cwd
        self._store = store
        self._leash = leash
        self._taken: WorkingTree | None = None
        self._keeper: Keeper | None = None
        self._told = False

    @on(TakeSnapshot)
    def take(self, _message: TakeSnapshot) -> Tree | None:
        """Take a snapshot for the diff."""
        with _refusing():
            tree = self._tree()
            if tree is None:
                return None
            tree.take()
            return _stamped(tree)

    @on(DiffTrees)
    def diff(self, message: DiffTrees) -> DiffText:
        """Compare two snapshots."""
        with _refusing():
            return diff(message.before, message.after, self._store, self._leash)

    @on(TakePoint)
    def point(self, message: TakePoint) -> Point:
        """Take a snapshot for undo. Where there is no tree, the file that the call names is kept all the same."""
        begun = self._keeper is not None
        point = self._point(again=begun)
        with _refusing():
            if self._keeper is None:
                if self._taken is None:
                    objects = Objects(self._store)
                    prune(self._store, objects.size)
                else:
                    objects = self._taken.objects
                self._keeper = Keeper(self._cwd, objects)
            tree = None if point.tree is None else self._taken
            kept = None if message.path is None else self._keeper.before(message.path, tree)
        return replace(point, kept=kept)

    @on(TakeLastPoint)
    def last(self, _message: TakeLastPoint) -> Point | None:
        """Take a snapshot of what all calls have left."""
        if self._keeper is None:
            return None
        with _refusing():
            point = replace(self._point(), kept=self._keeper.after())
            note_size(self._store, self._keeper.size)
        return point

    def _point(self, *, again: bool = False) -> Point:
        """``again``: the request has one already, from before a call."""
        try:
            with _stored():
                tree = self._tree()
                if tree is None:
                    return Point()
                if again and tree.entries > UNDO_ENTRIES.count:
                    raise GitError("undo_entries", _TOO_MANY.format(UNDO_ENTRIES.count))
                fresh = tree.take() or not self._told
        except GitError as error:
            return Point(problem=error.message)
        self._told = True
        uncovered = [*tree.left_out, *tree.ignored] if fresh else None
        return Point(tree.id, tree.about, str(tree.root), uncovered=uncovered)

    def _tree(self) -> WorkingTree | None:
        """The repository's working tree; None outside one."""
        if self._taken is None:
            root = repository_root(self._cwd)
            if root is not None:
                self._taken = WorkingTree(root, self._store, self._leash)
                prune(self._store, self._taken.objects.size)
        return self._taken

    def teardown(self, exit: Exit) -> None:
        """Let go of the leash."""
        if self._leash is not None:
            os.close(self._leash)


_TOO_MANY = "the working tree has more than {:,} files and folders (undo.entries): undo goes back to before the first call, to no later one"


@contextmanager
def _refusing() -> Iterator[None]:
    """Errors as what an actor answers."""
    try:
        with _stored():
            yield
    except GitError as error:
        raise Refused(error.code, error.message) from None


@contextmanager
def _stored() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GitError("git_failed", f"the snapshot could not be stored: {error.strerror}") from None


def take(cwd: Path, store: Path, leash: int | None = None) -> Tree | None:
    """Take one snapshot of the working tree around ``cwd``; None where there is none. Raises GitError."""
    root = repository_root(cwd)
    if root is None:
        return None
    with _stored():
        tree = WorkingTree(root, store, leash)
        tree.take()
        return _stamped(tree)


def _stamped(tree: WorkingTree) -> Tree:
    """What is left out may have changed too."""
    return Tree(tree.id, str(tree.root), {path: _stamp_of(tree.root / path) for path in tree.left_out})


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
        env=objects_of(store, objects),
        max_bytes=DIFF_BYTES.count,
        leash=leash,
    )
    text = done.out.decode("utf-8", "replace")
    if done.cut:
        text = f"{text[: text.rfind(chr(10)) + 1]}[the diff is cut here, at {DIFF_BYTES.count:,} bytes]\n"
    return DiffText(text, changed, done.cut)


def _may_differ(path: str, before: dict[str, str], after: dict[str, str]) -> bool:
    return before.get(path) != after.get(path) or after.get(path) == _UNKNOWN


def objects_of(store: Path, theirs: Path) -> dict[str, str]:
    """Variables that let git read the objects of a store beside the repository's own."""
    quoted = str(theirs).replace("\\", "\\\\").replace('"', '\\"')
    return {
        "GIT_OBJECT_DIRECTORY": str(store / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{quoted}"',
        "GIT_NO_REPLACE_OBJECTS": "1",
    }


def _stamp_of(path: Path) -> str:
    return _nested_stamp(path) if path.is_dir() and not path.is_symlink() else _stamp(path)


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
