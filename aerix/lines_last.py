"""The last request of a session, as its log tells it: what was asked, what came of it, what it changed. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from aerix.bounds import LINES_LAST
from aerix.session import events
from aerix.session.replay import Line
from aerix.shown import clean, clip, one_line

_COLUMNS = 160
"""Of a long line, which the terminal may fold, so much is shown."""
_END = ("text", "outcome", "reason", "diff")


@dataclass(frozen=True, slots=True)
class Last:
    """The last request; all of it empty where there is none."""

    prompt: str = ""
    answer: str = ""
    ended: str = ""
    """How it ended; empty where it did not."""
    reason: str = ""
    diff: str = ""
    untracked: tuple[str, ...] = ()
    """What the diff leaves out."""


def last_request(lines: Iterable[Line]) -> Last:
    """What the events of a session say of its last request."""
    found = Last()
    for line in lines:
        match line:
            case {"type": events.SessionStart.type}:
                found = Last(prompt=str(line.get("title", "")))
            case {"type": events.Segment.type, "agent": events.ROOT, "id": str(name), "text": str(text)}:
                if name.startswith("prompt"):  # what steered has other ids
                    found = replace(found, prompt=text)
            case {"type": events.SessionEnd.type, "untracked": [*paths]}:
                answer, ended, reason, diff = (str(line.get(name, "")) for name in _END)
                found = Last(found.prompt, answer, ended, reason, diff, tuple(map(str, paths)))
    return found


def exchange(last: Last) -> list[str]:
    """The prompt and the answer, a few lines of each; empty where nothing was asked."""
    if not last.prompt.strip():
        return []
    first, *more = _beginning(last.prompt)
    end = f"{last.ended}: {one_line(last.reason)}" if last.ended else "it did not end"
    return [
        f"> {first}",
        *(f"  {line}" for line in more),
        *_beginning(last.answer),
        *([] if last.ended == "done" else [clip(end, _COLUMNS)]),
    ]


def _beginning(text: str) -> list[str]:
    """The first lines with something in them; the rest is counted."""
    lines = [line for line in clean(text).split("\n") if line.strip()]
    shown = [clip(line, _COLUMNS) for line in lines[: LINES_LAST.count]]
    left = len(lines) - len(shown)
    return [*shown, *([f"… {left:,} more line{'s' * (left != 1)}"] if left else [])]
