import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aerix.tools import patterns
from aerix.tools.gitfiles import files
from aerix.tools.glob import glob
from aerix.tools.grep import grep
from aerix.tools.workspace import Given, ToolError, Workspace

Call = Callable[..., str]


@pytest.mark.rule("tools.glob")
@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("src/*.py", ["src/b.py", "src/deep/c.py"]),
        ("**/*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("src/**/c.py", ["src/deep/c.py"]),
        ("src/**/b.py", ["src/b.py"]),
        ("c.py", ["src/deep/c.py"]),
        ("./a.py", ["a.py"]),
        ("*.{md,txt}", ["x.md", "y.txt"]),
        ("?.md", ["x.md"]),
        ("[xy].*", ["x.md", "y.txt"]),
        ("[!x].txt", ["y.txt"]),
        ("*", ["a.py", "src/b.py", "src/deep/c.py", "x.md", "y.txt"]),
        ("A.PY", []),
    ],
)
def test_a_star_crosses_folders(pattern: str, matching: list[str]) -> None:
    matches = patterns.matcher(pattern)
    assert [p for p in ["a.py", "src/b.py", "src/deep/c.py", "x.md", "y.txt"] if matches(p)] == matching


def test_too_many_alternatives_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolError, match="over 64 alternatives"):
        patterns.matcher("{a,b}" * 10)


@pytest.mark.rule("tools.glob")
def test_files_are_named_relative_to_the_working_directory(ws: Workspace, call: Call) -> None:
    (ws.cwd / "src/deep").mkdir(parents=True)
    (ws.cwd / "src/deep/c.py").write_text("")
    outside = ws.cwd.parent / "other"
    outside.mkdir()
    (outside / "d.py").write_text("")
    assert call(glob, pattern="*.py") == "src/deep/c.py"
    assert call(glob, pattern="*.py", path="src") == "src/deep/c.py"
    assert call(glob, pattern="*.py", path="../other") == str(outside / "d.py")
    assert call(glob, pattern=f"{outside}/*.py") == str(outside / "d.py")
    assert call(glob, pattern="../other/*.py") == str(outside / "d.py")
    assert call(glob, pattern="*.rs") == "no file matches *.rs."


def test_a_folder_that_is_none_is_a_sentence(ws: Workspace, call: Call) -> None:
    (ws.cwd / "file").write_text("")
    with pytest.raises(ToolError, match="file is a file; give a folder"):
        call(glob, pattern="*", path="file")
    with pytest.raises(ToolError, match="no such file: missing"):
        call(glob, pattern="*", path="missing")


@pytest.mark.rule("tools.git-file-set")
def test_inside_a_repository_ignored_files_are_not_seen(git_repo: Path) -> None:
    (git_repo / ".gitignore").write_text("build/\n*.log\n")
    (git_repo / "build").mkdir()
    (git_repo / "build/out.txt").write_text("hello")
    (git_repo / "x.log").write_text("hello")
    (git_repo / "new file.txt").write_text("hello")
    (git_repo / "grün.txt").write_text("hello")
    assert files(git_repo) == [".gitignore", "README.md", "grün.txt", "new file.txt", "src/hello.py"]
    assert files(git_repo / "src") == ["hello.py"]


@pytest.mark.rule("tools.git-file-set")
def test_an_ignored_folder_is_seen_when_it_is_asked_for(git_repo: Path) -> None:
    (git_repo / ".gitignore").write_text("build/\n")
    (git_repo / "build").mkdir()
    (git_repo / "build/out.txt").write_text("hello")
    assert files(git_repo / "build") == ["out.txt"]


@pytest.mark.rule("tools.git-file-set")
def test_what_is_deleted_is_not_found(git_repo: Path) -> None:
    (git_repo / "README.md").unlink()
    workspace = Workspace(git_repo, git_repo)
    assert glob(workspace, Given({"pattern": "*"}, 1000)).text == "src/hello.py"
    assert grep(workspace, Given({"pattern": "Scratch"}, 1000)).text == "no matches."


@pytest.mark.rule("tools.git-file-set")
def test_a_nested_repository_is_another_one(git_repo: Path) -> None:
    nested = git_repo / "nested"
    nested.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=nested, check=True)
    (nested / "inner.txt").write_text("x")
    assert "nested/inner.txt" not in files(git_repo)
    assert files(nested) == ["inner.txt"]


@pytest.mark.rule("tools.walk-outside-git")
def test_outside_a_repository_some_folders_are_passed_over(ws: Workspace) -> None:
    for name in ("a/b", "target", "node_modules/x", "a/node_modules", ".hidden"):
        (ws.cwd / name).mkdir(parents=True, exist_ok=True)
        (ws.cwd / name / "f").write_text("")
    assert files(ws.cwd) == [".hidden/f", "a/b/f"]


@pytest.mark.bound("tools.walk")
def test_a_walk_takes_so_many_files_as_the_bound_says(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_TOOLS_WALK", "3")
    for name in "abcdef":
        (ws.cwd / name).write_text("")
    assert files(ws.cwd) == ["a", "b", "c"]


def test_a_repository_that_git_refuses_is_walked(ws: Workspace) -> None:
    (ws.cwd / ".git").mkdir()
    (ws.cwd / ".git/HEAD").write_text("nonsense")
    (ws.cwd / "a").write_text("")
    assert files(ws.cwd) == ["a"]


@pytest.mark.bound("tools.git-files")
def test_a_git_that_does_not_end_is_a_sentence(
    git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/git"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("AERIX_BOUND_TOOLS_GIT_FILES", "0.1")
    with pytest.raises(ToolError, match=r"git ls-files did not end in 0.1 s\."):
        glob(Workspace(git_repo, git_repo), Given({"pattern": "*"}, 1000))
