"""The table of limits: the values of the specification, printed with those in force."""

import os
import subprocess
from pathlib import Path

import pytest

from aerix import bounds as aerix
from aerix.actors import bounds as actors
from aerix.actors.bounds import Bound
from aerix.bounds import every_row, in_force, table, wrong
from aerix.hooks import bounds as hooks
from aerix.pool import bounds as pool
from aerix.settings import load_settings
from aerix.settings_pool import pool_settings
from aerix.settings_schema import find
from aerix.turn import schema
from tests.pool.daemons import AERIX

SPECIFIED = {
    "agent.turns": 40,
    "agent.turn-retries": 2,
    "agent.hard-limit-hits": 2,
    "agent.cut-turn": 64,
    "route.tokens": 8,
    "read.lines": 200,
    "read.chars": 2000,
    "grep.file": 8 * 1024 * 1024,
    "grep.chars": 400,
    "grep.matches": 200,
    "bash.timeout": 120,
    "bash.longest": 600,
    "bash.term": 2,
    "bash.cancel": 0.5,
    "jobs.at-final": 10,
    "agent.stop-continues": 5,
    "git.call": 30,
    "pool.max-connections": 4,
    "pool.control": 30,
    "pool.frames": 600,
    "pool.autostart": 900,
    "pool.autostart-every": 0.5,
    "pool.member-load": 900,
    "pool.idle": 1800,
    "pool.lost-in-a-row": 2,
    "headless.stdin-note": 2,
    "wire.frame": 16 * 1024 * 1024,
    "wire.depth": 64,
    "actor.grace": 2,
    "child.term": 2,
}
LATER = {
    "hooks.handler": 600,
    "hooks.handler-short": 30,
    "hooks.handler-term": 2,
    "profile.git": 30,
    "profile.compare-and-swap": 3,
    "tune.sessions": 20,
    "tune.reflections": 1,
    "farm.restarts": 2,
}
"""The rows of features that are not built yet."""
EVERY = every_row()
BY_NAME = {row.name: row for row in EVERY}


@pytest.mark.rule("bounds.one-table")
@pytest.mark.parametrize("name", SPECIFIED)
def test_a_limit_has_the_value_of_the_specification(name: str) -> None:
    assert BY_NAME[name].default == SPECIFIED[name]
    assert BY_NAME[name].built


@pytest.mark.rule("bounds.not-built-said")
def test_the_rows_of_what_is_not_built_yet_are_there() -> None:
    assert LATER.items() <= {row.name: row.default for row in EVERY if not row.built}.items()


@pytest.mark.rule("bounds.one-table")
def test_every_limit_of_a_package_is_a_row_under_a_name_of_its_own() -> None:
    names = [row.name for row in EVERY]
    assert len(names) == len(set(names)) == len({row.variable for row in EVERY})
    declared = {
        value.name
        for module in (actors, pool, hooks, aerix)
        for value in vars(module).values()
        if isinstance(value, Bound)
    }
    assert declared == set(names)
    assert all(not row.per or row.per in names for row in EVERY)
    assert all(row.read(str(row.default)) == row.default for row in EVERY)
    assert BY_NAME["turn.calls"].default == schema.CALLS


@pytest.mark.rule("cli.bounds")
@pytest.mark.rule("bounds.not-built-said")
def test_the_table_is_printed_with_the_values_in_force() -> None:
    env = os.environ | {"AERIX_BOUND_AGENT_TURNS": "7"}
    done = subprocess.run([*AERIX, "bounds"], env=env, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [row.name for row in EVERY]
    (turns,) = [line for line in lines if line.startswith("agent.turns ")]
    assert turns.split()[1] == "7"
    assert "set by delegation.max_turns, --max-turns" in turns
    for row, line in zip(EVERY, lines, strict=True):
        assert row.outcome in line
        assert line.endswith("; not built yet") is not row.built
        assert (f"; now {row.variable}" in line) is (row.name == "agent.turns")


@pytest.mark.rule("bounds.settable")
@pytest.mark.parametrize("row", EVERY, ids=lambda row: row.name)
def test_every_limit_can_be_set_small(row: Bound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = 1 if row.whole else 0.25
    monkeypatch.setenv(row.variable, str(small))
    assert row.value == small
    assert not wrong(os.environ)
    (line,) = [line for line in table(load_settings(tmp_path)) if line.split()[0] == row.name]
    assert line.split()[1] == str(small)
    assert (f"; now {row.variable}" in line) is (small != row.default)


# --- settings and variables ---------------------------------------------------------------------------------------


@pytest.mark.rule("bounds.settings-in-force")
def test_a_setting_that_is_set_goes_before_the_variable_and_that_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = BY_NAME["agent.turns"]
    assert in_force(turns, load_settings(tmp_path)) == (40, "")
    monkeypatch.setenv(turns.variable, "7")
    assert in_force(turns, load_settings(tmp_path)) == (7, turns.variable)
    chosen = load_settings(tmp_path, overrides=["delegation.max_turns=40"])
    assert in_force(turns, chosen) == (40, "-c delegation.max_turns=40")
    file = tmp_path / "more.toml"
    file.write_text("[delegation]\nmax_turns = 9\n")
    found = in_force(turns, load_settings(tmp_path, settings_file=file))
    assert found == (9, f"delegation.max_turns in {file}")


@pytest.mark.rule("bounds.settings-in-force")
def test_the_limits_of_the_pool_are_those_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_POOL_MAX_CONNECTIONS", "2")
    monkeypatch.setenv("AERIX_BOUND_POOL_AUTOSTART", "0.5")
    settings = pool_settings(load_settings(tmp_path))
    assert (settings.max_connections, settings.start_timeout_s) == (2, 0.5)
    settings = pool_settings(load_settings(tmp_path, overrides=["pool.max_connections=3"]))
    assert settings.max_connections == 3


@pytest.mark.rule("bounds.settings-in-force")
def test_a_limit_and_its_setting_have_the_same_default() -> None:
    for row in EVERY:
        key = find(tuple(row.setting.partition(",")[0].split(".")))
        assert key is None or key.default in (row.default, None), row.name


@pytest.mark.rule("cli.bounds")
@pytest.mark.rule("bounds.settings-in-force")
def test_the_table_takes_the_settings_of_the_folder_and_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / ".aerix").mkdir()
    (tmp_path / ".aerix/settings.toml").write_text("[pool]\nmax_connections = 2\n")
    command = [*AERIX, "bounds", "-c", "delegation.max_turns=7"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert lines["agent.turns"].split()[1] == "7"
    assert lines["agent.turns"].endswith("; now -c delegation.max_turns=7")
    assert lines["pool.max-connections"].split()[1] == "2"
    assert f"; now pool.max_connections in {tmp_path}/.aerix/settings.toml" in lines["pool.max-connections"]
    bad = subprocess.run([*command, "-c", "x=1"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (3, "")


@pytest.mark.rule("bounds.wrong-variable")
@pytest.mark.rule("cli.no-traceback")
@pytest.mark.parametrize(
    "args", [["bounds"], ["-p", "hi"], ["pool"], ["pool", "status"], ["settings", "show"], ["models", "list"]]
)
def test_a_variable_that_sets_a_limit_wrongly_ends_every_command_with_a_sentence(args: list[str]) -> None:
    bad = {"AERIX_BOUND_AGENT_TURNS": "many", "AERIX_BOUND_AGENT_TRNS": "3", "AERIX_BOUND_GIT_CALL": "-1"}
    done = subprocess.run(
        [*AERIX, *args],
        env=os.environ | bad,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines() == [
        "aerix: AERIX_BOUND_AGENT_TRNS is no limit of this version; AERIX_BOUND_AGENT_TURNS is (aerix bounds names them all)",
        "aerix: AERIX_BOUND_AGENT_TURNS=many: agent.turns is a whole number from 1 to 1099511627776 (turns)",
        "aerix: AERIX_BOUND_GIT_CALL=-1: git.call is a number from 0 to 1000000 (seconds)",
    ]


@pytest.mark.rule("bounds.wrong-variable")
def test_a_name_that_resembles_no_limit_is_refused_without_a_guess() -> None:
    (sentence,) = wrong({"AERIX_BOUND_XYZZY": "1", "AERIX_BOUND_EMPTY": "", "OTHER": "x"})
    assert sentence == "AERIX_BOUND_XYZZY is no limit of this version (aerix bounds names them all)"


@pytest.mark.rule("cli.version-help")
def test_the_help_of_the_table_says_how_a_limit_is_set() -> None:
    env = os.environ | {"AERIX_BOUND_AGENT_TURNS": "many"}
    done = subprocess.run([*AERIX, "bounds", "--help"], env=env, capture_output=True, text=True, check=True)
    assert "AERIX_BOUND_AGENT_TURNS=3" in done.stdout
    assert "what has set it now" in " ".join(done.stdout.split())
