"""What was sent is kept for the next sessions, for this user only, and not for ever."""

import stat
from pathlib import Path

import pytest

from aerix.lines_history import LinesHistory
from tests.conftest import Limit


def sent(path: Path) -> list[str]:
    """The latest first."""
    return list(LinesHistory(path).load_history_strings())


@pytest.mark.rule("lines.history-paste")
def test_what_was_sent_comes_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history"
    history = LinesHistory(path)
    for text in ("one", "two\nlines \udcff", " a secret", "grün"):
        history.append_string(text)
    assert sent(path) == ["grün", "two\nlines \udcff", "one"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.bound("lines.history")
def test_the_oldest_are_forgotten(tmp_path: Path, limit: Limit) -> None:
    limit("lines.history", 2)
    path = tmp_path / "history"
    for text in ("one", "two", "three"):
        LinesHistory(path).store_string(text)
    assert sent(path) == ["three", "two"]
    assert path.read_text().splitlines() == ['"two"', '"three"']
    assert [one.name for one in tmp_path.iterdir()] == ["history"]


@pytest.mark.bound("lines.history-file")
def test_a_file_that_is_too_long_is_put_aside(tmp_path: Path, limit: Limit) -> None:
    limit("lines.history-file", 5)
    path = tmp_path / "history"
    LinesHistory(path).store_string("longer than five")
    assert sent(path) == []
    assert [one.name for one in tmp_path.iterdir()] == ["history.old"]


@pytest.mark.rule("lines.history-paste")
def test_what_is_no_history_costs_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'"one"\n\xff\n3\n["x"]\n{"torn')
    assert sent(path) == ["one"]
    folder = tmp_path / "folder"
    folder.mkdir()
    assert sent(folder) == []
    LinesHistory(tmp_path / "one/two").store_string("x")
    (tmp_path / "file").touch()
    LinesHistory(tmp_path / "file/history").store_string("x")
    assert sent(tmp_path / "file/history") == []
