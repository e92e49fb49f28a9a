"""docs/actors.md: every example is a program that runs, and prints what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/actors.md").read_text()
BLOCK = re.compile(
    r"^```python\n# (\S+\.py)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE
)
EXAMPLES = {name: (code, output) for name, code, output in BLOCK.findall(PAGE)}


def test_every_code_block_is_an_example_with_a_file_of_its_own() -> None:
    assert PAGE.count("```python") == len(EXAMPLES) > 0
    assert PAGE.count("```text") == sum(output != "" for _, output in EXAMPLES.values())


@pytest.mark.parametrize("name", [name for name, (_, output) in EXAMPLES.items() if output])
def test_an_example_prints_what_stands_below_it(name: str, tmp_path: Path) -> None:
    for file, (code, _) in EXAMPLES.items():
        (tmp_path / file).write_text(code)
    done = subprocess.run(
        [sys.executable, tmp_path / name],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == EXAMPLES[name][1]
