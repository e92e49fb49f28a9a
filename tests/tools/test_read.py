import os
from collections.abc import Callable

import pytest

from aerix.tools.read import read
from aerix.tools.workspace import ToolError, Workspace

Call = Callable[..., str]


@pytest.mark.rule("tools.read-lines")
def test_lines_come_with_their_numbers(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.txt").write_text("one\n\nthree\n")
    assert call(read, path="a.txt") == "1\tone\n2\t\n3\tthree"


@pytest.mark.rule("tools.read-lines")
def test_offset_and_limit_choose_lines_and_the_pointer_says_where_to_go_on(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.txt").write_text("".join(f"{n}\n" for n in range(1, 10)))
    assert call(read, path="a.txt", offset=3, limit=2) == (
        '3\t3\n4\t4\n[truncated: 10 more bytes; read with read(path="a.txt", offset=5)]'
    )
    assert call(read, path="a.txt", offset=8) == "8\t8\n9\t9"


@pytest.mark.rule("tools.read-lines")
def test_two_hundred_lines_are_the_default(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.txt").write_text("x\n" * 500)
    lines = call(read, path="a.txt").splitlines()
    assert lines[199] == "200\tx"
    assert lines[200].endswith('read(path="a.txt", offset=201)]')


@pytest.mark.rule("tools.read-lines")
def test_a_long_line_is_cut_and_says_how_much_is_left(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.txt").write_text("é" * 3000 + "\nnext\n")
    first, second = call(read, path="a.txt").splitlines()
    assert first == "1\t" + "é" * 2000 + "… [2001 more bytes in this line]"
    assert second == "2\tnext"


def test_a_line_longer_than_memory_would_like_is_read_over(
    ws: Workspace, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ws.cwd / "a.txt").write_bytes(b"x" * 3_000_000 + b"\nnext\n")
    first, second = call(read, path="a.txt").splitlines()
    assert first.endswith("… [2998001 more bytes in this line]")
    assert second == "2\tnext"


@pytest.mark.bound("read.scan")
def test_more_than_the_scan_bound_is_refused(
    ws: Workspace, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_READ_SCAN", "100")
    (ws.cwd / "a.txt").write_text("x\n" * 100)
    with pytest.raises(ToolError, match="only its first 100 bytes can be read"):
        call(read, path="a.txt", offset=90)


@pytest.mark.rule("tools.cap-by-window")
def test_what_does_not_fit_is_left_to_the_next_call_and_nothing_is_lost(ws: Workspace, call: Call) -> None:
    lines = [f"line number {n}" for n in range(1, 300)]
    (ws.cwd / "a.txt").write_text("\n".join(lines))
    seen: list[str] = []
    offset = 1
    while True:
        text = call(read, 700, path="a.txt", offset=offset)
        assert len(text.encode()) <= 700
        *shown, last = text.splitlines()
        seen += [line.partition("\t")[2] for line in shown]
        if not last.startswith("[truncated"):
            seen.append(last.partition("\t")[2])
            break
        offset = int(last.rpartition("=")[2].rstrip(")]"))
    assert seen == lines


def test_one_line_is_shown_however_little_room_there_is(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.txt").write_text("y" * 1000 + "\nnext\n")
    first, last = call(read, 10, path="a.txt").splitlines()
    assert first.startswith("1\t" + "y" * 80 + "…")
    assert last.endswith("offset=2)]")


def test_an_offset_past_the_end_says_how_long_the_file_is(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.txt").write_text("one\ntwo\n")
    with pytest.raises(ToolError, match=r"a\.txt has 2 lines; offset 9 is past its end"):
        call(read, path="a.txt", offset=9)


def test_an_empty_file_says_so(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.txt").write_text("")
    assert call(read, path="a.txt") == "(empty file)"


def test_offset_zero_and_limit_zero_are_taken_as_one(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.txt").write_text("one\n")
    assert call(read, path="a.txt", offset=0, limit=0) == "1\tone"


@pytest.mark.rule("tools.read-folder")
def test_a_folder_gives_its_entries(ws: Workspace, call: Call) -> None:
    (ws.cwd / "sub").mkdir()
    (ws.cwd / "b.txt").write_text("")
    (ws.cwd / "link").symlink_to("b.txt")
    assert call(read, path=".") == "b.txt\nlink -> b.txt\nsub/"
    assert call(read, path="sub") == "(empty folder)"


@pytest.mark.rule("tools.read-folder")
def test_a_large_folder_says_how_many_entries_are_left(ws: Workspace, call: Call) -> None:
    for n in range(10):
        (ws.cwd / f"{n}").write_text("")
    assert call(read, path=".", limit=3, offset=2) == "1\n2\n3\n[6 more entries; go on with offset=5]"


@pytest.mark.rule("tools.read-odd-files")
def test_a_binary_file_says_that_it_is_one(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a.bin").write_bytes(b"\x7fELF\0\0\0")
    with pytest.raises(ToolError, match=r"a\.bin is a binary file of 7 bytes"):
        call(read, path="a.bin")


@pytest.mark.rule("tools.read-odd-files")
@pytest.mark.parametrize("path", ["pipe", "/dev/zero", "/dev/tty", "/dev/stdin"])
def test_a_pipe_or_a_device_is_never_read(ws: Workspace, call: Call, path: str) -> None:
    os.mkfifo(ws.cwd / "pipe")
    with pytest.raises(ToolError):
        call(read, path=path)


@pytest.mark.rule("tools.read-odd-files")
def test_a_missing_file_names_the_nearest_one(ws: Workspace, call: Call) -> None:
    (ws.cwd / "settings.py").write_text("")
    with pytest.raises(ToolError, match=r"no such file: setings\.py; did you mean settings\.py\?"):
        call(read, path="setings.py")
    with pytest.raises(ToolError, match=r"no such file: other/x\."):
        call(read, path="other/x")


def test_a_file_of_the_kernel_has_no_size_and_is_read(ws: Workspace, call: Call) -> None:
    assert call(read, path="/proc/self/status").startswith("1\tName:")


def test_an_unreadable_file_is_a_sentence(ws: Workspace, call: Call) -> None:
    (ws.cwd / "loop").symlink_to("loop")
    with pytest.raises(ToolError, match=r"cannot read loop: too many levels of symbolic links\."):
        call(read, path="loop")


@pytest.mark.rule("tools.read-encodings")
@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("grün\r\n".encode(), "1\tgrün"),
        (b"\xef\xbb\xbf" + "grün\n".encode(), "1\tgrün"),
        ("grün\nok\n".encode("cp1252"), "1\tgrün\n2\tok\n[encoding: cp1252]"),
        (b"\xff\xfe" + "grün\r\nok\n".encode("utf-16-le"), "1\tgrün\n2\tok\n[encoding: utf-16-le]"),
        (b"\xfe\xff" + "grün".encode("utf-16-be"), "1\tgrün\n[encoding: utf-16-be]"),
        ("grün grün ".encode() + b"\xff\n", "1\tgrün grün �"),
    ],
)
def test_text_is_shown_whatever_its_encoding_and_says_which(
    ws: Workspace, call: Call, data: bytes, shown: str
) -> None:
    (ws.cwd / "a.txt").write_bytes(data)
    assert call(read, path="a.txt").startswith(shown)


@pytest.mark.rule("tools.paths")
def test_paths_may_be_absolute_or_lead_out_of_the_folder(ws: Workspace, call: Call) -> None:
    outside = ws.cwd.parent / "outside.txt"
    outside.write_text("hi\n")
    assert call(read, path=str(outside)) == "1\thi"
    assert call(read, path="../outside.txt") == "1\thi"
    assert ws.shown(outside) == str(outside)


def test_a_path_below_home_may_begin_with_a_tilde(
    ws: Workspace, call: Call, own_home: os.PathLike[str]
) -> None:
    assert ws.resolve("~/x") == ws.resolve(f"{os.fspath(own_home)}/x")
    assert ws.resolve("~x") == ws.cwd / "~x"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "`path` is missing."),
        ({"path": 3}, "`path` must be a string."),
        ({"path": "a", "offset": "x"}, "`offset` must be an integer."),
        ({"path": "a", "limit": True}, "`limit` must be an integer."),
        ({"path": "a\0b"}, "the path has a zero byte in it."),
    ],
)
def test_a_wrong_input_is_a_sentence(call: Call, values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ToolError) as error:
        call(read, **values)
    assert str(error.value) == sentence


def test_an_odd_file_name_is_shown_as_text(ws: Workspace, call: Call) -> None:
    (ws.cwd / os.fsdecode(b"\xff.txt")).write_text("")
    assert call(read, path=".") == "\ufffd.txt"
