"""The stores of all sessions together: bounded, the ones that were used least recently go first."""

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

from aerix.bounds import UNDO_STORES
from aerix.session.objects import stored_bytes

_SIZE = "size"


def prune(store: Path, size: int) -> None:
    """Note the bytes of this store, and remove those of other sessions while all together are over the bound.

    A session that is open keeps its own.
    """
    with suppress(OSError):
        (store / _SIZE).write_text(str(size))
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
    with suppress(OSError):
        return (store / _SIZE).stat().st_mtime
    return 0.0


def _size(store: Path) -> int:
    """As it was noted; measured where the session was killed before it could."""
    try:
        return int((store / _SIZE).read_text())
    except (OSError, ValueError):
        return stored_bytes(store / "objects")


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
