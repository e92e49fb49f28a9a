"""A repository is data: nothing that lies in it is run because Aerix works there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHADOWED = ("aerix", "multiprocessing", "pip", "queue", "random", "selectors", "socket", "struct")
PROGRAM = f"""#!{sys.executable}
import sys
from aerix.__main__ import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """``aerix`` as pip installs it: a script in a folder of its own."""
    path = tmp_path / "bin" / "aerix"
    path.parent.mkdir()
    path.write_text(PROGRAM)
    path.chmod(0o755)
    return path


@pytest.mark.rule("process.own-modules")
def test_modules_that_lie_in_the_working_directory_are_not_imported(tmp_path: Path, program: Path) -> None:
    folder, loaded = tmp_path / "work", tmp_path / "loaded"
    folder.mkdir()
    for name in SHADOWED:
        (folder / f"{name}.py").write_text(
            f"open({str(loaded)!r}, 'a').write({name!r})\nraise SystemExit(1)\n"
        )
    script = tmp_path / "model.jsonl"
    call = {
        "tool": "bash",
        "input": {"command": "python3 -c 'import os; print(os.environ.get(\"PYTHONSAFEPATH\"))'"},
    }
    steps: list[dict[str, object]] = [
        {"window": 8192},
        {"turn": {"thought": "", "calls": [call]}},
        {"turn": {"thought": "", "final": "ok"}},
    ]
    script.write_text("".join(json.dumps(step) + "\n" for step in steps))
    command = [program, "-p", "x", "--model", f"scripted:{script}", "--output-format", "stream-json"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    finally:
        subprocess.run([program, "pool", "stop"], cwd=folder, capture_output=True, check=True, timeout=60)
    assert not loaded.exists(), loaded.read_text()
    assert done.returncode == 0, done.stderr
    results = [
        event["text"] for event in map(json.loads, done.stdout.splitlines()) if event.get("tool") == "bash"
    ]
    assert results == ["[bash c1]\nNone\n[exit 0]"], "a program the agent runs has the user's own environment"
