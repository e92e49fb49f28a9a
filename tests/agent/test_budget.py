"""What an agent spends, in a request's log and in a request that is run again."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerix.pool.client import PoolSettings
from aerix.session.spent import spent
from tests.runs import Aerix, Desk, Line, Ran, call, calls, final, of, play, session_log, turns

LOOK = call("plan", op="read")
BAD: dict[str, Any] = {"text": "no turn"}
FULL = 3240  # tokens of a prompt that leaves no room for a whole turn

PLAYS: dict[str, list[dict[str, Any]]] = {
    "endless": [calls(LOOK), calls(call("plan", op="write", text="x"))] * 5,
    "unsure": [BAD, BAD, calls(LOOK), BAD, BAD, final()],
    "nine": [calls(*[LOOK] * 9), final()],
    "repeats": [calls(*[call("read", path="README.md")] * 3), final()],
    "looks": [calls(LOOK), calls(LOOK), final("never said")],
    "slow": [final("x" * 100, per_token_delay=0.1)],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that cannot be held to the turn's schema."""
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=4096, json=False)


@pytest.fixture
def aerix(daemon: PoolSettings, model: str, git_repo: Path) -> Iterator[Aerix]:
    runs = Aerix(git_repo, daemon, model)
    yield runs
    runs.close()


def spends(lines: list[Line], bound: str = "agent.turns") -> list[Line]:
    return [line for line in of(lines, "spend") if line["bound"] == bound]


def again(desk: Desk, prompt: str, log: list[Line], **changes: Any) -> Ran:
    """Run the request again, as after a kill that left this log."""
    return desk(prompt, spent=tuple(spent(log)), **changes)


# --- what is logged -----------------------------------------------------------------------------------------------


@pytest.mark.rule("bounds.spend-logged-first")
def test_a_turn_is_spent_in_the_log_before_it_is_generated(desk: Desk) -> None:
    ran = desk("play endless", max_turns=3)
    order = [line["type"] for line in ran.log if line in spends(ran.log) or line in turns(ran.log)]
    assert order == ["spend", "message"] * 3


@pytest.mark.rule("bounds.spend-logged-first")
def test_a_kill_in_a_generation_leaves_its_turn_spent(aerix: Aerix) -> None:
    running = aerix.start("-p", "play slow", "--output-format", "stream-json")
    running.until("token")
    running.send(signal.SIGKILL)
    running.end()
    log = session_log()
    assert (len(spends(log)), turns(log)) == (1, [])


@pytest.mark.rule("bounds.reasks-anew")
@pytest.mark.rule("bounds.reasks")
def test_asks_are_counted_anew_in_each_turn(desk: Desk) -> None:
    ran = desk("play unsure")
    assert (ran.end.outcome, ran.end.turns, len(turns(ran.log))) == ("done", 2, 6)
    kinds = [line["bound"] for line in of(ran.log, "spend")]
    assert kinds == ["agent.turns", "agent.turn-retries", "agent.turn-retries"] * 2
    assert {line.get("per") for line in spends(ran.log, "agent.turn-retries")} == {"agent.turns"}
    assert all("per" not in line for line in spends(ran.log))


# --- a request that is run again ----------------------------------------------------------------------------------


@pytest.mark.rule("bounds.ledger")
@pytest.mark.rule("bounds.ledger-replay")
@pytest.mark.parametrize("paid", range(4))
def test_a_request_that_is_run_again_has_the_turns_that_its_log_leaves_it(desk: Desk, paid: int) -> None:
    log = desk("play endless", max_turns=3).log
    ends = [at for at, line in enumerate(log) if line["type"] == "spend"] + [len(log)]
    ran = again(desk, "play endless", log[: ends[paid]], max_turns=3)
    assert (ran.end.outcome, ran.end.exit, ran.end.turns) == ("budget", 2, 3)
    assert ran.end.reason == "turns 3: the turn budget is spent"
    assert len(spends(ran.log)) == len(turns(ran.log)) == 3 - paid


@pytest.mark.rule("bounds.ledger")
def test_a_request_that_is_run_again_has_no_new_hard_limit_hits(desk: Desk) -> None:
    prompt = desk.filled("play looks", FULL)
    log = desk(prompt).log
    assert len(spends(log, "agent.hard-limit-hits")) == 2
    ran = again(desk, prompt, log)
    assert ran.end.outcome == "killed"
    assert spends(ran.log, "agent.hard-limit-hits") == []


@pytest.mark.rule("bounds.ledger-replay")
def test_lines_that_record_nothing_are_passed_over() -> None:
    lines: list[Line] = [
        {},
        {"type": "spend"},
        {"type": "spend", "agent": 1, "bound": "b"},
        {"type": "message", "agent": "a1", "bound": "b"},
        {"type": "spend", "agent": "a1", "bound": "b", "per": 7, "more": None},
    ]
    assert [(one.agent, one.bound, one.per) for one in spent(lines)] == [("a1", "b", "")]


# --- limits in force ----------------------------------------------------------------------------------------------


@pytest.mark.bound("agent.turns")
@pytest.mark.rule("bounds.settings-in-force")
def test_the_turns_are_those_of_the_setting_else_of_the_variable(aerix: Aerix) -> None:
    variable = {"AERIX_BOUND_AGENT_TURNS": "1"}
    done = aerix("-p", "play endless", "--output-format", "json", **variable)
    assert (done.code, done.json["outcome"], done.json["turns"]) == (2, "budget", 1)
    done = aerix("-p", "play endless", "--output-format", "json", "--max-turns", "2", **variable)
    assert (done.code, done.json["outcome"], done.json["turns"]) == (2, "budget", 2)


@pytest.mark.bound("turn.calls")
@pytest.mark.rule("bounds.calls")
@pytest.mark.rule("bounds.settable")
def test_the_calls_of_a_turn_can_be_fewer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_TURN_CALLS", "2")
    ran = desk("play nine")
    assert len([line for line in of(ran.log, "message") if line.get("tool")]) == 2
    assert any(text.startswith("7 calls dropped") for text in ran.texts())


@pytest.mark.bound("agent.repeats")
@pytest.mark.rule("agent.repeat-not-run")
@pytest.mark.rule("bounds.settable")
def test_a_repeat_can_be_refused_sooner(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_AGENT_REPEATS", "1")
    refused = [line for line in of(desk("play repeats").log, "message") if "not run" in line["text"]]
    assert len(refused) == 2
