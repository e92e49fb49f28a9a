"""The table of limits: the values of the specification, printed with those in force."""

import os
import subprocess

import pytest

from aerix.actors import bounds as actors
from aerix.actors.bounds import Bound
from aerix.bounds import ROWS, table
from aerix.pool import bounds as pool
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
EVERY = (*actors.ROWS, *pool.ROWS, *ROWS)


@pytest.mark.rule("bounds.one-table")
@pytest.mark.parametrize("name", SPECIFIED)
def test_a_limit_has_the_value_of_the_specification(name: str) -> None:
    (row,) = [row for row in EVERY if row.name == name]
    assert row.default == SPECIFIED[name]
    assert row.built


@pytest.mark.rule("bounds.one-table")
def test_every_limit_of_a_package_is_a_row_under_a_name_of_its_own() -> None:
    names = [row.name for row in EVERY]
    assert len(names) == len(set(names)) == len({row.variable for row in EVERY})
    from aerix import bounds as aerix

    declared = {
        value.name
        for module in (actors, pool, aerix)
        for value in vars(module).values()
        if isinstance(value, Bound)
    }
    assert declared <= set(names)


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


@pytest.mark.rule("bounds.settable")
@pytest.mark.parametrize("row", EVERY, ids=lambda row: row.name)
def test_every_limit_can_be_set_small(row: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(row.variable, "0.25")
    assert row.value == 0.25
    assert any(line.split()[:2] == [row.name, "0.25"] for line in table())
