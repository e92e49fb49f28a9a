"""Events as lines, and what the status line says. No terminal is needed."""

import json
from typing import Any

import pytest

from aerix.lines_view import View, change_of
from aerix.session.events import (
    AgentSpawn,
    Compaction,
    Event,
    Job,
    Message,
    Note,
    PieceState,
    Plan,
    Reading,
    Segment,
    SessionEnd,
    Spend,
    Token,
    Verdict,
)
from aerix.session.events import line as log_line

DIFF = "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n same\n--- a\n+b\n+c\n"


class Screen:
    """A view, the time, and what was shown."""

    def __init__(self, columns: int = 80) -> None:
        self.view, self.now, self.lines = View(lambda: columns), 0.0, list[str]()
        self.view.begin(0.0)

    def take(self, *events: Event, after: float = 0.0) -> list[str]:
        self.now += after
        taken = [text for event in events for text in map(plain, self.view.take(event, self.now))]
        self.lines += taken
        return taken

    @property
    def status(self) -> str:
        return self.view.status(self.now)


def plain(line: list[tuple[str, str]]) -> str:
    return "".join(text for _, text in line)


def spoken(**turn: Any) -> list[Event]:
    """A turn as it is streamed, a character at a time, and then its message."""
    text = json.dumps(turn)
    return [*(Token(text=letter, tokens=1) for letter in text), Message(id="t1", role="assistant", text=text)]


def called(tool: str, text: str, error: bool = False, agent: str = "a1", **values: Any) -> Message:
    head = f"[{tool} c1]\n"
    return Message(
        agent=agent, id="c1", role="user", text=head + text, call="c1", tool=tool, input=values, error=error
    )


def counted(name: str, role: str, tokens: int) -> Segment:
    return Segment(id=name, role=role, label="turn" if role == "assistant" else "result", tokens=tokens)


def end(**values: Any) -> SessionEnd:
    known: dict[str, Any] = {
        "session": "s", "outcome": "done", "reason": "", "text": "", "diff": "", "untracked": [], "usage": {},
        "turns": 1, "exit": 0, "ts": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    return SessionEnd(**(known | values))


@pytest.fixture
def screen() -> Screen:
    return Screen()


# --- a turn -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("lines.no-json")
def test_thought_and_answer_come_line_by_line_and_never_as_json(screen: Screen) -> None:
    *streamed, message = spoken(thought="I know.", final="One\n\ntwo")
    screen.take(*streamed[:-3])
    assert screen.lines == ["I know.", "One", ""]
    assert screen.view.live == [("", "tw")]
    assert screen.take(*streamed[-3:], message) == ["two"]
    assert screen.view.live == []
    assert screen.take(end(text="One\n\ntwo"))[:-1] == []


def test_the_thought_is_dim_and_the_answer_is_not(screen: Screen) -> None:
    lines = [one for event in spoken(thought="Hm.", final="42") for one in screen.view.take(event, 0)]
    assert lines == [[("class:dim", "Hm.")], [("", "42")]]


def test_an_answer_that_was_not_streamed_as_it_is_comes_at_the_end(screen: Screen) -> None:
    screen.take(Token(text="<think>no</think>{", tokens=3), Message(id="t1", role="assistant", text="x"))
    assert screen.take(end(text="As\nit is"))[:-1] == ["As", "it is"]


def test_what_is_void_is_not_the_answer(screen: Screen) -> None:
    screen.take(Token(text='{"final": "ha', tokens=3), Reading(anew=True))
    assert screen.lines == ["ha"]
    assert screen.take(*spoken(final="half")) == ["half"]


def test_a_cut_turn_and_one_that_is_none_are_told(screen: Screen) -> None:
    cut = Message(id="t1", role="assistant", text="{", tokens=[1, 2], kept=False)
    none = Segment(id="t2.error", role="user", label="note", tokens=9, text="It is not JSON.")
    assert screen.take(cut, none) == [
        "the turn was cut at 2 tokens and is asked again",
        "the turn could not be read and is asked again",
    ]


@pytest.mark.rule("lines.one-line-a-call")
@pytest.mark.parametrize(
    ("message", "line"),
    [
        (called("read", "1 a\n2 b", path="src/a.py"), "● read src/a.py — 2 lines"),
        (called("write", "created f (2 lines).", path="f", content="x"), "● write f — created f (2 lines)."),
        (called("bash", "out\nmore\n[exit 0]", command="make\n  all"), "● bash make all — 2 lines [exit 0]"),
        (called("bash", "passed\n[exit 0]", command="make"), "● bash make — passed [exit 0]"),
        (called("grep", "", pattern="x"), "● grep x — nothing"),
        (called("read", "error: no such file: f.", True, path="f"), "✗ read f — error: no such file: f."),
        (called("bash", "[exit 3]", True, command="false"), "✗ bash false — [exit 3]"),
        (called("bash", "no\nNo module x\n[exit 1]", True, command="x"), "✗ bash x — No module x [exit 1]"),
        (called("read", "1 x", agent="a1.c3", path="\x1b[2Jf"), "● a1.c3: read ␛[2Jf — 1 x"),
    ],
)
def test_a_call_is_one_line(screen: Screen, message: Message, line: str) -> None:
    assert screen.take(message) == [line]


@pytest.mark.rule("lines.one-line-a-call")
@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_a_call_is_one_line_however_narrow(columns: int) -> None:
    screen = Screen(columns)
    (line,) = screen.take(called("bash", "y" * 300, command="x" * 300))
    assert len(line) <= columns
    assert "…" in line


def test_events_of_the_work_are_a_line_each(screen: Screen) -> None:
    taken = screen.take(
        Note(text="a note"), Note(text="a note"), Compaction(before=21_400, after=9800), Plan(text="1. look\n2. act"),
        Job(id="j1", state="exited", how="exited 0"), AgentSpawn(agent="a1.c3", kind="implementer", member="m", window=1, vocab="", tools=[], max_turns=1),
        PieceState(agent="a1.c3", state="ended", outcome="failed", reason="no\nluck"), Verdict(agent="a1.c3.v1", verdict="pass", reason="ok"),
    )  # fmt: skip
    assert taken == [
        "a note", "compacted 21,400 → 9,800 tokens", "● plan", "  1. look", "  2. act", "job j1 exited 0",
        "a1.c3: implementer begins", "a1.c3: failed: no luck", "a1.c3.v1: verification passed: ok",
    ]  # fmt: skip


def test_a_window_that_changes_is_told(screen: Screen) -> None:
    windows = [
        AgentSpawn(kind="root", member="m", window=n, vocab="", tools=[], max_turns=1) for n in (8, 8, 4096)
    ]
    assert screen.take(*windows) == ["the window is 4,096 tokens now"]


def test_a_plan_that_the_user_has_seen_is_not_shown_again(screen: Screen) -> None:
    screen.view.planned("1. look")
    assert screen.take(Plan(text="1. look")) == []
    assert screen.take(Plan(text="1. rest")) == ["● plan", "  1. rest"]


# --- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("lines.stats")
@pytest.mark.bound("lines.diff")
def test_the_end_tells_what_changed_and_what_it_took(screen: Screen, limit: Any) -> None:
    limit("lines.diff", 4)
    screen.take(Token(text="{", tokens=10))
    screen.take(Token(text=" ", tokens=10), after=2.0)
    screen.take(Token(agent="a1.c1", text="{", tokens=20), after=1.0)  # the two overlap
    screen.take(Message(id="t1", role="assistant", text="{"))
    screen.take(Message(agent="a1.c1", id="t1", role="assistant", text="{"), after=1.0)
    screen.take(Verdict(agent="a1.c1.v1", verdict="pass", reason="ok"), after=1.0)
    *lines, change, stats = screen.take(end(diff=DIFF, untracked=["big\x1b.bin"]))
    assert lines == [
        "diff --git a/f b/f",
        "--- a/f",
        "+++ b/f",
        "@@ -1,2 +1,2 @@",
        "… 4 more lines",
        "untracked: big␛.bin",
    ]
    assert change == "+2 −1 in 1 file · verification passed"  # noqa: RUF001 - a minus sign
    assert stats.startswith("40 tok · 10 tok/s · 5.0 s · ")


@pytest.mark.rule("lines.stats")
def test_too_little_gives_no_rate(screen: Screen) -> None:
    assert screen.take(end())[-1].startswith("0 tok · – · 0.0 s · ")  # noqa: RUF001 - the specification's word


def test_an_end_that_is_no_answer_says_why(screen: Screen) -> None:
    assert screen.take(end(outcome="budget", reason="turns 2:\nspent"))[0] == "budget: turns 2: spent"


def test_changes_are_counted() -> None:
    assert change_of("") == ""
    assert change_of(DIFF + "diff --git a/x b/x\nBinary files differ\n") == "+2 −1 in 2 files"  # noqa: RUF001 - a minus sign


# --- the status line ----------------------------------------------------------------------------------------------


@pytest.mark.rule("lines.progress")
def test_progress_of_the_prompt_and_of_the_turn_are_figures_of_the_pool(screen: Screen) -> None:
    screen.take(AgentSpawn(kind="root", member="m", window=8192, vocab="", tools=[], max_turns=40))
    screen.take(Spend(bound="agent.turns"))
    assert screen.status == "waiting for the model · 0 s · turn 1/40"
    screen.take(Reading(), after=1.0)
    assert screen.status == "waiting for the model · 1 s · turn 1/40"
    screen.take(Reading(done=1000, total=4000))
    assert screen.status == "reading prompt 25 % · 1 s · turn 1/40"
    screen.take(Reading(done=2000, total=4000), after=0.5)
    assert screen.status.startswith("reading prompt 50 % · 2,000 tok/s · about 1 s · 2 s")
    screen.take(Token(text='{"thought": "x", "calls": [{"tool": "bash', tokens=1))
    screen.take(Token(text='"', tokens=30), after=1.0)
    assert screen.status == "writing 31 tok · 31 tok/s · 2 s · turn 1/40"
    usage = {"prompt_tokens": 4000, "completion_tokens": 40}
    screen.take(Message(id="t1", role="assistant", text="{", usage=usage), counted("t1", "assistant", 40))
    assert screen.status == "running bash · 2 s · turn 1/40 · context 4,040 of 8,192"
    screen.take(called("bash", "[exit 0]", command="ls"), counted("c1", "user", 10))
    screen.take(Token(text="{", tokens=3))
    assert screen.status == "writing 3 tok · 2 s · turn 1/40 · context 4,053 of 8,192"
    screen.take(Compaction(before=4050, after=900))
    assert screen.status == "writing 3 tok · 2 s · turn 1/40 · context ≈903 of 8,192"


@pytest.mark.rule("lines.progress")
@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_the_status_is_one_line(columns: int) -> None:
    screen = Screen(columns)
    screen.take(AgentSpawn(kind="root", member="m", window=8192, vocab="", tools=[], max_turns=40))
    screen.take(Reading(done=1, total=4000), Reading(done=2, total=4000), after=9.0)
    assert len(screen.view.status(screen.now, "", "3 queued")) < columns


def test_every_event_is_taken(screen: Screen) -> None:
    """Also one that this version shows nothing of."""
    assert screen.take(Spend(bound="x")) == []
    assert log_line(Reading())
