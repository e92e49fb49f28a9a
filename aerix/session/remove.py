"""Removing a session: its log, its spool files and trees, its projection. What is in use stays whole."""

import fcntl
import os
import shutil
from contextlib import suppress

from aerix.actors import Refused
from aerix.session.index import Place, entries
from aerix.session.log import in_use


def remove(place: Place) -> None:
    """Remove a session. Raises Refused ``session_locked`` where it is open, ``session_storage`` where that fails."""
    try:
        descriptor = os.open(place.log, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise _stays(place, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if place.folder.is_symlink():
            place.folder.unlink()
        elif place.folder.exists():
            shutil.rmtree(place.folder)
        place.log.with_suffix(".claude.jsonl").unlink(missing_ok=True)
        place.log.unlink()  # last: as long as it is there, the rest can be removed
    except BlockingIOError:
        raise in_use(place.log) from None
    except OSError as error:
        raise _stays(place, error) from None
    finally:
        os.close(descriptor)
    entries(place.home)


def running(place: Place) -> bool:
    """Whether a session is open in some aerix right now."""
    with suppress(OSError):
        descriptor = os.open(place.log, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _stays(place: Place, error: OSError) -> Refused:
    what = error.filename or place.log
    return Refused("session_storage", f"the session {place.id} cannot be removed: {what}: {error.strerror}")
