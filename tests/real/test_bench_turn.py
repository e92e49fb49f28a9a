"""The benchmark of a turn runs, and says what it should; its figures are nobody's test."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import Finished


@pytest.mark.timeout(300)
def test_the_benchmark_prints_one_line_with_what_a_turn_costs(model_file: Path) -> None:
    command = [sys.executable, "scripts/bench/turn.py", str(model_file), "--quick"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=280, check=False)
    ended = Finished(done.returncode, done.stdout, done.stderr)
    assert (ended.code, ended.notes) == (0, [])
    (line,) = ended.out.splitlines()
    figures = json.loads(line)
    assert figures["bench"] == "turn"
    assert list(figures["overhead_ms"]) == list(figures["model_ms"]) == ["6", "12", "18"]
    assert all(set(kinds) == {"all", "read", "bash", "write"} for kinds in figures["overhead_ms"].values())
    assert 0 < figures["reused"] <= 1
    assert set(figures["memory_mib"]) == {"at_start", "after_18_turns", "its_children"}
    assert min(figures["memory_mib"].values()) > 0
    assert figures["remote_ms"].keys() == figures["overhead_ms"].keys()
    assert figures["first_request_ms"] > 0
    tokens = figures["tokens"]
    assert tokens["tools_short"] < tokens["tools_long"] < tokens["system_long"]
    assert tokens["system_short"] < tokens["system_long"]
