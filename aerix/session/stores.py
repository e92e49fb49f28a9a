"""The stores of all sessions together: bounded, the ones that were used least recently go first."""

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

from aerix.bounds import UNDO_STORES
from aerix.session.objects import stored_bytes

_SIZE = "size"


def note_size(store: Path, size: int) -> None:
    """Note how large a store has become, and that it was in use."""
    with suppress(OSError):
        (store / _SIZE).write_text(str(size))


def prune(store: Path, size: int) -> None:
    """Remove the stores of other sessions while all together, with this one of ``size`` bytes, are over the bound.

    A session that is open keeps its own.
    """
    others = sorted(_stores(store), key=_used)
    total = sum(map(_size, others)) + size
    for other in others:
        if total <= UNDO_STORES.count:
            return
        freed = _size(other)
        if _remove(other):
            total -= freed


def _stores(store: Path) -> list[Path]:
    """Each is ``sessions/PROJECT/SESSION/trees``."""
    session = store.parent
    return [path for path in session.parent.parent.glob(f"*/*/{store.name}") if path != store]


def _used(store: Path) -> float:
    for path in (store / _SIZE, store):
        with suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def _size(store: Path) -> int:
    """As it was noted; where the session was killed before it could, that is made up for."""
    try:
        return int((store / _SIZE).read_text())
    except (OSError, ValueError):
        size = stored_bytes(store / "objects")
    with suppress(OSError):
        used = store.stat().st_mtime
        note_size(store, size)
        os.utime(store / _SIZE, (used, used))
    return size


def _remove(store: Path) -> bool:
    log = store.parent.with_name(f"{store.parent.name}.jsonl")
    try:
        fd = os.open(log, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        fd = -1  # no log, no session
    try:
        if fd >= 0:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(store, ignore_errors=True)
    except OSError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True
