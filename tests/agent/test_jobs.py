"""Commands in the background: their results join the context, a final waits for them, and nothing is left of them."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Ref, whereis
from aerix.session.events import Event, Note
from aerix.session.events import Job as JobEvent
from tests.runs import Desk, Line, Ran, call, calls, final, of, play, results
from tests.tools.waiting import a_second, is_gone, pid_in

GO = "until test -e go; do sleep 0.01; done; echo gone"
HARDY = "trap '' TERM; setsid sleep 60 & echo $! > pid; wait"


def job(command: str, **more: Any) -> dict[str, Any]:
    return call("bash", command=command, **more, background=True)


PLAYS: dict[str, list[dict[str, Any]]] = {
    "waits": [calls(job(GO)), final("early"), final("late")],
    "joins": [
        calls(job("echo out; echo err >&2; exit 3"), call("bash", command="sleep 0.5")),
        calls(call("plan", op="read")),
        final(),
    ],
    "timeout": [calls(job(HARDY, timeout_secs=3)), final("early"), final("late")],
    "last turn": [calls(job("sleep 0.3; echo slept")), final("that was it")],
    "budget": [calls(job(HARDY)), calls(call("plan", op="read"))],
    "cancelled": [calls(job(HARDY), call("bash", command="sleep 30"))],
    "runner dies": [calls(job("echo $PPID > runner; sleep 60")), final("early"), final("late")],
    "stuck": [calls(job("echo $PPID > runner; sleep 60", timeout_secs=1)), final("early")],
    "many": [calls(*[job("sleep 60")] * 3), calls(call("bash", command="true")), final("x")],
    "large": [calls(job(f"{GO}; seq 10000")), final("early"), final("late")],
    "polls": [
        calls(job("until test -e go; do sleep 0.01; done")),
        *[calls(call("read", path="README.md"))] * 4,
        final("early"),
        final("late"),
    ],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=16384)


def jobs(log: list[Line]) -> list[tuple[str, str]]:
    return [(line["id"], line["how"]) for line in of(log, "job")]


def texts(ran: Ran) -> list[str]:
    return [line["text"] for line in results(ran.log)]


def on_job(do: Any) -> Any:
    """Hears events; does something when a job has started."""

    def heard(event: Event) -> None:
        if isinstance(event, JobEvent) and event.state == "started":
            do()

    return heard


def on_wait(do: Any) -> Any:
    """Hears events; does something when a final waits."""

    def heard(event: Event) -> None:
        if isinstance(event, Note) and event.text.startswith("waiting for j1"):
            do()

    return heard


@pytest.mark.rule("jobs.id-at-once")
@pytest.mark.rule("jobs.final-waits")
@pytest.mark.rule("jobs.result-as-segment")
@pytest.mark.rule("jobs.event")
def test_a_final_waits_for_a_job_and_the_agent_goes_on_with_its_result(desk: Desk) -> None:
    desk.heard = on_wait((desk.cwd / "go").touch)
    ran = desk("play waits")
    assert (ran.end.outcome, ran.end.text, ran.end.turns) == ("done", "late", 3)
    assert texts(ran)[0].startswith("[bash c1]\nJob j1 runs in the background, for at most 120 s.")
    assert texts(ran)[-1] == "[job j1 exited 0]\ngone"
    assert jobs(ran.log) == [("j1", "started"), ("j1", "exited 0")]
    assert of(ran.log, "job")[0]["command"] == GO
    assert [line["label"] for line in of(ran.log, "segment") if line["id"] == "j1"] == ["job"]


@pytest.mark.rule("jobs.result-as-segment")
def test_a_job_that_ended_meanwhile_joins_at_the_next_turn(desk: Desk) -> None:
    ran = desk("play joins")
    assert (ran.end.outcome, ran.end.turns) == ("done", 3)
    assert [text.splitlines()[0] for text in texts(ran)] == [
        "[bash c1]", "[bash c2]", "[job j1 exited 3]", "[plan c3]",
    ]  # fmt: skip
    assert texts(ran)[2] == "[job j1 exited 3]\nout\nerr"
    assert results(ran.log)[2]["error"]


@pytest.mark.rule("jobs.result-as-segment")
def test_a_jobs_output_is_capped_and_kept_whole(desk: Desk) -> None:
    desk.heard = on_wait((desk.cwd / "go").touch)
    ran = desk("play large", caps={"bash": 1000})
    text, spool = texts(ran)[-1], results(ran.log)[-1]["spool"]
    assert text.startswith("[job j1 exited 0]\ngone\n1\n2\n")
    assert text.endswith("\n10000")
    assert len(text) < 1100
    assert Path(spool).read_text() == "gone\n" + "".join(f"{n}\n" for n in range(1, 10001))


def test_a_job_over_its_time_is_ended_with_its_tree_and_says_so(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_BASH_TERM", "0.1")
    ran = desk("play timeout")
    assert (ran.end.outcome, ran.end.text) == ("done", "late"), ran.end.reason
    assert texts(ran)[-1] == "[job j1 timeout after 3s]"
    assert is_gone(pid_in(desk.cwd / "pid"), 10)


def test_a_final_on_the_last_turn_waits_too_and_stands(desk: Desk) -> None:
    ran = desk("play last turn", max_turns=2)
    assert (ran.end.outcome, ran.end.text) == ("done", "that was it")
    assert texts(ran)[-1] == "[job j1 exited 0]\nslept"


@pytest.mark.rule("jobs.killed-at-end")
@pytest.mark.rule("jobs.event")
def test_jobs_that_run_when_the_agent_ends_are_killed_with_their_whole_tree(desk: Desk) -> None:
    desk.heard = on_job(lambda: pid_in(desk.cwd / "pid"))
    ran = desk("play budget", max_turns=2)
    assert ran.end.outcome == "budget"
    assert jobs(ran.log) == [("j1", "started"), ("j1", "killed: agent ended")]
    assert is_gone(pid_in(desk.cwd / "pid"), 10)


@pytest.mark.rule("agent.cancel")
def test_a_cancel_reaches_a_job_within_a_second(desk: Desk) -> None:
    asked: list[Ref] = []
    at: list[float] = []

    def cancel() -> None:
        pid_in(desk.cwd / "pid")
        at.append(time.monotonic())
        asked[0].cancel("interrupted")

    desk.before, desk.heard = asked.append, on_job(cancel)
    ran = desk("play cancelled")
    assert time.monotonic() - at[0] < 2 * a_second()  # the supervisors' stop included
    assert (ran.end.outcome, ran.end.exit) == ("cancelled", 130)
    assert ("j1", "killed: agent ended") in jobs(ran.log)
    assert is_gone(pid_in(desk.cwd / "pid"), 10)


@pytest.mark.rule("jobs.runner-dies")
def test_the_jobs_of_a_killed_runner_end_by_name(desk: Desk) -> None:
    desk.heard = on_wait(lambda: os.kill(pid_in(desk.cwd / "runner"), signal.SIGKILL))
    ran = desk("play runner dies")
    assert (ran.end.outcome, ran.end.text) == ("done", "late"), ran.end.reason
    assert jobs(ran.log) == [("j1", "started"), ("j1", "killed: job runner died")]
    assert texts(ran)[-1] == "[job j1 killed: job runner died]"


@pytest.mark.bound("jobs.at-final")
@pytest.mark.rule("bounds.jobs-at-final")
@pytest.mark.bound("jobs.at-final")
def test_a_final_waits_no_longer_than_the_latest_jobs_time_and_a_grace(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_JOBS_AT_FINAL", "0.2")
    monkeypatch.setenv("AERIX_BOUND_CHILD_STOP", "0.1")
    monkeypatch.setenv("AERIX_BOUND_CHILD_TERM", "0.1")
    desk.heard = on_job(lambda: os.kill(pid_in(desk.cwd / "runner"), signal.SIGSTOP))
    ran = desk("play stuck")
    assert (ran.end.outcome, ran.end.text) == ("done", "early"), ran.end.reason
    assert jobs(ran.log) == [("j1", "started"), ("j1", "killed: agent ended")]


@pytest.mark.bound("jobs.at-once")
def test_a_request_has_only_so_many_jobs_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_JOBS_AT_ONCE", "2")
    ran = desk("play many", max_turns=2)
    assert texts(ran)[2] == "[bash c3]\nerror: 2 jobs of this request run already; wait for one to end."
    assert [line["id"] for line in of(ran.log, "job")] == ["j1", "j2", "j1", "j2"]


@pytest.mark.rule("agent.waiting-is-no-repeat")
def test_looking_again_while_a_job_runs_is_no_repeat(desk: Desk) -> None:
    desk.heard = on_wait((desk.cwd / "go").touch)
    ran = desk("play polls")
    assert ran.end.text == "late"
    assert not any(line["error"] for line in results(ran.log))


def test_a_runner_that_was_never_needed_is_not_started(desk: Desk) -> None:
    seen: list[Ref | None] = []
    desk.heard = lambda _: seen.append(whereis("jobs"))
    desk("play nothing", max_turns=1)
    assert not any(seen)
