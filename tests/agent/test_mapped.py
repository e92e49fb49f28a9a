"""The map of a repository is made once for a whole request."""

import os
import signal

import pytest

from aerix.session.events import Event, Message
from tests.runs import Desk, call, calls, final, play, results

MAP = call("repo_map")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    plays = {
        "twice": [calls(MAP), calls(call("bash", command="touch new.py")), calls(MAP), final()],
        "runner dies": [calls(call("bash", command="echo $PPID > runner")), calls(MAP), calls(MAP), final()],
    }
    return play(tmp_path_factory.mktemp("model"), plays, window=16384)


@pytest.mark.rule("tools.repo-map")
def test_the_map_is_made_once_a_request(desk: Desk) -> None:
    ran = desk("play twice")
    first, _, second = (line["text"] for line in results(ran.log))
    assert first.removeprefix("[repo_map c1]") == second.removeprefix("[repo_map c3]")
    assert "README.md" in first
    assert "new.py" in results(desk("play twice").log)[0]["text"]


def test_a_map_whose_runner_has_died_is_made_by_the_next(desk: Desk) -> None:
    def heard(event: Event) -> None:
        if isinstance(event, Message) and event.call == "c1":
            os.kill(int((desk.cwd / "runner").read_text()), signal.SIGKILL)

    desk.heard = heard
    ran = desk("play runner dies")
    assert ran.end.outcome == "done"
    assert "README.md" in results(ran.log)[-1]["text"]
