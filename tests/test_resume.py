"""``--continue`` and ``--resume``: a session goes on, wherever and however it was stopped."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from aerix.pool.client import PoolSettings
from tests.runs import (
    Aerix,
    Finished,
    Line,
    Running,
    call,
    calls,
    daemon,  # noqa: F401 - a fixture
    final,
    of,
    replay,
    script,
    session_log,
    session_logs,
    turns,
)
from tests.tools.waiting import until

STREAM = ("--output-format", "stream-json", "--no-diff", "--route", "answer")
WORK: list[dict[str, Any]] = [
    calls(call("bash", command="echo one"), call("plan", op="write", text="1. look")),
    calls(call("context", op="note", text="mind the gap")),
    calls(call("bash", command="echo two")),
    final("so far"),
]
JOB = calls(call("bash", command="sleep 60", background=True))
HELD = calls(call("bash", command="touch held; sleep 60", timeout_secs=70))
PIECE = calls(call("agent", brief="build the thing"))


def steps(*first: dict[str, Any]) -> list[dict[str, Any]]:
    """These, and then an answer, however many turns there were before."""
    return [*first, *(final(f"turn {number}") for number in range(len(first) + 1, 12))]


@pytest.fixture
def aerix(daemon: PoolSettings, git_repo: Path, tmp_path: Path) -> Iterator[Aerix]:  # noqa: F811
    model = script(
        tmp_path,
        [
            ("play held", [HELD] * 3),
            ("and now", steps()),
            ("play piece", steps(PIECE)),
            ("build the thing", [HELD]),
            ("play slowly", steps({"turn": {"thought": "x" * 400, "final": "y"}, "per_token_delay": 0.05})),
            ("play bash", steps(HELD)),
            ("play job", steps(JOB)),
            ("play work", steps(*WORK)),
            ("play", steps()),
        ],
        window=16384,
    )  # fmt: skip
    one = Aerix(git_repo, daemon, model)
    yield one
    one.close()


def goes_on(aerix: Aerix, *args: str) -> Finished:
    done = aerix("-p", "and now?", "--continue", *STREAM, *args)
    assert done.code == 0, done.err
    return done


def told(done: Finished) -> str:
    """The notes to the user."""
    return "\n".join(line["text"] for line in of(done.lines, "note"))


def context() -> list[Any]:
    """The root's context, by the log alone: segments with their exact tokens."""
    return [segment for segment, _ in replay(session_log())]


def contents(lines: list[Line]) -> list[Any]:
    return [segment for segment, _ in replay(lines)]


# --- the same context


@pytest.mark.rule("session.resume")
@pytest.mark.rule("session.continue")
def test_continue_goes_on_with_the_same_segments_and_tokens_so_that_the_prefix_is_found(aerix: Aerix) -> None:
    first = aerix("-p", "play work", *STREAM)
    before, last = context(), turns(first.lines)[-1]["usage"]
    done = goes_on(aerix)
    assert context()[: len(before)] == before
    usage = turns(done.lines)[0]["usage"]
    assert usage["recomputed_from"] > last["prompt_tokens"]
    assert len(session_logs()) == 1
    starts = of(session_log(), "session.start")
    assert [line["resumed"] for line in starts] == [False, True]
    new = [line["id"] for line in of(done.lines, "segment")]
    assert new == ["prompt2", "t5"]  # what there was is not logged again


@pytest.mark.rule("session.resume")
def test_the_plan_goes_on_too_and_ids_stay_unique(aerix: Aerix, tmp_path: Path) -> None:
    aerix("-p", "play work", *STREAM)
    looks = script(
        tmp_path, [("play", steps(*WORK[:3], final(), calls(call("plan", op="read"))))], window=16384
    )
    done = goes_on(aerix, "--model", looks)
    (read,) = [line for line in of(done.lines, "message") if line.get("tool") == "plan"]
    assert (read["id"], read["text"]) == ("c5", "[plan c5]\n1. look")
    names = [(line["agent"], line["id"]) for line in of(session_log(), "segment")]
    assert len(names) == len(set(names))


@pytest.mark.rule("session.by-prefix")
def test_resume_takes_the_start_of_an_id(aerix: Aerix) -> None:
    aerix("-p", "play one", *STREAM)
    wanted = session_logs()[0].stem
    aerix("-p", "play two", *STREAM)
    done = aerix("-p", "and now?", "--resume", wanted[:13], *STREAM)
    assert (done.code, done.lines[0]["session"]) == (0, wanted), done.err
    assert goes_on(aerix).lines[0]["session"] == wanted  # which is the latest now


@pytest.mark.rule("session.ledger-kept")
def test_the_next_prompt_has_budgets_of_its_own(aerix: Aerix) -> None:
    assert aerix("-p", "play work", "--max-turns", "2", *STREAM).code == 2
    done = goes_on(aerix, "--max-turns", "2")
    assert "the session was interrupted: its work on 'play work' ended so: budget: " in told(done)
    spent = [line for line in of(session_log(), "spend") if line["bound"] == "agent.turns"]
    assert len(spent) == 2 + 1


# --- how it can have ended


@pytest.mark.rule("session.kill-anywhere")
@pytest.mark.rule("session.interrupted-said")
@pytest.mark.parametrize(
    "last",
    ["session.start", "route", "agent.spawn", "spend", "segment", "message", "plan", "context.op", "agent.end", "session.end"],
)  # fmt: skip
def test_after_a_kill_at_any_event_it_goes_on_with_all_that_was_logged(aerix: Aerix, last: str) -> None:
    killed(aerix.start("-p", "play work", *STREAM), last)
    check(aerix, session_logs()[0])


@pytest.mark.rule("session.kill-anywhere")
def test_a_job_that_went_with_its_process_is_said_to_be_gone(aerix: Aerix) -> None:
    killed(aerix.start("-p", "play job", *STREAM), "job")
    goes_on(aerix)
    assert [(line["id"], line["state"], line["how"]) for line in of(session_log(), "job")] == [
        ("j1", "started", "started"), ("j1", "killed", "killed: Aerix was stopped"),
    ]  # fmt: skip
    texts = {segment.id: segment.text for segment in context()}
    assert texts["j1"] == "[job j1 killed: Aerix was stopped]\nIts output is lost."


def killed(running: Running, last: str) -> None:
    running.until(last)
    running.send(signal.SIGKILL)
    assert running.end().code == -signal.SIGKILL


def check(aerix: Aerix, log: Path) -> None:
    """Go on with a session that was killed: nothing of its log is lost, and its prefix is found."""
    kept = log.read_bytes()
    whole = [json.loads(line) for line in kept.splitlines(keepends=True) if line.endswith(b"\n")]
    before, ended = contents(whole), bool(of(whole, "session.end"))
    done = goes_on(aerix)
    assert log.read_bytes().startswith(kept)
    after = contents([json.loads(line) for line in log.read_bytes().splitlines() if line.endswith(b"}")])
    assert after[: len(before)] == before
    said = "the session was interrupted: Aerix was stopped during its work on 'play work'"
    assert (said in told(done)) is not ended
    answered(after)
    if generated := turns(whole):
        resumed = turns(done.lines)[0]["usage"]["recomputed_from"]
        assert resumed >= generated[-1]["usage"]["prompt_tokens"]


def answered(context: list[Any]) -> None:
    """Every call of every turn has a result."""
    made = [
        call for one in context if one.role == "assistant" for call in json.loads(one.text).get("calls", ())
    ]
    results = [one.id for one in context if one.id.startswith("c")]
    assert results == [f"c{number}" for number in range(1, len(made) + 1)]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.rule("session.kill-anywhere")
def test_after_200_kills_at_random_it_always_goes_on(aerix: Aerix) -> None:
    random = Random(7)
    for round_ in range(200):
        running = aerix.start("-p", "play work", *STREAM)
        threading.Timer(random.uniform(0.1, 1.2), running.process.kill).start()
        running.end()
        running.process.stdout and running.process.stdout.close()
        running.process.stderr and running.process.stderr.close()
        if len(session_logs()) > 0:
            check_any(aerix, round_)


def check_any(aerix: Aerix, round_: int) -> None:
    logs = session_logs()
    kept = logs[-1].read_bytes()
    if b'"session.start"' not in kept:
        return
    done = aerix("-p", "and now?", "--resume", logs[-1].stem, *STREAM)
    assert (round_, done.code) == (round_, 0), done.err
    assert logs[-1].read_bytes().startswith(kept)
    answered(context())


@pytest.mark.rule("agent.resumable-after-cancel")
@pytest.mark.parametrize(
    ("prompt", "unanswered"), [("play slowly", []), ("play bash", ["c1"]), ("play piece", ["c1"])]
)
def test_a_cancelled_session_goes_on(aerix: Aerix, prompt: str, unanswered: list[str]) -> None:
    running = aerix.start("-p", prompt, *STREAM)
    if unanswered:
        until((aerix.cwd / "held").exists)
    else:
        running.until("token")
    running.send(signal.SIGINT)
    assert running.end().code == 130
    before = context()
    done = goes_on(aerix)
    assert context()[: len(before)] == before
    texts = {segment.id: segment.text for segment in context()}
    assert [name for name in texts if name.startswith("c")] == unanswered
    for name in unanswered:
        assert "cancelled: Aerix was stopped before its result was there" in texts[name]
    assert texts["ended"].startswith("[The user stopped you here.")
    assert f"its work on '{prompt}' ended so: cancelled: interrupted" in told(done)
    answered(context())


# --- what is in the way


@pytest.mark.rule("session.one-writer")
def test_a_session_that_is_open_is_gone_on_with_once_and_a_new_one_beside_it(aerix: Aerix) -> None:
    running = aerix.start("-p", "play bash", *STREAM)
    until((aerix.cwd / "held").exists)
    refused = aerix("-p", "and now?", "--continue", *STREAM)
    assert refused.code == 6
    assert (
        f"the session {session_logs()[0].stem} is open in another aerix; end that one, or start anew"
        in refused.err
    )
    assert aerix("-p", "play beside", *STREAM).code == 0
    assert len(session_logs()) == 2
    running.send(signal.SIGTERM)
    assert running.end().code == 143


@pytest.mark.rule("session.one-writer")
def test_of_two_that_go_on_at_once_one_does(aerix: Aerix) -> None:
    aerix("-p", "play one", *STREAM)
    both = [aerix.start("-p", "play held", "--continue", *STREAM) for _ in range(2)]
    until((aerix.cwd / "held").exists)
    until(lambda: any(one.process.poll() is not None for one in both))
    loser, winner = sorted(both, key=lambda one: one.process.poll() is None)
    assert loser.end().code == 6
    winner.send(signal.SIGINT)
    assert winner.end().code == 130
    assert len(of(session_log(), "session.start")) == 2


@pytest.mark.rule("session.full-disk")
def test_a_full_disk_leaves_the_session_as_it_was(aerix: Aerix) -> None:
    aerix("-p", "play work", *STREAM)
    kept = session_logs()[0].read_bytes()
    done = aerix.shell('ulimit -f 4; exec "$@"', "-p", "and now?", "--continue", *STREAM)
    assert done.code == 6, done.err
    assert "cannot be written: File too large; free space" in done.err
    assert session_logs()[0].read_bytes() == kept
    goes_on(aerix)


@pytest.mark.rule("session.tolerant")
def test_a_damaged_log_is_gone_on_with_and_what_was_passed_over_is_named(aerix: Aerix) -> None:
    aerix("-p", "play one", *STREAM)
    with session_logs()[0].open("ab") as log:
        log.write(b"no JSON\n[]\n")
        log.truncate(log.tell() + 50_000_000)
        log.seek(0, 2)
        log.write(b'\n{"ts": "2026')
    done = goes_on(aerix)
    said = "4 lines of its log passed over: 1 no event, 2 not JSON, 1 too long"
    assert f"the session's log is damaged: {said}" in told(done)
    assert [line["id"] for line in of(done.lines, "segment")] == ["prompt2", "t2"]


@pytest.mark.rule("session.other-project")
@pytest.mark.rule("cli.usage-is-3")
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--continue"], "there is no session of this project yet; begin one: aerix -p"),
        (["--resume", "abc"], "no session has an id that begins with 'abc'; aerix sessions list --all shows them [no_session]"),
        (["--resume", ""], "no session has an id that begins with ''"),
        (["--resume", "abc", "--continue"], "not allowed with argument"),
    ],
)  # fmt: skip
def test_a_session_that_is_not_there_is_a_usage_error(aerix: Aerix, args: list[str], said: str) -> None:
    done = aerix("-p", "and now?", *args, *STREAM)
    assert (done.code, done.out) == (3, "")
    assert said in done.err


@pytest.mark.rule("session.other-project")
def test_a_session_of_another_project_names_its_folder(aerix: Aerix, tmp_path: Path) -> None:
    aerix("-p", "play one", *STREAM)
    session, where = session_logs()[0].stem, aerix.cwd
    aerix.cwd = tmp_path
    done = aerix("-p", "and now?", "--resume", session, *STREAM)
    assert done.code == 3
    assert f"the session {session} belongs to another project, in {where}; go on with it there" in done.err


# --- what has changed since


@pytest.mark.rule("session.recorded-kept")
def test_changed_instructions_another_model_and_another_folder_are_said_and_the_recorded_context_stays(
    aerix: Aerix, tmp_path: Path
) -> None:
    (aerix.cwd / "CLAUDE.md").write_text("Be brief.\n")
    aerix("-p", "play one", *STREAM)
    before = context()
    (aerix.cwd / "CLAUDE.md").write_text("Be long.\n")
    began, aerix.cwd = aerix.cwd, aerix.cwd / "src"
    other = script(tmp_path, [("play", steps())], window=16384)
    done = goes_on(aerix, "--model", other)
    assert context()[: len(before)] == before
    assert (
        "the instruction files have changed; the session goes on with what they said when it began"
        in told(done)
    )
    assert f"the session worked in {began}; it goes on in {aerix.cwd}" in told(done)
    assert f"the session worked with {aerix.model}; it goes on with {other}, which reads it anew" in told(
        done
    )
    assert [segment.text for segment in context() if segment.id == "moved"] == [
        f"[The working directory is now {aerix.cwd}.]"
    ]


@pytest.mark.rule("session.recorded-kept")
def test_in_a_smaller_window_it_is_compacted_before_the_first_turn(aerix: Aerix, tmp_path: Path) -> None:
    long = [calls(call("bash", command="yes | head -c 2000")) for _ in range(4)]
    wide = script(tmp_path, [("play", steps(*long))], window=32768)
    aerix("-p", "play one", *STREAM, "--model", wide)
    used = turns(session_log())[-1]["usage"]["prompt_tokens"]
    narrow = script(tmp_path, [("play", steps(*long))], window=used - 1000)
    done = goes_on(aerix, "--model", narrow)
    (compaction,) = of(done.lines, "compaction")
    assert compaction["before"] > used - 1000 > compaction["after"]
    assert done.lines.index(compaction) < done.lines.index(turns(done.lines)[0])


def test_a_session_that_had_not_begun_its_work_begins_it(aerix: Aerix, tmp_path: Path) -> None:
    none = script(tmp_path, [("play", [])], window=0)
    assert aerix("-p", "play one", *STREAM, "--model", none).code != 0
    done = aerix("-p", "play two", "--continue", *STREAM)
    assert done.code == 0
    assert "the session had not begun its work: it begins now" in told(done)
