"""Restore: paths become what a plan says, each at once, so that a kill at any moment leaves it old or new."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aerix.session.blobs import Stored
from aerix.session.objects import Objects
from aerix.session.paths import look, parent_of
from aerix.session.was import NOTHING, Change, Was

Left = tuple[str, str]
_GONE = "its content is not there any more"


def restore(steps: Iterable[Change], stored: Stored) -> list[Left]:
    """Do it all; the paths that could not be put back, and why."""
    return _Restoring(stored).run(list(steps))


class _Restoring:
    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._left: list[Left] = []
        self._opened: dict[str, int] = {}
        """Folders that were made writable for a while, with the modes that they are to have in the end."""

    def run(self, steps: list[Change]) -> list[Left]:
        """Folders are opened first and closed last; what goes, goes before what comes."""
        files = [step for step in steps if step.new.kind in ("file", "link")]
        folders = [step for step in steps if step.new.kind == "folder"]
        going = [
            step
            for step in steps
            if step.old.kind in ("file", "link") and step.new.kind in ("none", "folder")
        ]
        emptied = [step for step in steps if step.old.kind == "folder" and step.new == NOTHING]
        for step in sorted(folders, key=_depth):
            if step.old.kind == "folder":
                self._try(step, self._open)
        for step in going:
            self._try(step, self._remove)
        for step in sorted(emptied, key=_depth, reverse=True):
            self._try(step, self._remove_folder)
        for step in sorted(folders, key=_depth):
            if step.old.kind != "folder":
                self._try(step, self._make_folder)
        for step, data in zip(files, self._stored.blobs([step.new.blob for step in files]), strict=True):
            if data is None:
                self._left.append((step.path, _GONE))
            else:
                self._try(step, self._put, data)
        for path, mode in sorted(self._opened.items(), reverse=True):
            with suppress(OSError):
                _set_mode(path, mode)
        return self._left

    def _try(self, step: Change, do: Callable[..., None], *more: bytes) -> None:
        try:
            do(step, *more)
        except OSError as error:
            self._left.append((step.path, (error.strerror or str(error)).lower()))

    # --- one path

    def _open(self, step: Change) -> None:
        _set_mode(step.path, step.new.mode | 0o700)
        self._opened[step.path] = step.new.mode

    def _remove(self, step: Change) -> None:
        with self._parent(step.path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def _remove_folder(self, step: Change) -> None:
        with self._parent(step.path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    def _make_folder(self, step: Change) -> None:
        with self._parent(step.path, make=True) as (folder, name):
            os.mkdir(name, dir_fd=folder)
        self._opened[step.path] = step.new.mode

    def _put(self, step: Change, data: bytes) -> None:
        with self._parent(step.path, make=True) as (folder, name):
            if step.old.kind == "folder":
                with suppress(FileNotFoundError):  # it went with the last file in it
                    os.rmdir(name, dir_fd=folder)
            new = f".aerix-undo-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
            with suppress(FileNotFoundError):  # of a run that was killed
                os.unlink(new, dir_fd=folder)
            if step.new.kind == "link":
                os.symlink(data, new, dir_fd=folder)
            else:
                _write(folder, new, name, data, step.new)
            os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The folder of a path, made where it is not there, and writable for the time."""
        with parent_of(path, make=make) as (folder, name):
            mode = stat.S_IMODE(os.fstat(folder).st_mode)
            if mode & 0o300 != 0o300:
                os.fchmod(folder, mode | 0o300)
                self._opened.setdefault(path.rpartition("/")[0], mode)
            yield folder, name


def keep(steps: Iterable[Change], objects: Objects) -> tuple[list[Change], list[Left]]:
    """Store what is at the paths now, so that undo can be undone; the steps that can be done, and what is left.

    Raises GitError ``undo_store``, OSError.
    """
    done, left = [], []
    for step in steps:
        found, data = look(step.path)
        if data is not None:
            found = found._replace(blob=objects.put("blob", data))
        if found == step.old:
            done.append(step)
        else:
            left.append((step.path, "changed meanwhile"))
    return done, left


def _depth(step: Change) -> int:
    return step.path.count("/")


def _write(folder: int, new: str, old: str, data: bytes, was: Was) -> None:
    """A file with its mode, and the owner of the one in whose place it comes."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(new, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(data)
        file.flush()
        with suppress(OSError):
            status = os.stat(old, dir_fd=folder, follow_symlinks=False)
            os.fchown(file.fileno(), status.st_uid, status.st_gid)
        os.fchmod(file.fileno(), was.mode)


def _set_mode(path: str, mode: int) -> None:
    """Of a folder, which may be closed to its owner; never through a link."""
    with parent_of(path) as (folder, name):
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            Path(f"/proc/self/fd/{fd}").chmod(mode)
        finally:
            os.close(fd)
