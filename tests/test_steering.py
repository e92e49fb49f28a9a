"""``--input-format stream-json``: prompts and steering as JSON lines, one after the other, in one session."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Ref, start
from aerix.pool.client import PoolSettings
from aerix.steering import BadLine, Given, Input, NextPrompt, Said, Steering, TakeSteering, said
from tests.runs import (
    Aerix,
    Running,
    call,
    calls,
    daemon,  # noqa: F401 - a fixture
    final,
    json_lines,
    of,
    play,
    replay,
    session_log,
    session_logs,
)
from tests.tools.waiting import is_gone, pid_in, until

STREAM = ("--input-format", "stream-json", "--output-format", "stream-json", "--no-diff")
HOLD = calls(call("bash", command="touch held; until test -e go; do sleep 0.01; done"))
PLAYS: dict[str, list[dict[str, Any]]] = {
    # first, for its context has the words of the others too; each step stands behind so many turns
    "two": [final("behind none"), final("second"), final("second")],
    "one": [final("first")],
    "hold": [HOLD, final("early"), final("late")],
    "last": [HOLD, final("that was it")],
    "busy": [calls(call("bash", command="setsid sleep 60 & echo $! > pid; sleep 60", timeout_secs=70))],
}


@pytest.fixture
def aerix(daemon: PoolSettings, git_repo: Path, tmp_path: Path) -> Iterator[Aerix]:  # noqa: F811
    one = Aerix(git_repo, daemon, play(tmp_path, PLAYS, window=16384))
    yield one
    one.close()


def text(value: str, **more: Any) -> str:
    return json.dumps({"text": value, **more}) + "\n"


def say(running: Running, line: str) -> None:
    assert running.process.stdin is not None
    running.process.stdin.write(line)
    running.process.stdin.flush()


# --- lines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"text": "hi"}, Said("hi")),
        ({"text": " hi\n", "steer": True}, Said("hi", steer=True)),
        ({"type": "user", "message": {"role": "user", "content": "hi"}}, Said("hi")),
        ({"type": "user", "message": {"content": [{"type": "text", "text": "a"}, {"text": "b"}]}}, Said("a\nb")),
        ({"text": "\ud83d"}, Said("\ufffd")),
    ],
)  # fmt: skip
def test_a_line_is_a_message(line: Any, message: Said) -> None:
    assert said(json.dumps(line).encode()) == message


@pytest.mark.rule("headless.bad-lines")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"hello", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[1]", "a message is an object"),
        (b'{"type": "control_request"}', "there is no message of the type 'control_request'"),
        (b"{}", "it has no `text`"),
        (b'{"text": "  "}', "it has no `text`"),
        (b'{"text": 3}', "it has no `text`"),
        (b'{"message": {"content": [{"type": "image"}]}}', "it has no `text`"),
        (b'{"text": "x", "steer": "yes"}', "`steer` must be true or false"),
    ],
)
def test_a_line_that_is_no_message_is_a_sentence(line: bytes, why: str) -> None:
    with pytest.raises(BadLine, match="^" + why):
        said(line)


# --- the reader ----------------------------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[tuple[Ref, int]]:
    reader, writer = os.pipe()
    ref = start(Input(None, reader), "input")
    yield ref, writer
    ref.stop()
    assert ref.join(30)
    for fd in (reader, writer):
        with suppress(OSError):  # a test closed it
            os.close(fd)


def test_prompts_come_in_order_and_end_with_the_input(pipe: tuple[Ref, int]) -> None:
    ref, writer = pipe
    os.write(writer, (text("a") + "\n" + text("b", steer=True) + text("c")).encode()[:-1])
    os.close(writer)
    assert [ref.ask(NextPrompt(), 5) for _ in range(5)] == [
        Given("a"), Given("b"), Given("c"), Given(None), Given(None),
    ]  # fmt: skip
    assert ref.ask(TakeSteering(), 5) == Steering(())


def test_the_agent_takes_what_steers_and_leaves_the_rest(pipe: tuple[Ref, int]) -> None:
    ref, writer = pipe
    os.write(writer, (text("a") + text("b", steer=True) + text("c") + text("d", steer=True)).encode())
    assert ref.ask(NextPrompt(), 5) == Given("a")
    assert ref.ask(TakeSteering(), 5) == Steering(("b", "d"))
    assert ref.ask(TakeSteering(), 5) == Steering(())
    assert ref.ask(NextPrompt(), 5) == Given("c")


@pytest.mark.bound("headless.prompts")
def test_while_too_many_wait_nothing_is_read(pipe: tuple[Ref, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_HEADLESS_PROMPTS", "1")
    ref, writer = pipe
    os.write(writer, text("a").encode())
    assert ref.ask(NextPrompt(), 5) == Given("a")
    os.set_blocking(writer, False)
    lines = text("x" * 50_000).encode()
    sent = 0
    with pytest.raises(BlockingIOError):
        for _ in range(100):
            sent += os.write(writer, lines)
            ref.ask(TakeSteering(), 5)
    assert sent < 20 * len(lines)


@pytest.mark.rule("headless.bad-lines")
def test_a_line_that_is_too_long_is_left_out(
    pipe: tuple[Ref, int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AERIX_BOUND_HEADLESS_STDIN", "100")
    ref, writer = pipe
    os.write(writer, (text("x" * 200) + text("short")).encode())
    assert ref.ask(NextPrompt(), 5) == Given("short")
    assert capfd.readouterr().err == (
        "aerix: standard input, line 1: it is longer than 100 bytes; the line is left out\n"
    )


# --- the program ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("headless.input-stream")
@pytest.mark.rule("agent.replay")
def test_prompts_run_one_after_the_other_in_one_session(aerix: Aerix) -> None:
    done = aerix("-p", *STREAM, stdin=text("play one") + text("now play two"))
    ends = of(done.lines, "session.end")
    assert (done.code, [end["text"] for end in ends]) == (0, ["first", "second"]), done.err
    assert len({end["session"] for end in ends}) == len(session_logs()) == 1
    starts = of(session_log(), "session.start")
    assert len({line["ts"] for line in starts}) == len(starts) == 2
    held = replay(session_log())
    assert [segment.id for segment, _ in held] == ["system", "prompt", "t1", "prompt2", "t2"]
    assert [segment.text for segment, _ in held][1:4] == [
        "play one", '{"thought":"I know.","final":"first"}', "now play two",
    ]  # fmt: skip


@pytest.mark.rule("headless.input-stream")
def test_the_command_lines_prompt_is_the_first(aerix: Aerix) -> None:
    done = aerix("-p", "play one", *STREAM, stdin=text("now play two"))
    assert [end["text"] for end in of(done.lines, "session.end")] == ["first", "second"]


@pytest.mark.rule("headless.bad-lines")
def test_bad_lines_are_told_and_left_out(aerix: Aerix) -> None:
    done = aerix("-p", *STREAM, stdin="what?\n" + text("play one"))
    assert (done.code, len(of(done.lines, "session.end"))) == (0, 1)
    assert "aerix: standard input, line 1: it is not JSON; the line is left out\n" in done.err


def test_no_prompt_at_all_is_a_usage_error(aerix: Aerix) -> None:
    done = aerix("-p", *STREAM, stdin="\n")
    assert (done.code, done.out) == (3, "")
    assert "there is no prompt" in done.err


@pytest.mark.rule("agent.steer")
def test_what_steers_joins_the_running_agent_at_its_next_turn(aerix: Aerix) -> None:
    running = aerix.start("-p", "play hold", *STREAM, stdin=subprocess.PIPE)
    until((aerix.cwd / "held").exists)
    say(running, text("and mind the gap", steer=True) + text("now play two"))
    (aerix.cwd / "go").touch()
    done = running.end()
    assert done.code == 0, done.err
    ends = of(running.seen, "session.end")
    assert [(end["text"], end["turns"]) for end in ends] == [("early", 2), ("second", 1)]
    ids = [line["id"] for line in of(running.seen, "segment")]
    assert ids.index("c1") < ids.index("u1") < ids.index("t2")
    (steering,) = [line for line in of(running.seen, "segment") if line["id"] == "u1"]
    assert (steering["text"], steering["pinned"]) == ("and mind the gap", True)


@pytest.mark.rule("agent.steer")
def test_what_steers_and_is_too_long_is_left_out_and_the_session_goes_on(aerix: Aerix) -> None:
    running = aerix.start("-p", "play hold", *STREAM, stdin=subprocess.PIPE)
    until((aerix.cwd / "held").exists)
    say(running, text("x" * 20_000, steer=True) + text("mind the gap", steer=True) + text("play two"))
    (aerix.cwd / "go").touch()
    done = running.end()
    assert done.code == 0, done.err
    assert [end["text"] for end in of(running.seen, "session.end")] == ["early", "second"]
    assert any("left out: it takes 20," in note["text"] for note in of(running.seen, "note"))
    held = [segment.text for segment, _ in replay(session_log())]
    assert "mind the gap" in held
    assert max(map(len, held)) < 20_000


@pytest.mark.rule("agent.steer")
def test_what_steers_while_nothing_runs_is_a_prompt(aerix: Aerix) -> None:
    done = aerix("-p", *STREAM, stdin=text("play one", steer=True))
    assert [end["text"] for end in of(done.lines, "session.end")] == ["first"]


@pytest.mark.rule("agent.steer")
def test_what_came_too_late_for_the_agent_is_the_next_prompt(aerix: Aerix) -> None:
    running = aerix.start("-p", "play last", "--max-turns", "2", *STREAM, stdin=subprocess.PIPE)
    running.until("session.start")
    running.until("message")
    until((aerix.cwd / "held").exists)
    (aerix.cwd / "go").touch()
    while running.until("message")["id"] != "t2":
        pass
    say(running, text("play two", steer=True))
    done = running.end()
    assert [end["text"] for end in of(running.seen, "session.end")] == ["that was it", "second"], done.err


@pytest.mark.rule("agent.cancel")
def test_ctrl_c_ends_the_run_also_when_prompts_wait(aerix: Aerix) -> None:
    running = aerix.start("-p", "play busy", *STREAM, stdin=subprocess.PIPE)
    pid = pid_in(aerix.cwd / "pid")
    say(running, text("play one"))
    running.send(signal.SIGINT)
    done = running.end(3)
    assert done.code == 130
    assert [end["outcome"] for end in of(running.seen, "session.end")] == ["cancelled"]
    assert is_gone(pid, 10)
    assert json_lines(session_logs()[-1].read_bytes())[-1]["type"] == "session.end"


@pytest.mark.rule("agent.cancel")
def test_ctrl_c_while_it_waits_for_a_prompt_ends_it(aerix: Aerix) -> None:
    running = aerix.start("-p", "play one", *STREAM, stdin=subprocess.PIPE)
    running.until("session.end")
    running.send(signal.SIGINT)
    assert running.process.wait(30) == 130
