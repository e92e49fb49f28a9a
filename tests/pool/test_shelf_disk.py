"""Pinned heads in files: whole or not there, found by their kind only, and never in the way."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerix.pool.shelf_disk import Digests, HeadFiles, Kind, Spot
from aerix.pool.shelf_memory import Part

KIND = Kind("digest", "library 1", "f16, chunks of 4")
TOKENS = list(range(10))


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the log says, as (event, why)."""
    path = tmp_path / "log"
    monkeypatch.setenv("AERIX_LOG_FILE", str(path))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


_opened: list[HeadFiles] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def open_heads(folder: Path, kind: Kind = KIND, *, cuttable: bool = True, known: bool = True) -> HeadFiles:
    _opened.append(HeadFiles(folder / "prefixes", lambda: kind, known=known, cuttable=cuttable))
    return _opened[-1]


def write(heads: HeadFiles, tokens: list[int] = TOKENS, chunk: int = 4) -> None:
    """Write a head, and wait for that."""
    rows = [
        (at, min(at + chunk, len(tokens)), memoryview(bytes(tokens[at : at + chunk])))
        for at in range(0, len(tokens), chunk)
    ]
    heads.write(tokens, rows)
    assert heads.wait(30)


def read(heads: HeadFiles, parts: list[Part]) -> bytes | None:
    data = [heads.read(part.kept) for part in parts if isinstance(part.kept, Spot)]
    return None if None in data else b"".join(bytes(one) for one in data if one is not None)


def the_file(folder: Path) -> Path:
    (path,) = folder.glob("prefixes/*/*")
    return path


@pytest.mark.rule("prefix.pinned-outlive")
def test_a_head_is_found_by_those_who_come_later(tmp_path: Path) -> None:
    first = open_heads(tmp_path)
    assert first.lacks(TOKENS)
    write(first)
    assert not first.lacks(TOKENS)
    later = open_heads(tmp_path)
    parts = later.find([*TOKENS, 50], 11)
    assert [(part.start, part.end, part.upto, part.shelf) for part in parts] == [
        (0, 4, 4, "disk"),
        (4, 8, 8, "disk"),
        (8, 10, 10, "disk"),
    ]
    assert read(later, parts) == bytes(TOKENS)
    assert (later.entries, later.bytes) == (1, 10)


def test_a_part_of_a_head_serves_a_prompt_that_leaves_it(tmp_path: Path) -> None:
    heads = open_heads(tmp_path)
    write(heads)
    assert [part.upto for part in heads.find([0, 1, 2, 3, 4, 99], 6)] == [4, 5]
    assert [part.upto for part in heads.find(TOKENS, 9)] == [4, 8, 9]
    assert heads.find([99], 1) == []
    assert not heads.lacks(TOKENS[:6]), "a longer one covers its beginnings"


@pytest.mark.rule("prefix.uncuttable")
def test_a_whole_state_on_disk_serves_only_what_begins_with_all_of_it(tmp_path: Path) -> None:
    heads = open_heads(tmp_path, cuttable=False)
    write(heads, chunk=10)
    assert heads.find(TOKENS, 9) == []
    assert [part.upto for part in heads.find([*TOKENS, 5], 10)] == [10]
    assert heads.lacks(TOKENS[:6])


@pytest.mark.rule("prefix.disk-whole")
def test_files_are_the_users_alone(tmp_path: Path) -> None:
    write(open_heads(tmp_path))
    path = the_file(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [folder.stat().st_mode & 0o777 for folder in path.parents[:2]] == [0o700, 0o700]


@pytest.mark.rule("prefix.disk-whole")
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, lines: Any) -> None:
    (tmp_path / "prefixes").mkdir()
    (tmp_path / "prefixes").chmod(0o777)
    heads = open_heads(tmp_path)
    assert not heads.lacks(TOKENS), "nothing is to be written"
    assert [line["event"] for line in lines()] == ["prefix.no_disk"]


@pytest.mark.rule("prefix.disk-whole")
def test_a_file_that_is_cut_or_changed_anywhere_is_passed_over_with_one_line(
    tmp_path: Path, lines: Any
) -> None:
    write(open_heads(tmp_path))
    path = the_file(tmp_path)
    whole = path.read_bytes()
    damaged = [whole[:at] for at in range(len(whole))]
    damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    for content in [*damaged, whole + b"x"]:
        path.write_bytes(content)
        before = len(lines())
        heads = open_heads(tmp_path)
        parts = heads.find(TOKENS, 10)
        assert not parts or read(heads, parts) is None
        assert [line["event"] for line in lines()[before:]].count("prefix.passed_over") == 1
        assert heads.find(TOKENS, 10) == []
        assert heads.lacks(TOKENS), "it is written again"


@pytest.mark.rule("prefix.keys")
@pytest.mark.parametrize(
    "other",
    [
        Kind("another", KIND.engine, KIND.rows),
        Kind(KIND.model, "library 2", KIND.rows),
        Kind(KIND.model, KIND.engine, "q8_0"),
    ],
)
def test_rows_of_another_model_or_release_are_not_taken(tmp_path: Path, lines: Any, other: Kind) -> None:
    write(open_heads(tmp_path))
    assert open_heads(tmp_path, other).find(TOKENS, 10) == []
    path = the_file(tmp_path)
    path.rename(tmp_path / "prefixes" / other.digest / path.name)
    assert open_heads(tmp_path, other).entries == 0
    (line,) = [line for line in lines() if line["event"] == "prefix.passed_over"]
    assert line["why"] == "its rows are of another model or release"


@pytest.mark.rule("prefix.disk-whole")
def test_a_file_that_does_not_fit_the_disk_leaves_nothing_and_the_work_goes_on(
    tmp_path: Path, lines: Any
) -> None:
    # In a process of its own: the tests' own output may go into a file.
    code = f"from tests.pool.test_shelf_disk import on_a_full_disk; on_a_full_disk({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list(tmp_path.glob("prefixes/*/*")) == []
    assert [line["event"] for line in lines()] == ["prefix.not_written"]


def on_a_full_disk(folder: str) -> None:
    """No file of this process may grow over 1,000 bytes: for a writer that is like a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    heads = open_heads(Path(folder))
    write(heads, list(range(200)))
    assert heads.lacks(TOKENS)
    heads.close()


def test_what_a_writer_that_died_has_left_is_taken_away_later(tmp_path: Path) -> None:
    write(open_heads(tmp_path))
    fresh, stale = (the_file(tmp_path).with_name(f"{name}.part") for name in ("fresh", "stale"))
    for path in (fresh, stale):
        path.write_bytes(b"half")
    os.utime(stale, (0, 0))
    assert open_heads(tmp_path).entries == 1
    assert (fresh.exists(), stale.exists()) == (True, False)


@pytest.mark.rule("prefix.lru")
@pytest.mark.rule("prefix.never-exceeded")
def test_the_least_recently_used_file_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = open_heads(tmp_path)
    write(heads)
    size = the_file(tmp_path).stat().st_size
    monkeypatch.setenv("AERIX_BOUND_PREFIX_DISK", str(size * 5 // 2))
    second = [n + 20 for n in TOKENS]
    write(heads, second)
    for age, tokens in ((100, TOKENS), (200, second)):
        (spot,) = {part.kept.path for part in heads.find(tokens, 10) if isinstance(part.kept, Spot)}
        os.utime(spot, (age, age))
    assert read(heads, heads.find(TOKENS, 10)) == bytes(TOKENS), "it is used now"
    write(heads, [n + 40 for n in TOKENS])
    assert [bool(heads.find([n + add for n in TOKENS], 10)) for add in (0, 20, 40)] == [True, False, True]
    assert sum(path.stat().st_size for path in tmp_path.glob("prefixes/*/*")) <= size * 5 // 2


@pytest.mark.bound("prefix.disk")
def test_a_head_larger_than_the_limit_is_not_written(
    tmp_path: Path, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_PREFIX_DISK", "100")
    write(open_heads(tmp_path))
    assert list(tmp_path.glob("prefixes/*/*")) == []
    assert [line["event"] for line in lines()] == ["prefix.not_written"]


def test_after_the_end_nothing_more_is_taken(tmp_path: Path) -> None:
    heads = open_heads(tmp_path)
    heads.close()
    assert not heads.lacks(TOKENS)


def test_a_kind_that_is_not_known_yet_is_found_out_by_the_writer(tmp_path: Path) -> None:
    write(open_heads(tmp_path))
    heads = open_heads(tmp_path, known=False)
    assert heads.find(TOKENS, 10) == []
    write(heads, [77] * 10)
    assert (heads.entries, len(heads.find(TOKENS, 10))) == (2, 3)


# --- digests ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("prefix.keys")
def test_a_models_digest_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    model, digests = tmp_path / "model", Digests(tmp_path / "cache" / "models.json")
    model.write_bytes(b"one")
    assert not digests.known([model])
    first = digests.of([model])
    assert digests.known([model])
    os.utime(model, (5, 5))
    assert not digests.known([model])
    assert digests.of([model]) == first
    model.write_bytes(b"two")
    assert digests.of([model]) != first
    assert not digests.known([tmp_path / "nowhere"])


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff"])
def test_a_memory_of_digests_that_is_damaged_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    model, cache = tmp_path / "model", tmp_path / "models.json"
    model.write_bytes(b"one")
    cache.write_bytes(content)
    assert Digests(cache).of([model])
    assert Digests(cache).known([model])
