"""A session as a text: in short for a terminal, whole as markdown, and as JSON. Pure; a piece of text at a time."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from aerix.session.events import ROOT
from aerix.session.index import Entry
from aerix.session.replay import Line
from aerix.session.transcript import Passage, passages
from aerix.shown import clean, one_line

SHOWN_LINES = 12
"""Of a result, a call or a diff; an export has all."""


def shown(lines: Iterable[Line]) -> Iterator[str]:
    """What happened, as a terminal may be given it; long results are cut."""
    for one in passages(lines):
        who = "" if one.agent == ROOT else f"{one.agent}: "
        head, text = one_line(one.head), clean(one.text).rstrip("\n")
        match one.kind:
            case "request":
                yield f"\n── {head}\n"
            case "user":
                yield f"{who}> {_indented(text, '  ').strip()}\n"
            case "answer":
                yield f"{who}{text}\n"
            case "thought":
                yield f"  {who}({one_line(text)})\n"
            case "call" | "result" | "diff":
                body = _indented(_cut(text), "    ")
                yield f"  {who}{'← ' * (one.kind == 'result')}{head}\n" + f"{body}\n" * bool(body)
            case "note" | "end":
                yield f"  {who}{_bracketed(head)}\n" + f"{_indented(_cut(text), '    ')}\n" * bool(text)


def markdown(entry: Entry, lines: Iterable[Line]) -> Iterator[str]:
    """All that people want to read of a session."""
    yield f"# {_escaped(one_line(entry.title) or entry.id)}\n\nSession `{entry.id}`.\n"
    for one in passages(lines):
        who = "" if one.agent == ROOT else f" ({one.agent})"
        head, text = _escaped(one_line(one.head)), _clean(one.text).strip("\n")
        match one.kind:
            case "request":
                yield f"\n## {head}\n"
            case "user":
                yield f"\n**User{who}**\n\n{_indented(text, '> ')}\n"
            case "answer":
                yield f"\n**Answer{who}**\n\n{text}\n"
            case "thought":
                yield f"\n*{_escaped(one_line(text))}*{who}\n"
            case "call" | "result" | "diff":
                yield f"\n{'Result of ' * (one.kind == 'result')}`{one_line(one.head)}`{who}\n\n{_fenced(one, text)}"
            case "note" | "end":
                yield f"\n*{_escaped(_bracketed(one_line(one.head)))}*{who}\n" + (
                    f"\n{_fenced(one, text)}" if text else ""
                )


def as_json(entry: Entry, lines: Iterable[Line]) -> Iterator[str]:
    """One object: what the index says, and all events. Nothing but ASCII, which no terminal takes for a command."""
    about = {name: value for name, value in asdict(entry).items() if name not in ("size", "mtime_ns")}
    yield f'{json.dumps(about)[:-1]}, "events": ['
    for number, line in enumerate(lines):
        yield f"{',' * (number > 0)}\n{json.dumps(line)}"
    yield "\n]}\n"


def _bracketed(head: str) -> str:
    """A remark; what Aerix said to the model in such brackets has them already."""
    return head if head.startswith("[") and head.endswith("]") else f"[{head}]"


def _cut(text: str) -> str:
    lines = text.split("\n")
    more = len(lines) - SHOWN_LINES
    return text if more <= 1 else "\n".join([*lines[:SHOWN_LINES], f"… {more} more lines"])


def _indented(text: str, by: str) -> str:
    return "\n".join(f"{by}{line}".rstrip() for line in text.split("\n")) if text else ""


def _clean(text: str) -> str:
    """As for a terminal, but tabs stay: files are quoted."""
    return "\t".join(map(clean, text.split("\t")))


def _fenced(one: Passage, text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{'diff' if one.kind == 'diff' else ''}\n{text}\n{fence}\n"


def _escaped(text: str) -> str:
    """A text that is not markup."""
    return re.sub(r"([\\`*_<>\[\]#])", r"\\\1", text)
