"""The benchmark of the actors runs, and says what it should; its figures are nobody's test."""

import json
import subprocess
import sys
from pathlib import Path

ROWS = (
    "tell", "ask", "process_round_trip", "token_frames", "restart_thread", "restart_process", "idle_500",
)  # fmt: skip


def test_the_benchmark_prints_one_line_with_both_sides_of_each_figure() -> None:
    command = [sys.executable, "scripts/bench/actors.py", "--quick"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    figures = json.loads(line)
    assert figures.pop("bench") == "actors"
    assert tuple(figures) == ROWS
    for row in figures.values():
        assert set(row) == {"unit", "actor", "bare", "ratio", "rounds"}
        assert min(row["actor"], row["bare"], row["ratio"]) > 0
