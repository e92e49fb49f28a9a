"""Fixtures for tests of a request's parts."""

from pathlib import Path

import pytest

from aerix.pool.client import PoolSettings
from tests.runs import Desk, daemon  # noqa: F401 - a fixture


@pytest.fixture
def desk(daemon: PoolSettings, git_repo: Path, tmp_path: Path, model: str) -> Desk:  # noqa: F811
    """Runs requests in a scratch repository, with the module's own ``model``."""
    return Desk(daemon, git_repo, tmp_path, model)
