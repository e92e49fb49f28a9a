"""The estimate of what a model takes, beside what a worker with the real one takes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aerix.pool.fit import memory_limit, plan
from aerix.pool.header import read_header
from aerix.pool.workerargs import WorkerArgs

LOADED = """
import json, sys
from pathlib import Path
from aerix.pool.leash import Leash
from aerix.pool.rows import Row
from aerix.pool.worker import load
from aerix.pool.workerargs import WorkerArgs

engine, _ = load(WorkerArgs(**json.loads(sys.argv[1])), Leash())
step, rows = engine.facts.batch, 512
for begin in range(0, rows, step):
    part = [Row(100 + at % 1000, at, 0, at % step == step - 1) for at in range(begin, begin + step)]
    engine.decode(part)
status = Path("/proc/self/status").read_text()
print(engine.facts.window, engine.facts.cells, int(status.partition("VmRSS:")[2].split()[0]) * 1024)
"""
"""A worker's own way to load a model, and then some of its window filled."""


@pytest.mark.rule("models.fit")
@pytest.mark.parametrize("args", [{"window": 2048}, {"window": 4096, "kv_type": "q8_0", "batch": 128}])
def test_the_estimate_is_near_what_a_worker_takes(model_file: Path, args: dict[str, Any]) -> None:
    planned = plan(
        "it", read_header(model_file), model_file.stat().st_size, WorkerArgs("", **args), memory_limit()
    )
    window, cells, taken = measured(model_file, args)
    assert (window, cells) == (planned.window, planned.cells)
    assert 0.9 * taken <= planned.total <= 1.2 * taken


def measured(model: Path, args: dict[str, Any]) -> list[int]:
    """The window and the cells of a model that was loaded, and the bytes that its process takes."""
    command = [sys.executable, "-c", LOADED, json.dumps(args | {"model": str(model)})]
    return [int(word) for word in subprocess.check_output(command, text=True).split()]
