"""An agent's context: the room for turns and results, its limits, and its record in the log."""

from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Actor, start
from aerix.pool.client import PoolContext, PoolLink, PoolSettings
from tests.pool.daemons import PATIENCE, Do, Runner
from tests.runs import Desk, call, calls, final, of, play, replay, results, turns

WINDOW = 4096
FLOOD = call("bash", command="yes | head -c 9000")
LOOK = call("plan", op="read")
FULL = " " + "x" * 1950
"""A prompt that leaves no room for a whole turn."""

PLAYS: dict[str, list[dict[str, Any]]] = {
    "answer": [final("42")],
    "answers": [final("x" * 300)],
    "looks": [calls(LOOK), calls(LOOK), final("never said")],
    "flood": [calls(FLOOD), final("x" * 300)],
    "tokens": [
        calls(call("plan", op="write", text="grüße, 世界 🎈")),
        calls(call("read", path="README.md")),
        final(),
    ],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=WINDOW)


@pytest.mark.rule("context.hard-limit-cut")
@pytest.mark.rule("context.hard-limit-kill")
@pytest.mark.rule("bounds.hard-limit")
def test_the_first_turn_without_room_is_cut_and_the_second_kills(desk: Desk) -> None:
    ran = desk("play looks" + FULL)
    assert (ran.end.outcome, ran.end.exit) == ("killed", 1)
    assert "context floor: no room for a turn" in ran.end.reason
    assert f"of {WINDOW:,} tokens" in ran.end.reason
    assert len(turns(ran.log)) == 1
    assert len([line for line in of(ran.log, "spend") if line["bound"] == "agent.hard-limit-hits"]) == 2
    assert len(of(ran.log, "agent.end")) == 1


@pytest.mark.rule("context.hard-limit-cut")
def test_a_turn_is_asked_for_in_the_room_that_is_left(desk: Desk) -> None:
    ran = desk("play answers" + FULL)
    assert (ran.end.outcome, ran.end.text) == ("done", "x" * 300)
    last = turns(ran.log)[-1]["usage"]
    assert last["prompt_tokens"] + WINDOW // 4 > WINDOW  # a whole turn would not have fitted
    assert last["prompt_tokens"] + last["completion_tokens"] < WINDOW


@pytest.mark.rule("context.turn-reserve")
def test_a_turn_asks_for_a_quarter_of_the_window_at_most(desk: Desk) -> None:
    ran = desk("play flood", max_new_tokens=100_000)
    (result,) = results(ran.log)
    assert len(result["text"]) <= 0.15 * WINDOW * 3 + len("[bash c1]\n")
    assert "[truncated: " in result["text"]


@pytest.mark.rule("request.does-not-fit")
@pytest.mark.rule("cli.one-sentence")
def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers_before_the_first_turn(desk: Desk) -> None:
    ran = desk("play answer " + "x" * WINDOW)
    assert (ran.end.outcome, ran.end.exit) == ("refused", 1)
    assert f"the window is {WINDOW:,}" in ran.end.reason
    assert "at least 64" in ran.end.reason
    assert "window to a larger one" in ran.end.reason
    assert not turns(ran.log)
    tokens = sum(tokens for _, tokens in replay(ran.log))
    assert tokens > WINDOW
    assert of(ran.log, "route")[0]["default"]  # nor could it be classified


@pytest.mark.rule("request.does-not-fit")
def test_a_prompt_that_just_fits_gets_its_smallest_turn_and_one_more_token_is_refused(desk: Desk) -> None:
    empty = desk("play answer ")
    used = turns(empty.log)[0]["usage"]["prompt_tokens"]
    room = WINDOW - used - 64
    fits, refused = (desk("play answer " + "x" * size).end for size in (room - 1, room))
    assert (fits.outcome, refused.outcome) == ("done", "refused")


@pytest.mark.rule("context.served-window")
def test_the_window_is_the_one_that_the_member_serves(desk: Desk) -> None:
    assert of(desk("play answer").log, "agent.spawn")[0]["window"] == WINDOW


@pytest.mark.rule("agent.replay")
@pytest.mark.rule("session.events")
def test_a_context_can_be_rebuilt_from_the_log_alone(
    desk: Desk, daemon: PoolSettings, tmp_path: Path
) -> None:
    ran = desk("play tokens")
    held = replay(ran.log)
    assert [segment.id for segment, _ in held] == ["system", "prompt", "t1", "c1", "t2", "c2", "t3"]

    def rebuild(actor: Actor) -> object:
        context = PoolContext(actor, link, desk.model)
        context.create([segment for segment, _ in held])
        counts = dict(context.counts)
        context.drop()
        return counts

    link = start(PoolLink(daemon), "pool-link")
    runner = start(Runner(), "runner")
    try:
        counts = runner.ask(Do(rebuild), PATIENCE)
    finally:
        for ref in (runner, link):
            ref.stop()
            assert ref.join(PATIENCE)
    assert counts == {segment.id: tokens for segment, tokens in held}
