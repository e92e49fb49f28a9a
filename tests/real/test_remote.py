"""A model behind a real llama.cpp server, in an environment of the tests' own that is made once and kept."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from aerix.pool import protocol as p
from aerix.pool.client import PoolSettings
from aerix.pool.workerargs import WorkerArgs
from tests.pool.owner import Asked, Owner, worker
from tests.runs import Aerix, daemon, turns  # noqa: F401  # daemon is a fixture

SERVER = Path(__file__).with_name("llama_server.py")
WINDOW = 4096
SCHEMA = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"thought": {"type": "string", "maxLength": 40}, "final": {"type": "string", "maxLength": 40}},
            "required": ["thought", "final"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"never": {"const": 1}},
            "required": ["never"],
            "additionalProperties": False,
        },
    ]
}  # fmt: skip


@pytest.fixture(scope="module")
def server(model_file: Path, server_python: Path) -> Iterator[str]:
    """The reference of the default model on a server of its own."""
    command = [str(part) for part in (server_python, SERVER, model_file, WINDOW, 2)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    base = process.stdout.readline().strip()
    assert base, "the server did not come up"
    yield f"{base}/v1#{model_file}"
    process.stdin.close()
    process.stdout.close()
    assert process.wait(30) == 0


@pytest.fixture(scope="module")
def owner(server: str) -> Iterator[Owner]:
    with worker(WorkerArgs(server)) as one:
        assert one.info
        yield one


def ask(owner: Owner, text: str, max_tokens: int = 200, **fields: Any) -> Asked:
    context = owner.create(p.Segment("s", "system", "You are helpful."), p.Segment("u", "user", text))
    return owner.ask(p.Generate(5, context, max_tokens, **fields))


@pytest.mark.rule("remote.real")
@pytest.mark.rule("remote.window")
@pytest.mark.rule("remote.schema")
def test_what_it_is_is_found_out(owner: Owner) -> None:
    assert owner.info == {"window": WINDOW, "json": True, "thinking": 0, "estimated": False, "note": ""}


@pytest.mark.rule("remote.real")
@pytest.mark.rule("remote.counts")
def test_its_counts_are_those_of_its_prompts(owner: Owner) -> None:
    segments = [
        p.Segment("s", "system", "You are helpful."),
        p.Segment("u", "user", "The quick brown fox <|im_end|> jumps over the lazy dog. " * 10),
        p.Segment("a", "assistant", "Yes."),
        p.Segment("u2", "user", "Go on."),
    ]
    state = owner.ask(p.ContextCreate(1, "m", segments)).result()
    done = owner.ask(p.Generate(2, state.context, 1)).result()
    assert not state.estimated
    slack = len(segments) + 1
    assert done.usage.prompt_tokens <= state.tokens + state.opening <= done.usage.prompt_tokens + 2 * slack


@pytest.mark.rule("remote.real")
@pytest.mark.rule("remote.schema")
def test_a_turn_is_held_to_its_schema(owner: Owner) -> None:
    asked = ask(
        owner, "Say hello.", constraint=p.Constraint(schema=json.dumps(SCHEMA)), sampling=p.Sampling(0)
    )
    done = asked.result()
    assert done.stop == "final"
    jsonschema.validate(json.loads(done.text), SCHEMA)
    assert b"".join(piece.data for piece in asked.pieces).decode() == done.text
    assert 0 < done.usage.completion_tokens <= 200


@pytest.mark.rule("remote.real")
def test_ends_and_choices_are_told_apart(owner: Owner) -> None:
    assert ask(owner, "Tell me a long story.", 5).result().stop == "length"
    choice = ask(owner, "Say yes.", constraint=p.Constraint(texts=["x", "y"])).result()
    assert (choice.choice, choice.usage.completion_tokens <= 8) == (None, True)


@pytest.mark.rule("remote.real")
@pytest.mark.rule("remote.cancel")
def test_a_cancelled_turn_frees_the_server(owner: Owner) -> None:
    long = [ask(owner, f"Tell me a very long story about {thing}.", 3000) for thing in ("foxes", "hens")]
    for one in long:
        one.until(bool)
        owner.cancel(one)
    assert [one.result().stop for one in long] == ["cancelled"] * 2
    assert ask(owner, "Hi", 2).result().stop == "length"


@pytest.mark.rule("remote.real")
def test_what_is_cached_on_the_server_is_told(owner: Owner) -> None:
    text = "Count to three, then to four, then to five. " * 8
    first, second = (ask(owner, text, 1).result().usage for _ in range(2))
    assert second.recomputed_from > first.recomputed_from
    assert second.shelf == "resident"


@pytest.mark.rule("remote.real")
@pytest.mark.rule("remote.request")
def test_a_request_runs_on_it(server: str, daemon: PoolSettings, git_repo: Path) -> None:  # noqa: F811
    aerix = Aerix(git_repo, daemon, server)
    args = (
        "-p",
        "Say hello.",
        "--max-turns",
        "1",
        "--max-new-tokens",
        "64",
        "--output-format",
        "stream-json",
    )
    try:
        run = aerix(*args)
    finally:
        aerix.close()
    assert run.code in (0, 1, 2), run.err
    end = run.lines[-1]
    assert end["type"] == "session.end"
    assert end["reason"] != "crashed"
    (turn, *_) = turns(run.lines)
    assert turn["usage"]["completion_tokens"] > 0
