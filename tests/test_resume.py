"""``--continue`` and ``--resume``: a session goes on, wherever and however it was stopped."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from aerix.cli import run
from aerix.pool.client import PoolSettings
from aerix.pool.protocol import Segment
from aerix.session.read import Reading
from tests.runs import (
    Aerix,
    Finished,
    Line,
    call,
    calls,
    daemon,  # noqa: F401 - a fixture
    final,
    of,
    replay,
    script,
    session_logs,
    turns,
)
from tests.tools.waiting import until

STREAM = ("--output-format", "stream-json", "--no-diff", "--route", "answer")
LOOK = calls(call("bash", command="echo one"), call("plan", op="write", text="1. look"))
NOTE = calls(call("context", op="note", text="mind the gap"))
JOB = calls(call("bash", command="sleep 60", background=True))
HELD = calls(call("bash", command="touch held; sleep 60", timeout_secs=70))
PIECE = calls(call("agent", brief="build the thing"))
SLOW = {"turn": {"thought": "x" * 400, "final": "y"}, "per_token_delay": 0.05}
ANSWERS = [final(f"turn {number}") for number in range(1, 40)]
"""Whatever turns there were before, the next one is an answer."""


@pytest.fixture
def aerix(daemon: PoolSettings, git_repo: Path, tmp_path: Path) -> Iterator[Aerix]:  # noqa: F811
    model = script(
        tmp_path,
        [
            ("and now", [*ANSWERS[:3], calls(call("plan", op="read")), *ANSWERS[4:]]),
            ("play piece", [PIECE] * 3),
            ("build the thing", [HELD]),
            ("play held", [HELD] * 3),
            ("play slowly", [SLOW]),
            ("play ever on", [LOOK, NOTE, JOB] * 12),
            ("play work", [LOOK, NOTE, *ANSWERS[2:]]),
            ("play", ANSWERS),
        ],
        window=65536,
    )  # fmt: skip
    one = Aerix(git_repo, daemon, model)
    yield one
    one.close()


def goes_on(aerix: Aerix, *args: str) -> Finished:
    done = aerix("-p", "and now?", "--continue", *STREAM, *args)
    assert done.code == 0, done.err
    return done


def told(lines: list[Line]) -> str:
    """The notes to the user."""
    return "\n".join(line["text"] for line in of(lines, "note"))


def context(lines: list[Line]) -> list[Segment]:
    """The root's context, by the log alone: segments with their exact tokens."""
    return [segment for segment, _ in replay(lines)]


def logged() -> list[Line]:
    """What the newest log has, read as Aerix does: a kill may come in the middle of a line."""
    return [*Reading(session_logs()[-1])]


def texts() -> dict[str, str]:
    return {segment.id: segment.text for segment in context(logged())}


def answered() -> None:
    """Every call of every turn has a result, in order."""
    held = context(logged())
    made = [
        one for turn in held if turn.role == "assistant" for one in json.loads(turn.text).get("calls", ())
    ]
    assert [one.id for one in held if one.id[0] == "c"] == [
        f"c{number}" for number in range(1, len(made) + 1)
    ]


# --- the same context


@pytest.mark.rule("session.resume")
def test_a_prompt_that_was_too_long_is_not_in_the_way_of_the_next(aerix: Aerix) -> None:
    aerix("-p", "play work", *STREAM)
    before = context(logged())
    refused = aerix("-p", f"play {'x' * 70_000}", "--continue", *STREAM)
    end = of(refused.lines, "session.end")[-1]
    assert (refused.code, end["outcome"]) == (1, "refused")
    assert "the session with this prompt takes 7" in end["reason"]
    goes_on(aerix)
    held = context(logged())
    assert held[: len(before)] == before
    assert not any("xxx" in one.text for one in held)


@pytest.mark.rule("session.resume")
@pytest.mark.rule("session.continue")
def test_it_goes_on_with_the_same_tokens_and_plan_so_that_the_prefix_is_found(aerix: Aerix) -> None:
    first = aerix("-p", "play work", *STREAM)
    before, last = context(logged()), turns(first.lines)[-1]["usage"]
    done = goes_on(aerix)
    assert context(logged())[: len(before)] == before
    assert turns(done.lines)[0]["usage"]["recomputed_from"] > last["prompt_tokens"]
    assert texts()["c4"] == "[plan c4]\n1. look"
    assert [line["resumed"] for line in of(logged(), "session.start")] == [False, True]
    new = [line["id"] for line in of(done.lines, "segment")]
    assert new == ["prompt2", "t4", "c4", "t5"]  # what there was is not logged again
    assert "the session" not in told(done.lines)


@pytest.mark.rule("session.by-prefix")
@pytest.mark.rule("session.other-project")
def test_resume_takes_the_start_of_an_id_in_its_own_project(aerix: Aerix, tmp_path: Path) -> None:
    aerix("-p", "play one", *STREAM)
    wanted, where = session_logs()[0].stem, aerix.cwd
    aerix("-p", "play two", *STREAM)
    done = aerix("-p", "and now?", "--resume", wanted[:13], *STREAM)
    assert (done.code, done.lines[0]["session"]) == (0, wanted), done.err
    aerix.cwd = tmp_path
    done = aerix("-p", "and now?", "--resume", wanted, *STREAM)
    assert (done.code, done.out) == (3, "")
    assert (
        f"the session {wanted} belongs to another project, in {where}; go on with it there [no_session]"
        in done.err
    )


@pytest.mark.rule("cli.usage-is-3")
def test_one_session_is_gone_on_with(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="3"):
        run(["-p", "and now?", "--resume", "abc", "--continue"])
    assert "argument --continue: not allowed with argument --resume" in capfd.readouterr().err


# --- how it can have ended


@pytest.mark.rule("session.kill-anywhere")
@pytest.mark.rule("session.interrupted-said")
def test_after_kills_at_every_event_it_goes_on_with_all_that_was_logged(aerix: Aerix) -> None:
    kinds = (
        "session.start", "message", "route", "segment", "agent.spawn", "spend", "plan", "context.op", "job", "agent.end",
        "session.end",
    )  # fmt: skip
    kept, before = b"", list[Segment]()
    for number, kind in enumerate(kinds):
        ended = number > 0 and logged()[-1]["type"] == "session.end"  # it was quicker than the kill
        running = aerix.start(
            "-p", "play ever on", *["--continue"] * (number > 0), *STREAM, "--max-turns", "5"
        )
        running.until(kind)
        running.send(signal.SIGKILL)
        assert running.end().code == -signal.SIGKILL
        (log,) = session_logs()
        lines = logged()
        assert log.read_bytes().startswith(kept)
        assert context(lines)[: len(before)] == before
        kept, before = log.read_bytes(), context(lines)
        if number and not ended and kind not in ("session.start", "route"):  # it came so far as to tell
            assert "Aerix was stopped during its work on 'play ever on'" in told(running.seen), kind
    done = goes_on(aerix)
    assert context(logged())[: len(before)] == before
    assert "the session's last work, on 'play ever on', ended so: budget: " in told(done.lines)
    assert turns(done.lines)[0]["usage"]["recomputed_from"] >= turns(lines)[-1]["usage"]["prompt_tokens"]
    answered()
    gone = [line["id"] for line in of(logged(), "job") if line["how"] == "killed: Aerix was stopped"]
    assert texts()[gone[0]] == f"[job {gone[0]} killed: Aerix was stopped]\nIts output is lost."


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.rule("session.kill-anywhere")
def test_after_200_kills_at_random_it_always_goes_on(aerix: Aerix) -> None:
    random = Random(7)
    for _ in range(200):
        running = aerix.start("-p", "play ever on", "--max-turns", "9", *STREAM)
        timer = threading.Timer(random.uniform(0.1, 1.5), running.process.kill)
        timer.start()
        running.end()
        timer.join()
        for log in session_logs():
            kept = log.read_bytes()
            done = aerix("-p", "and now?", "--resume", log.stem, *STREAM)
            assert done.code == 0, done.err
            assert log.read_bytes().startswith(kept)
            answered()
            log.unlink()


@pytest.mark.rule("agent.resumable-after-cancel")
def test_a_session_that_was_cancelled_goes_on(aerix: Aerix) -> None:
    """In the middle of a turn, of a command, and of a piece."""
    running = aerix.start("-p", "play slowly", *STREAM)
    running.until("token")
    running.send(signal.SIGINT)
    assert running.end().code == 130
    for prompt in ("play held", "play piece"):
        running = aerix.start("-p", prompt, "--continue", *STREAM)
        until((aerix.cwd / "held").exists)
        running.send(signal.SIGINT)
        assert running.end().code == 130
        (aerix.cwd / "held").unlink()
    before = context(logged())
    done = goes_on(aerix)
    assert context(logged())[: len(before)] == before
    answered()
    for name, tool in (("c1", "bash"), ("c2", "agent")):
        assert texts()[name].startswith(
            f"[{tool} {name}]\ncancelled: Aerix was stopped before its result was there"
        )
    assert texts()["ended"] == texts()["ended3"]
    assert texts()["ended"].startswith("[The user stopped you here.")
    said = "the session was interrupted: its work on 'play piece' was cancelled; without a result: agent c2"
    assert said in told(done.lines)


# --- what is in the way


@pytest.mark.rule("session.one-writer")
def test_a_session_is_gone_on_with_once_at_a_time_and_others_beside_it(aerix: Aerix) -> None:
    aerix("-p", "play one", *STREAM)
    first = session_logs()[0].stem
    running = aerix.start("-p", "play held", "--continue", *STREAM)
    until((aerix.cwd / "held").exists)
    refused = aerix("-p", "and now?", "--continue", *STREAM)
    assert refused.code == 6
    assert f"the session {first} is open in another aerix; end that one, or start anew" in refused.err
    beside = aerix("-p", "play beside", *STREAM)
    assert beside.code == 0
    assert beside.lines[0]["session"] != first
    running.send(signal.SIGTERM)
    assert running.end().code == 143


@pytest.mark.rule("session.full-disk")
@pytest.mark.rule("session.ledger-kept")
def test_a_full_disk_leaves_the_session_as_it_was_and_the_next_prompt_has_budgets_of_its_own(
    aerix: Aerix,
) -> None:
    assert aerix("-p", "play work", "--max-turns", "2", *STREAM).code == 2
    kept = session_logs()[0].read_bytes()
    done = aerix.shell('ulimit -f 4; exec "$@"', "-p", "and now?", "--continue", *STREAM)
    assert done.code == 6, done.err
    assert "cannot be written: File too large; free space" in done.err
    assert session_logs()[0].read_bytes() == kept
    goes_on(aerix, "--max-turns", "2")
    spent = [line for line in of(logged(), "spend") if line["bound"] == "agent.turns"]
    assert len(spent) == 2 + 1


# --- what is not as it was


@pytest.mark.rule("session.recorded-kept")
@pytest.mark.rule("session.tolerant")
def test_what_has_changed_since_is_said_and_the_recorded_context_stays(aerix: Aerix, tmp_path: Path) -> None:
    (aerix.cwd / "CLAUDE.md").write_text("Be brief.\n")
    aerix("-p", "play one", *STREAM)
    before = context(logged())
    with session_logs()[0].open("ab") as log:
        log.write(b"no JSON\n[]\n")
        log.truncate(log.tell() + 50_000_000)
        log.seek(0, 2)
        log.write(b'\n{"ts": "2026')
    (aerix.cwd / "CLAUDE.md").write_text("Be long.\n")
    began, aerix.cwd = aerix.cwd, aerix.cwd / "src"
    passed = {"turn": {"thought": "It holds.", "final": {"verdict": "pass", "reason": "seen"}}}
    groups = [
        ("and now", [*ANSWERS[:1], PIECE, *ANSWERS[2:]]),
        ("Another agent did", [passed]),
        ("build the", ANSWERS),
    ]
    other = script(tmp_path, groups, window=16384)
    done = goes_on(aerix, "--model", other)
    held = [line for line in of(done.lines, "segment") if line["id"] == "moved"]
    assert [line["text"] for line in held] == [f"[The working directory is now {aerix.cwd}.]"]
    for said in (
        "the session's log is damaged: 4 lines of its log passed over: 1 no event, 2 not JSON, 1 too long",
        "the instruction files have changed; the session goes on with what they said when it began",
        f"the session worked in {began}; it goes on in {aerix.cwd}",
        f"the session worked with {aerix.model}; it goes on with {other}, which reads it anew",
    ):
        assert said in told(done.lines)
    new = of(done.lines, "segment")
    assert [line["id"] for line in new if line["agent"] == "a1"] == ["moved", "prompt2", "t2", "c1", "t3"]
    piece = [line.get("text") for line in new if line["agent"] == "a1.c1"]
    assert piece[:2] == [one.text for one in before[:2]]  # pieces begin with what was recorded, too
    assert turns(done.lines)[0]["usage"]["prompt_tokens"] > sum(len(one.text) for one in before)


@pytest.mark.rule("session.recorded-kept")
def test_in_a_smaller_window_it_is_compacted_before_the_first_turn(aerix: Aerix, tmp_path: Path) -> None:
    long = [calls(call("bash", command="yes | head -c 2000")) for _ in range(4)]
    wide = script(tmp_path, [("play", [*long, *ANSWERS])], window=32768)
    aerix("-p", "play one", *STREAM, "--model", wide)
    used = turns(logged())[-1]["usage"]["prompt_tokens"]
    narrow = script(tmp_path, [("play", [*long, *ANSWERS])], window=used - 1000)
    done = goes_on(aerix, "--model", narrow)
    (compaction,) = of(done.lines, "compaction")
    assert compaction["before"] > used - 1000 > compaction["after"]
    assert done.lines.index(compaction) < done.lines.index(turns(done.lines)[0])
