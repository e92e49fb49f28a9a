"""The result of an ``agent`` call: JSON that stays JSON when it is cut."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerix.tools.agent import piece_result


@pytest.mark.rule("delegation.result")
def test_a_result_that_fits_is_whole(tmp_path: Path) -> None:
    found = piece_result("ok", ["a.py"], ["pytest [exit 0]"], "done", 8192, tmp_path / "c1.txt")
    assert json.loads(found.text) == {
        "summary": "ok",
        "files_touched": ["a.py"],
        "checks_run": ["pytest [exit 0]"],
        "outcome": "done",
    }
    assert found.spool is None
    assert not list(tmp_path.iterdir())


@pytest.mark.rule("delegation.result")
@given(st.text(min_size=1, max_size=9), st.integers(-300, 2000))
def test_whatever_the_summary_is_a_cut_result_is_json_under_its_cap(
    tmp_path_factory: pytest.TempPathFactory, part: str, over: int
) -> None:
    summary = 700 * part.encode("utf-8", "replace").decode()
    limit = max(500, len(json.dumps(summary, ensure_ascii=False).encode()) - over)
    spool = tmp_path_factory.mktemp("spool") / "c1.txt"
    found = piece_result(summary, ["a.py"], [], "done", limit, spool)
    assert len(found.text.encode()) <= limit
    value = json.loads(found.text)
    assert value["outcome"] == "done"
    if value["summary"] != summary:
        assert value["summary"].endswith(f'read(path="{spool}", offset=1)]')
        assert spool.read_bytes().decode() == summary


@pytest.mark.rule("delegation.result")
@pytest.mark.rule("tools.capped")
def test_a_result_whose_rest_does_not_fit_is_cut_as_a_whole(tmp_path: Path) -> None:
    found = piece_result("ok", ["a.py"], [], "failed: " + "x" * 900, 300, tmp_path / "c1.txt")
    assert len(found.text.encode()) <= 300
    assert "[truncated: " in found.text
    assert json.loads((tmp_path / "c1.txt").read_text())["summary"] == "ok"


@pytest.mark.bound("pieces.listed")
@pytest.mark.rule("delegation.result")
def test_of_many_files_and_checks_the_first_are_named_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_PIECES_LISTED", "2")
    found = piece_result("ok", ["a", "b", "c", "d"], ["e", "f"], "done", 8192, tmp_path / "c1.txt")
    value = json.loads(found.text)
    assert (value["files_touched"], value["checks_run"]) == (["a", "b", "and 2 more"], ["e", "f"])
