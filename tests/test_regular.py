"""Reading a file that anybody may have put there."""

import os
from pathlib import Path

import pytest

from aerix.regular import NotRead, read


def test_a_regular_file_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert read(tmp_path / "a", 3) == b"abc"


def test_a_file_over_the_limit_is_not_read(tmp_path):
    (tmp_path / "a").write_bytes(b"abcd")
    with pytest.raises(NotRead, match="it is larger than 3 bytes"):
        read(tmp_path / "a", 3)


@pytest.mark.parametrize("name", ["absent", "a/b", "x\0y"])
def test_what_is_not_there_is_not_found(tmp_path, name):
    (tmp_path / "a").touch()
    with pytest.raises(FileNotFoundError):
        read(tmp_path / name, 3)


def descriptors():
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(("make", "why"), [
    (os.mkfifo, "it is not a regular file"),
    (os.mkdir, "it is not a regular file"),
    (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    (lambda path: path.symlink_to("/dev/zero"), "it is not a regular file"),
])  # fmt: skip
def test_what_is_no_regular_file_is_not_read_and_nothing_stays_open(tmp_path, make, why):
    make(tmp_path / "a")
    before = descriptors()
    with pytest.raises(NotRead, match=why):
        read(tmp_path / "a", 3)
    assert descriptors() == before
