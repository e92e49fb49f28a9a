"""Whether files have changed since somebody looked."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aerix.tools.treestamp import TreeStamp


def touch(root: Path) -> None:
    os.utime(root / "src/hello.py", (1, 1))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a new file": lambda root: (root / "src/new").touch(),
    "a file that is gone": lambda root: (root / "README.md").unlink(),
    "other bytes": lambda root: (root / "README.md").write_text("# Scratch\n\nA repository to lurk in.\n"),
    "another name": lambda root: (root / "README.md").rename(root / "READ.md"),
    "a time that was set back": touch,
    "a new folder": lambda root: (root / "empty").mkdir(),
    "a link that leads elsewhere": lambda root: (root / "link").symlink_to("/"),
}


@pytest.mark.rule("agent.repeat-not-run")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_is_seen_once(git_repo: Path, change: Callable[[Path], object]) -> None:
    stamp = TreeStamp(git_repo)
    stamp.look()
    assert not stamp.changed()
    change(git_repo)
    stamp.look()
    assert stamp.changed()
    assert not stamp.changed()


def test_what_git_keeps_for_itself_is_no_change(git_repo: Path) -> None:
    stamp = TreeStamp(git_repo)
    stamp.look()
    (git_repo / ".git/some").write_text("thing")
    assert not stamp.changed()


def test_a_change_that_is_known_is_not_told_again(git_repo: Path) -> None:
    stamp = TreeStamp(git_repo)
    stamp.look()
    (git_repo / "new").touch()
    stamp.forget()
    stamp.look()
    assert not stamp.changed()


def test_a_folder_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    stamp = TreeStamp(tmp_path / "missing")
    stamp.look()
    assert not stamp.changed()


def test_a_tree_of_any_depth_is_looked_at(tmp_path: Path) -> None:
    stamp = TreeStamp(tmp_path)
    deep = "/".join(["d"] * 1500)
    subprocess.run(["mkdir", "-p", deep], cwd=tmp_path, check=True)
    stamp.look()
    (tmp_path / deep / "new").touch()
    assert stamp.changed()
    subprocess.run(["rm", "-r", "d"], cwd=tmp_path, check=True)  # Python cannot: it calls itself


@pytest.mark.bound("tools.tree-look")
def test_where_there_are_too_many_files_everything_is_a_change(
    git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_TOOLS_TREE_LOOK", "3")
    stamp = TreeStamp(git_repo)
    stamp.look()
    assert stamp.changed()
    assert stamp.changed()
