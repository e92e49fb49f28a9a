"""Fixtures for tests of a request's parts."""

import os
from pathlib import Path

import pytest

from aerix.pool.client import PoolSettings
from tests.runs import Desk, daemon  # noqa: F401 - a fixture


@pytest.fixture
def desk(daemon: PoolSettings, git_repo: Path, tmp_path: Path, model: str) -> Desk:  # noqa: F811
    """Runs requests in a scratch repository, with the module's own ``model``."""
    return Desk(daemon, git_repo, tmp_path, model)


@pytest.fixture
def slow_git(git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git that takes a minute, whatever it is asked; the file with the process id of the latest one.

    The scratch repository is there by then.
    """
    assert git_repo.is_dir()
    pid, git = tmp_path / "pid", tmp_path / "bin/git"
    git.parent.mkdir()
    git.write_text(f"#!/bin/sh\necho $$ > '{pid}'\nexec sleep 60\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{git.parent}:{os.environ['PATH']}")
    return pid
