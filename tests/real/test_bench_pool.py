"""The benchmark of the pool's engine runs, and says what it should; its figures are nobody's test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.timeout(300)
def test_the_benchmark_prints_one_line_with_the_engines_figures(model_file: Path) -> None:
    asked = ["resume", "forks", "snapshots", "constrained", "drafts"]
    command = [sys.executable, "scripts/bench/pool.py", str(model_file), *asked, "--quick"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    figures = json.loads(line)
    assert figures.keys() == {"bench", "model", *asked}
    assert figures["resume"]["ratio"] > 0
    assert figures["forks"]["ms"] > 0
    assert min(figures["snapshots"][way] for way in ("first_out", "out", "in")) > 0
    assert 0 < figures["constrained"]["forced_share"] < 1
    assert figures["drafts"].keys() == {"turn", "quote"}
    assert all(one["ratio"] > 0 and 0 <= one["drafted_share"] < 1 for one in figures["drafts"].values())
