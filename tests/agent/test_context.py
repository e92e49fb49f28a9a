"""An agent's context: the room for turns and results, its limits, and its record in the log."""

from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Actor, Refused, start
from aerix.agent.room import Ratios
from aerix.agent.system import system_segment
from aerix.pool.client import PoolContext, PoolLink, PoolSettings
from aerix.session.events import Compaction
from aerix.tools import TOOLS
from tests.pool.daemons import PATIENCE, Do, Runner
from tests.runs import Desk, Line, Step, call, calls, final, of, play, replay, results, turns

WINDOW = 4096
WIDE = 16_000
FLOOD = call("bash", command="yes | head -c 9000")
LOOK = call("plan", op="read")


def flood(number: int, size: int) -> Step:
    return call("bash", command=f"yes {number} | head -c {size}")


FULL = 3240
"""Tokens of a prompt that leaves no room for a whole turn."""

PLAYS: dict[str, list[dict[str, Any]]] = {
    "answer": [final("42")],
    "answers": [final("x" * 300)],
    "looks": [calls(LOOK), calls(LOOK), final("never said")],
    "flood": [calls(FLOOD), final("x" * 300)],
    "twice": [calls(flood(1, 550)), calls(flood(2, 550)), final()],
    "little": [*(calls(flood(n, 350)) for n in range(1, 4)), final()],
    "crumbs": [calls(LOOK), calls(LOOK), final()],
    "crumb": [calls(flood(1, 120)), calls(LOOK), final("never said")],
    "tokens": [
        calls(call("plan", op="write", text="grüße, 世界 🎈")),
        calls(call("read", path="README.md")),
        final(),
    ],
}


def result_of(log: list[Line], name: str) -> str:
    text: str = next(line["text"] for line in results(log) if line["call"] == name)
    return text


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=WINDOW)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    plays = {
        name: [*(calls(flood(n, 2200)) for n in range(1, count + 1)), final()]
        for name, count in (("wide", 2), ("three", 3), ("four", 4))
    }
    return play(tmp_path_factory.mktemp("wide"), plays, window=WIDE)


@pytest.mark.rule("context.hard-limit-cut")
@pytest.mark.rule("context.hard-limit-kill")
@pytest.mark.rule("bounds.hard-limit")
def test_the_first_turn_without_room_is_cut_and_the_second_kills(desk: Desk) -> None:
    ran = desk(desk.filled("play looks", FULL))
    assert (ran.end.outcome, ran.end.exit) == ("killed", 1)
    assert "context floor: no room for a turn" in ran.end.reason
    assert f"of {WINDOW:,} tokens" in ran.end.reason
    assert len(turns(ran.log)) == 1
    assert len([line for line in of(ran.log, "spend") if line["bound"] == "agent.hard-limit-hits"]) == 2
    assert len(of(ran.log, "agent.end")) == 1


@pytest.mark.rule("context.hard-limit-cut")
def test_a_turn_is_asked_for_in_the_room_that_is_left(desk: Desk) -> None:
    ran = desk(desk.filled("play answers", FULL))
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
    assert of(ran.log, "compaction")[-1]["before"] > WINDOW
    assert sum(tokens for _, tokens in replay(ran.log)) < WINDOW, "the session goes on without it"
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


# --- results ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("context.three-appends")
@pytest.mark.rule("context.fitted")
@pytest.mark.rule("bounds.appends")
def test_a_result_comes_as_it_is_else_fitted_after_a_compaction_else_as_its_pointer(
    desk: Desk, wide: str
) -> None:
    ran = [desk(desk.filled("play wide", size, wide), model=wide) for size in (2000, 10_080, 11_180)]
    whole, cut, pointer = (result_of(one.log, "c2").removeprefix("[bash c2]\n") for one in ran)
    assert whole == "2\n" * 1100 + "[exit 0]"
    assert cut.startswith("2\n2\n")
    assert "[truncated: " in cut
    assert pointer.startswith("[truncated: 2199 more bytes; read with read(path=")
    assert all(text.endswith("\n[exit 0]") for text in (cut, pointer))
    assert [len(of(one.log, "compaction")) for one in ran] == [0, 1, 0]


@pytest.mark.rule("context.room-checked")
@pytest.mark.rule("context.three-appends")
def test_a_result_that_does_not_fit_has_older_ones_compacted_first(desk: Desk) -> None:
    log = desk(desk.filled("play twice", 1740)).log
    (compaction,) = of(log, "compaction")
    assert "c1" in [one["id"] for one in compaction["put"]] + compaction["removed"]
    at = [line["id"] for line in log if line["type"] in ("segment", "compaction") and "id" in line]
    assert at.index("t2") < at.index("n1") < at.index("c2")
    assert result_of(log, "c2").startswith("[bash c2]\n2\n2\n")


@pytest.mark.rule("bounds.appends")
@pytest.mark.rule("bounds.settable")
@pytest.mark.parametrize(("forms", "starts"), [("1", "[truncated: "), ("2", "1\n1\n")])
def test_a_result_can_be_tried_in_fewer_forms(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, forms: str, starts: str
) -> None:
    monkeypatch.setenv("AERIX_BOUND_AGENT_APPENDS", forms)
    assert result_of(desk("play twice").log, "c1").removeprefix("[bash c1]\n").startswith(starts)


@pytest.mark.rule("session.spool")
@pytest.mark.rule("context.fitted")
def test_what_was_cut_is_whole_in_the_spool_and_its_pointer_can_be_read(desk: Desk) -> None:
    log = desk(desk.filled("play twice", 2790)).log
    line = next(line for line in results(log) if line["call"] == "c2")
    assert line["spool"] in line["text"]
    assert Path(line["spool"]).read_text().startswith("2\n2\n")


# --- compaction ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("context.soft-limit")
@pytest.mark.rule("context.logged")
@pytest.mark.rule("context.model-told")
@pytest.mark.rule("context.markers")
def test_a_context_over_its_soft_limit_is_compacted_to_its_target_and_all_are_told(
    desk: Desk, wide: str
) -> None:
    ran = desk(desk.filled("play four", 1980, wide), model=wide)
    (one,) = of(ran.log, "compaction")
    assert one["before"] > 0.70 * WIDE
    assert one["after"] <= 0.50 * WIDE
    marker = one["put"][0]
    assert (marker["id"], marker["role"]) == ("c1", "user")
    taken = next(line["tokens"] for line in of(ran.log, "segment") if line["id"] == "c1")
    assert marker["text"] == f"[compacted tool result of call c1 (bash, {taken} tokens)]"
    assert f"[compacted: {one['before']} -> {one['after']} tokens; call again for what you still need]" in [
        line.get("text") for line in of(ran.log, "segment")
    ]
    assert any(isinstance(event, Compaction) for event in ran.shown)


@pytest.mark.rule("context.soft-limit")
@pytest.mark.parametrize(("soft", "target"), [(0.5, 0.42), (0.95, 0.9)])
def test_the_soft_limit_and_the_target_are_settings(
    desk: Desk, wide: str, soft: float, target: float
) -> None:
    ran = desk("play three", model=wide, ratios=Ratios(soft, target))
    compactions = of(ran.log, "compaction")
    assert len(compactions) == (soft < 0.7)
    for one in compactions:
        assert one["after"] <= target * WIDE < soft * WIDE < one["before"]


@pytest.mark.rule("context.frees-five-percent")
def test_a_compaction_that_would_free_little_is_not_made(desk: Desk) -> None:
    ran = desk(desk.filled("play crumbs", 2660))
    assert ran.end.outcome == "done"
    assert max(line["usage"]["prompt_tokens"] for line in turns(ran.log)) > 0.70 * WINDOW
    assert of(ran.log, "compaction") == []


@pytest.mark.rule("context.frees-five-percent")
def test_without_room_a_compaction_that_freed_little_is_not_tried_again(desk: Desk) -> None:
    ran = desk(desk.filled("play crumb", 3043))
    assert (ran.end.outcome, len(of(ran.log, "compaction"))) == ("killed", 1)
    (one,) = of(ran.log, "compaction")
    assert 0 < one["before"] - one["after"] < WINDOW // 20


@pytest.mark.rule("context.only-overflow-is-overflow")
def test_a_pool_that_says_that_there_is_no_room_has_the_context_compacted_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, "context_overflow", before="t3")
    ran = desk("play little")
    assert ran.end.outcome == "done"
    assert len(of(ran.log, "compaction")) == 1
    assert [line["bound"] for line in of(ran.log, "spend")].count("agent.hard-limit-hits") == 1


@pytest.mark.rule("context.only-overflow-is-overflow")
def test_any_other_refusal_is_shown_as_it_is_and_destroys_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, "server_failed", before="t3")
    ran = desk("play little")
    assert (ran.end.outcome, ran.end.reason) == ("failed", "no [server_failed]")
    assert of(ran.log, "compaction") == []


def refuse(monkeypatch: pytest.MonkeyPatch, code: str, before: str) -> None:
    """Have the pool refuse the generation of that turn, once: a script cannot."""
    generate, asked = PoolContext.generate, set[str]()

    def refused(context: PoolContext, room: int, *given: Any) -> object:
        _, _, heard, append = (*given, ())[:4]
        segments = (*context.segments, *append)
        made = sum(one.role == "assistant" for one in segments)
        if f"t{made + 1}" == before and before not in asked and len(segments) > 3:
            asked.add(before)
            heard(context.append(*append))
            raise Refused(code, "no")
        return generate(context, room, *given)

    monkeypatch.setattr(PoolContext, "generate", refused)


# --- small windows ------------------------------------------------------------------------------------------------


@pytest.mark.rule("tools.short-texts")
def test_a_small_window_gets_the_short_texts(desk: Desk) -> None:
    assert desk("play answer").texts()[0] == system_segment(WINDOW)
    assert len(system_segment(16_383)) < 0.8 * len(system_segment(16_384))
    for tool in TOOLS:
        assert f"- {tool}(" in system_segment(WINDOW)
