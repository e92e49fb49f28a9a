"""Events as lines: what of a session is shown in which words, and what the status line says. Pure.

A line is a list of fragments, each a style and a text; nothing in them controls the terminal. Whole lines go above the
input line and stay; ``live`` is the line that is being written, ``status`` what goes on now.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from aerix.bounds import LINES_DIFF
from aerix.lines_figures import Figures
from aerix.session import events
from aerix.session.events import ROOT, Event
from aerix.shown import clean, clip, one_line, why_failed
from aerix.turn.stream import Piece, TurnStream

Line = list[tuple[str, str]]

PLAIN, DIM, ERROR, GOOD = "", "class:dim", "class:error", "class:good"
_DIFF = {"+": GOOD, "-": ERROR, "@": DIM}
_TOLD = ("path", "command", "pattern", "brief", "op", "name")  # inputs that say what a call is about


class View:
    """What one session looks like. ``columns`` gives the width of the terminal."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._stream = TurnStream()
        self._figures = Figures()
        self._kind = ""
        """What is being written: the thought, the final, or nothing."""
        self._tail = ""
        """The line that is being written."""
        self._answer = ""
        """What was streamed as the final of the last turn."""
        self._window = 0
        self._notes: set[str] = set()
        self._notes_before: set[str] = set()
        """What was said of this request, and of the one before it: nobody reads that again and again."""
        self.plan = ""
        """The last plan that was shown."""

    # --- what is asked of it

    @property
    def live(self) -> Line:
        """The line that is being written; empty where none is."""
        return [(self._style, self._tail)] if self._tail else []

    def begin(self, now: float) -> None:
        """A request begins."""
        self._figures = Figures(now)
        self._notes, self._notes_before = set(), self._notes
        self._new_turn()
        self._answer = ""

    def status(self, now: float, about: str = "", more: str = "") -> str:
        """What goes on, on one line; ``about`` stands for what the model does, ``more`` comes behind it."""
        doing, *figures = self._figures.now(now)
        return clip(" · ".join(filter(None, (about or doing, more, *figures))), self._columns() - 1)

    def take(self, event: Event, now: float) -> list[Line]:
        """The lines that an event adds."""
        self._figures.take(event, now)
        return list(self._lines(event, now))

    # --- events

    def _lines(self, event: Event, now: float) -> Iterator[Line]:
        match event:
            case events.Token() if event.agent == ROOT:
                for piece in self._stream.feed(event.text):
                    yield from self._written(piece)
            case events.Reading(anew=True) if event.agent == ROOT:
                yield from self._end_line()
                self._new_turn()
            case events.Message():
                yield from self._message(event)
            case events.Segment(label="note") if event.id.endswith(".error"):
                yield [(DIM, f"{_whose(event)}the turn could not be read and is asked again")]
            case events.SessionEnd():
                yield from self._end(event, now)
            case events.AgentSpawn():
                yield from self._spawned(event)
            case _:
                yield from self._plain(event)

    def _plain(self, event: Event) -> Iterator[Line]:
        """Events that are a line as they are."""
        whose = _whose(event)
        match event:
            case events.Note():
                known = event.text in self._notes | self._notes_before
                self._notes.add(event.text)
                yield from ([(DIM, text)] for text in clean(event.text).splitlines() if not known)
            case events.Compaction():
                yield [(DIM, f"{whose}compacted {event.before:,} → {event.after:,} tokens")]
            case events.Plan() if event.text != self.plan or event.agent != ROOT:
                yield from self.planned(event.text, whose)
            case events.Job():
                yield [(DIM, f"{whose}job {event.id} {one_line(event.how)}")]
            case events.PieceState(state="ended"):
                ended = f"{event.outcome}: {event.reason}" if event.reason else event.outcome or "ended"
                yield [
                    (
                        DIM if event.outcome == "done" else ERROR,
                        clip(f"{whose}{one_line(ended)}", self._columns()),
                    )
                ]
            case events.Verdict():
                passed = event.verdict == "pass"
                text = f"{whose}verification {'passed' if passed else 'failed'}: {one_line(event.reason)}"
                yield [(GOOD if passed else ERROR, clip(text, self._columns()))]

    def _spawned(self, event: events.AgentSpawn) -> Iterator[Line]:
        if event.agent != ROOT:
            yield [(DIM, f"{_whose(event)}{event.kind} begins")]
        else:
            if self._window not in (0, event.window):
                yield [(DIM, f"the window is {event.window:,} tokens now")]
            self._window = event.window

    def planned(self, text: str, whose: str = "") -> list[Line]:
        """A plan, as it is shown."""
        self.plan = text
        lines = clean(text).strip().splitlines() or ["(empty)"]
        return [[(PLAIN, f"{whose}● plan")], *([(DIM, f"  {line}")] for line in lines)]

    # --- a turn

    def _written(self, piece: Piece) -> Iterator[Line]:
        if piece.kind != self._kind:
            yield from self._end_line()
            self._kind = piece.kind
        if piece.kind == "tool":
            self._figures.name_call(one_line(piece.text))
            return
        if piece.kind == "final":
            self._answer += piece.text
        *whole, self._tail = clean(self._tail + piece.text).split("\n")
        yield from ([(self._style, line)] for line in whole)

    @property
    def _style(self) -> str:
        return DIM if self._kind == "thought" else PLAIN

    def _end_line(self) -> Iterator[Line]:
        tail, self._tail = self._tail, ""
        if tail:
            yield [(self._style, tail)]

    def _new_turn(self) -> None:
        self._stream, self._kind, self._tail = TurnStream(), "", ""

    def _message(self, event: events.Message) -> Iterator[Line]:
        if event.agent == ROOT and event.tool is None:
            yield from self._end_line()
            self._new_turn()
        if event.tool is not None:
            yield self._called(event)
        elif not event.kept:
            length = len(event.tokens or ()) or (event.usage or {}).get("completion_tokens", 0)
            yield [(DIM, f"{_whose(event)}the turn was cut at {length:,} tokens and is asked again")]

    def _called(self, event: events.Message) -> Line:
        """A call on one line: the tool, what it was about, and what came of it in a few words."""
        told = (event.input or {}).get(next((key for key in _TOLD if key in (event.input or {})), ""), "")
        result = _in_words(event)
        text = f"{_whose(event)}{one_line(event.tool or '')} {one_line(str(told))}".rstrip()
        room = max(8, self._columns() - 3)
        words = clip(result, max(room - len(text) - 3, room // 2))
        head = clip(text, max(room // 2 - 3, room - len(words) - 3))
        style = ERROR if event.error else DIM
        return [
            (ERROR if event.error else GOOD, "✗ " if event.error else "● "),
            (PLAIN, head),
            (style, f" — {words}"),
        ]

    # --- the end

    def _end(self, end: events.SessionEnd, now: float) -> Iterator[Line]:
        yield from self._end_line()
        if end.text and end.text != self._answer:
            yield from ([(PLAIN, line)] for line in clean(end.text).rstrip("\n").split("\n"))
        if end.outcome != "done":
            yield [(ERROR, f"{end.outcome}: {one_line(end.reason)}")]
        yield from change_lines(end.diff, end.untracked, self._figures.verified)
        at = datetime.fromisoformat(end.ts).astimezone().strftime("%H:%M")
        yield [(DIM, f"{self._figures.stats(now)} · {at}")]


def change_lines(diff: str, untracked: Iterable[str], verified: str = "") -> Iterator[Line]:
    """What a request changed: the diff, what it leaves out, and the diff counted; nothing where that is nothing."""
    yield from diff_lines(diff)
    for path in untracked:
        yield [(DIM, f"untracked: {one_line(path)}")]
    if changed := change_of(diff):
        yield [(DIM, " · ".join(filter(None, (changed, verified))))]


def diff_lines(diff: str) -> list[Line]:
    """A diff, coloured, and not longer than its limit."""
    found = diff.splitlines()
    lines: list[Line] = [
        [(_DIFF.get(line[:1], PLAIN), clean(line).replace("\n", "␤"))] for line in found[: LINES_DIFF.count]
    ]
    if (more := len(found) - len(lines)) > 0:
        lines.append([(DIM, f"… {more:,} more lines")])
    return lines


def change_of(diff: str) -> str:
    """What a diff changes, counted; empty where that is nothing."""
    files = added = removed = 0
    inside = False  # whether the lines are those of a hunk: a removed `-- a` looks like a file's name
    for line in diff.splitlines():
        if line.startswith("diff --git "):
            files, inside = files + 1, False
        elif line.startswith("@@"):
            inside = True
        elif inside:
            added, removed = added + line.startswith("+"), removed + line.startswith("-")
    return f"+{added:,} −{removed:,} in {files:,} file{'s' * (files != 1)}" if files else ""  # noqa: RUF001 - a minus sign


def _whose(event: Event) -> str:
    """The agent, where it is not the root."""
    return "" if event.agent == ROOT else f"{event.agent}: "


def _in_words(event: events.Message) -> str:
    """What came of a call: why it failed; the only line of its result; how a command ended; how many lines there are."""
    lines = event.text.splitlines()[1:] or [""]
    if event.error:
        return why_failed(event.text)
    if len(lines) == 1:
        return one_line(lines[0]) or "nothing"
    *output, last = lines
    if event.tool != "bash" or not last.startswith("["):
        return f"{len(lines):,} lines"
    return one_line(f"{output[0] if len(output) == 1 else f'{len(output):,} lines'} {last}")
