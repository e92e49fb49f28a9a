"""Reading a log tolerantly: what is no event is passed over with a count, and never more than a line is held."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from aerix.session import events
from aerix.session.read import TYPES, Reading
from tests.conftest import Limit

PLAN = events.line(events.Plan(text="first"))
MORE = events.line(events.Plan(text="second"))


def texts(reading: Reading) -> list[str]:
    return [line["text"] for line in reading]


@pytest.mark.rule("session.tolerant")
@pytest.mark.parametrize(
    ("foreign", "said"),
    [
        (b"no JSON\n", "1 line of its log passed over: 1 not JSON"),
        (b"\xff\xfe\n", "1 line of its log passed over: 1 not JSON"),
        (b"[" * 200_000 + b"\n", "1 line of its log passed over: 1 not JSON"),
        (b"[1, 2]\n\n", "2 lines of its log passed over: 1 no event, 1 not JSON"),
        (b'{"type": "plan", "text": "of nobody"}\n', "1 line of its log passed over: 1 no event"),
        (
            b'{"ts": "2031", "type": "dream", "agent": "a1"}\n',
            "1 line of its log passed over: 1 of a type that this version does not know",
        ),
    ],
)
def test_a_line_that_is_no_event_is_passed_over_and_named(tmp_path: Path, foreign: bytes, said: str) -> None:
    log = tmp_path / "log"
    log.write_bytes(PLAN + foreign + MORE)
    reading = Reading(log)
    assert texts(reading) == ["first", "second"]
    assert reading.said() == said


@pytest.mark.rule("session.torn-tail", "session.tolerant")
def test_a_torn_last_line_is_passed_over_at_whatever_byte_it_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for end in range(1, len(MORE)):
        log.write_bytes(PLAN + MORE[:end])
        reading = Reading(log)
        whole = end == len(MORE) - 1  # only the newline is not there
        assert texts(reading) == (["first", "second"] if whole else ["first"])
        assert reading.said() == ("" if whole else "1 line of its log passed over: 1 cut off")


@pytest.mark.rule("session.tolerant")
@pytest.mark.bound("session.line")
def test_a_line_over_its_bound_is_passed_over_in_parts(tmp_path: Path, limit: Limit) -> None:
    limit("session.line", 100)
    log = tmp_path / "log"
    log.write_bytes(PLAN + b"x" * 1000 + b"\n" + MORE)
    reading = Reading(log)
    assert texts(reading) == ["first", "second"]
    assert reading.said() == "1 line of its log passed over: 1 too long"
    log.write_bytes(PLAN + b"x" * 100)
    assert texts(reading) == ["first"]


@pytest.mark.rule("session.tolerant")
def test_a_line_of_50_mb_is_never_held(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.write(PLAN)
        file.truncate(50_000_000)  # a hole: zeros that take no room
        file.seek(50_000_000)
        file.write(b"\n" + MORE)
    reading = Reading(log)
    tracemalloc.start()
    try:
        assert texts(reading) == ["first", "second"]
        assert tracemalloc.get_traced_memory()[1] < 120_000_000  # what it takes to read up to the bound
    finally:
        tracemalloc.stop()
    assert reading.said() == "1 line of its log passed over: 1 too long"


def test_only_a_regular_file_is_a_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(PLAN)
    for name in ("pipe", "link", "gone"):
        with pytest.raises(OSError):
            list(Reading(tmp_path / name))


def test_every_type_of_event_is_known() -> None:
    assert {"session.start", "segment", "message", "plan", "session.end"} <= TYPES
    assert json.loads(PLAN)["type"] in TYPES
