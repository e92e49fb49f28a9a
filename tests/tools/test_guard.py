"""What was permitted is what is touched: a link that is swapped between the question and the use leads nowhere else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aerix.actors import Ref
from aerix.permissions import Permissions
from aerix.tools import guard, textfile
from aerix.tools.edit import edit
from aerix.tools.glob import glob
from aerix.tools.grep import grep
from aerix.tools.messages import RunTool, ToolResult
from aerix.tools.read import read
from aerix.tools.workspace import Given, RefusedError, Workspace
from aerix.tools.write import write

Call = Callable[..., str]
MOVED = "leads elsewhere now than when it was permitted"


def permit(ws: Workspace, tool: str, path: Path, permissions: Permissions | None = None) -> None:
    """As before a call that was permitted to work on that path."""
    ws.guard.begin(tool, permissions or Permissions(), os.path.realpath(path), ws.cwd)


@pytest.fixture
def outside(ws: Workspace, tmp_path: Path) -> Path:
    """A folder outside the tree, and a folder in it that can be swapped for a link there."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/f").write_text("theirs\n")
    (ws.cwd / "d").mkdir()
    (ws.cwd / "d/f").write_text("mine\n")
    return tmp_path / "outside"


def swap(ws: Workspace, outside: Path) -> None:
    (ws.cwd / "d").rename(ws.cwd / "was")
    (ws.cwd / "d").symlink_to(outside)


@pytest.mark.rule("permissions.symlinks")
@pytest.mark.parametrize(
    ("tool", "given"),
    [
        (read, {"path": "d/f"}),
        (read, {"path": "d"}),
        (write, {"path": "d/f", "content": "x"}),
        (write, {"path": "d/f", "content": "x", "append": True}),
        (edit, {"path": "d/f", "old": "theirs", "new": "x"}),
        (grep, {"path": "d", "pattern": "theirs"}),
        (grep, {"path": "d/f", "pattern": "theirs"}),
        (glob, {"path": "d", "pattern": "*"}),
    ],
)
def test_a_folder_that_became_a_link_meanwhile_is_not_followed(
    ws: Workspace, outside: Path, tool: Callable[..., object], given: dict[str, object]
) -> None:
    permit(ws, tool.__name__, ws.cwd / str(given["path"]))
    swap(ws, outside)
    with pytest.raises(RefusedError, match=MOVED):
        tool(ws, Given(given, 1000))
    assert (outside / "f").read_text() == "theirs\n"


@pytest.mark.rule("permissions.symlinks")
def test_a_folder_that_becomes_a_link_at_the_last_moment_is_not_written_through(
    ws: Workspace, call: Call, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    permit(ws, "write", ws.cwd / "d/new")
    plain = guard.open_folder
    monkeypatch.setattr(textfile, "open_folder", lambda path: [swap(ws, outside), plain(path)][1])
    with pytest.raises(Exception, match="cannot write d/new: not a directory"):
        call(write, path="d/new", content="x")
    assert sorted(path.name for path in outside.iterdir()) == ["f"]


@pytest.mark.rule("permissions.symlinks")
def test_a_file_that_is_opened_is_the_one_that_was_permitted(
    ws: Workspace, call: Call, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    permit(ws, "read", ws.cwd / "d/f")
    plain = os.open

    def late(path: object, *more: object, **named: object) -> int:
        if str(path).endswith("d/f") and not (ws.cwd / "d").is_symlink():
            swap(ws, outside)
        return plain(path, *more, **named)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(textfile.os, "open", late)
    with pytest.raises(RefusedError, match=MOVED):
        call(read, path="d/f")


@pytest.mark.rule("permissions.symlinks")
def test_another_name_of_a_file_keeps_its_content(ws: Workspace, call: Call, outside: Path) -> None:
    os.link(outside / "f", ws.cwd / "hard")
    permit(ws, "write", ws.cwd / "hard")
    call(edit, path="hard", old="theirs", new="x")
    call(write, path="hard", content="y", append=True)
    assert (outside / "f").read_text() == "theirs\n"
    assert (ws.cwd / "hard").read_text() == "x\ny"


def test_a_link_to_what_was_permitted_is_followed(ws: Workspace, call: Call) -> None:
    (ws.cwd / "real").mkdir()
    (ws.cwd / "link").symlink_to("real/deep/f")
    permit(ws, "write", ws.cwd / "link")
    assert call(write, path="link", content="x\n") == "created link (1 line)."
    assert (ws.cwd / "real/deep/f").read_text() == "x\n"
    assert (ws.cwd / "link").is_symlink()


@pytest.mark.rule("permissions.secrets")
def test_a_search_through_a_link_leaves_out_secrets_too(ws: Workspace, call: Call, own_home: Path) -> None:
    (own_home / ".ssh").mkdir()
    (own_home / ".ssh/config").write_text("Host x\n")
    (own_home / "notes").write_text("Host y\n")
    (ws.cwd / "home").symlink_to(own_home)
    permit(ws, "grep", own_home)
    found = call(grep, path="home", pattern="Host")
    assert "home/notes:1:Host y" in found
    assert "Host x" not in found
    assert found.endswith("left out: they may hold secrets, or a rule leaves them out]")
    permit(ws, "grep", own_home, Permissions(allow=("read(~/.ssh/**)",)))
    assert "Host x" in call(grep, path="home", pattern="Host")


@pytest.mark.rule("permissions.symlinks")
def test_the_runner_refuses_in_a_sentence(runner: Ref, ws: Workspace, outside: Path) -> None:
    swap(ws, outside)
    values = {"path": "d/f", "content": "x"}
    message = RunTool("c1", "write", values, 1000, permissions=Permissions(), permitted=str(ws.cwd / "d/f"))
    result: ToolResult = runner.ask(message, message.limit_s)
    assert (result.text, result.error, result.changed) == (f"refused: d/f {MOVED}.", True, False)
