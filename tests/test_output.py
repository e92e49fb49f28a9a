"""What is printed of each event, and where."""

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

from aerix.actors import start
from aerix.output import Output
from aerix.session.events import Compaction, Event, Job, Message, Note, Reading, SessionEnd, Token
from aerix.session.show import Show
from tests.runs import json_lines

SHOW = """
import pickle, sys
from aerix.actors import Refused, start
from aerix.output import Output
from aerix.session.show import Show
form, events = pickle.load(sys.stdin.buffer)
output = start(Output(form), "output")
try:
    output.ask(Show(events), 10)
except Refused as refused:
    print(refused.code, file=sys.stderr)
"""
DIFF = "diff --git a/f b/f\n+x\n"


def show(form: str, *events: Event, **options: Any) -> tuple[str, str]:
    """What a reader gets on standard output and on standard error."""
    import pickle

    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        input=pickle.dumps((form, events)),
        stderr=subprocess.PIPE,
        timeout=30,
        check=True,
        **({"stdout": subprocess.PIPE} | options),
    )
    return (done.stdout or b"").decode("utf-8", "surrogateescape"), done.stderr.decode()


def end(**values: Any) -> SessionEnd:
    known: dict[str, Any] = {
        "session": "s",
        "outcome": "done",
        "reason": "",
        "text": "42\n",
        "diff": DIFF,
        "untracked": [],
        "usage": {},
        "turns": 1,
        "exit": 0,
    }
    return SessionEnd(**(known | values))


@pytest.mark.rule("headless.text")
@pytest.mark.rule("headless.untracked-named")
@pytest.mark.parametrize(
    ("values", "out"),
    [
        ({}, f"42\n\n{DIFF}"),
        ({"diff": ""}, "42\n"),
        ({"text": ""}, DIFF),
        ({"diff": "", "text": ""}, ""),
        ({"untracked": ["big.bin", "odd\udcff"]}, f"42\n\n{DIFF}untracked: big.bin\nuntracked: odd\udcff\n"),
        ({"text": "half \ud800", "diff": ""}, "half ?\n"),
    ],
)
def test_text_is_the_answer_the_diff_and_what_it_leaves_out(values: dict[str, Any], out: str) -> None:
    assert show("text", end(**values)) == (out, "")


EVIL = "a\x1b[2J\x9b\x07\u202e\tb\r\nc\x7f"


def test_a_pipe_gets_the_answer_as_it_is() -> None:
    assert show("text", end(text=EVIL, diff="", untracked=[]))[0] == f"{EVIL}\n"


@pytest.mark.rule("redteam.names")
def test_a_terminal_gets_nothing_that_it_would_obey() -> None:
    ours, theirs = pty.openpty()
    show("text", end(text=EVIL, diff=f"diff {EVIL}", untracked=[EVIL]), stdout=theirs)
    os.close(theirs)
    said = b""
    with suppress(OSError):  # that is how a terminal ends
        while data := os.read(ours, 4096):
            said += data
    os.close(ours)
    seen = "a\u241b[2J\ufffd\u2407\ufffd    b\r\nc\u2421"
    last = seen.replace("    ", " ").replace("\r\n", " ")
    assert said.decode() == f"{seen}\r\n\r\ndiff {seen}\r\nuntracked: {last}\r\n"


@pytest.mark.rule("redteam.names")
def test_a_note_begins_one_line_and_moves_no_cursor() -> None:
    hostile = Note(text=f"{EVIL}\naerix: all is well")
    _, err = show("text", hostile, end(outcome="failed", reason="x\x1b]0;evil\x07\ny"))
    assert err.splitlines() == [
        "aerix: a\u241b[2J\ufffd\u2407\ufffd    b",
        "       c\u2421",
        "       aerix: all is well",
        "aerix: failed: x\u241b]0;evil\u2407",
        "       y",
    ]


@pytest.mark.rule("headless.stderr")
def test_a_refusals_line_has_the_rule_that_would_allow_the_call() -> None:
    why = f"refused: bash(make {'x' * 90}) needs permission and nobody is there to ask; allow it with --allow 'bash(make *)'"
    call = Message(
        id="c1", role="user", text=f"[bash c1]\n{why}", call="c1", tool="bash", input={}, error=True
    )
    _, err = show("text", call)
    assert err == f"aerix: c1 bash {{}} — {why}\n"


@pytest.mark.rule("headless.stderr")
@pytest.mark.parametrize("form", ["text", "json"])
def test_notes_calls_cut_turns_and_reasons_go_to_standard_error(form: str) -> None:
    result = Message(
        id="c1",
        role="user",
        text="[write c1]\nerror: no room.\nmore",
        call="c1",
        tool="write",
        input={"content": "ü" * 200},
        error=True,
    )
    cut = Message(id="t1", role="assistant", text="{", tokens=[1, 2], kept=False)
    failed = end(outcome="failed", reason="no luck", text="", diff="")
    out, err = show(form, Note(text="a note"), Token(text="x"), result, cut, failed)
    assert out == "" if form == "text" else json.loads(out)["reason"] == "no luck"
    note, call, again, reason = err.splitlines()
    assert note == "aerix: a note"
    assert call.startswith('aerix: c1 write {"content": "üüü')
    assert call.endswith("ü… — error: no room.")
    assert len(call) < 180
    assert again == "aerix: the turn was cut at 2 tokens and is asked again"
    assert reason == "aerix: failed: no luck"


@pytest.mark.rule("headless.stream-json")
def test_a_stream_is_one_line_an_event() -> None:
    out, err = show(
        "stream-json", Note(text="a\nb"), Token(text="x"), end(outcome="budget", reason="turns 2")
    )
    assert [line["type"] for line in json_lines(out.encode())] == ["note", "token", "session.end"]
    assert err == "aerix: budget: turns 2\n"


def test_a_prompt_that_is_read_is_a_note_when_nothing_else_was_told_for_a_while(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("aerix.output.monotonic", lambda: now[0])
    output = start(Output("text"), "output")
    try:
        for now[0], event in [
            (1.9, Reading(done=1, total=9)), (2, Reading(done=1024, total=4096)), (3.9, Reading(done=2048, total=4096)),
            (3.9, Token(text="x", tokens=1)), (5.8, Reading()), (5.9, Reading()), (6, Reading()),
        ]:  # fmt: skip
            output.ask(Show((event,)), 10)
    finally:
        output.stop()
        assert output.join(10)
    said = ["reading the prompt: 1,024 of 4,096 tokens", "waiting for the model"]
    assert capfd.readouterr().err.splitlines() == [f"aerix: {text}" for text in said]


@pytest.mark.rule("headless.closed-stdout")
def test_an_output_that_cannot_be_written_is_refused_by_name() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a descriptor is what is needed
        out, err = show("text", end(), stdout=full)
    assert out == ""
    assert err == "aerix: standard output cannot be written: No space left on device\nstdout_failed\n"


def test_a_killed_job_is_a_line_for_the_user():
    started = Job(id="j1", state="started", how="started", command="sleep 9")
    killed = Job(id="j1", state="killed", how="killed: agent ended")
    assert show("text", started, killed) == ("", "aerix: [job j1 killed: agent ended]\n")


def test_the_end_of_a_job_of_an_earlier_run_is_named_by_the_job() -> None:
    lost = Message(
        id="j1", role="user", text="[job j1 killed]\nIts output is lost.", tool="job", input={"command": "x"}
    )
    assert show("text", lost)[1].startswith("aerix: j1 job ")


@pytest.mark.rule("context.logged")
def test_a_compaction_is_a_line_for_the_user() -> None:
    events = [Compaction(before=21_400, after=9800), Compaction(agent="a1.c3", before=3000, after=2000)]
    out, err = show("text", *events)
    assert (out, err.splitlines()) == (
        "",
        ["aerix: compacted: 21,400 -> 9,800 tokens", "aerix: a1.c3: compacted: 3,000 -> 2,000 tokens"],
    )
