"""The session log: one writer, whole lines, a mode for its user only, and what happens when it cannot be written."""

import json
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aerix.actors import Exit, Ref, Refused, on, start
from aerix.session.events import Plan
from aerix.session.log import SessionLog, Write
from tests.actors.bodies import Gate, Run
from tests.pool.daemons import PATIENCE
from tests.runs import json_lines


@contextmanager
def log_at(path: Path, name: str = "log") -> Iterator[Ref]:
    ref = start(SessionLog(path), name)
    try:
        yield ref
    finally:
        ref.stop()
        assert ref.join(PATIENCE)


def write(log: Ref, *texts: str) -> None:
    log.ask(Write(tuple(Plan(text=text) for text in texts)), PATIENCE)


def texts(path: Path) -> list[str]:
    return [line["text"] for line in json_lines(path.read_bytes())]


@pytest.mark.rule("session.one-event-a-line")
@pytest.mark.rule("session.private")
def test_events_are_lines_in_a_file_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "project/one.jsonl"
    with log_at(path) as log:
        write(log, "a\nb", "c")
        assert texts(path) == ["a\nb", "c"]  # there before the answer
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.rule("session.one-writer")
def test_a_second_writer_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    with log_at(path) as log:
        with pytest.raises(Refused) as refused:
            start(SessionLog(path), "second")
        assert refused.value.code == "session_locked"
        assert "open in another aerix" in refused.value.message
        write(log, "still mine")
    with log_at(path) as log:  # the lock goes with its holder
        write(log, "mine now")
    assert texts(path) == ["still mine", "mine now"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk that is full: no file of this process grows beyond that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.rule("session.full-disk")
@pytest.mark.rule("session.whole-lines")
@pytest.mark.parametrize("more", [0, 1, 50])
def test_a_line_that_is_not_written_to_its_end_is_taken_back(tmp_path: Path, more: int) -> None:
    path = tmp_path / "one.jsonl"
    with log_at(path) as log:
        write(log, "before")
        with files_of_at_most(path.stat().st_size + more), pytest.raises(Refused) as refused:
            write(log, "x" * 100, "y")
        assert refused.value.code == "session_storage"
        assert str(path) in refused.value.message
        assert texts(path) == ["before"]
        write(log, "after")
    assert texts(path) == ["before", "after"]


@pytest.mark.rule("session.full-disk")
def test_a_log_that_cannot_be_opened_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused) as refused:
        start(SessionLog(tmp_path / "file/one.jsonl"), "log")
    assert refused.value.code == "session_storage"
    assert "XDG_DATA_HOME" in refused.value.message


@pytest.mark.rule("session.removed-told")
def test_a_log_that_was_removed_is_not_written_into_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    with log_at(path) as log:
        write(log, "there")
        path.unlink()
        with pytest.raises(Refused, match=r"one\.jsonl was removed; begin a new session") as refused:
            write(log, "nowhere")
        assert refused.value.code == "session_storage"


def test_a_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused):
        start(SessionLog(tmp_path / "one.jsonl"), "log")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.rule("session.written-before-done")
def test_lines_that_wait_are_written_before_a_stop(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    with log_at(path) as log:
        for number in range(200):
            log.tell(Write((Plan(text=str(number)),)))
    assert [json.loads(text) for text in texts(path)] == list(range(200))


@pytest.mark.rule("session.written-before-done")
@pytest.mark.parametrize("limit", [1, 3])
def test_a_stop_that_finds_the_queue_full_comes_after_the_lines_in_it(tmp_path: Path, limit: int) -> None:
    class Held(SessionLog):
        mailbox_limit = limit

        @on(Run)
        def _run(self, message: Run) -> None:
            message.do(self)

    path, gate = tmp_path / "one.jsonl", Gate()
    log = start(Held(path), "log")
    gate.hold(log)
    for n in range(limit):
        log.tell(Write((Plan(text=str(n)),)))
    with pytest.raises(Refused, match="takes no more"):
        log.tell(Write((Plan(text="one too many"),)))
    log.stop()
    gate.free.set()
    assert log.join(PATIENCE) == Exit("shutdown")
    assert texts(path) == [str(n) for n in range(limit)]


@pytest.mark.rule("session.torn-tail")
def test_a_torn_last_line_is_ended_before_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_bytes(b'{"whole": 1}\n{"torn": "in the mid')
    for text in ("next", "last"):
        with log_at(path) as log:
            write(log, text)
    lines = path.read_bytes().splitlines()
    assert lines[:2] == [b'{"whole": 1}', b'{"torn": "in the mid']
    assert [json.loads(line)["text"] for line in lines[2:]] == ["next", "last"]
