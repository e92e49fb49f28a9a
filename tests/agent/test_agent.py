"""The turn loop, driven to each of its ends through the real pool, and the calls of its turns."""

import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from aerix.actors import whereis
from aerix.session.events import AgentEnd, Event, Message
from aerix.turn import prompt
from tests.runs import Desk, Ran, call, calls, final, json_lines, of, play, replay, results, turns

NONSENSE = "I would rather " + "talk " * 60
LOOK = call("plan", op="read")

PLAYS: dict[str, list[dict[str, Any]]] = {
    "answer": [final("42")],
    "endless": [calls(LOOK), calls(call("plan", op="write", text="more")), calls(LOOK)],
    "cut once": [calls(LOOK, fault="cut"), calls(LOOK), final()],
    "cut always": [calls(LOOK, fault="cut")] * 3,
    "error": [calls(LOOK), {"turn": final()["turn"], "fault": "error"}],
    "ended": [calls(LOOK)],
    "order": [
        calls(call("bash", command="echo 1 >> f; cat f"), call("bash", command="echo 2 >> f; cat f")),
        calls(call("read", path="f")),
        final(),
    ],
    "plan": [
        calls(LOOK, call("plan", op="write", text="first\nsecond"), LOOK),
        calls(call("plan", op="write", text="third")),
        final(),
    ],
    "suicide": [
        calls(call("bash", command="echo ran >> ran; kill -9 $PPID"), call("read", path="ran")),
        final(),
    ],
    "between": [
        calls(call("bash", command="echo $PPID > runner")),
        calls(call("read", path="README.md")),
        final(),
    ],
    "tools": [calls(call("read", path="missing"), call("write", path="n", content="x\n")), final()],
    "repeats": [
        calls(call("read", path="README.md")),
        calls(call("read", path="README.md"), call("read", path="README.md", limit=1)),
        calls(call("read", path="README.md")),
        calls(call("write", path="other", content="x\n"), call("read", path="README.md")),
        final(),
    ],
    "same commands": [*[calls(call("bash", command="ls"))] * 3, final()],
    "same changes": [*[calls(call("bash", command="echo x >> f"))] * 4, final()],
    "same misses": [*[calls(call("edit", path="README.md", old="nowhere", new="x"))] * 3, final()],
    "circle": [calls(call("read", path="README.md")), calls(call("glob", pattern="*.py"))] * 5,
    "alone": [calls(call("read", path="README.md"))] * 8,
    "many results": [calls(*(call("bash", command=f"yes {n} | head -c 20000") for n in range(8))), final()],
}
LOOSE: dict[str, list[dict[str, Any]]] = {
    "nonsense": [{"text": NONSENSE}] * 3,
    "recovers": [{"text": NONSENSE}, {"text": ""}, final("sorry")],
    "odd calls": [
        calls(
            call("fly"),
            call("web_fetch", url="x"),
            call("read", limit="many", path="f"),
            call("read", path="README.md"),
        ),
        final(),
    ],
    "nine": [calls(*[LOOK] * 9), final()],
    "silent": [{"text": ""}] * 3,
    "blank final": [{"text": '{"thought":"","final":""}'}] * 3,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=16384)


@pytest.fixture(scope="module")
def loose(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that cannot be held to the turn's schema."""
    return play(tmp_path_factory.mktemp("loose"), LOOSE, window=16384, json=False)


def outcome(ran: Ran) -> tuple[str, int]:
    return ran.end.outcome, ran.end.exit


# --- its ends -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("agent.final-ends")
def test_a_final_ends_the_agent(desk: Desk) -> None:
    ran = desk("play answer")
    assert outcome(ran) == ("done", 0)
    assert (ran.end.text, ran.end.reason, ran.end.turns) == ("42", "", 1)
    assert of(ran.log, "agent.end")[0] | {"outcome": "done", "turns": 1} == of(ran.log, "agent.end")[0]


@pytest.mark.rule("agent.budget")
@pytest.mark.rule("bounds.turns")
@pytest.mark.rule("bounds.named-outcome")
@pytest.mark.rule("headless.max-turns")
def test_spent_turns_end_the_agent_after_the_last_ones_calls(desk: Desk) -> None:
    ran = desk("play endless", max_turns=2)
    assert outcome(ran) == ("budget", 2)
    assert "turns 2" in ran.end.reason
    assert [line["call"] for line in results(ran.log)] == ["c1", "c2"]
    assert [line["text"] for line in of(ran.log, "plan")] == ["more"]
    assert ran.texts().index(prompt.LAST_TURN) == len(ran.texts()) - 3  # before the last turn and its result


@pytest.mark.rule("turn.reask")
@pytest.mark.rule("turn.failure-quotes")
@pytest.mark.rule("bounds.reasks")
def test_a_turn_that_does_not_parse_three_times_fails_and_is_quoted(desk: Desk, loose: str) -> None:
    ran = desk("play nonsense", model=loose)
    assert outcome(ran) == ("failed", 1)
    assert "after 3 asks" in ran.end.reason
    assert repr(NONSENSE[:200]) in ran.end.reason
    assert NONSENSE[:201] not in ran.end.reason
    assert ran.end.text == ""
    assert len(turns(ran.log)) == 3


@pytest.mark.rule("turn.empty-answer")
@pytest.mark.parametrize("name", ["silent", "blank final"])
def test_an_empty_answer_is_asked_again_and_is_no_success(desk: Desk, loose: str, name: str) -> None:
    ran = desk(f"play {name}", model=loose)
    assert outcome(ran) == ("failed", 1)
    assert "empty" in ran.end.reason
    assert len(turns(ran.log)) == 3


@pytest.mark.rule("turn.reask")
def test_a_turn_that_did_not_parse_is_told_back_and_asked_again(desk: Desk, loose: str) -> None:
    ran = desk("play recovers", model=loose)
    assert outcome(ran) == ("done", 0)
    assert ran.end.text == "sorry"
    told = [text for text in ran.texts() if "is not a turn" in text]
    assert len(told) == 2
    assert "empty" in told[1]


@pytest.mark.rule("turn.cut-removed")
def test_a_cut_turn_is_taken_out_and_asked_again(desk: Desk) -> None:
    ran = desk("play cut once")
    assert outcome(ran) == ("done", 0)
    cut, *kept = turns(ran.log)
    assert (cut["kept"], cut["stop"], cut["id"]) == (False, "length", "t1")
    assert all(line["kept"] for line in kept)
    assert "t1" not in [segment.id for segment, _ in replay(ran.log)]
    assert prompt.cut(len(cut["tokens"]), ()).split(". ")[0] in "\n".join(ran.texts())


@pytest.mark.rule("turn.cut-removed")
@pytest.mark.parametrize("how", ["play cut always", "play order"])
def test_a_turn_that_is_cut_three_times_fails(desk: Desk, how: str) -> None:
    ran = desk(how, max_new_tokens=4096 if how == "play cut always" else 16)
    assert outcome(ran) == ("failed", 1)
    assert "after 3 asks: it was cut off at" in ran.end.reason
    assert [line["kept"] for line in turns(ran.log)] == [False] * 3


@pytest.mark.rule("protocol.errors")
@pytest.mark.parametrize(("name", "code"), [("error", "scripted_error"), ("ended", "script_ended")])
def test_a_generation_that_fails_ends_the_agent_with_its_code(desk: Desk, name: str, code: str) -> None:
    ran = desk(f"play {name}")
    assert outcome(ran) == ("failed", 1)
    assert f"[{code}]" in ran.end.reason
    assert len(of(ran.log, "agent.end")) == len(of(ran.log, "session.end")) == 1


@pytest.mark.rule("supervisor.never-restarted")
@pytest.mark.rule("agent.crash-named")
@pytest.mark.rule("cli.no-traceback")
def test_an_agent_that_crashes_ends_by_name(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("aerix.agent.agent.parse", broken)
    ran = desk("play answer")
    assert outcome(ran) == ("failed", 1)
    assert "the agent crashed" in ran.end.reason
    assert "ZeroDivisionError: a fault" in ran.end.reason
    assert [line["outcome"] for line in of(ran.log, "agent.end")] == ["failed"]
    assert len(of(ran.log, "agent.spawn")) == 1


# --- its calls ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("agent.calls-in-order")
@pytest.mark.rule("turn.call-ids")
@pytest.mark.rule("tools.capped")
def test_calls_run_in_order_and_results_come_in_call_order(desk: Desk) -> None:
    ran = desk("play order")
    assert outcome(ran) == ("done", 0)
    assert [(line["call"], line["tool"]) for line in results(ran.log)] == [
        ("c1", "bash"),
        ("c2", "bash"),
        ("c3", "read"),
    ]
    one, two, _ = (line["text"] for line in results(ran.log))
    assert one.startswith("[bash c1]\n1\n[exit 0]")
    assert two.startswith("[bash c2]\n1\n2\n[exit 0]")
    ids = [segment.id for segment, _ in replay(ran.log)]
    assert ids == ["system", "prompt", "t1", "c1", "c2", "t2", "c3", "t3"]


@pytest.mark.rule("turn.tool-error-is-a-result")
@pytest.mark.rule("tools.refused-names")
@pytest.mark.rule("tools.reserved-names")
@pytest.mark.rule("turn.input-checked")
def test_calls_that_cannot_be_run_are_results_too(desk: Desk, loose: str) -> None:
    ran = desk("play odd calls", model=loose)
    assert outcome(ran) == ("done", 0)
    unknown, reserved, wrong, good = results(ran.log)
    assert "error: there is no tool `fly`" in unknown["text"]
    assert "refused: web_fetch is a reserved name" in reserved["text"]
    assert "error: " in wrong["text"]
    assert [line["error"] for line in (unknown, reserved, wrong, good)] == [True, True, True, False]
    assert "# Scratch" in good["text"]


@pytest.mark.rule("turn.calls-kept")
@pytest.mark.rule("bounds.calls")
def test_calls_over_eight_are_dropped_with_a_note(desk: Desk, loose: str) -> None:
    ran = desk("play nine", model=loose)
    assert len(results(ran.log)) == 8
    assert ran.texts()[-2].startswith("1 call dropped")


@pytest.mark.rule("tools.plan")
def test_the_plan_is_read_and_written_and_each_write_is_an_event(desk: Desk) -> None:
    ran = desk("play plan")
    assert [line["text"] for line in of(ran.log, "plan")] == ["first\nsecond", "third"]
    assert [line["text"].partition("\n")[2] for line in results(ran.log)] == [
        "There is no plan yet.",
        "The plan is written.",
        "first\nsecond",
        "The plan is written.",
    ]


@pytest.mark.rule("tools.runner-dies")
def test_a_runner_that_is_killed_in_a_call_makes_an_error_and_the_next_call_has_a_new_one(desk: Desk) -> None:
    ran = desk("play suicide")
    assert outcome(ran) == ("done", 0)
    died, read = results(ran.log)
    assert died["text"].startswith("[bash c1]\nerror: tool runner died")
    assert died["error"]
    assert read["text"].count("ran") == 1  # not run twice


@pytest.mark.rule("tools.runner-dies")
def test_a_runner_that_was_killed_between_calls_is_not_noticed(desk: Desk) -> None:
    def heard(event: Event) -> None:
        if isinstance(event, Message) and event.call == "c1":
            runner = whereis("tools:a1")
            assert runner is not None
            os.kill(int((desk.cwd / "runner").read_text()), signal.SIGKILL)
            assert runner.join(30)

    desk.heard = heard
    ran = desk("play between")
    assert outcome(ran) == ("done", 0)
    assert "# Scratch" in results(ran.log)[1]["text"]


@pytest.mark.rule("tools.cap-by-window")
@pytest.mark.rule("session.spool")
def test_results_of_one_turn_leave_room_for_the_next_turn(desk: Desk) -> None:
    ran = desk("play many results")
    sizes = [len(line["text"]) for line in results(ran.log)]
    assert max(sizes) <= 0.15 * 16384 * 3 + len("[bash c1]\n")
    assert sum(sizes) < 3 * 16384
    assert all("[truncated: " in line["text"] for line in results(ran.log))
    assert all(Path(line["spool"]).stat().st_size >= 20000 for line in results(ran.log))


@pytest.mark.rule("agent.repeat-not-run")
def test_the_third_identical_call_is_not_run_until_something_changes(desk: Desk) -> None:
    ran = desk("play repeats")
    texts = [line["text"].partition("\n")[2] for line in results(ran.log)]
    assert texts[0] == texts[1] == texts[5]
    assert texts[3].startswith("error: not run: the same call gave the same result 2 times, first as c1.")
    assert ran.end.outcome == "done"


@pytest.mark.rule("agent.repeat-not-run")
@pytest.mark.parametrize(
    ("name", "refused"),
    [("same commands", [0, 0, 1]), ("same changes", [0, 0, 0, 0]), ("same misses", [0, 0, 1])],
)
def test_a_command_or_a_miss_that_changed_no_file_is_a_repeat(
    desk: Desk, name: str, refused: list[int]
) -> None:
    ran = desk(f"play {name}")
    assert ["error: not run" in line["text"] for line in results(ran.log)] == [bool(one) for one in refused]


@pytest.mark.rule("agent.cycle-ends")
@pytest.mark.parametrize(("name", "turn"), [("circle", 6), ("alone", 5)])
def test_an_agent_that_goes_round_in_a_circle_ends(desk: Desk, name: str, turn: int) -> None:
    ran = desk(f"play {name}")
    assert outcome(ran) == ("failed", 1)
    assert ran.end.reason.startswith("loop: read")
    assert ran.end.turns == turn
    assert "not run" in results(ran.log)[-1]["text"]


# --- the exact tokens ---------------------------------------------------------------------------------------------


@pytest.mark.rule("request.append-only")
@pytest.mark.rule("template.exact-ids")
@pytest.mark.rule("session.token-ids")
@pytest.mark.rule("session.usage")
def test_each_prompt_extends_the_rows_of_the_last_one(desk: Desk) -> None:
    ran = desk("play order, as never before")
    made = turns(ran.log)
    for before, after in pairwise(made):
        rows = before["usage"]["prompt_tokens"] + len(before["tokens"])
        # What the schema forces at a turn's end, and the last token that was drawn, were never decoded.
        assert rows - 8 < after["usage"]["recomputed_from"] < rows
        assert after["usage"]["prompt_tokens"] > rows
    assert all(bytes(line["tokens"]).decode() == line["text"] and line["vocab"] == "bytes" for line in made)


@pytest.mark.rule("session.written-before-done")
def test_what_is_shown_is_in_the_log_already(desk: Desk) -> None:
    behind: list[str] = []

    def heard(event: Event) -> None:
        if isinstance(event, Message | AgentEnd) and event.ts not in {
            line["ts"] for line in json_lines(desk.log.read_bytes())
        }:
            behind.append(event.type)

    desk.heard = heard
    desk("play order")
    assert not behind
