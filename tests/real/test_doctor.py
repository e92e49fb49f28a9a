"""``aerix doctor`` with the real model: rates are measured, turns are held to a schema, prompts are found again."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerix.pool.client import PoolSettings
from tests.runs import Aerix, daemon  # noqa: F401 - a fixture


@pytest.fixture
def aerix(daemon: PoolSettings, git_repo: Path) -> Iterator[Aerix]:  # noqa: F811
    runs = Aerix(git_repo)
    yield runs
    runs.close()


@pytest.mark.rule("doctor.checks")
@pytest.mark.rule("doctor.json")
def test_a_model_that_is_well_is_measured(
    aerix: Aerix,
    daemon: PoolSettings,  # noqa: F811
    installed_model: Path,
) -> None:
    done = aerix("doctor", "--json", "-c", f"pool.socket={json.dumps(str(daemon.socket))}")
    checks = {one["name"]: one for one in done.json["checks"]}
    assert (done.code, [one for one in checks.values() if one["state"] == "bad"]) == (0, [])
    assert "its hash is right" in checks["model"]["found"]
    assert checks["memory"]["figures"]["needs"] < checks["memory"]["figures"]["limit"]
    assert checks["window"]["figures"]["window"] == 8192
    assert checks["self-test"]["found"] == "turns are constrained"
    assert min(checks["rates"]["figures"].values()) > 0
    reuse = checks["prefix reuse"]["figures"]
    assert reuse["found"] >= reuse["prompt"] / 2
