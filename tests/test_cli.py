"""The command line: what it takes, what it refuses, and that no problem is a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aerix import __version__
from tests.pool.daemons import AERIX
from tests.runs import Aerix


def run(*args: str, **env: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [*AERIX, *args],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | env,
        timeout=30,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.rule("cli.version-help")
def test_version_and_help_need_nothing(own_home: Path) -> None:
    (own_home / ".config/aerix").mkdir(parents=True)
    (own_home / ".config/aerix/settings.toml").write_text("no toml at all")
    assert run("--version") == (0, f"aerix {__version__}\n", "")
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    for word in ("--output-format", "pool", "models", "settings", "bounds", "Exit codes"):
        assert word in out


@pytest.mark.rule("cli.usage-is-3")
@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--fly"], "--fly"),
        (["-p", "x", "--mdoel", "y"], "--mdoel y; there is --model; aerix --help"),
        (["-p", "x", "--output-format", "xml"], "invalid choice: 'xml'"),
        (["-p", "x", "--max-turns", "0"], "0 is not 1 or more"),
        (["-p", "x", "--route", "swim"], "'swim'"),
        (["-p", "x", "--max-new-tokens", "many"], "'many' is not a whole number"),
        (["-p", "x", "--seed", "-1"], "-1 is not between 0 and 4294967295"),
        (["-p", "x", "pool"], "pool"),
        (["-p", "Fix", "the", "test"], "the test; put a prompt of several words in quotes"),
        (["fly"], "'fly' is no command, and a session that begins with it needs a terminal"),
        (["pol", "status"], "'pol' is no command; there is pool; aerix --help"),
        (["Sesions"], "'Sesions' is no command; there is sessions; aerix --help"),
        (["help"], "there is --help"),
        (["models list"], "a prompt goes behind -p"),
        (["Fix", "the", "test"], "the test; put a prompt of several words in quotes"),
        (["Fix it", "--mdoel", "y"], "--mdoel y; there is --model; aerix --help"),
        (["--mdoel", "y", "pool"], "--mdoel pool; there is --model; aerix --help"),
        (["fly to the moon"], 'a prompt goes behind -p, as in aerix -p "Fix the test"'),
        (["settings"], "required: show | schema; aerix settings --help"),
        (["sessions"], "required: list | show | rm | export; aerix sessions --help"),
        ([], "aerix alone is a session on a terminal, and this is none"),
    ],
)
def test_wrong_usage_is_3_and_a_sentence(args: list[str], why: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (3, "")
    (line,) = err.splitlines()
    assert why in line
    assert line.startswith("aerix")


@pytest.mark.rule("cli.not-built-said")
@pytest.mark.parametrize("args", [["hooks", "list"], ["farm"]])
def test_what_is_not_built_yet_says_so(args: list[str]) -> None:
    code, out, err = run(*args)
    assert (code, out) == (3, "")
    assert "is not built yet" in err


@pytest.mark.rule("headless.closed-stdout")
@pytest.mark.rule("cli.no-traceback")
def test_a_reader_that_is_gone_ends_a_printing_command_with_141(tmp_path: Path) -> None:
    aerix = Aerix(tmp_path)
    done = aerix.shell('"$@" | true; exit ${PIPESTATUS[0]}', "bounds")
    aerix.close()
    assert (done.code, done.out, done.err) == (141, "", "")


@pytest.mark.rule("cli.no-traceback")
def test_a_fault_of_aerix_itself_is_a_sentence_and_its_traceback_is_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    broken = "import aerix.settings_cli as c; c._schema = lambda args: 1 / 0; from aerix.cli import run; "
    done = subprocess.run(
        [sys.executable, "-c", f"{broken} raise SystemExit(run(['settings', 'schema']))"],
        env=os.environ | {"AERIX_LOG_FILE": str(log)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "a fault of Aerix: ZeroDivisionError" in done.stderr
    assert "Traceback" in log.read_text()


@pytest.mark.rule("cli.pool")
def test_pool_commands_take_the_pool_of_the_settings(tmp_path: Path) -> None:
    socket = str(tmp_path / "other.sock")
    code, _, err = run("pool", "status", AERIX_POOL__SOCKET=socket)
    assert code == 4
    assert socket in err
    code, _, err = run("pool", "status", AERIX_POOL__SOCKETS=socket)
    assert code == 3
    assert "pool.socket" in err


@pytest.mark.rule("cli.models")
def test_models_are_listed() -> None:
    code, out, _ = run("models", "list")
    assert code == 0
    assert "smollm2-135m-instruct" in out


@pytest.mark.rule("settings.show")
def test_settings_are_shown_with_their_source_and_a_bad_one_is_3() -> None:
    code, out, _ = run("settings", "show", "-c", "delegation.max_turns=7")
    assert code == 0
    assert any("max_turns" in line and "7" in line and "-c" in line for line in out.splitlines())
    code, out, err = run("settings", "show", "-c", "delegation.max_turn=7")
    assert (code, out) == (3, "")
    assert "delegation.max_turns" in err


@pytest.mark.parametrize("arguments", [["-p", "hi"], ["pool", "status"], ["settings", "show"]])
def test_a_working_directory_that_was_removed_is_a_sentence(arguments: list[str], tmp_path: Path) -> None:
    command = f"cd {tmp_path}/gone && rmdir {tmp_path}/gone && exec {sys.executable} -P -m aerix {' '.join(arguments)}"
    (tmp_path / "gone").mkdir()
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (3, "")
    assert (
        done.stderr
        == "aerix: the working directory: No such file or directory; go to a folder that is there\n"
    )


@pytest.mark.rule("headless.closed-stdout")
@pytest.mark.parametrize("command", ["bounds", "settings show", "models list"])
def test_a_command_whose_output_cannot_be_written_says_so(command: str) -> None:
    line = f"{sys.executable} -P -m aerix {command}"
    full = subprocess.run(
        ["sh", "-c", f"{line} > /dev/full"], capture_output=True, text=True, check=False, timeout=30
    )
    assert (full.returncode, full.stderr) == (
        1,
        "aerix: standard output cannot be written: No space left on device\n",
    )
    closed = subprocess.run(
        ["sh", "-c", f"{line} >&-"], capture_output=True, text=True, check=False, timeout=30
    )
    assert (closed.returncode, closed.stderr) == (141, "")
