"""The benchmark of snapshots runs, and says what it should; its figures are nobody's test."""

import json
import subprocess
import sys

from tests.conftest import ROOT


def test_the_benchmark_prints_one_line_with_both_sides() -> None:
    command = [sys.executable, "scripts/bench/snapshot.py", "--quick"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout)
    assert figures["bench"] == "snapshot"
    assert set(figures["files"]["30"]) == {"first", "unchanged", "changed", "new", "git", "of_git"}
