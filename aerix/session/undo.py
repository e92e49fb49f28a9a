"""Undo: what is to be put back, so that the files are as they were at a mark of the session's history.

Every change that the session's calls made is taken back from the latest to the first one: where a path is as the change
left it, it becomes what it was before. Where it is not, somebody else has changed it since, and it is left alone unless
that is forced. What only others changed is never touched.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

from aerix.session.blobs import Stored
from aerix.session.history import History, Mark
from aerix.session.kept import read_changes, read_record
from aerix.session.objects import algorithm_of, object_id, read_object
from aerix.session.paths import look
from aerix.session.was import NOTHING, About, Change, Was

_ABOUT = 256 * 1024 * 1024  # bytes of what is kept about a tree
_UNKNOWN = Was("unknown")
SINCE = "changed since"
_OPEN = "changed by a call that did not end, or since"
_UNCOVERED = "how it was is not known"
_NOT_KEPT = "what is there now cannot be kept: it is too large, cannot be read, or is no file"
_GIT_NOTHING = "000000"


@dataclass(slots=True)
class Plan:
    """What is to be done: from how each path is now to how it was. ``left``: paths that are not touched, and why."""

    steps: list[Change] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)


class Lost(Exception):
    """The snapshots are not there any more: the text is a sentence for the user."""


class Changes:
    """The changes of a session, each with the index of the mark behind which it was made. Raises Lost, GitError."""

    def __init__(self, history: History, stored: Stored) -> None:
        self._marks = history.marks
        self._stored = stored
        self.about = cache(self._read_about)

    def since(self, first: int) -> list[Change]:
        """From the mark ``first`` on, the latest first."""
        found: list[tuple[int, Change]] = []
        for request in {mark.request for mark in self._marks[first:]}:
            numbered = [
                (n, mark)
                for n, mark in enumerate(self._marks)
                if n >= first and mark.request == request and mark.record is None
            ]
            in_trees = list(self._in_trees([each for each in numbered if each[1].tree]))
            found += in_trees
            covered = {change.path for _, change in in_trees}
            kept = self._kept([each for each in numbered if each[1].kept])
            found += [each for each in kept if each[1].path not in covered]
        for n, mark in enumerate(self._marks):
            if n >= first and mark.record is not None:
                found += [(n, change) for change in read_changes(self._stored.store, mark.record)]
        return [change for _, change in sorted(found, key=lambda each: each[0], reverse=True)]

    # --- trees

    def _in_trees(self, marks: list[tuple[int, Mark]]) -> Iterator[tuple[int, Change]]:
        for (n, old), (_, new) in pairwise(marks):
            for change in self._between(old, new):
                yield n, change
        if marks and marks[-1][1].call is not None:
            n, old = marks[-1]
            for change in self._between(old, self._next(n) or self._now(old)):
                yield n, replace(change, new=_UNKNOWN)

    def _between(self, old: Mark, new: Mark) -> Iterator[Change]:
        """What differs between two trees of one folder, and what git does not keep of them."""
        if (old.tree, old.about) == (new.tree, new.about):
            return
        before, after = self.about(old.about), self.about(new.about)
        if before.root != after.root:
            return
        files: dict[str, tuple[Was, Was]] = {}
        for old_mode, new_mode, old_blob, new_blob, path in self._stored.differences(
            str(old.tree), str(new.tree)
        ):
            files[path] = _file(before, path, old_mode, old_blob), _file(after, path, new_mode, new_blob)
        files |= self._modes(old, new, files)
        come_or_gone = any(NOTHING in sides or _UNKNOWN in sides for sides in files.values())
        for path in self._folders_in_doubt(old, new, every=come_or_gone):
            sides = self._folder(old, before, path), self._folder(new, after, path)
            was, became = files.get(path, (NOTHING, NOTHING))
            if _UNKNOWN not in sides:
                files[path] = _or(was, sides[0]), _or(became, sides[1])
        for path, (was, became) in files.items():
            if was != became:
                yield Change(f"{before.root}/{path}", was, became)

    def _modes(self, old: Mark, new: Mark, known: Iterable[str]) -> dict[str, tuple[Was, Was]]:
        """Files that only have another mode, of a kind that git does not keep."""
        before, after = self.about(old.about), self.about(new.about)
        paths = {
            path
            for path in before.files.keys() | after.files.keys()
            if before.files.get(path) != after.files.get(path)
        }
        rows = self._stored.entries(str(new.tree), paths - set(known))
        return {path: (before.file(path, *entry), after.file(path, *entry)) for path, entry in rows.items()}

    def _folders_in_doubt(self, old: Mark, new: Mark, *, every: bool) -> set[str]:
        """Those that may be new, gone, or of another mode. Without ``every`` no file has come or gone."""
        before, after = self.about(old.about), self.about(new.about)
        found = set(before.bare ^ after.bare)
        if every or found:
            found |= (before.bare | self._stored.folders(str(old.tree))) ^ (
                after.bare | self._stored.folders(str(new.tree))
            )
        names = before.folders.keys() | after.folders.keys()
        return found | {name for name in names if before.folders.get(name) != after.folders.get(name)}

    def _folder(self, mark: Mark, about: About, path: str) -> Was:
        if path in about.bare or path in self._stored.folders(str(mark.tree)):
            return about.folder(path)
        return NOTHING if about.covers(path) else _UNKNOWN

    def _next(self, n: int) -> Mark | None:
        """The next tree. Where the last call of a request has none, what differs there is its work, or anybody's."""
        return next((mark for mark in self._marks[n + 1 :] if mark.tree), None)

    def _now(self, mark: Mark) -> Mark:
        from aerix.session.worktree import WorkingTree

        tree = WorkingTree(Path(self.about(mark.about).root), self._stored.store)
        tree.take()
        return replace(mark, tree=tree.id, about=tree.about)

    def _read_about(self, name: str | None) -> About:
        data = None if name is None else read_object(self._stored.store, name, _ABOUT)
        try:
            if data is not None:
                return About.load(data)
        except ValueError:
            pass
        raise Lost("the snapshots of this session are not there any more, or damaged: it cannot be undone")

    # --- files that no tree has

    def _kept(self, marks: list[tuple[int, Mark]]) -> Iterator[tuple[int, Change]]:
        last: dict[str, tuple[int, Was]] = {}
        ended = False
        for n, mark in marks:
            for path, was in read_record(self._stored.store, str(mark.kept)):
                if path in last and last[path][1] != was:
                    yield last[path][0], Change(path, last[path][1], was)
                last[path] = n, was
            ended = mark.call is None
        if not ended:
            for path, (n, was) in last.items():
                yield n, Change(path, was, _UNKNOWN)


def plan(changes: list[Change], *, force: bool) -> Plan:
    """Take the changes back; they are given the latest first. ``force``: also where somebody changed a path since."""
    by_path: dict[str, list[Change]] = {}
    for change in changes:
        by_path.setdefault(change.path, []).append(change)
    made = Plan()
    for path, its in sorted(by_path.items()):
        now = look_as(path, its)
        was, why = _taken_back(now, its)
        if why and not _same(now, its[-1].old, its[-1]):
            was, why = (its[-1].old, "") if force else (now, why)
            made.left += [(path, why)] if why else []
        if was.kind == "unknown":
            made.left.append((path, _UNCOVERED))
        elif now.kind == "unknown" and was != now:
            made.left.append((path, _NOT_KEPT))
        elif was != now and (was != NOTHING or now.kind != "folder" or _was_made(its)):
            made.steps.append(Change(path, now, was))
    made.steps = _that_empty(made.steps)
    return made


def _that_empty(steps: list[Change]) -> list[Change]:
    """Without the folders that would still hold something."""
    going = {step.path for step in steps if step.new == NOTHING}
    for step in sorted(steps, key=lambda step: step.path.count("/"), reverse=True):
        if (step.old.kind, step.new) == ("folder", NOTHING) and not _is_emptied(step.path, going):
            going.discard(step.path)
    return [step for step in steps if step.new != NOTHING or step.path in going]


def _is_emptied(folder: str, going: set[str]) -> bool:
    try:
        return all(f"{folder}/{entry.name}" in going for entry in Path(folder).iterdir())
    except OSError:
        return False


def look_as(path: str, changes: list[Change]) -> Was:
    """How a path is now, its content named as the changes name theirs."""
    found, data = look(path)
    if data is None:
        return found
    names = (blob for change in changes for blob in (change.old.blob, change.new.blob) if blob)
    return found._replace(blob=object_id("blob", data, algorithm_of(next(names, "0" * 40))))


def _taken_back(now: Was, changes: list[Change]) -> tuple[Was, str]:
    """How a path was before the changes; and why that cannot be told."""
    was = now
    for change in changes:
        if _same(was, change.new, change):
            was = change.old
        elif not (change.tried and _same(was, change.old, change)):
            return now, _OPEN if change.new.kind == "unknown" else SINCE
    return was, ""


def _same(found: Was, left: Was, change: Change) -> bool:
    """Whether a path is as a change left it. A folder in a file's place is no file, which is all that a tree tells."""
    if left == NOTHING and found.kind == "folder":
        return "folder" not in (change.old.kind, change.new.kind)
    return found == left and left.kind != "unknown"


def _was_made(changes: list[Change]) -> bool:
    return any(change.new.kind == "folder" for change in changes)


def _file(about: About, path: str, mode: str, blob: str) -> Was:
    if mode != _GIT_NOTHING:
        return about.file(path, mode, blob)
    return NOTHING if about.covers(path) else _UNKNOWN


def _or(file: Was, folder: Was) -> Was:
    return folder if file == NOTHING else file
