"""What an ``agent`` call gives: JSON, under the tool's cap. Where it is over that, the summary is cut, and stays JSON."""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from pathlib import Path

from aerix.bounds import PIECE_LISTED
from aerix.tools.caps import Capped, cap, head, pointer


def piece_result(
    summary: str, files: Iterable[str], checks: Iterable[str], outcome: str, limit: int, spool: Path
) -> Capped:
    """``{summary, files_touched, checks_run, outcome}`` in at most ``limit`` bytes.

    A summary that is cut ends with a pointer to ``spool``, which holds the whole of it. Where not even the rest fits,
    the result as a whole is cut, and is JSON no more.
    """
    rest = {"files_touched": _listed(files), "checks_run": _listed(checks), "outcome": outcome}
    whole, data = _json(summary, rest), summary.encode()
    if len(whole.encode()) <= limit:
        return Capped(whole)
    line = f"\n{pointer(len(data), spool)}"

    def size(kept: int) -> int:
        return len(_json(head(data, kept).decode() + line, rest).encode())

    most = bisect_right(range(len(data)), limit, key=size) - 1  # what JSON escapes is longer there
    if most < 0 or len(data) <= len(line):
        return cap(whole, limit, spool)
    capped = cap(summary, min(most + len(line), len(data) - 1), spool)
    return Capped(_json(capped.text, rest), capped.spool)


def _json(summary: str, rest: Mapping[str, object]) -> str:
    return json.dumps({"summary": summary, **rest}, ensure_ascii=False)


def _listed(names: Iterable[str]) -> list[str]:
    found = list(names)
    kept = found[: PIECE_LISTED.count]
    return [*kept, f"and {len(found) - len(kept)} more"] if len(found) > len(kept) else kept
