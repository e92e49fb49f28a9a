"""A long run with jobs, pieces, compactions and kills: no call is lost or run twice, and its log gives its contexts."""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aerix.actors import start
from aerix.agent.context import Context
from aerix.pool import starter
from aerix.pool.client import PoolLink, PoolSettings
from aerix.pool.protocol import StopPool
from aerix.session.events import Event, Message
from aerix.session.replay import Held, replay
from tests.conftest import Limit
from tests.pool.daemons import PATIENCE
from tests.runs import Desk, Line, Step, call, calls, final, of, pool_status, results, script, worker_pid

SEED = 20
PASS = {"turn": {"thought": "It holds.", "final": {"verdict": "pass", "reason": "seen"}}}
DIE = "; kill -9 $PPID; sleep 5"


def step(n: int, chance: random.Random) -> Step:
    """Appends a line of its own; now and then its runner dies after it, in the background too, or a piece does it."""
    line = f"echo line{n}. >> lines"
    match chance.randrange(8):
        case 0:
            return calls(call("bash", command=line + DIE))
        case 1:
            return calls(call("bash", command=line + chance.choice(("", DIE)), background=True))
        case 2:
            return calls(call("agent", brief=f"Do work {n}."))
    return calls(call("bash", command=f"{line}; yes {n} | head -c 400"))


def long_script(folder: Path, turns: int, chance: random.Random) -> str:
    root = [step(n, chance) for n in range(turns)]
    work = [calls(call("bash", command="echo piece$RANDOM$RANDOM. >> pieces")), final("worked")]
    groups = [
        (r"Another agent did", [PASS]),
        (r"play long", [*root, *[final("the end")] * (turns + 1)]),
        (r"Do work \d", work),
    ]
    return script(folder, groups, window=8192)


@pytest.fixture
def model() -> str:
    """Each run has its own."""
    return ""


@pytest.fixture
def mortal(desk: Desk, tmp_path: Path) -> Iterator[Desk]:
    """A desk whose pool is started again when it was killed, and is ended."""
    shared = desk.pool
    desk.pool = replace(shared, autostart=True, start_log=tmp_path / "pool.log")
    yield desk
    link = start(PoolLink(shared), "stop-link")
    link.ask(StopPool(0), PATIENCE)
    link.stop()
    assert link.join(PATIENCE)
    while starter.started:  # the link that would have reaped it has ended
        os.waitpid(starter.started.pop(), 0)


def kill(what: str, pool: PoolSettings, model: str) -> None:
    """End the daemon or the model's worker by force."""
    if not what:
        return
    pid = pool_status(pool).pid if what == "daemon" else worker_pid(pool, model)
    assert pid > 0
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def expected(log: list[Line]) -> list[str]:
    """The lines that the calls of the root and its jobs append, one for each call that is logged."""
    made = [line for line in results(log) if line["agent"] == "a1" and line["tool"] == "bash"]
    return sorted(line["input"]["command"].split()[1] for line in made)


@pytest.mark.parametrize(
    "turns",
    [
        40,
        pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(300)]),
    ],
)
@pytest.mark.rule("agent.replay")
def test_a_long_run_loses_no_call_runs_none_twice_and_can_be_replayed(
    mortal: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Limit, turns: int
) -> None:
    limit("supervisor.restarts", 1000)  # runners die more often here than one may
    limit("supervisor.delay", 0.05)
    chance = random.Random(SEED)
    model = long_script(tmp_path, turns, chance)
    pool, whom = mortal.pool, ["worker", "worker", "daemon"]
    kills = dict(zip(chance.sample(range(2, turns), len(whom)), whom, strict=True))
    had: dict[str, list[Held]] = {}
    drop = Context.drop

    def keep(context: Context) -> None:
        had[context._agent] = context.held
        drop(context)

    def heard(event: Event) -> None:
        if isinstance(event, Message) and event.agent == "a1" and event.id.removeprefix("t").isdigit():
            kill(kills.pop(int(event.id[1:]), ""), pool, model)

    monkeypatch.setattr(Context, "drop", keep)
    mortal.heard = heard
    ran = mortal("play long", model=model, max_turns=2 * turns, diff=False)
    assert (ran.end.outcome, ran.end.text) == ("done", "the end"), ran.end.reason
    assert not kills
    assert of(ran.log, "compaction")
    assert of(ran.log, "job")
    assert of(ran.log, "verdict")
    assert sorted((mortal.cwd / "lines").read_text().split()) == expected(ran.log)
    died = [line for line in results(ran.log) if "tool runner died" in line["text"]]
    assert died
    found = replay(ran.log)
    assert had.keys() == found.keys()
    for agent, held in had.items():
        assert list(found[agent].held.values()) == held, agent
