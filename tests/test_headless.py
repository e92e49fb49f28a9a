"""``aerix -p`` from start to end: what it prints, how it exits, what it logs, and what the loss of each part costs."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from aerix.pool.client import PoolSettings
from tests.conftest import ROOT
from tests.runs import (  # noqa: F401 - a fixture
    Aerix,
    call,
    calls,
    daemon,
    final,
    json_lines,
    of,
    play,
    pool_status,
    replay,
    session_log,
    session_logs,
    turns,
    worker_pid,
)
from tests.tools.waiting import is_gone, pid_in

LONG = "The quick brown fox jumps over the lazy dog, again and again and again."
CHILDREN = """
sleep 60 & echo $! > one
setsid sleep 61 & echo $! > two
(trap '' TERM; setsid -f sh -c 'echo $$ > three; exec sleep 62')
echo $$ > shell; wait
"""

PLAYS: dict[str, list[dict[str, Any]]] = {
    "answer": [final("42")],
    "write": [calls(call("write", path="hello.txt", content="hi\n")), final("hello.txt says hi.")],
    "endless": [calls(call("plan", op="read"))] * 5,
    "error": [{"turn": final()["turn"], "fault": "error"}],
    "slow": [final(LONG, per_token_delay=0.01)],
    "where": [calls(call("bash", command="pwd > where")), final()],
    "children": [calls(call("bash", command=CHILDREN)), final()],
    "much": [calls(call("bash", command="yes | head -c 7000")), final("z" * 3000)],
}
FIELDS = ["session", "outcome", "reason", "text", "diff", "untracked", "usage", "turns", "exit"]
HELLO = "diff --git a/hello.txt b/hello.txt\nnew file mode 100644\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=16384)


@pytest.fixture
def aerix(daemon: PoolSettings, model: str, git_repo: Path) -> Iterator[Aerix]:  # noqa: F811
    runs = Aerix(git_repo, daemon, model)
    yield runs
    runs.close()


# --- the three formats --------------------------------------------------------------------------------------------


@pytest.mark.rule("headless.text")
@pytest.mark.rule("headless.stderr")
@pytest.mark.rule("request.diff-at-end")
def test_text_is_the_answer_then_the_diff_and_nothing_else(aerix: Aerix) -> None:
    done = aerix("-p", "play write")
    assert done.code == 0
    assert (aerix.cwd / "hello.txt").read_text() == "hi\n"
    answer, diff = done.out.split("\n\n", 1)
    assert answer == "hello.txt says hi."
    assert diff.startswith(HELLO)
    assert diff.endswith("+hi\n")
    assert done.notes == [
        "aerix: ✓ turns constrained",
        'aerix: c1 write {"path": "hello.txt", "content": "hi\\n"}',
    ]


@pytest.mark.rule("headless.json")
def test_json_is_one_object(aerix: Aerix) -> None:
    done = aerix("-p", "play write", "--output-format", "json")
    found = done.json
    assert list(found) == FIELDS
    assert (found["outcome"], found["reason"], found["text"]) == ("done", "", "hello.txt says hi.")
    assert (found["untracked"], found["turns"], found["exit"], done.code) == ([], 2, 0, 0)
    assert found["diff"].startswith(HELLO)
    assert set(found["usage"]) == {"generations", "prompt_tokens", "computed_tokens", "completion_tokens"}
    assert found["usage"]["generations"] == 3


@pytest.mark.rule("headless.stream-json")
@pytest.mark.rule("headless.every-line-json")
@pytest.mark.rule("session.one-event-a-line")
@pytest.mark.rule("turn.every-generation-valid")
def test_stream_json_is_the_sessions_events_as_they_are_written_with_tokens(aerix: Aerix) -> None:
    done = aerix("-p", "play write", "--output-format", "stream-json", "--max-turns", "4")
    lines = done.lines
    assert (done.code, done.notes) == (0, [])
    assert [line for line in lines if line["type"] not in ("token", "note")] == session_log()
    assert lines[-1]["type"] == "session.end"
    assert list(lines[-1])[3:] == FIELDS
    streamed = "".join(line["text"] for line in of(lines, "token"))
    assert streamed == "".join(line["text"] for line in turns(lines))
    # As they come: each turn's tokens stand before its message, in as many lines as the reader was quick to take.
    kinds = [line["type"] for line in lines if line["type"] == "token" or line in turns(lines)]
    assert [kind for kind, _ in groupby(kinds)] == ["token", "message"] * len(turns(lines))
    assert all(
        set(json.loads(line["text"])) in ({"thought", "calls"}, {"thought", "final"}) for line in turns(lines)
    )


@pytest.mark.rule("session.id")
@pytest.mark.rule("session.events")
def test_a_session_has_a_uuid_and_a_log_under_its_projects_key(aerix: Aerix) -> None:
    done = aerix("-p", "play answer", "--output-format", "json")
    (path,) = session_logs()
    begin = session_log()[0]
    assert path.stem == str(UUID(path.stem)) == done.json["session"] == begin["session"]
    assert path.parent.name == begin["project"]
    assert (begin["type"], begin["cwd"], begin["model"]) == ("session.start", str(aerix.cwd), aerix.model)


@pytest.mark.rule("route.decision-member")
def test_a_model_for_decisions_is_a_setting(aerix: Aerix, tmp_path: Path) -> None:
    decision = play(tmp_path, {"answer": [{"text": "investigate"}]})
    chosen = f"models.decision={json.dumps(decision)}"
    done = aerix("-p", "play answer", "--output-format", "stream-json", "-c", chosen)
    (route,) = [event for event in map(json.loads, done.out.splitlines()) if event["type"] == "route"]
    assert (done.code, route["route"]) == (0, "investigate")


@pytest.mark.rule("headless.closed-stdout")
@pytest.mark.rule("cli.no-traceback")
@pytest.mark.parametrize("form", ["text", "json", "stream-json"])
def test_a_closed_standard_output_is_141_and_no_traceback(aerix: Aerix, form: str) -> None:
    gone = aerix.shell('"$@" | true; exit ${PIPESTATUS[0]}', "-p", "play answer", "--output-format", form)
    closed = aerix.shell('"$@" >&-', "-p", "play answer", "--output-format", form)
    for done in (gone, closed):
        assert done.code == 141
        assert "Traceback" not in done.err
        assert "standard output was closed" not in done.out
    for path in session_logs():
        assert json_lines(path.read_bytes())[-1]["type"] == "session.end"


@pytest.mark.rule("headless.closed-stdout")
def test_head_takes_its_line_and_the_rest_is_not_generated(aerix: Aerix) -> None:
    line = '"$@" | head -n 1; exit ${PIPESTATUS[0]}'
    done = aerix.shell(line, "-p", "play slow", "--output-format", "stream-json")
    assert done.code == 141
    assert json.loads(done.out)["type"] == "session.start"
    assert "Traceback" not in done.err
    assert not turns(session_log())


@pytest.mark.rule("headless.exit-codes")
@pytest.mark.parametrize("form", ["text", "json", "stream-json"])
def test_an_output_that_takes_nothing_is_1_and_the_log_is_whole(aerix: Aerix, form: str) -> None:
    done = aerix.shell('"$@" > /dev/full', "-p", "play answer", "--output-format", form)
    assert done.code == 1
    assert "standard output cannot be written: No space left on device" in done.err
    assert session_log()[-1]["type"] == "session.end"


# --- exit codes ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("headless.exit-codes")
@pytest.mark.rule("cli.one-sentence")
@pytest.mark.parametrize("form", ["text", "json", "stream-json"])
@pytest.mark.parametrize(
    ("args", "code", "outcome", "reason"),
    [
        (["play error"], 1, "failed", "[scripted_error]"),
        (["play endless", "--max-turns", "2"], 2, "budget", "turns 2"),
    ],
)
def test_an_end_without_a_final_has_its_code_and_its_reason_on_standard_error(
    aerix: Aerix, form: str, args: list[str], code: int, outcome: str, reason: str
) -> None:
    done = aerix("-p", *args, "--output-format", form)
    assert done.code == code
    last = done.err.splitlines()[-1]
    assert last.startswith(f"aerix: {outcome}: ")
    assert reason in last
    end = session_log()[-1]
    assert (end["outcome"], end["exit"], end["text"]) == (outcome, code, "")
    if form == "text":
        assert done.out == ""
    else:
        assert json.loads(done.out.splitlines()[-1])["exit"] == code


@pytest.mark.rule("headless.exit-codes")
@pytest.mark.rule("cli.one-sentence")
@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["-c", "delegation.max_turn=3"], "delegation.max_turns"),
        (["-c", "permissions.mode=yes"], "permissions.mode"),
        (["-c", "permissions.deny=bahs"], "permissions.deny"),
        (["--allow", "bahs"], "did you mean bash?"),
        (["--add-dir", "nowhere"], "--add-dir nowhere: there is no such folder; name one that is there"),
        (["--settings", "missing.toml"], "missing.toml"),
        (["--cd", "nowhere"], "nowhere"),
        (["--model", ""], "models.main"),
    ],
)
def test_wrong_settings_are_3_and_nothing_begins(aerix: Aerix, args: list[str], why: str) -> None:
    done = aerix("-p", "play answer", *args)
    assert (done.code, done.out) == (3, "")
    assert why in done.err
    assert not session_logs()


@pytest.mark.rule("request.no-model")
@pytest.mark.rule("headless.exit-codes")
@pytest.mark.parametrize(
    ("ref", "code"), [("missing.gguf", "model_missing"), ("no-such-name", "model_unknown"), ("README.md", "")]
)
def test_a_model_that_is_not_there_is_4_with_a_sentence(aerix: Aerix, ref: str, code: str) -> None:
    done = aerix("-p", "hi", "--model", ref)
    assert (done.code, done.out) == (4, "")
    assert ref in done.err
    assert f"[{code or 'model_'}" in done.err


@pytest.mark.rule("request.no-model")
@pytest.mark.rule("headless.exit-codes")
@pytest.mark.parametrize("command", ['["false"]', '["/no/such/program"]'])
def test_a_pool_that_cannot_start_is_4_with_its_log_named(
    aerix: Aerix, runtime_dir: Path, command: str
) -> None:
    aerix.options = ["-c", f"pool.command={command}", "-c", f'pool.socket="{runtime_dir}/p.sock"']
    done = aerix("-p", "play answer", "--output-format", "json")
    assert (done.code, done.json["exit"], done.json["outcome"]) == (4, 4, "failed")
    assert "[pool_exited]" in done.err
    assert command.strip('[]"') in done.err or "pool-start.log" in done.err


@pytest.mark.rule("request.no-model")
def test_a_script_that_is_none_is_4_and_names_the_line(aerix: Aerix) -> None:
    (aerix.cwd / "bad.jsonl").write_text('{}\n{"turn": 7}\n')
    done = aerix("-p", "hi", "--model", "scripted:bad.jsonl")
    assert done.code == 4
    assert "line 2" in done.err


@pytest.mark.rule("session.full-disk")
@pytest.mark.rule("headless.exit-codes")
def test_sessions_that_cannot_be_stored_are_6(aerix: Aerix, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = aerix("-p", "play answer", XDG_DATA_HOME=str(tmp_path / "file"))
    assert (done.code, done.out) == (6, "")
    assert "[session_storage]" in done.err


@pytest.mark.rule("session.full-disk")
@pytest.mark.rule("session.whole-lines")
@pytest.mark.parametrize("kib", [1, 4, 12])
def test_a_disk_that_fills_up_is_6_and_leaves_whole_lines(aerix: Aerix, kib: int) -> None:
    args = ("-p", "play much", "--output-format", "json", "--no-diff")
    done = aerix.shell(f'ulimit -f {kib}; "$@"', *args)
    assert (done.code, done.json["exit"], done.json["outcome"]) == (6, 6, "failed")
    assert "free space" in done.err
    assert session_logs()[-1].stat().st_size <= kib * 1024
    assert session_log()[-1]["type"] != "session.end"


# --- the flags ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("cli.cd")
@pytest.mark.rule("headless.no-diff")
@pytest.mark.rule("headless.in-place")
def test_flags_change_the_folder_and_leave_the_diff_out(aerix: Aerix) -> None:
    done = aerix("-p", "play where", "--cd", "src", "--no-diff", "--in-place")
    assert (done.code, done.out) == (0, "done.\n")
    assert (aerix.cwd / "src/where").read_text() == f"{aerix.cwd}/src\n"
    assert session_log()[0]["cwd"] == f"{aerix.cwd}/src"


@pytest.mark.rule("headless.max-turns")
def test_settings_come_from_a_file_and_from_c_and_a_flag_of_its_own_wins(
    aerix: Aerix, tmp_path: Path
) -> None:
    (tmp_path / "more.toml").write_text("[delegation]\nmax_turns = 3\n")
    file = ("--settings", str(tmp_path / "more.toml"))
    ends = [
        aerix("-p", "play endless", *file, *more).err.splitlines()[-1]
        for more in (
            [],
            ["-c", "delegation.max_turns=2"],
            ["-c", "delegation.max_turns=2", "--max-turns", "1"],
        )
    ]
    assert [f"turns {n}" in end for n, end in zip((3, 2, 1), ends, strict=True)] == [True] * 3


@pytest.mark.rule("models.per-model-settings")
def test_a_models_own_settings_reach_the_pool(aerix: Aerix, daemon: PoolSettings, tmp_path: Path) -> None:  # noqa: F811
    written = aerix.model
    assert written is not None
    (tmp_path / "more.toml").write_text(
        f'[models."{written}"]\nkv_type = "q8_0"\nbatch = 64\ntemperature = 0.5\n'
    )
    assert aerix("-p", "play where", "--settings", str(tmp_path / "more.toml")).code == 0
    assert f"{written} batch=64 kv_type=q8_0" in [member.name for member in pool_status(daemon).members]


@pytest.mark.rule("headless.exit-codes")
def test_a_template_that_the_settings_name_and_that_is_not_there_is_3(aerix: Aerix) -> None:
    done = aerix("-p", "hi", "-c", f'models."{aerix.model}".template="~/none.jinja"')
    assert (done.code, done.out) == (3, "")
    assert (
        "none.jinja, which the settings name, cannot be read: there is no such file [bad_template]"
        in done.err
    )


@pytest.mark.rule("headless.piped-prompt")
def test_what_is_piped_in_joins_the_prompt(aerix: Aerix) -> None:
    assert aerix("-p", "play answer", stdin="some text\n").code == 0
    prompts = [segment.text for segment, _ in replay(session_log()) if segment.id == "prompt"]
    assert prompts == ["play answer\n\nsome text"]
    assert aerix("-p", stdin="play answer").out == "42\n"


# --- what is lost on the way --------------------------------------------------------------------------------------


@pytest.mark.rule("request.prefix-shared")
@pytest.mark.rule("session.usage")
def test_a_second_request_resumes_where_the_prompts_part(aerix: Aerix) -> None:
    for prompt in ("play answer: one", "play answer: two"):
        assert aerix("-p", prompt).code == 0
    second = turns(session_log())[0]["usage"]
    shared = replay(session_log())[0][1] + len("play answer: ")
    assert second["recomputed_from"] >= 0.9 * shared
    assert second["shelf"] == "resident"


@pytest.mark.rule("request.pool-lost")
@pytest.mark.rule("pool.status")
def test_a_killed_worker_costs_a_request_nothing_and_is_counted(
    aerix: Aerix,
    daemon: PoolSettings,  # noqa: F811
    model: str,
) -> None:
    whole = aerix("-p", "play slow", "--output-format", "json")
    before = next(member.restarts for member in pool_status(daemon).members if member.name == model)
    running = aerix.start("-p", "play slow", "--output-format", "stream-json")
    running.until_said("fox")
    os.kill(worker_pid(daemon, model), signal.SIGKILL)
    done = running.end()
    end = running.seen[-1]
    assert (end["text"], end["outcome"], done.code) == (whole.json["text"], whole.json["outcome"], whole.code)
    assert "".join(line["text"] for line in of(running.seen, "token")) == turns(running.seen)[0]["text"]
    status = aerix("pool", "status", "--socket", str(daemon.socket)).out
    about = status.split(model)[1].split("scripted:")[0]
    assert f"restarts {before + 1}," in about


@pytest.mark.rule("pool.autostart")
@pytest.mark.rule("request.pool-lost")
def test_a_pool_that_was_killed_between_two_requests_is_started_again(aerix: Aerix) -> None:
    aerix.options = []
    socket = Path(os.environ["XDG_RUNTIME_DIR"], "aerix/pool.sock")
    pids = []
    for _ in range(2):
        done = aerix("-p", "play answer")
        assert (done.code, done.out) == (0, "42\n")
        assert "the pool is being started" in done.err
        pids.append(pool_status(PoolSettings(socket=socket, autostart=False)).pid)
        os.kill(pids[-1], signal.SIGKILL)
        assert is_gone(pids[-1], 10)
    assert pids[0] != pids[1]


@pytest.mark.rule("request.nobody-contacted")
def test_no_host_is_contacted(aerix: Aerix, tmp_path: Path) -> None:
    """Python tells of each connection and each name that is looked up, in every process of the run."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(
        "import sys\n"
        "def hook(event, args):\n"
        "    if event in ('socket.getaddrinfo', 'socket.gethostbyname') or (\n"
        "        event == 'socket.connect' and not isinstance(args[1], (str, bytes))\n"
        "    ) or event == 'open' and args[0] == '/dev/null':\n"
        f"        print(event, args, file=open({str(tmp_path / 'contacts')!r}, 'a'))\n"
        "sys.addaudithook(hook)\n"
    )
    aerix.options = []
    done = aerix("-p", "play write", PYTHONPATH=f"{tmp_path / 'site'}:{ROOT}")
    assert done.code == 0
    assert aerix("pool", "stop").code == 0
    events = {line.split()[0] for line in (tmp_path / "contacts").read_text().splitlines()}
    assert events == {"open"}  # the hook was there, and heard nothing else


@pytest.mark.rule("jobs.no-orphan")
@pytest.mark.rule("session.whole-lines")
def test_a_killed_aerix_leaves_no_process_and_a_log_of_whole_lines(aerix: Aerix) -> None:
    assert shutil.which("setsid")
    running = aerix.start("-p", "play children", "--output-format", "stream-json")
    pids = [pid_in(aerix.cwd / name) for name in ("one", "two", "three", "shell")]
    running.send(signal.SIGKILL)
    assert running.end().code == -signal.SIGKILL
    assert all(is_gone(pid, 10) for pid in pids)
    lines = session_log()
    assert lines == [line for line in running.seen if line["type"] not in ("token", "note")]
    assert lines[-1]["type"] == "snapshot"
