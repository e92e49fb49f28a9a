"""The log: whole lines of many processes in one file, and no cost where nothing is logged."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aerix.actors import start
from aerix.actors.log import configure, log
from tests.actors.bodies import PATIENCE, Puppet, Run

WRITER = """
import sys
from aerix.actors.log import log
for n in range(300):
    log("line", who=int(sys.argv[1]), n=n, padding="x" * (n * 37 % 9000))
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("AERIX_LOG_FILE", raising=False)
    path = tmp_path / "deep/aerix.log"
    configure(path)
    return path


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.rule("log.whole-lines")
def test_lines_of_many_processes_are_whole(file: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(n)]) for n in range(3)]
    assert [writer.wait(PATIENCE) for writer in writers] == [0, 0, 0]
    found = lines(file)
    assert len(found) == 900
    for who, writer in enumerate(writers):
        own = [line for line in found if line["who"] == who]
        assert [line["n"] for line in own] == list(range(300))
        assert {line["pid"] for line in own} == {writer.pid}


@pytest.mark.rule("log.one-file")
def test_a_line_says_what_when_how_grave_and_who(file: Path) -> None:
    log("something.happened", level="warning", path=Path("x"), text="grüß\ud800")
    (line,) = lines(file)
    assert str(line.pop("timestamp"))[:2] == "20"
    assert line == {
        "event": "something.happened", "level": "warning", "path": "PosixPath('x')", "text": "grüß\ud800",
        "pid": os.getpid(),
    }  # fmt: skip
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.rule("log.level")
def test_lines_below_the_level_are_not_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log("debug", level="debug")
    monkeypatch.setenv("AERIX_LOG_LEVEL", "error")
    log("warning", level="warning")
    log("error", level="error")
    assert [line["event"] for line in lines(file)] == ["error"]


def test_nothing_is_written_or_imported_where_nothing_is_logged(tmp_path: Path) -> None:
    program = (
        "import sys; from aerix.actors.log import log; from pathlib import Path\n"
        "log('x')\n"
        "from aerix.actors import Actor, start; ref = start(Actor(), 'a'); ref.stop(); ref.join(30)\n"
        "print('structlog' in sys.modules)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "AERIX_LOG_FILE"}
    said = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment,
    ).stdout
    assert said == "False\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rule("log.never-ends")
def test_a_log_that_cannot_be_written_ends_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise ValueError

    log("x", value=Unprintable())
    for path in ("/dev/full", "/proc/no/such/file"):
        monkeypatch.setenv("AERIX_LOG_FILE", path)
        log("x")
    assert not file.exists() or lines(file) == []


def test_crashes_and_refusals_that_nobody_is_told_are_logged(file: Path) -> None:
    from aerix.actors import Refused

    def refuse(_: object) -> None:
        raise Refused("no", "not now")

    def crash(_: object) -> None:
        raise ValueError("no luck")

    ref = start(Puppet(), "actor")
    ref.tell(Run(refuse))
    ref.tell(Run(crash))
    assert ref.join(PATIENCE)
    refused, crashed = lines(file)
    assert (refused["event"], refused["actor"], refused["message"], refused["error"]) == (
        "actor.refused", "actor", "Run", "not now",
    )  # fmt: skip
    assert (crashed["event"], crashed["incarnation"]) == ("actor.crashed", ref.incarnation)
    assert str(crashed["error"]).strip().endswith("ValueError: no luck")
