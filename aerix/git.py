"""Running git in a working tree that nobody vouches for: bounded in time and size, and on git's own code alone.

What a repository's settings could start is switched off: hooks, file system monitors, clean and smudge filters,
external diffs, fetches of missing objects. The user's index and objects are only read.
"""

import os
import selectors
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO

from aerix.bounds import GIT_CALL, GIT_OUTPUT

_SWITCHED_OFF = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.safecrlf=false",
    "core.splitIndex=false",  # it would write beside the user's index
    "core.quotePath=false",
    "core.fsync=none",
    "protocol.allow=never",
)
_NOT_INHERITED = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_CONFIG", "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS",
    "GIT_DIFF_OPTS", "GIT_DIR", "GIT_EXTERNAL_DIFF", "GIT_GLOB_PATHSPECS", "GIT_GRAFT_FILE", "GIT_ICASE_PATHSPECS",
    "GIT_IMPLICIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_LITERAL_PATHSPECS", "GIT_NAMESPACE", "GIT_NOGLOB_PATHSPECS",
    "GIT_NO_REPLACE_OBJECTS", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_REPLACE_REF_BASE", "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
)  # fmt: skip
_ALWAYS = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C",
}
_STDERR_KEPT = 2048
_READ = 262_144


class GitError(Exception):
    """git is missing, ran out of time, or said no: a stable ``code`` and a sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Done:
    """What a call of git gave. ``cut``: it said more than ``max_bytes`` and was ended."""

    exit: int
    out: bytes
    err: str
    cut: bool = False

    def paths(self) -> list[str]:
        """The output of ``-z`` as paths."""
        return [os.fsdecode(path) for path in self.out.split(b"\0") if path]


def git(
    args: Sequence[str],
    cwd: Path,
    *,
    config: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    feed: bytes = b"",
    deadline_s: float | None = None,
    max_bytes: int | None = None,
    may_fail: bool = False,
    leash: int | None = None,
) -> Done:
    """Run git and return what it said; ``config`` are more ``key=value`` settings for this call.

    ``leash`` is the reading end of a pipe, whose other end somebody closes who waits no longer. Raises GitError
    ``git_missing``, ``git_timeout`` and ``git_given_up`` (its process group is killed then), ``git_output`` where it said
    more than the bound and ``max_bytes`` is not given, and, unless ``may_fail``, ``git_failed`` with its own last line.
    """
    options = [part for setting in (*_SWITCHED_OFF, *config) for part in ("-c", setting)]
    with _file_of(feed) as stdin:
        process = _start(["git", "--no-pager", *options, *args], cwd, env or {}, stdin)
    limit_s = GIT_CALL.value if deadline_s is None else deadline_s
    try:
        most = GIT_OUTPUT.count if max_bytes is None else max_bytes
        done = _collect(process, args[0], limit_s, most, leash)
    finally:
        _end(process)
    if done.cut and max_bytes is None:
        raise GitError("git_output", f"git {args[0]} said more than {GIT_OUTPUT.count:,} bytes")
    if done.exit != 0 and not done.cut and not may_fail:
        raise GitError("git_failed", f"git {args[0]} failed: {_last_line(done.err) or f'exit {done.exit}'}")
    return done


def _file_of(feed: bytes) -> IO[bytes]:
    if not feed:
        return Path(os.devnull).open("rb")
    import tempfile

    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    file.write(feed)
    file.seek(0)
    return file


def _start(
    command: list[str], cwd: Path, env: Mapping[str, str], stdin: IO[bytes]
) -> "subprocess.Popen[bytes]":
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    try:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env={**inherited, **_ALWAYS, **env},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        missing = "the git program was not found" if cwd.is_dir() else f"the folder {cwd} does not exist"
        raise GitError("git_missing", missing) from None
    except OSError as error:
        raise GitError("git_missing", f"git could not be started: {error.strerror}") from None


def _collect(
    process: "subprocess.Popen[bytes]", what: str, limit_s: float, max_bytes: int, leash: int | None
) -> Done:
    deadline = monotonic() + limit_s
    out, err = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, buffer in ((process.stdout, out), (process.stderr, err)):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, buffer)
        if leash is not None:
            selector.register(leash, selectors.EVENT_READ)
        while len(selector.get_map()) > (leash is not None) and len(out) <= max_bytes:
            ready = selector.select(max(0.0, deadline - monotonic()))
            if not ready:
                raise GitError("git_timeout", f"git {what} did not end in {limit_s:g} s")
            for key, _ in ready:
                if key.data is None:
                    raise GitError("git_given_up", f"nobody waits for git {what} any more")
                data = os.read(key.fd, _READ)
                key.data.extend(data)
                if not data:
                    selector.unregister(key.fileobj)
            del err[:-_STDERR_KEPT]
    text = err.decode("utf-8", "replace")
    if len(out) > max_bytes:
        return Done(-1, bytes(out[:max_bytes]), text, cut=True)
    try:
        return Done(process.wait(max(0.1, deadline - monotonic())), bytes(out), text)
    except subprocess.TimeoutExpired:
        raise GitError("git_timeout", f"git {what} did not end in {limit_s:g} s") from None


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the group where it still runs, and reap."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def filters_off(cwd: Path, leash: int | None = None) -> list[str]:
    """The settings that switch off every clean, smudge and process filter that is configured.

    They are programs that a repository names; git would run them wherever it reads a file's content. Raises GitError
    ``git_filter`` for a name that no setting of a command line can reach.
    """
    asked = ["config", "-z", "--name-only", "--get-regexp", r"^filter\."]
    found = git(asked, cwd, may_fail=True, leash=leash).paths()
    drivers = {key.rpartition(".")[0] for key in found}
    if odd := sorted(d for d in drivers if "=" in d or "\n" in d):
        raise GitError(
            "git_filter", f"the setting {odd[0]!r} of this repository has a name that cannot be overridden"
        )
    return [
        f"{d}.{setting}"
        for d in sorted(drivers)
        for setting in ("clean=", "smudge=", "process=", "required=false")
    ]
