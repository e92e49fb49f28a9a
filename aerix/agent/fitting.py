"""Fitting: a result cut to fewer bytes, the whole of it in the session's spool with a pointer line to it."""

from dataclasses import replace
from pathlib import Path

from aerix.tools.caps import cap, free_file, head, pointer
from aerix.tools.messages import ToolResult

_MARK = "\n[truncated: "


def fitted(result: ToolResult, limit: int, spool: Path, call: str) -> ToolResult:
    """The result in about ``limit`` bytes; 0 gives the pointer alone. What is no longer than its pointer stays whole.

    How a command ended stays its last line. ``spool`` is the session's folder for what was cut.
    """
    if len(result.text.encode()) <= limit:
        return result
    text, _, end = result.text.rpartition("\n") if result.exit is not None else (result.text, "", "")
    end = f"\n{end}" if end else ""
    room = max(0, limit - len(end.encode()))
    if result.spool is not None:
        return replace(result, text=_shorter(text, room, Path(result.spool)) + end)
    capped = cap(text, room, free_file(spool, call))
    return replace(result, text=capped.text + end, spool=str(capped.spool) if capped.spool else None)


def _shorter(text: str, room: int, spool: Path) -> str:
    """A text that was cut before, cut further: the whole of it is in the spool already."""
    try:
        size = spool.stat().st_size
    except OSError:  # somebody has cleaned up: the pointer says how much there was
        size = len(text.encode())
    kept = head(text.partition(_MARK)[0].encode(), room - len(pointer(size, spool)) - 1).decode()
    line = pointer(size - len(kept.encode()), spool)
    return f"{kept}\n{line}" if kept else line
