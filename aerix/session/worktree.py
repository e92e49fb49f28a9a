"""WorkingTree: a repository's working tree as git trees, taken again and again (DESIGN section 5, "Snapshots").

The first tree is made from what git says of the files: those that are as the index has them keep their objects, all
others are stored. From then on only the files' status is looked at: a tree in which nothing changed costs that look
and nothing else, one in which something changed the files that did. git is asked again only for files that are new,
since it knows what is ignored.

Every blob is a file's bytes as they are: no filter, line end or encoding is converted, so that undo can give them back. The
repository, its index and its objects are only read, and nothing that it configures is run (``aerix.git``).
"""

import os
import select
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from aerix.bounds import SNAPSHOT_ENTRIES, SNAPSHOT_FILE, SNAPSHOT_FILES, SNAPSHOT_TOTAL
from aerix.git import GitError, filters_off, git
from aerix.session.objects import Objects, Trees
from aerix.session.paths import read_regular
from aerix.session.walk import Found, walk
from aerix.session.was import PLAIN, PROGRAM, About, git_mode, plain_mode

_NESTED = b"160000"
_AS_IT_WAS = b"H"  # git's mark of an entry that is unchanged
_TICK_NS = 20_000_000  # a file that changes twice within it may show one time of change
_LINK = stat.S_IFLNK | 0o777
_AS_STORED = {"GIT_NO_REPLACE_OBJECTS": "1"}


class WorkingTree:
    """Belongs to one thread. Raises GitError, also ``git_given_up`` once the leash is let go."""

    def __init__(self, root: Path, store: Path, leash: int | None = None) -> None:
        self.root = root
        self._leash = leash
        algorithm = self._git("rev-parse", "--show-object-format").decode().strip()
        self.objects = Objects(store, algorithm)
        self._trees = Trees(self.objects)
        self._ignored: set[str] = set()
        self._links: set[str] = set()
        """Nested repositories that the index has."""
        self._found = Found()
        self._unsure: set[str] = set()
        """Files that may have changed since without showing it."""
        self._large: set[str] = set()
        """Files that are not in the tree: over a bound, or not to be read."""
        self._begun = False
        self.id = ""
        """Of the tree that was taken last."""
        self.about = ""
        """The id of its ``About``."""

    @property
    def entries(self) -> int:
        """How many files and folders it has."""
        return len(self._found.files) + len(self._found.folders)

    @property
    def left_out(self) -> list[str]:
        """What is not in the tree, but would be: over a bound, unreadable, nested repositories."""
        nested = {path if path in self._links else f"{path}/" for path in self._found.nested}
        return sorted(self._large | nested | self._links | set(self._found.closed))

    @property
    def ignored(self) -> list[str]:
        """What git ignores; of a folder that is ignored as a whole its name."""
        return sorted(self._ignored)

    def covers(self, path: str) -> bool:
        """Whether a path below the root is a file of the tree that was taken last."""
        return self._trees.get(path) is not None

    def take(self) -> bool:
        """Take the tree; whether it is another than the one before. ``id`` and ``about`` name it."""
        since = time.time_ns() - _TICK_NS
        if not self._begun:
            self._ignored = self._listed_ignored()
        found = self._look()
        if self._begun and found == self._found and not self._unsure:
            return False
        before = self.id, self.about
        changed = self._changed(found) if self._begun else self._first(found)
        found = self._found
        self._unsure = {path for path in changed if path in found.files and found.files[path][1] >= since}
        self.id = self._trees.write()
        self.about = self.objects.put("blob", self._about().dump())
        self._begun = True
        return before != (self.id, self.about)

    # --- the first time

    def _first(self, found: Found) -> Iterable[str]:
        """Take in what git says; the files that are in the tree or left out."""
        config = filters_off(self.root, self._leash)
        known = self._git("ls-tree", "-r", "-d", "-z", "HEAD", may_fail=True)
        self.objects.known(row.split()[2].decode() for row in known.split(b"\0") if row)
        options = ("-z", "-v", "--stage", "--modified", "--deleted", "--others", "--exclude-standard")
        same, covered = self._sorted_out(self._git("ls-files", *options, config=config), found)
        same = self._raw(same, found, bool(config))
        found.files = {path: stamp for path, stamp in found.files.items() if path in covered}
        self._found = found
        for path, blob in same.items():
            self._trees.put(path, (git_mode(found.files[path][3]), blob))
        self._store(covered - same.keys())
        return found.files

    def _sorted_out(self, listed: bytes, found: Found) -> tuple[dict[str, str], set[str]]:
        """The files that are as the index has them, with their objects; and all that git does not ignore."""
        same: dict[str, str] = {}
        other: set[str] = set()
        for line in listed.split(b"\0"):
            mark, rest = line[:1], line[2:]
            about, _, name = rest.partition(b"\t") if mark != b"?" else (b"", b"", rest)
            path = os.fsdecode(name)
            if about.startswith(_NESTED):
                self._links.add(path)
            elif path not in found.files:
                continue
            elif mark == _AS_IT_WAS and about.endswith(b" 0"):
                same[path] = about.split()[1].decode()
            else:
                other.add(path)
        same = {path: blob for path, blob in same.items() if path not in other}
        return same, other | same.keys()

    def _raw(self, same: dict[str, str], found: Found, filtered: bool) -> dict[str, str]:
        """Those of the files whose objects have the very bytes: git may keep other line ends, encodings, or pointers."""
        sizes = dict(self._sizes(set(same.values())))
        paths = {path for path, blob in same.items() if sizes.get(blob) == found.files[path][2]}
        if filtered and paths:
            feed = b"".join(os.fsencode(path) + b"\0" for path in sorted(paths))
            told = self._git("check-attr", "-z", "--stdin", "filter", feed=feed).split(b"\0")
            for path, value in zip(told[::3], told[2::3], strict=False):
                if value != b"unspecified":
                    paths.discard(os.fsdecode(path))
        return {path: blob for path, blob in same.items() if path in paths}

    def _sizes(self, names: set[str]) -> Iterable[tuple[str, int]]:
        if names:
            feed = "".join(f"{name}\n" for name in sorted(names)).encode()
            told = self._git("cat-file", "--batch-check", feed=feed).decode()
            rows = (line.split() for line in told.splitlines())
            yield from ((row[0], int(row[2])) for row in rows if len(row) == 3)

    # --- after that

    def _changed(self, found: Found) -> Iterable[str]:
        """Take in what is not as it was; the files that were stored."""
        old = self._found
        changed, gone = _differing(old, found)
        fresh = changed - old.files.keys()
        if fresh or any(path.rpartition("/")[2] == ".gitignore" for path in changed | gone):
            found = self._without_ignored(found, fresh)
            changed, gone = _differing(old, found)
        self._found = found
        for path in gone:
            self._trees.put(path, None)
        self._large -= gone
        again = {path for path in self._unsure if path in found.files}
        self._store(changed | again)
        return changed | again

    def _without_ignored(self, found: Found, fresh: set[str]) -> Found:
        """There are new files, or other rules: what git ignores is not looked at. A file of the tree stays one."""
        listed = self._git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split(b"\0")
        ours = {os.fsdecode(name) for name in listed} | self._found.files.keys()
        ignored = self._listed_ignored()
        if fresh - ours or ignored != self._ignored:
            self._ignored = ignored
            found = self._look()
        found.files = {path: stamp for path, stamp in found.files.items() if path in ours}
        return found

    # --- both

    def _look(self) -> Found:
        found = walk(str(self.root), self._ignored, SNAPSHOT_ENTRIES.count)
        if found is None:
            raise GitError(
                "snapshot_entries",
                f"the working tree has more than {SNAPSHOT_ENTRIES.count:,} files and folders (snapshot.entries)",
            )
        if "" in found.closed:
            raise GitError("git_failed", f"the folder {self.root} cannot be read")
        return found

    def _listed_ignored(self) -> set[str]:
        """Without slashes; and without folders that hold something else too, which git names as well."""
        options = ("-z", "--others", "--ignored", "--exclude-standard", "--directory")
        names = {
            os.fsdecode(name).rstrip("/") for name in self._git("ls-files", *options).split(b"\0") if name
        }
        around = {above for name in names for above in _above(name)}
        return {name for name in names - around if name not in self._trees.folders and not self.covers(name)}

    def _store(self, paths: set[str]) -> None:
        """Store files as far as there is room; the others are left out."""
        room, left = SNAPSHOT_TOTAL.count, SNAPSHOT_FILES.count
        for path in sorted(paths):
            _, _, size, mode = self._found.files[path]
            data = self._content(path, mode) if left and size <= min(room, SNAPSHOT_FILE.count) else None
            if data is None:
                self._large.add(path)
                self._trees.put(path, None)
                continue
            room, left = room - len(data), left - 1
            self._large.discard(path)
            self._trees.put(path, (git_mode(mode), self.objects.put("blob", data)))

    def _content(self, path: str, mode: int) -> bytes | None:
        """The bytes of a file, or a link's target; None where they cannot be read, or are too many by now."""
        self._hold()
        full = f"{self.root}/{path}"
        try:
            if stat.S_ISLNK(mode):
                return os.fsencode(os.readlink(full))  # noqa: PTH115 - no Path for each file
            return read_regular(full, SNAPSHOT_FILE.count) if os.access(full, os.R_OK) else None
        except OSError:
            return None

    def _hold(self) -> None:
        """Whoever waits for the tree may have given it up."""
        if self._leash is not None and select.select([self._leash], [], [], 0)[0]:
            raise GitError("git_given_up", "nobody waits for the snapshot any more")

    def _about(self) -> About:
        found, umask = self._found, _umask()
        plain = 0o777 & ~umask
        usual = {stat.S_IFREG | plain_mode(mode, umask) for mode in (PLAIN, PROGRAM)} | {_LINK}
        return About(
            root=str(self.root),
            umask=umask,
            files={
                path: stat.S_IMODE(mode) for path, (_, _, _, mode) in found.files.items() if mode not in usual
            },
            folders={path: mode for path, mode in found.folders.items() if mode != plain},
            bare=frozenset(found.folders.keys() - self._trees.folders.keys()),
            uncovered=frozenset({*self._ignored, *self._large, *self._links, *found.nested, *found.closed}),
        )

    def _git(
        self, *args: str, feed: bytes = b"", config: list[str] | None = None, may_fail: bool = False
    ) -> bytes:
        return git(
            args,
            self.root,
            config=config or (),
            env=_AS_STORED,
            feed=feed,
            may_fail=may_fail,
            leash=self._leash,
        ).out


def _differing(old: Found, new: Found) -> tuple[set[str], set[str]]:
    """The files that are new or changed, and those that are gone."""
    changed = {path for path, stamp in new.files.items() if old.files.get(path) != stamp}
    return changed, set(old.files.keys() - new.files.keys())


def _above(path: str) -> Iterable[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _umask() -> int:
    """The umask of this process, read where it need not be set."""
    with open("/proc/self/status", encoding="utf-8") as file:  # noqa: PTH123 - as short as it can be
        return next(int(line.split()[1], 8) for line in file if line.startswith("Umask"))
