import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerix.tools.edit import edit
from aerix.tools.messages import ToolResult
from aerix.tools.read import read
from aerix.tools.workspace import Given, ToolError, Workspace

Call = Callable[..., str]


def refused(call: Call, **values: object) -> str:
    with pytest.raises(ToolError) as error:
        call(edit, **values)
    return str(error.value)


@pytest.mark.rule("tools.edit-exact")
def test_one_exact_text_is_replaced(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.py").write_text("one\ntwo\nthree\n")
    assert call(edit, path="a.py", old="two\n", new="2\n2\n") == "edited a.py: replaced at line 2."
    assert (ws.cwd / "a.py").read_text() == "one\n2\n2\nthree\n"


@pytest.mark.rule("tools.edit-exact")
def test_a_text_found_twice_is_refused_with_its_lines(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.py").write_text("x\ny\nx\n")
    assert refused(call, path="a.py", old="x", new="z") == (
        "a.py: `old` was found 2 times, at lines 1, 3; "
        "give more of the text around the right one, or set replace_all."
    )
    assert (ws.cwd / "a.py").read_text() == "x\ny\nx\n"


@pytest.mark.rule("tools.edit-exact")
def test_replace_all_replaces_each(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.py").write_text("x\ny\nx\n")
    said = call(edit, path="a.py", old="x", new="xx", replace_all=True)
    assert said == "edited a.py: 2 replacements, at lines 1, 3."
    assert (ws.cwd / "a.py").read_text() == "xx\ny\nxx\n"


@pytest.mark.rule("tools.edit-exact")
def test_a_missing_text_is_refused(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.py").write_text("x\n")
    assert refused(call, path="a.py", old="nowhere to be seen", new="z") == (
        "a.py: `old` was not found. Nothing in the file is like it; read the file again."
    )


@pytest.mark.rule("tools.edit-relaxations")
@pytest.mark.parametrize(
    ("content", "old", "new", "after", "said"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\n", b"x\r\ny\r\nc\r\n", "line ends differed"),
        (b"a  \nb\nc\n", "a\nb\n", "x\n", b"x\nc\n", "trailing blanks differed"),
        (
            b"  if x:\n    a\n",
            "if x:\n  a\n",
            "if y:\n  b\n",
            b"  if y:\n    b\n",
            "indentation shifted by 2 to the right",
        ),
        (
            b"if x:\n  a\n",
            " if x:\n   a\n",
            " if y:\n   b\n",
            b"if y:\n  b\n",
            "indentation shifted by 1 to the left",
        ),
    ],
)
def test_a_relaxed_match_says_which(
    ws: Workspace, call: Call, content: bytes, old: str, new: str, after: bytes, said: str
) -> None:
    (ws.cwd / "a.py").write_bytes(content)
    assert call(edit, path="a.py", old=old, new=new) == f"edited a.py: replaced at line 1 ({said})."
    assert (ws.cwd / "a.py").read_bytes() == after


def test_a_new_text_that_cannot_be_shifted_is_refused(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.py").write_text("if x:\n  a\n")
    assert "cannot be moved left" in refused(call, path="a.py", old="  if x:\n    a\n", new="b")


@pytest.mark.rule("tools.edit-miss")
def test_a_miss_shows_the_nearest_region_with_its_lines(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.py").write_text(
        "".join(f"line {n}\n" for n in range(1, 8)) + "def f(a):\n    return a + 1\n\nlast\n"
    )
    assert refused(call, path="a.py", old="def f(b):\n    return a + 1\n", new="x") == (
        "a.py: `old` was not found. The nearest lines:\n"
        "6\tline 6\n7\tline 7\n8\tdef f(a):\n9\t    return a + 1\n10\t\n11\tlast"
    )


@pytest.mark.rule("tools.edit-miss")
def test_a_miss_shows_a_region_that_is_only_alike(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.py").write_text("one\nresult = compute(alpha, beta)\nthree\n")
    assert "2\tresult = compute(alpha, beta)" in refused(
        call, path="a.py", old="result = compute(alfa, beta)", new="x"
    )


@pytest.mark.rule("tools.edit-miss")
def test_a_miss_says_that_the_edit_was_done_already(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.py").write_text("one\ndef renamed_function():\n")
    said = refused(call, path="a.py", old="def original_function():", new="def renamed_function():")
    assert "it seems to be applied already: `new` is at line 2" in said


@pytest.mark.rule("tools.edit-miss")
def test_a_miss_says_that_only_white_space_differs(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.py").write_text("f(a,  b)\n")
    assert "(white space differs)" in refused(call, path="a.py", old="f(a, b)", new="g()")


@pytest.mark.rule("tools.edit-stale")
def test_a_miss_says_that_the_file_changed_since_it_was_read(ws: Workspace, call: Call) -> None:
    path = ws.cwd / "a.py"
    path.write_text("before\n")
    call(read, path="a.py")
    assert "changed since" not in refused(call, path="a.py", old="missing", new="x")
    path.write_text("after!!\n")
    assert "(the file changed since it was read)" in refused(call, path="a.py", old="before", new="x")


@pytest.mark.rule("tools.once-by-changes")
def test_what_one_agent_writes_has_changed_for_every_other_agent(ws: Workspace, call: Call) -> None:
    other = Workspace(ws.cwd, ws.cwd)
    (ws.cwd / "a.py").write_text("before\n")
    read(other, Given({"path": "a.py"}, 1000))
    call(read, path="a.py")
    call(edit, path="a.py", old="before", new="after")
    with pytest.raises(ToolError, match="the file changed since it was read"):
        edit(other, Given({"path": "a.py", "old": "before", "new": "x"}, 1000))


@pytest.mark.rule("tools.edit-stale")
def test_an_own_edit_is_no_change_by_others(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.py").write_text("before\n")
    call(read, path="a.py")
    call(edit, path="a.py", old="before", new="after")
    assert "changed since" not in refused(call, path="a.py", old="before", new="x")


@pytest.mark.bound("tools.seen")
def test_only_so_many_files_are_remembered(
    ws: Workspace, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_TOOLS_SEEN", "2")
    for name in "abc":
        (ws.cwd / name).write_text("before\n")
        call(read, path=name)
        (ws.cwd / name).write_text("after!!\n")
    stale = [name for name in "abc" if "changed since" in refused(call, path=name, old="before", new="x")]
    assert stale == ["b", "c"]


@pytest.mark.rule("tools.edit-keeps")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-32"])
def test_encoding_mark_line_ends_and_mode_survive(ws: Workspace, call: Call, encoding: str) -> None:
    path = ws.cwd / "a.txt"
    path.write_bytes("größe\r\nzwei\r\n".encode(encoding))
    path.chmod(0o600)
    call(edit, path="a.txt", old="größe", new="maß\nöl")
    assert path.read_bytes() == "maß\r\nöl\r\nzwei\r\n".encode(encoding)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_character_that_the_encoding_lacks_is_refused(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.txt").write_bytes("größe\n".encode("cp1252"))
    said = refused(call, path="a.txt", old="größe", new="→")
    assert said == "the file's encoding is cp1252, which has no '\\u2192'."


def test_a_miss_in_a_file_with_bad_bytes_can_be_shown(ws: Workspace, run: Callable[..., ToolResult]) -> None:
    (ws.cwd / "a.txt").write_bytes("größe ".encode() + b"\xff and more\n")
    assert "größe \ufffd and more" in run("edit", path="a.txt", old="größe and more", new="x").text


def test_bad_bytes_elsewhere_survive(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.txt").write_bytes("größe ".encode() + b"\xff\n")
    call(edit, path="a.txt", old="größe", new="länge")
    assert (ws.cwd / "a.txt").read_bytes() == "länge ".encode() + b"\xff\n"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"path": "a", "old": "", "new": "x"}, "`old` is empty; give the text to replace, or use write."),
        ({"path": "a", "old": "x", "new": "x"}, "`old` and `new` are the same."),
        ({"path": "no", "old": "x", "new": "y"}, "no such file: no."),
        ({"path": "bin", "old": "x", "new": "y"}, "bin is a binary file."),
        ({"path": "dir", "old": "x", "new": "y"}, "dir is a folder."),
        ({"path": "a", "old": "x"}, "`new` is missing."),
        (
            {"path": "crlf", "old": "a\r\n", "new": "a\n"},
            "crlf: the edit changes nothing; the file keeps its line ends.",
        ),
    ],
)
def test_what_cannot_be_edited_is_a_sentence(
    ws: Workspace, call: Call, values: dict[str, object], sentence: str
) -> None:
    (ws.cwd / "a").write_text("x")
    (ws.cwd / "bin").write_bytes(b"\0x")
    (ws.cwd / "crlf").write_bytes(b"a\r\n")
    (ws.cwd / "dir").mkdir()
    assert refused(call, **values) == sentence


@pytest.mark.bound("edit.bytes")
def test_a_file_over_the_bound_is_refused(ws: Workspace, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_EDIT_BYTES", "10")
    (ws.cwd / "a").write_text("x" * 11)
    assert refused(call, path="a", old="x", new="y") == "a has 11 bytes; files over 10 are not edited."


@pytest.mark.bound("edit.nearest")
def test_the_nearest_region_is_not_looked_for_in_very_long_files(
    ws: Workspace, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_EDIT_NEAREST", "3")
    (ws.cwd / "a").write_text("alpha beta\n" * 4)
    assert "Nothing in the file is like it" in refused(call, path="a", old="alpha  beta", new="y")


_TEXT = st.text(alphabet=st.sampled_from("ab \tüß\n€"), max_size=30)


@pytest.mark.rule("tools.edit-exact")
@pytest.mark.rule("tools.edit-keeps")
@given(
    before=_TEXT,
    after=_TEXT,
    new=_TEXT,
    end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "cp1252", "utf-16"]),
)
def test_bytes_outside_the_replaced_region_are_unchanged(
    tmp_path_factory: pytest.TempPathFactory, before: str, after: str, new: str, end: str, encoding: str
) -> None:
    folder = tmp_path_factory.mktemp("edit")
    old = "<the place>"
    # Enough of the encoding's own characters that nobody can take it for another.
    head, tail = f"üü{before}", f"{after}\nüü\n"
    path = folder / "a"
    path.write_bytes((head + old + tail).replace("\n", end).encode(encoding))
    edit(Workspace(folder, folder), Given({"path": "a", "old": old, "new": new}, 1000))
    assert path.read_bytes() == (head + new + tail).replace("\n", end).encode(encoding)
    assert [p.name for p in Path(folder).iterdir()] == ["a"]
