"""One stream of events for a tree of processes: JSON lines in one file, each written with one call.

structlog is imported by the first line that is written, not before: most runs write none.
"""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

from aerix.actors.bounds import LOG_FILE

Level = Literal["debug", "info", "warning", "error"]

_FILE = "AERIX_LOG_FILE"
_LEVEL = "AERIX_LOG_LEVEL"
_RANK = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(path: Path) -> None:
    """Write the log of this process and of its children to ``path`` (0600). Without it nothing is logged.

    A file that is named in ``AERIX_LOG_FILE`` already stays. A log over its bound is put aside as ``<name>.1``, in
    place of the one before.
    """
    if _FILE in os.environ:
        return
    with suppress(OSError):
        if path.stat().st_size > LOG_FILE.value:
            path.replace(path.with_name(path.name + ".1"))
    os.environ[_FILE] = str(path)
    _logger.cache_clear()


def log(event: str, *, level: Level = "info", **fields: Any) -> bool:
    """Write one event; whether it was written. What cannot be is dropped: a log never ends what it tells about."""
    if _FILE in os.environ and _RANK[level] >= _RANK.get(os.environ.get(_LEVEL, "info"), 20):
        try:
            getattr(_logger(os.environ[_FILE]), level)(event, **fields)
        except Exception:  # noqa: BLE001  # a full disk, a value whose repr fails: nobody could be told
            return False
        return True
    return False


class _Lines:
    """structlog's end of the chain: a line, one write, in append mode, so that lines of processes never mix."""

    def __init__(self, path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def msg(self, line: str) -> None:
        os.write(self._fd, line.encode("utf-8", "backslashreplace") + b"\n")

    debug = info = warning = error = msg


@cache
def _logger(path: str) -> Any:
    import structlog

    return structlog.wrap_logger(
        _Lines(path),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(default=repr),
        ],
    ).bind(pid=os.getpid())
