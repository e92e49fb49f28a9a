"""repo_map: what is shown of a project in how many bytes, and in which order."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aerix.tools.languages import language, usefulness
from aerix.tools.repo_map import repo_map
from aerix.tools.workspace import Workspace

Call = Callable[..., str]


def fill(ws: Workspace, *paths: str, size: int = 10) -> None:
    for path in paths:
        (ws.cwd / path).parent.mkdir(parents=True, exist_ok=True)
        (ws.cwd / path).write_text("x" * size)


@pytest.mark.rule("tools.repo-map")
def test_folders_and_files_have_sizes_and_languages(call: Call, ws: Workspace) -> None:
    fill(ws, "src/app.py", size=2400)
    fill(ws, "README.md", "docs/guide.md", "notes", size=300)
    assert call(repo_map).splitlines() == [
        "4 files in 3 folders, 3k: Python 2k, Markdown 600, other 300",
        "./ (2 files, 600, Markdown): README.md 300, notes 300",
        "src/ (1 file, 2k, Python): app.py 2k",
        "docs/ (1 file, 300, Markdown): guide.md 300",
    ]


@pytest.mark.rule("tools.repo-map")
def test_the_most_useful_comes_first(call: Call, ws: Workspace) -> None:
    fill(ws, "a.lock", "data.csv", "README.md", "pyproject.toml", "main.py", "zlib.py")
    fill(ws, "a/tests/test_a.py", "vendor/v.py", "src/core.py", ".ci/run.sh", "assets/logo.svg")
    lines = call(repo_map).splitlines()
    assert lines[1].partition(": ")[2] == (
        "README.md 10, pyproject.toml 10, main.py 10, zlib.py 10, data.csv 10, a.lock 10"
    )
    assert [line.split()[0] for line in lines[1:]] == [
        "./", "src/", ".ci/", "vendor/", "a/tests/", "assets/",
    ]  # fmt: skip


@pytest.mark.rule("tools.repo-map")
@pytest.mark.parametrize("room", [120, 300, 1000, 3000, 8192])
def test_a_large_project_is_told_in_its_budget(call: Call, ws: Workspace, room: int) -> None:
    fill(ws, *(f"package{n % 60}/sub/module_number_{n}.py" for n in range(600)))
    text = call(repo_map, room=room)
    assert room // 3 < len(text.encode()) <= room
    assert text.splitlines()[0].startswith("600 files in 60 folders, 6k: Python 6k")
    named = [line for line in text.splitlines()[1:] if line.startswith("package")]
    if room < 1000:
        assert (
            text.splitlines()[-1] == f"and {60 - len(named)} folders more with {600 - 10 * len(named)} files"
        )
    if room == 8192:
        assert len(named) == 60
        assert "+" in text


@pytest.mark.rule("tools.git-file-set")
def test_ignored_files_are_not_on_it(call: Call, ws: Workspace) -> None:
    subprocess.run(["git", "init", "-q", ws.cwd], check=True)
    fill(ws, "seen.py", "ignored/x.py")
    (ws.cwd / ".gitignore").write_text("ignored/\n")
    assert "ignored" not in call(repo_map).replace(".gitignore", "")
    assert "seen.py 10" in call(repo_map)


def test_an_empty_folder_says_so(call: Call) -> None:
    assert call(repo_map) == "there is no file here."


def test_odd_names_stay_on_their_line(call: Call, ws: Workspace) -> None:
    fill(ws, "a\nb.py", os.fsdecode(b"\xff.py"), "in\x1b[31m/c.py")
    text = call(repo_map)
    assert len(text.splitlines()) == 3
    assert "a?b.py 10" in text
    assert "\x1b" not in text


def test_a_link_to_nowhere_and_a_deleted_file_do_no_harm(call: Call, ws: Workspace) -> None:
    subprocess.run(["git", "init", "-q", ws.cwd], check=True)
    fill(ws, "gone.py", "kept.py")
    subprocess.run(["git", "add", "."], cwd=ws.cwd, check=True)
    (ws.cwd / "gone.py").unlink()
    Path(ws.cwd, "link.py").symlink_to("/nowhere")
    text = call(repo_map)
    assert "gone" not in text
    assert "kept.py 10" in text
    assert "link.py" in text


def test_languages_are_told_by_name() -> None:
    assert [language(name) for name in ("a.PY", "Makefile", "x.tar.gz", "README", "a.d.ts", ".gitignore")] == [
        "Python", "Make", "", "", "TypeScript", "",
    ]  # fmt: skip
    assert usefulness((), "package-lock.json") == 0
    assert (
        usefulness(("src",), "main.rs") > usefulness(("src",), "util.rs") > usefulness(("tests",), "main.rs")
    )
