"""How the program ends: last started first, each with its grace; a second Ctrl-C waits for none of them."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from aerix.actors import Exit, StartChild, start, whereis
from aerix.pool.client import PoolSettings
from tests.actors.bodies import PATIENCE, Puppet, Run
from tests.actors.test_supervisor import Grove
from tests.conftest import ROOT
from tests.runs import Aerix, call, calls, daemon, final, play  # noqa: F401
from tests.tools.waiting import a_second, is_gone, pid_in, until

STUBBORN = "trap 'echo > termed' TERM; trap '' INT; echo $$ > pid; while :; do sleep 0.05; done"
PLAYS: dict[str, list[dict[str, Any]]] = {
    "stubborn": [calls(call("bash", command=STUBBORN)), final()],
    "read": [calls(call("read", path="README.md")), final()],
}
TELLS_ENDS = """
import os
from aerix.actors.life import Life
end = Life.end
def told(self, exit):
    with open({path!r}, "a") as ends:
        ends.write(self._ref.name + "\\n")
    end(self, exit)
Life.end = told
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=16384)


@pytest.fixture
def aerix(daemon: PoolSettings, model: str, git_repo: Path) -> Iterator[Aerix]:  # noqa: F811
    runs = Aerix(git_repo, daemon, model)
    yield runs
    runs.close()


@pytest.mark.rule("supervisor.shutdown-order")
@pytest.mark.parametrize("what", ["read", "stubborn"])
def test_the_program_ends_its_parts_last_started_first(aerix: Aerix, tmp_path: Path, what: str) -> None:
    ends = tmp_path / "ends"
    (tmp_path / "sitecustomize.py").write_text(TELLS_ENDS.format(path=str(ends)))
    running = aerix.start("-p", f"play {what}", PYTHONPATH=f"{tmp_path}:{ROOT}")
    if what == "stubborn":
        pid_in(aerix.cwd / "pid")
        running.send(signal.SIGINT)
    running.end()
    names = ends.read_text().split()
    assert names[-5:] == ["request", "pool-link", "output", "session-log", "aerix"]
    assert len(set(names)) == len(names)


@pytest.mark.rule("supervisor.shutdown-order")
def test_a_second_ctrl_c_skips_the_graces(aerix: Aerix) -> None:
    graces: dict[str, Any] = {
        "AERIX_BOUND_REQUEST_CANCEL": "60",
        "AERIX_BOUND_TOOLS_CANCEL": "60",
        "AERIX_BOUND_BASH_CANCEL": "6",
    }
    running = aerix.start("-p", "play stubborn", **graces)
    pid = pid_in(aerix.cwd / "pid")
    running.send(signal.SIGINT)
    until((aerix.cwd / "termed").exists)  # it was asked to end, and ignores it
    begun = monotonic()
    running.send(signal.SIGINT)
    assert running.process.wait(PATIENCE) == 130
    assert monotonic() - begun < a_second()
    assert is_gone(pid, 30)  # its runner ends it, after the grace that it gives to commands


@pytest.mark.rule("actors.no-global-stop")
def test_the_root_ends_its_own_tree_and_nobody_else(grove: Grove) -> None:
    other = start(Puppet(), "other")
    root = start(grove.tree(*grove.specs("ab")), "root")
    root.ask(StartChild(grove.spec("x")), PATIENCE)
    root.stop()
    assert root.join(PATIENCE) == Exit("shutdown", "shutdown")
    assert grove.history.events[-3:] == ["stop x", "stop b", "stop a"]
    assert (whereis("other"), other.ask(Run(lambda _: "here"), PATIENCE)) == (other, "here")
    other.stop()
    assert other.join(PATIENCE)


@pytest.mark.rule("actors.no-global-stop")
def test_a_process_ends_though_an_actor_hangs_and_nobody_stops_them_all() -> None:
    program = (
        "from aerix.actors import start\n"
        "from tests.actors.bodies import Gate, Puppet\n"
        "gate = Gate(); gate.hold(start(Puppet(), 'hangs')); print('done')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.rule("actors.no-global-stop")
def test_nothing_uses_the_global_list_of_actors_to_end_them() -> None:
    for package in ("actors", "aerix", "pool", "hooks"):
        for path in (ROOT / package).rglob("*.py"):
            assert not re.search(r"ActorRegistry\.(?!unregister\()", path.read_text("utf-8")), path


@pytest.fixture
def grove() -> Grove:
    return Grove()
