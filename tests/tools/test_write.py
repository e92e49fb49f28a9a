import os
import stat
from collections.abc import Callable

import pytest

from aerix.tools.workspace import Given, ToolError, Workspace
from aerix.tools.write import write

Call = Callable[..., str]


@pytest.mark.rule("tools.write-creates")
def test_a_file_and_its_folders_are_created(ws: Workspace, call: Call) -> None:
    assert call(write, path="a/b/c.txt", content="hi\nyou\n") == "created a/b/c.txt (2 lines)."
    assert (ws.cwd / "a/b/c.txt").read_bytes() == b"hi\nyou\n"


@pytest.mark.rule("tools.write-creates")
def test_a_file_is_replaced_and_says_so(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a").write_text("old")
    assert call(write, path="a", content="new") == "replaced a (1 line)."
    assert (ws.cwd / "a").read_text() == "new"


@pytest.mark.rule("tools.write-creates")
def test_append_adds_at_the_end_or_creates(ws: Workspace, call: Call) -> None:
    assert call(write, path="a", content="one\n", append=True) == "created a (1 line)."
    assert call(write, path="a", content="two\n", append=True) == "appended 1 line to a (now 2 lines)."
    assert (ws.cwd / "a").read_text() == "one\ntwo\n"


@pytest.mark.rule("tools.edit-keeps")
def test_append_keeps_line_ends_and_encoding(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a").write_bytes("grün\r\n".encode("cp1252"))
    call(write, path="a", content="blau\nüber\n", append=True)
    assert (ws.cwd / "a").read_bytes() == "grün\r\nblau\r\nüber\r\n".encode("cp1252")


def test_the_result_names_the_file_as_written(ws: Workspace) -> None:
    output = write(ws, Given({"path": "x/y", "content": ""}, 100))
    assert output.paths == (ws.cwd / "x/y",)
    assert output.text == "created x/y (0 lines)."


@pytest.mark.rule("tools.write-atomic")
def test_mode_and_links_survive(ws: Workspace, call: Call) -> None:
    target = ws.cwd / "real.sh"
    target.write_text("old")
    target.chmod(0o755)
    (ws.cwd / "sub").mkdir()
    (ws.cwd / "sub/link").symlink_to("../real.sh")
    call(write, path="sub/link", content="new")
    assert (ws.cwd / "sub/link").is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o755


@pytest.mark.rule("tools.write-atomic")
def test_a_new_file_has_the_usual_mode(ws: Workspace, call: Call) -> None:
    before = os.umask(0o027)
    try:
        call(write, path="a", content="x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((ws.cwd / "a").stat().st_mode) == 0o640


@pytest.mark.rule("tools.write-atomic")
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    ws: Workspace, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ws.cwd / "a").write_text("old")

    def full(*_names: str, **_folders: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(ToolError, match=r"cannot write a: no space left on device\."):
        call(write, path="a", content="new")
    assert [p.name for p in ws.cwd.iterdir()] == ["a"]
    assert (ws.cwd / "a").read_text() == "old"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("sub", "sub is a folder; give the path of a file."),
        ("new/", "new is a folder; give the path of a file."),
        ("pipe", "pipe is a pipe, socket or device, no regular file."),
        ("file/below", "cannot write file/below: not a directory."),
    ],
)
def test_what_cannot_be_written_is_a_sentence(ws: Workspace, call: Call, path: str, sentence: str) -> None:
    (ws.cwd / "sub").mkdir()
    (ws.cwd / "file").write_text("")
    os.mkfifo(ws.cwd / "pipe")
    with pytest.raises(ToolError) as error:
        call(write, path=path, content="x")
    assert str(error.value) == sentence


def test_half_a_character_is_refused(call: Call) -> None:
    with pytest.raises(ToolError, match="surrogate"):
        call(write, path="a", content="\ud83d")


def test_a_read_only_file_is_refused(ws: Workspace, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    (ws.cwd / "a").write_text("x")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(ToolError, match=r"a is read-only\."):
        call(write, path="a", content="y")


def test_a_long_name_can_be_written(ws: Workspace, call: Call) -> None:
    call(write, path="n" * 255, content="x")
    assert (ws.cwd / ("n" * 255)).read_text() == "x"
