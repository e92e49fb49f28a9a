"""Rows of an agent's and a request's limits, driven to their end through the real pool: outcome, code, and what is told."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerix.agent.delegation import Rules
from aerix.pool.client import PoolSettings
from aerix.session.events import Note
from tests.agent.test_delegation import GROUPS, spawned, told
from tests.conftest import Limit
from tests.runs import Aerix, Desk, Ran, call, calls, final, of, play, results, script, session_log, turns
from tests.tools.waiting import is_gone, pid_in

NONSENSE = "I would rather talk."
READS = [calls(call("read", path="README.md")), calls(call("read", path="src/hello.py"))]
FLOOD = call("bash", command="yes | head -c 9000")
FULL = " " + "x" * 1950
"""A prompt that leaves no room for a whole turn in a small window."""

PLAYS: dict[str, list[dict[str, Any]]] = {
    "answer": [final("42")],
    "nonsense": [{"text": NONSENSE}] * 3,
    "same": READS[:1] * 12,
    "circle": READS * 12,
    "looks": [calls(call("plan", op="read")), final("never said")],
    "notes": [calls(call("context", op="note", text="x" * 100)), final()],
    "flood": [calls(FLOOD), final()],
    "stubborn": [calls(call("bash", command="trap '' TERM; echo $$ > pid; while :; do sleep 60; done"))],
    "routed": [{"text": "answer", "match": r"play routed\b"}],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=16384)


@pytest.fixture(scope="module")
def loose(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that cannot be held to a schema."""
    return play(tmp_path_factory.mktemp("loose"), PLAYS, window=16384, json=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("small"), PLAYS, window=4096)


@pytest.fixture
def aerix(daemon: PoolSettings, model: str, git_repo: Path) -> Iterator[Aerix]:
    runs = Aerix(git_repo, daemon, model)
    yield runs
    runs.close()


def ends(ran: Ran) -> tuple[str, int]:
    return ran.end.outcome, ran.end.exit


# --- turns --------------------------------------------------------------------------------------------------------


@pytest.mark.bound("agent.turn-retries")
@pytest.mark.bound("agent.shown-answer")
def test_an_answer_that_is_no_turn_is_asked_for_so_often_and_quoted_so_far(
    desk: Desk, limit: Limit, loose: str
) -> None:
    limit("agent.turn-retries", 1)
    limit("agent.shown-answer", 7)
    ran = desk("play nonsense", model=loose)
    assert ends(ran) == ("failed", 1)
    assert ran.end.reason.startswith("turn did not parse after 2 asks: ")
    assert ran.end.reason.endswith(". The answer began: 'I would'")
    assert len(turns(ran.log)) == 2


@pytest.mark.bound("agent.cycles")
@pytest.mark.bound("agent.cycle-calls")
def test_calls_that_come_round_so_often_end_the_agent_and_longer_rounds_are_not_seen(
    desk: Desk, limit: Limit
) -> None:
    limit("agent.cycles", 2)
    limit("agent.repeats", 1)
    ran = desk("play circle", diff=False)
    assert ends(ran) == ("failed", 1)
    assert ran.end.reason.startswith("loop: ")
    assert ran.end.turns < 10
    limit("agent.cycle-calls", 1)
    assert ends(desk("play circle", diff=False, max_turns=10)) == ("budget", 2)


# --- the context --------------------------------------------------------------------------------------------------


@pytest.mark.bound("agent.appends")
def test_a_result_that_is_tried_in_one_form_is_its_pointer(desk: Desk, limit: Limit) -> None:
    (before,) = results(desk("play flood").log)
    limit("agent.appends", 1)
    (result,) = results(desk("play flood").log)
    assert "y\ny\n" in before["text"]
    assert "y\ny\n" not in result["text"]
    assert f'read(path="{result["spool"]}"' in result["text"]


@pytest.mark.bound("agent.hard-limit-hits")
def test_so_many_hard_limit_hits_end_the_agent(desk: Desk, limit: Limit, small: str) -> None:
    limit("agent.hard-limit-hits", 1)
    ran = desk("play looks" + FULL, model=small)
    assert ends(ran) == ("killed", 1)
    assert ran.end.reason.startswith("context floor: no room for a turn")
    assert [line["bound"] for line in of(ran.log, "spend")].count("agent.hard-limit-hits") == 1


@pytest.mark.bound("agent.cut-turn")
def test_a_prompt_that_leaves_less_than_the_smallest_turn_is_refused(
    desk: Desk, limit: Limit, small: str
) -> None:
    limit("agent.cut-turn", 3000)
    ran = desk("play answer" + FULL, model=small)
    assert ends(ran) == ("refused", 1)
    assert "a turn needs at least 3000, but the window is 4,096" in ran.end.reason


@pytest.mark.bound("context.own-words")
def test_notes_over_their_part_of_the_window_are_refused(desk: Desk, limit: Limit) -> None:
    limit("context.own-words", 1000)
    (result,) = results(desk("play notes", diff=False).log)
    assert result["error"]
    assert "error: notes and summaries may take 16 tokens; say it shorter." in result["text"]


# --- the request --------------------------------------------------------------------------------------------------


@pytest.mark.bound("route.tokens")
def test_a_routing_answer_that_is_too_long_is_the_default_route(
    desk: Desk, limit: Limit, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of a member that cannot score the routes."""
    model = play(tmp_path_factory.mktemp("free"), PLAYS, window=16384, json=False, scores=False)
    (route,) = of(desk("play routed", model=model, diff=False).log, "route")
    assert (route["route"], route["default"]) == ("answer", False)
    limit("route.tokens", 3)
    (route,) = of(desk("play routed", model=model, diff=False).log, "route")
    assert (route["route"], route["default"]) == ("edit", True)
    assert route["usage"]["completion_tokens"] == 3


@pytest.mark.bound("route.chars")
def test_only_so_much_of_a_prompt_is_classified(desk: Desk, limit: Limit) -> None:
    whole, cut = "play answer " + "x" * 500, 100
    (before,) = of(desk(whole, diff=False).log, "route")
    limit("route.chars", cut)
    (route,) = of(desk(whole, diff=False).log, "route")
    assert before["usage"]["prompt_tokens"] - route["usage"]["prompt_tokens"] == len(whole) - cut


@pytest.mark.bound("request.diff")
@pytest.mark.rule("snapshot.given-up")
def test_a_diff_that_takes_too_long_is_a_note_and_leaves_no_git_behind(
    desk: Desk, limit: Limit, slow_git: Path
) -> None:
    limit("request.diff", 2)
    ran = desk("play answer")
    assert ends(ran) == ("done", 0)
    assert ran.end.diff == ""
    told = [event.text for event in ran.shown if isinstance(event, Note)]
    why = "the first snapshot took longer than 2 s; --no-diff takes none"
    assert [note for note in told if "diff" in note] == [f"there is no diff: {why}"]
    assert is_gone(pid_in(slow_git), 0)


@pytest.mark.bound("request.cancel")
def test_what_does_not_end_when_it_is_cancelled_is_killed_after_this(aerix: Aerix) -> None:
    limits: dict[str, Any] = {"AERIX_BOUND_REQUEST_CANCEL": "0.2", "AERIX_BOUND_TOOLS_CANCEL": "60"}
    running = aerix.start("-p", "play stubborn", "--output-format", "json", **limits)
    pid = pid_in(aerix.cwd / "pid")
    os.kill(int(Path(f"/proc/{pid}/stat").read_text().split()[3]), signal.SIGSTOP)
    running.send(signal.SIGINT)
    done = running.end(10)
    assert (done.code, done.json["outcome"]) == (130, "cancelled")
    assert is_gone(pid, 10)
    # What was killed may still have said its own end, behind that of the session.
    assert "session.end" in [line["type"] for line in session_log()[-2:]]


@pytest.mark.bound("headless.stdin")
def test_an_input_that_is_too_long_is_refused(aerix: Aerix) -> None:
    done = aerix("-p", "-", stdin="x" * 101, AERIX_BOUND_HEADLESS_STDIN="100")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("aerix: standard input is longer than 100 bytes; ")
    assert done.err.count("\n") == 1


# --- pieces -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> str:
    return script(tmp_path_factory.mktemp("planner"), GROUPS, window=16384)


@pytest.mark.bound("pieces.depth")
def test_an_agent_below_the_deepest_level_cannot_delegate(
    desk: Desk, limit: Limit, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of a member that cannot be held to the schema."""
    limit("pieces.depth", 1)
    loose = script(tmp_path_factory.mktemp("loose"), GROUPS, window=16384, json=False)
    ran = desk("play deep", model=loose, delegation=Rules())
    (refused,) = [line for line in results(ran.log) if line["agent"] == "a1.c1"]
    assert "\nrefused: depth 1: this agent may not delegate" in refused["text"]


@pytest.mark.bound("pieces.at-once")
def test_pieces_over_the_limit_wait(desk: Desk, limit: Limit, planner: str) -> None:
    limit("pieces.at-once", 1)
    ran = desk("play four", model=planner, delegation=Rules())
    assert [line["agent"] for line in of(ran.log, "piece") if line["state"] == "waits"] == [
        "a1.c2",
        "a1.c3",
        "a1.c4",
    ]
    assert ends(ran) == ("done", 0)


@pytest.mark.bound("pieces.retries")
def test_a_piece_that_is_rejected_once_more_than_it_may_has_failed(
    desk: Desk, limit: Limit, planner: str
) -> None:
    limit("pieces.retries", 0)
    ran = desk("play never", model=planner, delegation=Rules())
    assert told(ran)["outcome"] == "failed: verification failed after 1 attempts: never good"
    assert spawned(ran) == ["a1", "a1.c1", "a1.c1.v1"]


@pytest.mark.bound("pieces.reason")
def test_a_long_reason_of_a_verdict_is_cut(desk: Desk, limit: Limit, planner: str) -> None:
    limit("pieces.reason", 5)
    limit("pieces.retries", 0)
    ran = desk("play never", model=planner, delegation=Rules())
    assert told(ran)["outcome"].endswith(": never")
