"""Snapshots before calls in a request that runs: which calls have one, what the log says, what a slow git costs."""

import threading
from pathlib import Path
from typing import Any

import pytest

from aerix.session.events import Event, Note
from tests.conftest import Limit
from tests.runs import Desk, call, calls, final, of, script
from tests.tools.waiting import is_gone, pid_in

VERIFYING = r"Another agent did[\s\S]*"
PASS = {"turn": {"thought": "It holds.", "final": {"verdict": "pass", "reason": "seen"}}}
GROUPS: list[tuple[str, list[dict[str, Any]]]] = [
    (VERIFYING, [calls(call("bash", command="ls one.txt")), PASS]),
    (
        "play piece",
        [calls(call("agent", brief="Do work one."), call("write", path="own.txt", content="o\n")), final()],
    ),
    (
        "play mixed",
        [
            calls(
                call("read", path="README.md"),
                call("write", path="a.txt", content="a\n"),
                call("plan", op="read"),
            ),
            calls(
                call("edit", path="README.md", old="A repository", new="The repository"),
                call("grep", pattern="x"),
            ),
            calls(call("bash", command="true"), call("bash", command="true")),
            calls(call("bash", command="echo late > late.txt", background=True)),
            final(),
        ],
    ),
    ("play write", [calls(call("write", path="a.txt", content="a\n")), final()]),
    ("play answer", [final("42")]),
    ("work one", [calls(call("write", path="one.txt", content="one\n")), final()]),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return script(tmp_path_factory.mktemp("model"), GROUPS, window=16384)


def notes(shown: list[Event]) -> list[str]:
    return [event.text for event in shown if isinstance(event, Note) and "undone" in event.text]


@pytest.mark.rule("snapshot.before-changes")
@pytest.mark.rule("undo.calls-found")
def test_each_call_that_may_change_files_has_a_snapshot_and_so_has_the_end(desk: Desk) -> None:
    ran = desk("play mixed")
    marks = of(ran.log, "snapshot")
    assert [(mark["agent"], mark.get("call")) for mark in marks] == [
        ("a1", "c2"), ("a1", "c4"), ("a1", "c6"), ("a1", "c7"), ("a1", "c8"), ("a1", None),
    ]  # fmt: skip
    trees = [mark["tree"] for mark in marks]
    assert trees[2] == trees[3] == trees[4]
    assert len(set(trees)) == 4
    assert [line["type"] for line in ran.log[-2:]] == ["snapshot", "session.end"]
    assert "late.txt" in ran.end.diff


@pytest.mark.rule("snapshot.before-changes")
def test_pieces_and_verifiers_have_theirs(desk: Desk) -> None:
    marks = of(desk("play piece").log, "snapshot")
    assert [(mark["agent"], mark.get("call")) for mark in marks] == [
        ("a1", "c2"), ("a1.c1", "c1"), ("a1.c1.v1", "c1"), ("a1", None),
    ]  # fmt: skip


@pytest.mark.rule("snapshot.before-changes")
def test_without_a_diff_there_is_undo_and_without_such_a_call_no_snapshot(desk: Desk) -> None:
    assert of(desk("play answer", diff=False).log, "snapshot") == []
    ran = desk("play write", diff=False)
    assert [mark.get("call") for mark in of(ran.log, "snapshot")] == ["c1", None]
    assert (ran.end.diff, ran.end.untracked) == ("", [])


@pytest.mark.rule("undo.outside-git")
def test_outside_a_repository_files_are_kept(desk: Desk, tmp_path: Path) -> None:
    desk.cwd = tmp_path / "plain"
    desk.cwd.mkdir()
    (desk.cwd / "README.md").write_text("A repository\n")
    marks = of(desk("play mixed").log, "snapshot")
    assert [(mark.get("call"), "tree" in mark, "kept" in mark) for mark in marks] == [
        ("c2", False, True), ("c4", False, True), (None, False, True),
    ]  # fmt: skip


@pytest.mark.bound("undo.wait")
@pytest.mark.usefixtures("slow_git")
def test_a_snapshot_that_takes_too_long_is_a_note_and_the_call_runs(desk: Desk, limit: Limit) -> None:
    limit("undo.wait", 0.2)
    limit("request.diff", 0.2)
    ran = desk("play write", diff=False)
    assert ran.end.outcome == "done"
    assert (desk.cwd / "a.txt").exists()
    assert notes(ran.shown) == [
        "what follows cannot be undone, or not in part: the snapshot took longer than 0.2 s"
    ]


@pytest.mark.rule("agent.cancel")
@pytest.mark.rule("snapshot.given-up")
def test_a_cancel_while_a_snapshot_is_taken_ends_within_its_time_and_leaves_no_git(
    desk: Desk, slow_git: Path
) -> None:
    def cancel() -> None:
        pid_in(slow_git)
        request.cancel("interrupted")

    def before(ref: Any) -> None:
        nonlocal request
        request = ref
        threading.Thread(target=cancel, name="cancel").start()

    request: Any = None
    desk.before = before
    ran = desk("play write", diff=False)
    assert (ran.end.outcome, ran.end.exit) == ("cancelled", 130)
    assert not (desk.cwd / "a.txt").exists()
    assert is_gone(pid_in(slow_git), 0)
