"""The little of Markdown that instruction files need: comments to drop, and imports outside code."""

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_COMMENT = re.compile(r" {0,3}<!--")
_TICKS = re.compile(r"(`+)")
_IMPORT = re.compile(r"(?:^|(?<=\s))@((?:\\ |[^\s\\])+)")
_TRAILING = ".,;:!?)]}\"'"


def without_comments(text: str) -> str:
    """A text without its block-level HTML comments, those in code kept. A comment that never ends is kept too."""
    kept: list[str] = []
    fence, inside = "", False
    ends = text.count("-->")
    for line in text.splitlines(keepends=True):
        fence = fence if inside else _fence(fence, line)
        opens = not inside and not fence and ends > 0 and bool(_COMMENT.match(line))
        ends -= line.count("-->")
        if not opens and not inside:
            kept.append(line)
            continue
        _, end, rest = line.partition("-->")
        inside = not end
        if rest.strip():
            kept.append(rest.lstrip())
    return "".join(kept)


def imports(text: str) -> list[str]:
    """The paths of a text's imports (``@path``), those in code left out."""
    found: list[str] = []
    fence = ""
    for line in text.splitlines():
        before, fence = fence, _fence(fence, line)
        if not before and not fence and "@" in line:
            names = _IMPORT.findall(_without_code(line))
            found += [name.rstrip(_TRAILING).replace("\\ ", " ") for name in names]
    return [name for name in found if name]


def is_import(text: str, name: str) -> bool:
    """Whether a text is one import of this name and nothing else."""
    return text.strip() == f"@{name}"


def _without_code(line: str) -> str:
    """A line without its code spans; each begins with some backticks and ends with the next as many."""
    pieces = _TICKS.split(line)  # text and runs of backticks in turn
    closing: dict[int, int] = {}
    last: dict[str, int] = {}
    for at in range(len(pieces) - 2, 0, -2):
        closing[at] = last.get(pieces[at], 0)
        last[pieces[at]] = at
    kept, at = [pieces[0]], 1
    while at < len(pieces):
        end = closing[at] or at
        kept += ["`", pieces[end + 1]]
        at = end + 2
    return "".join(kept)


def _fence(open_fence: str, line: str) -> str:
    """The fence that is open after a line: a fence ends with one of its kind that is at least as long."""
    match = _FENCE.match(line)
    if not match:
        return open_fence
    mark = match[1]
    if not open_fence:
        return "" if mark[0] == "`" and "`" in line[match.end() :] else mark
    closes = mark[0] == open_fence[0] and len(mark) >= len(open_fence) and not line[match.end() :].strip()
    return "" if closes else open_fence
