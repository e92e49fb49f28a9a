import os
from collections.abc import Callable

import pytest

from aerix.tools.grep import grep
from aerix.tools.workspace import ToolError, Workspace

Call = Callable[..., str]


@pytest.mark.rule("tools.grep")
def test_matches_come_with_file_and_line(ws: Workspace, call: Call) -> None:
    (ws.cwd / "src").mkdir()
    (ws.cwd / "src/a.py").write_bytes(b"one\r\ntwo 22\r\n")
    (ws.cwd / "b.txt").write_text("two\n")
    assert call(grep, pattern=r"tw\w( \d+)?$") == "b.txt:1:two"
    assert call(grep, pattern=r"^two") == "b.txt:1:two\nsrc/a.py:2:two 22"
    assert call(grep, pattern="two", path="src") == "src/a.py:2:two 22"
    assert call(grep, pattern="two", path="b.txt") == "b.txt:1:two"
    assert call(grep, pattern="two", glob="*.py") == "src/a.py:2:two 22"
    assert call(grep, pattern="nowhere") == "no matches."


@pytest.mark.rule("tools.grep")
def test_it_stops_at_max_matches_and_says_so(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a").write_text("x\n" * 300)
    assert call(grep, pattern="x", max_matches=2) == "a:1:x\na:2:x\n[stopped at 2 matches]"
    lines = call(grep, pattern="x").splitlines()
    assert (len(lines), lines[-1]) == (201, "[stopped at 200 matches]")
    (ws.cwd / "a").write_text("x\n" * 200)
    assert call(grep, pattern="x").splitlines()[-1] == "a:200:x"


@pytest.mark.rule("tools.grep")
def test_a_long_line_is_cut_around_the_match(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a").write_text("a" * 1000 + "needle" + "b" * 1000 + "\n")
    assert call(grep, pattern="needle") == "a:1:…" + "a" * 100 + "needle" + "b" * 294 + "…"
    assert call(grep, pattern="^a") == "a:1:" + "a" * 400 + "…"


@pytest.mark.bound("grep.file")
@pytest.mark.rule("tools.grep")
def test_large_files_are_passed_over_and_counted(
    ws: Workspace, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_GREP_FILE", "10")
    (ws.cwd / "a").write_text("x" * 11)
    (ws.cwd / "b").write_text("x")
    assert call(grep, pattern="x") == "b:1:x\n[1 file over 10 bytes skipped]"


def test_binary_files_links_and_pipes_are_passed_over(ws: Workspace, call: Call) -> None:
    (ws.cwd / "bin").write_bytes(b"\0needle")
    (ws.cwd / "link").symlink_to("text")
    os.mkfifo(ws.cwd / "pipe")
    (ws.cwd / "text").write_text("needle")
    assert call(grep, pattern="needle") == "text:1:needle"
    assert call(grep, pattern="needle", path="link") == "text:1:needle"


def test_other_encodings_are_searched(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a").write_bytes("größe".encode("utf-16"))
    (ws.cwd / "b").write_bytes("größe".encode("cp1252"))
    assert call(grep, pattern="grö") == "a:1:größe\nb:1:größe"


@pytest.mark.rule("tools.grep-bad-pattern")
@pytest.mark.parametrize("pattern", ["(", "a{99999999999999999999}", "[z-a]", "*"])
def test_a_pattern_that_is_none_is_a_sentence(call: Call, pattern: str) -> None:
    with pytest.raises(ToolError, match="the pattern is no regular expression: "):
        call(grep, pattern=pattern)


def test_a_pattern_with_a_warning_is_searched(ws: Workspace, call: Call) -> None:
    (ws.cwd / "a").write_text("[[a")
    assert call(grep, pattern="[[a]+") == "a:1:[[a"
