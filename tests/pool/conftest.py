"""Fixtures for the tests of a worker's parts; the daemon's are in daemons.py."""

from pathlib import Path
from typing import Any

import pytest

from aerix.pool.protocol import Segment
from tests.pool.daemons import client, pool, script, wire  # noqa: F401  # the fixtures of the daemon's tests
from tests.pool.desk import Scripts


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    """Scripts, engines that play them, and desks with such an engine."""
    return Scripts(tmp_path)


@pytest.fixture
def user() -> Any:
    """A user's segment: ``user("text")``, or with an id of its own."""
    return lambda text, name="u1": Segment(name, "user", text)
