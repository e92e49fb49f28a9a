import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerix.tools.caps import cap, head, pointer, tail
from aerix.tools.capture import Capture


@pytest.mark.rule("tools.capped")
def test_a_text_within_its_cap_is_left_alone(tmp_path: Path) -> None:
    capped = cap("hello", 5, tmp_path / "c1.txt")
    assert (capped.text, capped.spool) == ("hello", None)
    assert not (tmp_path / "c1.txt").exists()


@pytest.mark.rule("tools.capped")
def test_a_text_over_its_cap_is_cut_with_a_pointer_to_the_whole(tmp_path: Path) -> None:
    spool = tmp_path / "spool/c1.txt"
    text = "ü" * 500
    capped = cap(text, 300, spool)
    kept, _, line = capped.text.partition("\n")
    assert set(kept) == {"ü"}
    assert (
        line
        == f'[truncated: {1000 - len(kept.encode())} more bytes; read with read(path="{spool}", offset=1)]'
    )
    assert len(capped.text.encode()) <= 300
    assert spool.read_text() == text
    assert capped.spool == spool


@pytest.mark.rule("session.private")
def test_the_spool_is_for_its_owner_only(tmp_path: Path) -> None:
    cap("x" * 1000, 10, tmp_path / "spool/c1.txt")
    assert stat.S_IMODE((tmp_path / "spool/c1.txt").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "spool").stat().st_mode) == 0o700


@pytest.mark.rule("tools.capped")
def test_where_nothing_fits_the_pointer_alone_is_the_result(tmp_path: Path) -> None:
    spool = tmp_path / "c1.txt"
    assert cap("x" * 1000, 0, spool).text == pointer(1000, spool)


@pytest.mark.rule("tools.capped")
def test_a_text_that_is_no_longer_than_its_pointer_stays(tmp_path: Path) -> None:
    assert cap("error: no such file: x.", 0, tmp_path / "c1.txt").text == "error: no such file: x."
    assert not (tmp_path / "c1.txt").exists()


def test_a_link_in_the_spools_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("keep")
    (tmp_path / "c1.txt").symlink_to("secret")
    capped = cap("x" * 500, 200, tmp_path / "c1.txt")
    assert capped.spool is None
    assert capped.text.endswith(
        "[truncated: 500 bytes; the whole was not kept: too many levels of symbolic links]"
    )
    assert (tmp_path / "secret").read_text() == "keep"


@pytest.mark.bound("tools.spool")
def test_a_text_over_the_spools_bound_says_that_the_rest_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_TOOLS_SPOOL", "50")
    cap("x" * 500, 10, tmp_path / "c1.txt")
    assert (tmp_path / "c1.txt").read_text() == "x" * 50 + "\n[what followed was dropped]\n"


@given(st.text(), st.integers(-1, 40))
def test_a_cut_is_at_a_characters_end(text: str, limit: int) -> None:
    data = text.encode("utf-8", "replace")
    assert len(head(data, limit)) <= max(0, limit)
    assert data.startswith(head(data, limit))
    head(data, limit).decode()
    assert data.endswith(tail(data, limit))
    tail(data, limit).decode()


def capture(tmp_path: Path, limit: int, out: list[bytes], err: list[bytes]) -> Capture:
    made = Capture.begin(limit, tmp_path / "spool/c1.txt")
    for data in out:
        made.out.add(data)
    for data in err:
        made.err.add(data)
    return made


@pytest.mark.rule("tools.bash-output")
@pytest.mark.parametrize(
    ("out", "err", "text"),
    [
        ([], [], "[exit 0]"),
        ([b"a\n", b"b\n"], [], "a\nb\n[exit 0]"),
        ([b"a"], [b"e\n"], "a\ne\n[exit 0]"),
        ([], [b"e"], "e\n[exit 0]"),
        ([b"\xff\xfe"], [], "??\n[exit 0]"),
    ],
)
def test_standard_output_then_error_then_the_status(
    tmp_path: Path, out: list[bytes], err: list[bytes], text: str
) -> None:
    assert capture(tmp_path, 1000, out, err).result("[exit 0]").text == text
    assert not (tmp_path / "spool").exists()


@pytest.mark.rule("tools.capped")
def test_of_a_long_output_the_beginning_the_end_and_the_status_are_shown(tmp_path: Path) -> None:
    lines = b"".join(b"%06d\n" % n for n in range(10_000))
    capped = capture(tmp_path, 1000, [lines], [b"the error\n"]).result("[exit 1]")
    assert len(capped.text.encode()) <= 1000
    shown = capped.text.splitlines()
    assert shown[0] == "000000"
    assert shown[-3:] == ["009999", "the error", "[exit 1]"]
    assert capped.spool == tmp_path / "spool/c1.txt"
    assert capped.spool.read_bytes() == lines + b"the error\n\n[exit 1]\n"
    (line,) = [line for line in shown if line.startswith("[truncated")]
    kept = sum(len(line) + 1 for line in shown if not line.startswith("["))
    assert abs(int(line.split()[1]) - (len(lines) + 10 - kept)) <= 2
    assert [p.name for p in (tmp_path / "spool").iterdir()] == ["c1.txt"]


@pytest.mark.rule("tools.cap-by-window")
def test_without_room_the_pointer_and_the_status_are_the_result(tmp_path: Path) -> None:
    capped = capture(tmp_path, 0, [b"x" * 500], []).result("[exit 0]")
    assert capped.text == f"{pointer(500, tmp_path / 'spool/c1.txt')}\n[exit 0]"


@pytest.mark.rule("tools.bash-flood")
def test_what_is_over_the_spools_bound_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_TOOLS_SPOOL", "1000")
    made = capture(tmp_path, 600, [b"x" * 100] * 1000, [])
    assert (len(made.out.start), len(made.out.end)) == (600, 600)
    capped = made.result("[exit 0]")
    assert capped.spool is not None
    assert capped.spool.read_bytes() == b"x" * 1000 + b"\n[what followed was dropped]\n\n[exit 0]\n"
    assert capped.text.startswith("x" * 200)


def test_a_spool_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file in its place")
    capped = capture(tmp_path, 500, [b"x" * 2000], []).result("[exit 0]")
    assert capped.spool is None
    assert "[truncated: 2000 bytes; the whole was not kept: file exists]" in capped.text
    assert capped.text.endswith("x\n[exit 0]")


@given(
    st.lists(st.binary(max_size=200), max_size=8),
    st.lists(st.binary(max_size=200), max_size=8),
    st.integers(0, 900),
)
def test_a_result_is_never_over_its_cap(
    tmp_path_factory: pytest.TempPathFactory, out: list[bytes], err: list[bytes], limit: int
) -> None:
    folder = tmp_path_factory.mktemp("capture")
    capped = capture(folder, limit, out, err).result("[exit 0]")
    least = len(pointer(sum(map(len, out + err)), folder / "spool/c1.txt")) + 12
    assert len(capped.text.encode()) <= max(limit, least)
    whole = b"".join(out) + b"".join(err)
    if capped.spool is not None:
        assert len(capped.spool.read_bytes()) - len(whole) in (len("\n[exit 0]\n"), len("\n\n[exit 0]\n"))
