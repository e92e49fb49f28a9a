"""Compaction: which segments of a context give way, and to what. Pure: a list of segments in, a shorter one out.

Tool results go first, the oldest before the others, then the agent's turns; each becomes a marker. Where markers alone
are too much, the oldest of what may give way become one marker together: however long an agent works, what is left of
its past stays small. Only what the model has read gives way, unless there is no other room.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from aerix.session.replay import Held

SMALL = 24
"""Tokens of a segment that is not worth a marker; a marker is taken for so many until the pool has counted it."""
MARKER = "marker"
RESULTS = frozenset({"result", "job"})
_FOLDED = RESULTS | {"turn", "note", MARKER}


def compact(held: Sequence[Held], excess: int, *, unread: bool = False) -> list[Held]:
    """The context with about ``excess`` tokens less, where it can be; equal to ``held`` where nothing gives way.

    Everything up to the last turn was read. With ``unread`` the results after it give way too.
    """
    made, read, left = list(held), _read(held), excess
    for labels in (RESULTS, frozenset({"turn"})):
        left = _mark(made, labels, read, left)
    made = [*_fold(made[:read], left), *made[read:]]
    if unread:
        _mark(made, RESULTS, len(made), excess - freed(held, made))
    return made


def freed(before: Sequence[Held], after: Sequence[Held]) -> int:
    """How many tokens a rewritten context has less."""
    return sum(one.tokens for one in before) - sum(one.tokens for one in after)


def changes(before: Sequence[Held], after: Sequence[Held]) -> tuple[list[dict[str, Any]], list[str]]:
    """What the log says of a rewritten context: the segments that stand in the place of one with their id, and the
    ids that are gone.
    """
    old = {one.id: one for one in before}
    put = [plain(one) for one in after if old.get(one.id) != one]
    gone = old.keys() - {one.id for one in after}
    return put, [one.id for one in before if one.id in gone]


def plain(one: Held) -> dict[str, Any]:
    """A segment in the log's own words. The exact tokens of a turn are in its message."""
    segment = one.segment
    return {
        "id": segment.id,
        "role": segment.role,
        "label": one.label,
        "tokens": one.tokens,
        "pinned": segment.pinned,
        "text": segment.text,
    }


def _read(held: Sequence[Held]) -> int:
    """Where the last turn stands: what is before it was read by the model that made it."""
    turns = [at for at, one in enumerate(held) if one.segment.role == "assistant"]
    return turns[-1] if turns else 0


def _mark(made: list[Held], labels: frozenset[str], end: int, excess: int) -> int:
    """Put markers in the places of segments until ``excess`` tokens are freed; how many are still to be."""
    for at in range(end):
        if excess <= 0:
            break
        if _gives_way(made[at], labels):
            excess -= made[at].tokens - SMALL
            made[at] = _marker(made[at], _said(made[at]))
    return excess


def _gives_way(one: Held, labels: frozenset[str]) -> bool:
    """A marker that is no shorter than what it stands for frees nothing."""
    may = one.label in labels and not one.segment.pinned and one.tokens > SMALL
    return may and len(_said(one)) < len(one.segment.text)


def _said(one: Held) -> str:
    if one.label == "turn":
        return f"[compacted turn {one.id} ({one.tokens} tokens)]"
    if one.label == "job":
        return f"[compacted output of job {one.id} ({one.tokens} tokens)]"
    return f"[compacted tool result of call {one.id} ({one.tool}, {one.tokens} tokens)]"


def _marker(one: Held, text: str) -> Held:
    segment = replace(one.segment, text=text, tokens=None, vocab=None)
    return replace(one, segment=segment, label=MARKER, tokens=SMALL)


def _fold(held: Sequence[Held], excess: int) -> Iterator[Held]:
    """Runs of segments that may give way become one marker each, the oldest first, until ``excess`` is freed."""
    run: list[Held] = []
    for one in held:
        if excess > 0 and one.label in _FOLDED and not one.segment.pinned:
            excess -= one.tokens if run else one.tokens - SMALL
            run.append(one)
        else:
            yield from _folded(run)
            run = []
            yield one
    yield from _folded(run)


def _folded(run: list[Held]) -> list[Held]:
    if len(run) < 2 or sum(one.tokens for one in run) <= SMALL:
        return run
    text = f"[compacted: turns and results, {run[0].id} to {run[-1].id}]"
    if len(text) >= sum(len(one.segment.text) for one in run):
        return run
    marker = _marker(run[0], text)
    return [replace(marker, segment=replace(marker.segment, role="user"))]
