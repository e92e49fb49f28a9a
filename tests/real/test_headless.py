"""``aerix -p`` with the real model: whatever it says, the run keeps to the contract."""

import json
import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from time import monotonic

import jsonschema
import pytest

from aerix.pool.address import default_socket, holder
from aerix.pool.client import PoolSettings
from aerix.tools import TOOLS
from aerix.turn.schema import turn_schema
from tests.real import fetched
from tests.runs import (  # noqa: F401 - a fixture
    Aerix,
    Line,
    daemon,
    of,
    pool_status,
    replay,
    session_log,
    turns,
    worker_pid,
)
from tests.tools.waiting import a_second, until

CODES = {"done": 0, "budget": 2, "failed": 1, "killed": 1, "refused": 1}


@pytest.fixture
def aerix(daemon: PoolSettings, model_file: Path, git_repo: Path) -> Iterator[Aerix]:  # noqa: F811
    runs = Aerix(git_repo, daemon, str(model_file))
    runs.options += ["--seed", "1", "-c", "generation.temperature=0.0", "--output-format", "stream-json"]
    yield runs
    runs.close()


def assert_valid(lines: list[Line]) -> None:
    """Every generation is a turn by the schema, or was cut at its limit of tokens."""
    for line in turns(lines):
        if line["stop"] == "length":
            assert not line["kept"]
        else:
            jsonschema.validate(json.loads(line["text"]), turn_schema(tuple(TOOLS.values())))


@pytest.mark.rule("session.resume")
def test_a_session_that_goes_on_finds_its_prefix(aerix: Aerix) -> None:
    words = ("--max-turns", "1", "--max-new-tokens", "64", "--route", "answer", "--no-diff")
    aerix("-p", "Say hello", *words)
    before, first = replay(session_log()), turns(session_log())[-1]["usage"]
    done = aerix("-p", "Say it again", "--continue", *words)
    second = turns(done.lines)[0]["usage"]
    assert [one for one, _ in replay(session_log())][: len(before)] == [one for one, _ in before]
    opening = 4  # tokens of the marker before a turn: one that was cut is left out with it
    assert second["recomputed_from"] >= first["prompt_tokens"] - opening
    assert second["shelf"] == "resident"


@pytest.mark.rule("turn.every-generation-valid")
@pytest.mark.rule("headless.every-line-json")
@pytest.mark.rule("bounds.named-outcome")
@pytest.mark.rule("request.append-only")
@pytest.mark.rule("template.exact-ids")
def test_a_request_ends_in_a_named_outcome_whatever_the_model_does(aerix: Aerix) -> None:
    task = "Create a file hello.txt that contains the word hi"
    done = aerix("-p", task, "--max-turns", "4", "--max-new-tokens", "128")
    lines, log = done.lines, session_log()
    assert [line for line in lines if line["type"] not in ("token", "note")] == log
    end = lines[-1]
    assert (end["type"], end["exit"]) == ("session.end", CODES[end["outcome"]])
    assert done.code == end["exit"]
    assert bool(end["reason"]) == (end["outcome"] != "done")
    assert_valid(log)
    assert "".join(line["text"] for line in of(lines, "token")) == "".join(
        line["text"] for line in turns(log)
    )
    for before, after in pairwise(turns(log)):
        held = before["usage"]["prompt_tokens"] + len(before["tokens"]) * before["kept"]
        assert held - 16 < after["usage"]["recomputed_from"] <= held


@pytest.mark.soak
@pytest.mark.rule("template.no-template")
def test_a_request_runs_on_a_model_by_its_path_whose_file_has_no_template(
    daemon: PoolSettings,  # noqa: F811
    git_repo: Path,
    test_cache: Path,
    pip_environment: dict[str, str],
) -> None:
    runs = Aerix(git_repo, daemon, str(fetched.gemma(test_cache, pip_environment)))
    runs.options += ["--seed", "1", "--output-format", "stream-json"]
    try:
        done = runs("-p", "Say hello.", "--max-turns", "1", "--max-new-tokens", "64")
    finally:
        runs.close()
    end = done.lines[-1]
    assert done.code == end["exit"] == CODES[end["outcome"]]
    assert end["reason"] != "crashed"
    assert_valid(done.lines)
    assert turns(done.lines)[0]["usage"]["completion_tokens"] > 0


@pytest.mark.rule("request.prefix-shared")
@pytest.mark.rule("session.usage")
def test_a_second_request_resumes_at_the_end_of_what_both_prompts_share(aerix: Aerix) -> None:
    logs = []
    for prompt in ("Say hello.", "What is in README.md?"):
        aerix("-p", prompt, "--max-turns", "1", "--max-new-tokens", "32")
        logs.append(session_log())
    (first, tokens), (second, _) = (replay(log)[0] for log in logs)
    assert first == second
    usage = turns(logs[1])[0]["usage"]
    assert tokens > 300
    assert usage["recomputed_from"] >= 0.9 * tokens
    assert usage["shelf"] == "resident"


@pytest.mark.rule("request.pool-lost")
@pytest.mark.rule("pool.one-way-back")
def test_the_text_goes_on_where_it_stopped_when_the_worker_is_killed(
    aerix: Aerix,
    daemon: PoolSettings,  # noqa: F811
    model_file: Path,
) -> None:
    args = ("-p", "Tell me a long story about a fox.", "--max-turns", "1", "--max-new-tokens", "96")
    running = aerix.start(*args)
    for _ in range(8):
        running.until("token")
    os.kill(worker_pid(daemon, str(model_file)), signal.SIGKILL)
    done = running.end(60)
    said, log = running.seen, session_log()
    first = turns(log)[0]
    streamed = "".join(line["text"] for line in of(said, "token"))
    assert streamed == "".join(line["text"] for line in turns(log))
    assert len(first["tokens"]) <= 96
    assert_valid(log)
    assert any("asked again" in line["text"] for line in of(said, "note"))
    assert "died" not in said[-1]["reason"]
    assert done.code == CODES[said[-1]["outcome"]]
    assert sum(member.restarts for member in pool_status(daemon).members) == 1


@pytest.mark.rule("headless.interrupt")
@pytest.mark.usefixtures("installed_model")
def test_a_signal_while_the_model_loads_ends_it_within_a_second(aerix: Aerix) -> None:
    aerix.options, aerix.model = ["--output-format", "stream-json"], None
    running = aerix.start("-p", "Say hello.")
    assert "pool is being started" in running.until("note")["text"]
    until(lambda: holder(default_socket()))  # it has begun to load
    begun = monotonic()
    running.send(signal.SIGINT)
    done = running.end()
    assert monotonic() - begun < a_second()
    assert (done.code, session_log()[-1]["outcome"]) == (130, "cancelled")
    assert "Apache-2.0" in done.err
    assert aerix("pool", "stop").code == 0
