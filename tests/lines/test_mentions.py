"""@path brings a file into a prompt; what is a secret, or lies elsewhere, stays out and is told."""

from pathlib import Path

import pytest

from aerix.mentions import bring_in
from tests.conftest import Limit


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "src").mkdir(parents=True)
    (folder / "src/a.py").write_text("print(1)\n")
    (folder / "my notes.txt").write_text("note\n")
    (folder / ".env").write_text("KEY=1\n")
    (folder / "bin").write_bytes(b"\xff\0")
    (tmp_path / "outside.txt").write_text("out\n")
    (folder / "link").symlink_to(tmp_path / "outside.txt")
    return folder


def brought(prompt: str, cwd: Path) -> tuple[str, list[str]]:
    return bring_in(prompt, cwd, lambda path: path.name == ".env")


@pytest.mark.rule("lines.files-completed")
@pytest.mark.parametrize(
    ("prompt", "blocks"),
    [
        ("see @src/a.py, please", ["# File src/a.py\nprint(1)\n"]),
        ('see @"my notes.txt".', ["# File my notes.txt\nnote\n"]),
        ("@src/a.py and @src/a.py", ["# File src/a.py\nprint(1)\n"]),
        ("mail me@src/a.py or @nobody or a@b", []),
        ("@src/b.py is to be made, @ too", []),
    ],
)
def test_a_mention_brings_the_file_in(cwd: Path, prompt: str, blocks: list[str]) -> None:
    assert brought(prompt, cwd) == ("\n\n".join([prompt, *blocks]), [])


@pytest.mark.rule("lines.files-guarded")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../outside.txt", "it lies outside the working directory; the agent can read it, if you say so"),
        ("link", "it lies outside the working directory; the agent can read it, if you say so"),
        (".env", "it is a secret"),
        ("src", "it is a folder; the agent can look at it"),
        ("bin", "it is no UTF-8 text"),
    ],
)
def test_what_is_not_brought_in_is_told(cwd: Path, name: str, why: str) -> None:
    assert brought(f"see @{name}", cwd) == (f"see @{name}", [f"@{name} is not brought in: {why}"])


@pytest.mark.bound("lines.mention-bytes")
def test_a_long_file_stays_out(cwd: Path, limit: Limit) -> None:
    limit("lines.mention-bytes", 8)
    assert brought("@src/a.py", cwd)[1] == ["@src/a.py is not brought in: it is larger than 8 bytes"]


@pytest.mark.bound("lines.mentions")
def test_a_prompt_brings_in_so_many_files(cwd: Path, limit: Limit) -> None:
    limit("lines.mentions", 1)
    prompt, notes = brought('@src/a.py @"my notes.txt"', cwd)
    assert prompt.count("# File") == 1
    assert notes == ["@my notes.txt is not brought in: a prompt brings in at most 1 files"]
