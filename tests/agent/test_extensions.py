"""The seams of hooks and skills: each point of a request fires, and what is decided there is heeded."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from aerix.actors import Actor
from aerix.agent.extensions import NoExtensions
from aerix.hooks.events import Decision, Event, PreToolUse, RouteDecision
from aerix.session.events import Note
from aerix.session.replay import replay
from tests.runs import Desk, Ran, call, calls, final, of, play, results, script, turns

PLAYS: dict[str, list[dict[str, Any]]] = {
    "calls": [calls(call("bash", command="echo one"), call("read", path="README.md")), final("told")],
    "delegates": [calls(call("agent", brief="Do the work.")), final("told")],
    "stops": [final(f"final {n}") for n in range(8)],
    "fills": [*[calls(call("bash", command="seq 600"))] * 12, final("told")],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    return play(folder, PLAYS, window=4096)


@dataclass
class Hooked(NoExtensions):
    """Keeps what is fired, and decides as a test wants it."""

    decide: Callable[[Event], Decision | None] = field(default=lambda _: None)
    fired: list[Event] = field(default_factory=list)

    def fire(self, actor: Actor, event: Event) -> Decision:
        assert actor.name
        self.fired.append(event)
        return self.decide(event) or Decision()

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.fired]


def on(name: str, **decision: Any) -> Hooked:
    return Hooked(lambda event: Decision(**decision) if event.name == name else None)


def notes(ran: Ran) -> list[str]:
    return [line["text"] for line in of(ran.log, "segment") if line["label"] == "note"]


@pytest.mark.rule("request.hook-seams")
def test_a_request_fires_at_each_of_its_points(desk: Desk) -> None:
    seen = Hooked()
    ran = desk("play calls", extensions=seen)
    assert (ran.end.outcome, ran.end.text) == ("done", "told")
    assert seen.names == [
        "SessionStart", "UserPromptSubmit", "RouteDecision", "AgentSpawn",
        "PreToolUse", "PostToolUse", "PreToolUse", "PostToolUse", "Stop", "SessionEnd",
    ]  # fmt: skip
    (route,) = of(ran.log, "route")
    assert RouteDecision(route["route"], route["scores"]) in seen.fired


@pytest.mark.rule("request.hook-seams")
def test_a_compaction_fires_before_and_after(desk: Desk) -> None:
    seen = Hooked()
    ran = desk("play fills", extensions=seen)
    assert ran.end.text == "told", ran.end.reason
    fired = [name for name in seen.names if "Compact" in name]
    assert fired[:2] == ["PreCompact", "ContextCompact"]
    assert len(fired) == 2 * len(of(ran.log, "compaction"))


@pytest.mark.rule("request.hook-seams")
def test_a_piece_fires_for_its_agents_and_its_verdict(
    desk: Desk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    groups = [
        ("play delegates", [calls(call("agent", brief="Do the work.")), final("told")]),
        ("Another agent did", [{"turn": {"thought": "", "final": {"verdict": "pass", "reason": "seen"}}}]),
        ("Do the work", [final("did it")]),
    ]
    model = script(tmp_path_factory.mktemp("piece"), groups, window=16384)
    seen = on("SubagentStart", context="the branch is main")
    ran = desk("play delegates", extensions=seen, model=model)
    assert ran.end.text == "told", ran.end.reason
    assert seen.names[4:-2] == [
        "PreToolUse", "AgentSpawn", "SubagentStart", "SubagentStop", "AgentSpawn", "SubagentStart", "SubagentStop",
        "Verify", "PostToolUse",
    ]  # fmt: skip
    told = [
        line["agent"] for line in of(ran.log, "segment") if "the branch is main" in (line.get("text") or "")
    ]
    assert told == ["a1.c1", "a1.c1.v1"]


@pytest.mark.rule("agent.hook-deny")
def test_a_call_that_a_hook_refuses_is_not_run_and_says_why(desk: Desk) -> None:
    seen = Hooked(
        lambda event: (
            Decision(block="no shell")
            if isinstance(event, PreToolUse) and event.tool_name == "bash"
            else None
        )
    )
    ran = desk("play calls", extensions=seen)
    first, second = results(ran.log)
    assert (first["text"], first["error"]) == ("[bash c1]\nrefused: no shell", True)
    assert not second["error"]
    assert seen.names.count("PostToolUse") == 1


def test_a_hook_may_change_a_calls_input_which_is_checked_again(desk: Desk) -> None:
    ran = desk("play calls", extensions=on("PreToolUse", updated_input={"command": "echo two"}))
    first, second = results(ran.log)
    assert first["text"] == "[bash c1]\ntwo\n[exit 0]"
    assert second["text"].startswith("[read c2]\nerror: `path` is missing")
    delegates = desk("play delegates", extensions=on("PreToolUse", updated_input={"check": "ls"}))
    assert results(delegates.log)[0]["text"].startswith("[agent c1]\nerror: `brief` is missing")
    assert delegates.end.text == "told"


def test_what_hooks_say_to_the_model_joins_its_context(desk: Desk) -> None:
    ran = desk("play calls", extensions=on("PreToolUse", context="it may take a while"))
    assert notes(ran)[0] == "it may take a while"
    begun = desk("play calls", extensions=on("SessionStart", context="the branch is main"))
    assert begun.texts()[1] == "# Hook context\nthe branch is main"
    asked = desk("play calls", extensions=on("UserPromptSubmit", context="be short"))
    assert "play calls\n\nbe short" in asked.texts()


@pytest.mark.rule("agent.hooks-behind-result")
def test_what_hooks_say_of_a_result_stands_behind_it(desk: Desk) -> None:
    said = {"context": "mind the gap", "block": "tests failed"}
    ran = desk("play calls", extensions=on("PostToolUse", **said))
    (held,) = replay(ran.log).values()
    first = [one.id for one in held.segments].index("c1")
    texts = [segment.text for segment in held.segments]
    assert texts[first].startswith("[bash c1]")
    assert texts[first + 1 : first + 3] == ["mind the gap", "tests failed"]


@pytest.mark.rule("headless.exit-codes")
def test_a_blocked_prompt_ends_the_request(desk: Desk) -> None:
    ran = desk("play calls", extensions=on("UserPromptSubmit", block="no secrets"))
    assert (ran.end.outcome, ran.end.exit) == ("failed", 5)
    assert ran.end.reason == "a hook blocked the prompt: no secrets [hook_blocked]"
    assert turns(ran.log) == []


def test_a_hook_may_end_the_agent_that_fired_it(desk: Desk) -> None:
    ran = desk("play calls", extensions=on("PostToolUse", end="enough"))
    assert (ran.end.outcome, ran.end.reason) == ("killed", "a hook ended the agent: enough")
    assert len(results(ran.log)) == 0


@pytest.mark.rule("agent.stop-hook")
@pytest.mark.bound("agent.stop-continues")
def test_a_stop_hook_has_an_agent_go_on_so_often_and_no_more(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = on("Stop", block="run the tests")
    ran = desk("play stops", extensions=seen)
    assert (ran.end.outcome, ran.end.text) == ("done", "final 5"), ran.end.reason
    assert notes(ran).count("run the tests") == 5
    assert [event.stop_hook_active for event in seen.fired if event.name == "Stop"] == [False, *[True] * 5]  # type: ignore[attr-defined]
    said = [event.text for event in ran.shown if isinstance(event, Note)]
    assert "stop hook limit: it had the agent go on 5 times" in said
    monkeypatch.setenv("AERIX_BOUND_AGENT_STOP_CONTINUES", "1")
    assert desk("play stops", extensions=on("Stop", block="run the tests")).end.text == "final 1"


@pytest.mark.rule("tools.skill-seam")
def test_a_skill_call_says_that_there_are_none(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> None:
    plays = {"skill": [calls(call("skill", name="x")), final("told")]}
    loose = play(tmp_path_factory.mktemp("loose"), plays, json=False)
    ran = desk("play skill", model=loose)
    assert results(ran.log)[0]["text"] == "[skill c1]\nrefused: there are no skills."
    assert ran.end.text == "told"
