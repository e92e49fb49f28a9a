"""A pool that waits costs nothing: no processor time, and nobody wakes up to look."""

import threading
from pathlib import Path

import pytest

from tests.pool.daemons import Daemons, Scripts, Wire
from tests.pool.test_members import Open, members

A_WHILE = 1.5
"""Seconds in which whoever polls has woken up many times."""


def used(pid: int) -> int:
    """The clock ticks of processor time that a process has taken, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def wakes(pid: int) -> int:
    """How often its threads went to sleep: once for each time that one woke up."""
    found = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for line in (thread / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                found += int(line.split()[1])
    return found


def watched(pids: list[int]) -> tuple[int, int]:
    """Ticks and wakes of these processes in a while."""
    before = [(used(pid), wakes(pid)) for pid in pids]
    threading.Event().wait(A_WHILE)
    after = [(used(pid), wakes(pid)) for pid in pids]
    ticks, woken = (sum(b[n] - a[n] for a, b in zip(before, after, strict=True)) for n in (0, 1))
    return ticks, woken


def quiet(pids: list[int], most: int) -> tuple[int, int]:
    """The same once it has come to rest: what was just asked may still be on its way out."""
    for _ in range(5):
        ticks, woken = watched(pids)
        if ticks == 0 and woken <= most:
            break
    return ticks, woken


def worker_of(one: Wire, ref: str) -> int:
    pid = members(one)[ref]["pid"]
    assert isinstance(pid, int)
    return pid


@pytest.mark.rule("pool.idle-costs-nothing")
def test_a_pool_with_nothing_to_do_takes_no_processor_time(
    pool: Daemons, script: Scripts, wire: Open, model_file: Path
) -> None:
    ref = script({"text": "said"})
    daemon = pool(ref, str(model_file), flags=("--window", "512"))
    one = wire(daemon.socket)
    one.hello()
    for model in (ref, str(model_file)):
        context = one.create(model)
        assert one.ask("Generate", context=context, max_tokens=4)["type"] == "Done"
    pids = [daemon.process.pid, worker_of(one, ref), worker_of(one, str(model_file))]
    ticks, woken = quiet(pids, most=4)
    assert ticks == 0
    assert woken <= 4


@pytest.mark.rule("scheduler.no-polling")
def test_nobody_wakes_up_while_a_token_is_waited_for(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script({"text": "late", "delay": 3600})
    daemon = pool(ref)
    one = wire(daemon.socket)
    one.hello()
    context = one.create(ref)
    one.send("Generate", context=context, max_tokens=9)
    while members(one)[ref]["running"] != 1:
        pass
    # Once in ten seconds the worker is asked whether it lives: that is a round trip, and no polling.
    ticks, woken = quiet([daemon.process.pid, worker_of(one, ref)], most=12)
    assert ticks == 0
    assert woken <= 12
