"""Tests in this folder run the real model: they are marked so, and find it where Aerix keeps it."""

from pathlib import Path

import pytest

from tests.pool.daemons import pool  # noqa: F401  # a fixture

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.real)


@pytest.fixture
def installed_model(own_home: Path, model_file: Path) -> Path:
    """Put the default model where `aerix models pull` would put it in this test's home."""
    from aerix.pool.models import CATALOGUE, DEFAULT_MODEL

    path = CATALOGUE[DEFAULT_MODEL].path
    path.parent.mkdir(parents=True)
    path.symlink_to(model_file)
    return path
