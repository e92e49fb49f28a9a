"""`aerix pool …` and `aerix models …` as a user types them."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.pool.daemons import AERIX, PATIENCE, Daemons, Scripts


def aerix(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run it; a busy machine is no reason for its note that it waits, unless a test sets that bound."""
    return subprocess.run(
        [*AERIX, *words],
        env={"AERIX_BOUND_POOL_PATIENCE_NOTE": "60", **os.environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.mark.rule("cli.pool")
@pytest.mark.rule("pool.status")
def test_start_status_and_stop(pool: Daemons, script: Scripts) -> None:
    ref = script(window=2048)
    started = aerix("pool", "start", "--load", ref, "--idle-timeout", "60", "--threads", "1")
    assert (started.returncode, started.stderr) == (0, "")
    assert f"the pool answers on {pool.socket} (process " in started.stdout
    again = aerix("pool", "start")
    assert again.stdout == started.stdout
    shown = aerix("pool", "status")
    assert shown.returncode == 0
    for part in (
        str(pool.socket),
        "up ",
        f"{ref}: ready",
        "window 2048",
        "restarts 0",
        "contexts 0",
        "waiting 0",
        "process ",
    ):
        assert part in shown.stdout
    told = json.loads(aerix("pool", "status", "--json").stdout)
    assert told["members"][0]["name"] == ref
    assert f"(process {told['pid']})" in started.stdout
    stopped = aerix("pool", "stop")
    assert (stopped.returncode, stopped.stdout) == (
        0,
        f"the pool on {pool.socket} has stopped (process {told['pid']})\n",
    )


@pytest.mark.rule("cli.one-sentence")
@pytest.mark.parametrize(
    ("command", "help_"), [("status", "run `aerix pool start`"), ("stop", "there is nothing to stop")]
)
def test_without_a_pool_status_and_stop_say_so_with_exit_code_4(
    pool: Daemons, command: str, help_: str
) -> None:
    told = aerix("pool", command)
    assert (told.returncode, told.stdout) == (4, "")
    assert told.stderr == f"aerix: no pool answers on {pool.socket}: {help_}\n"


def test_a_socket_can_be_named_before_and_after_the_command(pool: Daemons, tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    for words in (("pool", "--socket", str(path), "status"), ("pool", "status", "--socket", str(path))):
        assert str(path) in aerix(*words).stderr


def test_a_load_that_fails_is_one_sentence_with_exit_code_4(pool: Daemons, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("nothing\n")
    for ref in ("nonsense", "ollama:none", f"{tmp_path}/none.gguf", f"scripted:{tmp_path}/bad.jsonl"):
        for words in (("pool", "--load", ref), ("pool", "start", "--load", ref)):
            told = aerix(*words)
            assert told.returncode == 4, told
            assert "Traceback" not in told.stderr
            assert len([line for line in told.stderr.splitlines() if "loading" not in line]) == 1


@pytest.mark.rule("cli.one-sentence")
@pytest.mark.parametrize("words", [("pool",), ("pool", "start"), ("pool", "status"), ("pool", "stop")])
def test_a_folder_as_the_socket_is_one_sentence_with_exit_code_4(words: tuple[str, ...]) -> None:
    told = aerix(*words, "--socket", "/")
    assert told.returncode == 4
    assert "/" in told.stderr
    assert "it is a folder" in told.stderr
    assert len(told.stderr.splitlines()) == 1


@pytest.mark.bound("pool.patience-note")
@pytest.mark.bound("pool.control")
def test_who_waits_for_a_pool_that_does_not_answer_is_told_so(
    pool: Daemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = pool()
    os.kill(daemon.process.pid, signal.SIGSTOP)
    monkeypatch.setenv("AERIX_BOUND_POOL_PATIENCE_NOTE", "0.1")
    monkeypatch.setenv("AERIX_BOUND_POOL_CONTROL", "0.6")
    told = aerix("pool", "status")
    assert told.returncode == 4
    note, error = told.stderr.splitlines()
    assert note == f"aerix: waiting for the pool on {pool.socket}, at most 2 s"
    assert "did not answer Hello in 0.6 s" in error


@pytest.mark.bound("pool.stop-wait")
@pytest.mark.rule("pool.stop")
def test_stop_ends_a_pool_that_does_not_answer(pool: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = pool()
    os.kill(daemon.process.pid, signal.SIGSTOP)
    monkeypatch.setenv("AERIX_BOUND_POOL_STOP_WAIT", "0.2")
    told = aerix("pool", "stop")
    assert told.returncode == 0
    assert "did not answer and was ended with SIGKILL" in told.stdout


@pytest.mark.rule("pool.stop")
def test_stop_ends_a_pool_that_is_still_loading(pool: Daemons, script: Scripts) -> None:
    daemon = pool(script(), script(), script(), wait=False)
    daemon.read_until("loading")
    told = aerix("pool", "stop")
    assert told.returncode == 0
    daemon.ended()


def test_a_pool_whose_starter_closed_its_output_goes_on(pool: Daemons, script: Scripts) -> None:
    daemon = pool(script(), wait=False)
    assert daemon.process.stderr is not None
    daemon.read_until("loading")
    daemon.process.stderr.close()
    while aerix("pool", "status").returncode:
        pass
    assert aerix("pool", "stop").returncode == 0
    assert daemon.process.wait(PATIENCE) == 0


@pytest.mark.rule("models.list")
@pytest.mark.rule("cli.models")
def test_models_list_shows_the_catalogue_and_what_is_here(own_home: Path) -> None:
    folder = own_home / ".local/share/aerix/models"
    told = aerix("models", "list")
    assert told.returncode == 0
    assert (
        "smollm2-135m-instruct  98 MB  Apache-2.0  not fetched: aerix models pull smollm2-135m-instruct"
        in told.stdout
    )
    folder.mkdir(parents=True)
    (folder / "mine.gguf").write_bytes(b"GGUF\x03\0\0\0" * 1_000_000)
    assert f"{folder}/mine.gguf  8 MB" in aerix("models", "list").stdout


@pytest.mark.rule("cli.models")
def test_models_pull_refuses_what_is_not_in_the_catalogue() -> None:
    told = aerix("models", "pull", "gpt-9")
    assert told.returncode == 4
    assert told.stderr.startswith(
        "aerix: model 'gpt-9': it is not known: give a path to a GGUF file, a catalogue name"
    )


@pytest.mark.rule("cli.usage-is-3")
@pytest.mark.parametrize(
    "words",
    [
        ("pool", "dance"),
        ("pool", "--idle-timeout", "-1"),
        ("pool", "--threads", "0"),
        ("models",),
        ("models", "pull"),
    ],
)
def test_a_usage_error_ends_with_exit_code_3(words: tuple[str, ...]) -> None:
    told = aerix(*words)
    assert told.returncode == 3
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize(
    ("flag", "value", "what"),
    [
        ("--window", "abc", "a positive number"),
        ("--max-batch", "0", "a positive number"),
        ("--context-budget", "1GB", "a number of bytes"),
        ("--idle-timeout", "soon", "a number of seconds"),
    ],
)
def test_a_flag_that_takes_a_number_says_so(flag: str, value: str, what: str) -> None:
    said = aerix("pool", "start", flag, value)
    assert said.returncode == 3
    assert f"argument {flag}: {value} is not {what}; " in said.stderr


def test_an_empty_template_is_refused(pool: Daemons, script: Scripts, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jinja"
    empty.write_text("\n")
    said = aerix("pool", "--socket", str(pool.socket), "--load", script(), "--template", str(empty))
    assert said.returncode == 4
    assert said.stderr.endswith(f"the template {empty} is empty\n")


def test_a_template_that_is_not_there_is_refused_with_what_is(
    pool: Daemons, script: Scripts, tmp_path: Path
) -> None:
    missing = tmp_path / "none.jinja"
    said = aerix("pool", "start", "--load", script(), "--template", str(missing))
    why = "No such file or directory; give a file, or one of chatml, llama3, gemma, mistral, phi3"
    assert said.returncode == 4
    assert f"(exit 4): the template {missing} cannot be read: {why} (log: " in said.stderr


def test_a_template_may_be_the_name_of_one_that_aerix_brings(pool: Daemons, script: Scripts) -> None:
    try:
        started = aerix("pool", "start", "--load", script(), "--template", "chatml")
        assert (started.returncode, started.stderr) == (0, "")
        ref = script()
        loaded = aerix("pool", "load", ref, "--template", "llama3")
        assert loaded.stdout.startswith(f"{ref} template=llama3: ready\n")
    finally:
        aerix("pool", "stop")


def test_start_says_that_a_pool_that_runs_takes_no_flags(pool: Daemons, script: Scripts) -> None:
    pool(script())
    plain, flagged = aerix("pool", "start"), aerix("pool", "start", "--load", script())
    assert (plain.returncode, plain.stderr, flagged.returncode) == (0, "", 0)
    assert flagged.stdout == plain.stdout
    assert "took none of these flags: `aerix pool load REF`" in flagged.stderr
