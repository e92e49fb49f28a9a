"""Where a pool listens: the socket, the folder and the lock beside it; binding, connecting, and who holds the lock."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

_LONGEST = 107  # bytes of a path in a socket address
_FLOCK = struct.Struct("hhqqi4x")


def default_socket() -> Path:
    """``$XDG_RUNTIME_DIR/aerix/pool.sock``, else under ``$XDG_STATE_HOME``."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) / "aerix" if runtime and Path(runtime).is_dir() else state_dir()
    return folder / "pool.sock"


def default_start_log() -> Path:
    """Where an autostarted pool's output is appended."""
    return state_dir() / "pool-start.log"


def state_dir() -> Path:
    """``$XDG_STATE_HOME/aerix``."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "aerix"


class Lock:
    """The right to listen at a socket's path, held for the life of the process.

    A record lock and not ``flock``: it can be asked who holds it without taking it, children do not inherit it, and
    it goes with the process however that ends. The file stays.
    """

    def __init__(self, path: Path) -> None:
        self._fd = _open_lock(path)

    def take(self) -> bool:
        """Take it; False when another process holds it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def release(self) -> None:
        """Give it back."""
        os.close(self._fd)


def holder(path: Path) -> int | None:
    """The process that listens at ``path``, or is about to; None when there is none. Raises OSError."""
    try:
        fd = os.open(_lock_file(path), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    finally:
        os.close(fd)
    return None if kind == fcntl.F_UNLCK else int(pid)


def listen(path: Path) -> socket.socket:
    """A listening socket at ``path``, mode 0600. Whoever calls holds the Lock, so a file that is there is stale."""
    make_folder(path.parent)
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "it is there and is no socket", str(path))
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        os.fchmod(listener.fileno(), 0o600)  # before bind: there is no moment with a wider mode
        with _short(path) as address:
            listener.bind(address)
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(path: Path) -> socket.socket:
    """A non-blocking connection to ``path``. Raises OSError; BlockingIOError means alive, but busy: try again."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        with _short(path) as address:
            sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def make_folder(folder: Path) -> None:
    """Make a folder that only this user can enter; one that is there keeps its mode."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name for ``path`` that fits into a socket address, however long the path is."""
    if len(os.fsencode(path)) <= _LONGEST:
        yield str(path)
        return
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


def _lock_file(path: Path) -> Path:
    """Raises IsADirectoryError for a path that has no name."""
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    return path.with_name(path.name + ".lock")


def _open_lock(path: Path) -> int:
    make_folder(path.parent)
    return os.open(_lock_file(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
