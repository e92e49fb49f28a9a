"""``aerix undo`` as a user runs it, after ``aerix -p``."""

import argparse
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerix import undo_cli
from aerix.exits import STDOUT_CLOSED
from aerix.pool.client import PoolSettings
from aerix.session.undo import Plan
from aerix.session.undoing import Offer
from tests.runs import Aerix, call, calls, daemon, final, of, play, session_log, session_logs  # noqa: F401 - a fixture
from tests.session.undone import sh, state

PLAYS: dict[str, list[dict[str, Any]]] = {
    "work": [
        calls(
            call("write", path="new.txt", content="new\n"),
            call("edit", path="README.md", old="A repository", new="The repository"),
        ),
        calls(call("bash", command="chmod 755 src/hello.py; mkdir d; echo x > d/f; rm old.txt")),
        final(),
    ],
    "answer": [final("42")],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=16384)


@pytest.fixture
def aerix(daemon: PoolSettings, model: str, git_repo: Path) -> Iterator[Aerix]:  # noqa: F811
    (git_repo / "old.txt").write_text("old\n")
    runs = Aerix(git_repo, daemon, model)
    yield runs
    runs.close()


@pytest.mark.rule("undo.lists-first")
@pytest.mark.rule("undo.restores")
@pytest.mark.rule("undo.back")
@pytest.mark.rule("undo.locked")
@pytest.mark.rule("session.one-writer")
def test_a_request_is_undone_and_done_again(aerix: Aerix) -> None:
    before = state(aerix.cwd)
    assert aerix("-p", "play work").code == 0
    after = state(aerix.cwd)
    session = session_logs()[-1].stem
    listed = [
        "  restore   README.md", "  remove    d/", "  remove    d/f", "  remove    new.txt", "  recreate  old.txt",
        "  mode      src/hello.py (0755 to 0644)",
    ]  # fmt: skip
    dry = aerix("undo", "--dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert dry.out.splitlines() == [
        f"would put back: session {session[:8]}, before prompt 1 (play work)", *listed,
    ]  # fmt: skip
    assert state(aerix.cwd) == after
    with session_logs()[-1].open() as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        used = aerix("undo")
    assert (used.code, used.out, "[session_locked]" in used.err) == (6, "", True)
    assert state(aerix.cwd) == after
    done = aerix("undo")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"putting back: session {session[:8]}, before prompt 1 (play work)",
        *listed,
        "6 put back; aerix undo --redo takes it back",
    ]
    assert state(aerix.cwd) == before
    again = aerix("undo")
    assert (again.code, again.out, again.err) == (
        3, "", "aerix: nothing is left to undo in this session; aerix undo --redo takes back what was undone\n",
    )  # fmt: skip
    back = aerix("undo", "--redo")
    assert back.code == 0
    assert back.out.splitlines()[-1] == "6 put back; aerix undo takes it back"
    assert state(aerix.cwd) == after
    unread = aerix.shell('exec 3> >(true); wait $!; "$@" >&3', "undo")
    assert (unread.code, unread.err) == (STDOUT_CLOSED, "")
    assert state(aerix.cwd) == after, "what nobody could read was not done"
    undos = of(session_log(), "undo")
    assert [(line["to"], line["files"], line["back"], line["first"]) for line in undos] == [
        ("prompt 1 (play work)", 6, False, 0), ("what was undone", 6, True, 4),
    ]  # fmt: skip


@pytest.mark.parametrize(("earlier", "more"), [(True, 1), (False, 0)])
def test_where_the_last_prompt_changed_nothing_it_tells_that_the_next_undo_goes_further_back(
    earlier: bool, more: int
) -> None:
    told = undo_cli.report(Offer("prompt 2 (look)", Plan([], []), earlier=earlier), "7" * 36)
    assert told[0] == "nothing to put back: session 77777777, before prompt 2 (look)"
    assert told[1:] == ["the undo after this one goes one step further back"] * more


def test_a_folder_whose_name_is_no_text_is_worked_in_and_undone(
    daemon: PoolSettings,  # noqa: F811
    model: str,
    tmp_path: Path,
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    aerix = Aerix(folder, daemon, model)
    try:
        aerix("-p", "play work", "--add-dir", str(folder))
        assert (folder / "new.txt").read_text() == "new\n"
        assert aerix("undo").code == 0
        assert not (folder / "new.txt").exists()
    finally:
        aerix.close()


def test_where_nothing_was_put_back_there_is_nothing_to_take_back() -> None:
    left = [("d/f", "not a directory")]
    assert undo_cli.outcome(Offer("start", Plan([], [])), Plan([], left)) == [
        "  left      d/f: not a directory", "0 put back; 1 left as they are",
    ]  # fmt: skip


@pytest.mark.rule("undo.changed-since")
@pytest.mark.rule("undo.uncovered-named")
def test_what_is_left_is_said_and_is_exit_code_1(aerix: Aerix) -> None:
    root = aerix.cwd
    sh("echo '*.log' > .gitignore; touch a.log; git init -q nested", root)
    aerix("-p", "play work", "--no-diff")
    (root / "new.txt").write_text("mine\n")
    (root / "d/o\x1bdd\n").write_text("mine\n")
    done = aerix("undo")
    assert done.code == 1
    assert "  left      new.txt: changed since" in done.out.splitlines()
    assert "not covered: nested/, a.log" in done.out.splitlines()
    assert done.out.splitlines()[-1] == (
        "4 put back; 1 left as they are (--force takes those that changed since); aerix undo --redo takes it back"
    )
    assert "\x1b" not in done.out
    assert (root / "d/o\x1bdd\n").exists()
    forced = aerix("undo", "--force")
    assert (forced.code, (root / "new.txt").exists()) == (0, False)


@pytest.mark.rule("undo.to-turn")
def test_a_turn_of_an_earlier_session_is_found(aerix: Aerix) -> None:
    aerix("-p", "play work")
    first = session_logs()[-1].stem
    aerix("-p", "play answer")
    latest = aerix("undo", "--dry-run")
    assert (latest.code, latest.out) == (3, "")
    assert latest.err == (
        "aerix: this session has made no call that may change files; aerix undo --session ID takes another one back\n"
    )
    done = aerix("undo", "--session", first[:8], "--to", "t2")
    assert done.code == 0
    assert (aerix.cwd / "old.txt").exists()
    assert "The repository" in (aerix.cwd / "README.md").read_text()


@pytest.mark.rule("undo.never-reset")
def test_the_session_of_another_folder_is_not_undone_here(aerix: Aerix, tmp_path: Path) -> None:
    """Two clones of one repository have their sessions in one place."""
    sh("git remote add origin https://example.org/a/b.git; git clone -q . ../clone", aerix.cwd)
    aerix("-p", "play work")
    first = session_logs()[-1].stem
    aerix.cwd = tmp_path / "clone"
    sh("git remote set-url origin https://example.org/a/b.git", aerix.cwd)
    nothing = aerix("undo")
    assert (nothing.code, nothing.out) == (3, "")
    assert nothing.err == "aerix: no session has worked here yet: there is nothing to undo\n"
    unknown = aerix("undo", "--session", "ffff")
    assert (unknown.code, "no session has an id that begins with 'ffff'" in unknown.err) == (3, True)
    named = aerix("undo", "--session", first)
    assert named.code == 1
    assert f"worked in {tmp_path}/repo; undo it there" in named.err


@pytest.mark.rule("undo.outside-git")
def test_outside_a_repository_it_says_what_is_covered(aerix: Aerix, tmp_path: Path) -> None:
    aerix.cwd = tmp_path / "plain"
    aerix.cwd.mkdir()
    (aerix.cwd / "old.txt").write_text("old\n")
    aerix("-p", "play work")
    done = aerix("undo")
    assert done.code == 0
    assert (
        "outside a repository: only what the tools write and edit touched is covered, not commands (bash)"
        in done.out
    )
    assert not (aerix.cwd / "new.txt").exists()
    assert (aerix.cwd / "d/f").exists()


@pytest.mark.rule("undo.atomic")
def test_a_full_disk_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device", "/store")

    monkeypatch.setattr(undo_cli, "_undo", full)
    assert undo_cli._run(argparse.Namespace()) == 1
    said = capfd.readouterr()
    assert (
        said.err == "aerix: undo stopped at /store: No space left on device; run it again when that is gone\n"
    )
