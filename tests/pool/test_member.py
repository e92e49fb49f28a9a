"""A member: restarts, giving up, the ladder, held requests, a worker that is stuck."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Exit, ManualClock, Ref, Refused, start
from aerix.pool import protocol as p
from aerix.pool.ladder import LADDER
from aerix.pool.member import Member, Worker, _reason
from aerix.pool.models import ResolvedModel, resolve
from aerix.pool.workerargs import WorkerArgs
from tests.pool.daemons import PATIENCE, Daemons, Scripts, Wire

Open = Callable[..., Wire]


def info_of(one: Wire) -> dict[str, Any]:
    (member,) = one.ask("MemberList")["members"]
    assert isinstance(member, dict)
    return member


def greeted(wire: Open, path: Path) -> Wire:
    one = wire(path)
    one.hello()
    return one


def kill_worker(one: Wire) -> None:
    os.kill(info_of(one)["pid"], signal.SIGKILL)


# --- restarts -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("pool.worker-restarted")
def test_a_worker_that_dies_is_started_again_and_counted(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script({"text": "fine"})
    one = greeted(wire, pool(ref).socket)
    context = one.create(ref)
    kill_worker(one)
    assert one.ask("Generate", context=context, max_tokens=9)["code"] in (
        "member_restarted",
        "unknown_context",
    )
    assert one.ask("Generate", context=one.create(ref), max_tokens=9)["text"] == "fine"  # create was held
    member = info_of(one)
    assert (member["state"], member["restarts"], member["note"]) == ("ready", 1, "")


@pytest.mark.rule("pool.member-gives-up")
def test_a_member_whose_worker_dies_too_often_says_so_and_the_others_go_on(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    mortal, other = script({"text": "x", "fault": "die"}), script({"text": "fine"})
    one = greeted(wire, pool(mortal, other, POOL_MEMBER_DELAY=0.01).socket)
    for _ in range(4):
        answer = one.ask("Generate", context=one.create(mortal), max_tokens=9)
        assert answer["code"] == "member_restarted"
    refused = one.ask("ContextCreate", member=mortal, segments=[])
    assert refused["code"] == "member_failed"
    assert "3 restarts in 600 s were not enough: its worker ended:" in refused["message"]
    states = {m["name"]: (m["state"], m["restarts"]) for m in one.ask("MemberList")["members"]}
    assert states == {mortal: ("failed", 3), other: ("ready", 0)}
    assert one.ask("Generate", context=one.create(other), max_tokens=9)["text"] == "fine"


def test_a_context_of_a_member_that_gave_up_is_dropped(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script()
    one = greeted(wire, pool(ref, POOL_MEMBER_RESTARTS=0).socket)
    context = one.create(ref)
    kill_worker(one)
    while info_of(one)["state"] != "failed":
        pass
    assert one.ask("ContextRead", context=context)["code"] == "member_failed"
    assert one.ask("ContextDrop", context=context)["type"] == "Ok"
    assert one.ask("MemberUnload", member=ref)["type"] == "Ok"


def test_a_member_that_gave_up_can_be_loaded_again(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script({"text": "fine"})
    one = greeted(wire, pool(ref, POOL_MEMBER_RESTARTS=0).socket)
    kill_worker(one)
    while info_of(one)["state"] != "failed":
        pass
    assert one.ask("MemberLoad", ref=ref, flags={})["member"]["state"] == "ready"
    assert one.ask("Generate", context=one.create(ref), max_tokens=9)["text"] == "fine"


@pytest.mark.bound("pool.member-delay")
@pytest.mark.bound("pool.member-held")
@pytest.mark.bound("pool.held-progress")
def test_requests_that_wait_for_a_restart_hear_signs_of_life(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script()
    bounds: dict[str, Any] = {"POOL_MEMBER_DELAY": 0.5, "POOL_HELD_PROGRESS": 0.05, "POOL_MEMBER_HELD": 1}
    one = greeted(wire, pool(ref, **bounds).socket)
    kill_worker(one)
    while info_of(one)["restarts"] < 1 or info_of(one)["state"] != "ready":
        pass
    kill_worker(one)  # the second restart in the window waits
    while info_of(one)["state"] != "restarting":
        pass
    held = one.send("ContextCreate", member=ref, segments=[])
    over = one.send("ContextCreate", member=ref, segments=[])
    seen: list[tuple[int, str]] = []
    while (held, "ContextState") not in seen:
        frame = one.get()
        assert frame is not None
        seen.append((frame["id"], frame["type"]))
    assert seen[0] == (over, "Error")
    assert seen.count((held, "Progress")) > 1


# --- a worker that is stuck ---------------------------------------------------------------------------------------


@pytest.mark.bound("pool.cancel-reaction")
@pytest.mark.rule("bounds.cancel")
def test_a_generation_that_ignores_its_cancel_costs_its_worker_its_life(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script({"text": "x", "fault": "hang"})
    one = greeted(wire, pool(ref, POOL_CANCEL_REACTION=0.1).socket)
    before = info_of(one)["pid"]
    target = one.send("Generate", context=one.create(ref), max_tokens=9)
    while info_of(one)["running"] == 0:
        pass
    os.kill(before, signal.SIGSTOP)  # a worker that hears nothing
    one.sock.sendall(one._pack({"type": "Cancel", "target": target}))
    while (frame := one.get()) and (frame["id"] != target or frame["type"] == "Token"):
        pass
    assert frame is not None
    assert (frame["type"], frame["code"]) == ("Error", "member_restarted")
    assert "did not react to a cancel in 0.1 s" in frame["message"]
    assert one.create(ref)
    assert info_of(one)["pid"] != before


@pytest.mark.rule("worker.hang-killed")
def test_a_worker_that_gets_nowhere_is_killed_and_started_again(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script({"text": "xyz", "fault": "hang"})
    bounds: dict[str, Any] = {"CHILD_PING": 0.05, "CHILD_PROGRESS": 0.4}
    one = greeted(wire, pool(ref, **bounds).socket)
    before = info_of(one)["pid"]
    answer = one.ask("Generate", context=one.create(ref), max_tokens=9)
    assert answer["code"] == "member_restarted"
    assert "it made no progress for 0.4 s" in answer["message"]
    assert one.create(ref)
    member = info_of(one)
    assert (member["restarts"], member["pid"] != before) == (1, True)


@pytest.mark.rule("worker.memory")
def test_a_worker_that_is_killed_for_lack_of_memory_says_so_and_is_the_first_to_go(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    daemon = pool(script(), POOL_MEMBER_RESTARTS=0)
    one = greeted(wire, daemon.socket)
    worker = info_of(one)["pid"]
    assert Path(f"/proc/{worker}/oom_score_adj").read_text() == "500\n"
    assert Path(f"/proc/{daemon.process.pid}/oom_score_adj").read_text() != "500\n"
    kill_worker(one)  # as the kernel does
    while info_of(one)["state"] != "failed":
        pass
    assert "it was killed by another program, or by the kernel for lack of memory" in info_of(one)["note"]


@pytest.mark.bound("pool.status-wait")
def test_status_does_not_wait_for_a_worker_that_does_not_answer(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    one = greeted(wire, pool(script(), POOL_STATUS_WAIT=0.05).socket)
    worker = info_of(one)["pid"]
    os.kill(worker, signal.SIGSTOP)
    assert info_of(one)["state"] == "ready"
    os.kill(worker, signal.SIGCONT)


# --- the ladder ---------------------------------------------------------------------------------------------------

BODIES = "tests.pool.bodies"


def dies_below(rung: int, sig: str = "SIGSEGV") -> Callable[[Ref, WorkerArgs], Worker]:
    """A real child process that dies by a signal on every rung above ``rung``."""

    class Fragile(Worker):
        def __init__(self, member: Ref, args: WorkerArgs) -> None:
            super().__init__(member, args)
            self._spawn = (f"{BODIES}:fragile", {"rung": args.rung, "good": rung, "signal": sig})

    return Fragile


def start_member(monkeypatch: pytest.MonkeyPatch, model: ResolvedModel, body: Any) -> Ref:
    monkeypatch.setattr("aerix.pool.member.Worker", body)
    return start(Member("m", model, {}), "member:m")


@pytest.mark.rule("worker.ladder")
def test_a_death_by_signal_before_ready_steps_down_the_ladder_and_is_told(
    script: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = start_member(monkeypatch, resolve(script()), dies_below(2))
    info = ref.ask(p.MemberList(0), PATIENCE)
    assert (info.state, info.restarts, info.settings) == ("ready", 0, LADDER[2].sentence)
    ref.stop()
    assert ref.join(PATIENCE) == Exit("shutdown", "shutdown")


@pytest.mark.rule("worker.ladder")
def test_a_ladder_that_is_used_up_refuses_the_load(script: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="signal SIGSEGV") as refusal:
        start_member(monkeypatch, resolve(script()), dies_below(len(LADDER)))
    assert refusal.value.code == "load_failed"


@pytest.mark.rule("bounds.load")
@pytest.mark.bound("pool.member-load")
def test_a_load_that_takes_too_long_is_refused(script: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Worker):
        def __init__(self, member: Ref, args: WorkerArgs) -> None:
            super().__init__(member, args)
            self._spawn = (f"{BODIES}:slow", {})

    monkeypatch.setenv("AERIX_BOUND_POOL_MEMBER_LOAD", "0.5")
    with pytest.raises(Refused, match=r"loading took more than 0.5 s"):
        start_member(monkeypatch, resolve(script()), Slow)


def test_restarts_wait_longer_each_time_and_quiet_time_forgives(
    script: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(Member, "clock", clock)
    ref = start(Member("m", resolve(script()), {}), "member:m")

    def kill() -> None:
        os.kill(ref.ask(p.MemberList(0), PATIENCE).pid, signal.SIGKILL)

    def until(state: str) -> p.MemberInfo:
        while True:
            info = ref.ask(p.MemberList(0), PATIENCE)
            assert isinstance(info, p.MemberInfo)
            if info.state == state:
                return info

    def next_death(count: int) -> None:
        kill()
        while ref.ask(p.MemberList(0), PATIENCE).restarts != count:
            pass

    next_death(1)
    until("ready")  # the first at once
    next_death(2)
    clock.advance(0.9)
    assert until("restarting").pid == 0
    clock.advance(0.2)
    until("ready")
    clock.advance(601)
    next_death(3)
    until("ready")  # at once again
    ref.stop()
    assert ref.join(PATIENCE)


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        (
            "exit 70: Traceback\n  File\naerix.actors.messages.Refused: It does not fit: 3 of 2.",
            "It does not fit: 3 of 2.",
        ),
        ("exit 70: Traceback\n  File\nValueError: bad", "exit 70: ValueError: bad"),
        ("signal SIGKILL", "it was killed by another program, or by the kernel for lack of memory"),
        ("signal SIGTERM", "signal SIGTERM"),
        ("", "lost"),
    ],
)
def test_a_workers_end_is_told_in_one_line(detail: str, said: str) -> None:
    assert _reason(Exit("lost", detail)) == said


@pytest.mark.rule("pool.changed-file")
def test_a_model_whose_file_has_changed_is_loaded_anew(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script({"text": "old"})
    path = Path(ref.removeprefix("scripted:"))
    one = greeted(wire, pool(ref).socket)
    before = info_of(one)["pid"]
    assert one.ask("MemberLoad", ref=ref)["type"] == "MemberLoaded"
    assert info_of(one)["pid"] == before, "the same file is not loaded twice"
    path.write_text(path.read_text().replace("old", "newer"))
    assert one.ask("MemberLoad", ref=ref)["type"] == "MemberLoaded"
    assert one.ask("Generate", context=one.create(ref), max_tokens=9)["text"] == "newer"
    assert info_of(one)["restarts"] == 0
    path.write_text("nonsense\n")
    refused = one.ask("MemberLoad", ref=ref)
    assert refused["code"] == "load_failed"
    assert "has changed and could not be loaded" in refused["message"]
    assert one.ask("ContextCreate", member=ref, segments=[])["code"] == "member_failed"
