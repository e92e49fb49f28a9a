"""Resume: what the next request of a session goes on with, whatever its log's end is."""

import json
from pathlib import Path
from typing import Any

import pytest

from aerix.session import events
from aerix.session.events import (
    AgentEnd,
    AgentSpawn,
    Compaction,
    ContextOp,
    Event,
    Job,
    Message,
    Plan,
    Segment,
    SessionEnd,
    SessionStart,
)
from aerix.session.resume import resume, resume_from
from aerix.session.resumed import LostJob, Resumed


def begin(title: str = "Mend it", cwd: str = "/there") -> list[Event]:
    return [SessionStart(session="s", version="0", cwd=cwd, project="p", model="m", title=title)]


def spawn(**given: Any) -> Event:
    known: dict[str, Any] = {
        "kind": "root",
        "member": "m",
        "window": 4096,
        "vocab": "v",
        "tools": [],
        "max_turns": 40,
    }
    return AgentSpawn(**(known | given))


def segment(name: str, text: str | None, label: str, role: str = "user", **given: Any) -> Event:
    return Segment(id=name, role=role, label=label, tokens=3, text=text, **given)


def turn(name: str, value: dict[str, Any], *, joined: bool = True) -> list[Event]:
    text = json.dumps(value)
    made: list[Event] = [Message(id=name, role="assistant", text=text, tokens=[1, 2, 3], vocab="v")]
    return [*made, segment(name, None, "turn", "assistant")] if joined else made


def calls(name: str, *tools: str, **given: Any) -> list[Event]:
    made = [{"tool": tool, "input": {"command": "make"}} for tool in tools]
    return turn(name, {"thought": "", "calls": made}, **given)


def result(name: str, tool: str = "bash", text: str = "fine") -> list[Event]:
    return [
        Message(id=name, role="user", text=text, call=name, tool=tool, input={}),
        segment(name, None, "result"),
    ]


def end(outcome: str = "done", reason: str = "") -> list[Event]:
    return [
        AgentEnd(outcome=outcome, reason=reason, turns=1),
        SessionEnd(
            session="s",
            outcome=outcome,
            reason=reason,
            text="",
            diff="",
            untracked=[],
            usage={},
            turns=1,
            exit=0,
        ),
    ]


HEAD = [
    *begin(),
    spawn(),
    segment("system", "You are", "system", "system"),
    segment("prompt", "Mend it", "prompt"),
]


def read(*made: Event) -> Resumed:
    return resume([json.loads(events.line(event)) for event in made])


def ids(found: Resumed) -> list[str]:
    return [one.id for one in found.held]


# --- the context


@pytest.mark.rule("session.resume")
def test_it_goes_on_with_the_context_and_the_plan_that_the_root_had() -> None:
    found = read(
        *HEAD, *calls("t1", "bash"), *result("c1"), Plan(text="1. mend"), *turn("t2", {"final": "x"}), *end()
    )
    assert ids(found) == ["system", "prompt", "t1", "c1", "t2"]
    assert [one.segment.tokens for one in found.held] == [None, None, [1, 2, 3], None, [1, 2, 3]]
    assert (found.plan, found.ended, found.unanswered, found.jobs) == ("1. mend", "", (), ())
    assert (found.title, found.cwd, found.model, found.window) == ("Mend it", "/there", "m", 4096)


@pytest.mark.rule("session.resume")
def test_what_was_resumed_is_gone_on_with_in_its_turn() -> None:
    more = [*begin("And test"), spawn(resumed=True, window=2048), segment("prompt2", "And test", "prompt")]
    found = read(*HEAD, *turn("t1", {"final": "x"}), *end(), *more, *turn("t2", {"final": "y"}), *end())
    assert ids(found) == ["system", "prompt", "t1", "prompt2", "t2"]
    assert (found.title, found.window) == ("And test", 4096)


@pytest.mark.rule("session.resume")
def test_an_agent_that_began_anew_is_gone_on_with_from_there() -> None:
    again = [*begin("Anew"), spawn(), segment("prompt", "Anew", "prompt")]
    found = read(*HEAD, *calls("t1", "bash"), *again)
    assert ids(found) == ["prompt"]
    assert found.unanswered == ()
    assert found.numbers["c"] == 1  # though that call is not there any more


@pytest.mark.rule("session.resume")
def test_a_compaction_and_what_the_agent_did_to_its_context_hold() -> None:
    marker = {
        "id": "c1",
        "role": "user",
        "label": "marker",
        "tokens": 1,
        "pinned": False,
        "text": "[compacted]",
    }
    found = read(
        *HEAD, *calls("t1", "bash"), *result("c1"), *calls("t2", "bash"), *result("c2"),
        Compaction(before=9, after=5, put=[marker]), ContextOp(op="drop", ids=["c2"], removed=["c2"]),
    )  # fmt: skip
    assert [(one.id, one.segment.text) for one in found.held][2:] == [
        ("t1", found.held[2].segment.text), ("c1", "[compacted]"), ("t2", found.held[4].segment.text),
    ]  # fmt: skip
    assert found.unanswered == ()  # it was answered, and the agent has taken the answer out


@pytest.mark.rule("session.subagents-not-resumed")
def test_only_the_root_is_gone_on_with() -> None:
    piece = [
        spawn(agent="a1.c1", kind="implementer"),
        segment("brief", "Do it", "brief", agent="a1.c1"),
        Message(agent="a1.c1", id="t9", role="assistant", text="{}"),
        Plan(agent="a1.c1", text="its own"),
    ]
    found = read(*HEAD, *calls("t1", "agent"), *piece)
    assert (ids(found), found.plan, found.numbers.get("t")) == (["system", "prompt", "t1"], "", 1)
    assert [(call.id, call.tool) for call in found.unanswered] == [("c1", "agent")]


# --- a log that was cut off


@pytest.mark.rule("session.interrupted-said")
@pytest.mark.parametrize(
    ("last", "ended", "reason"),
    [
        ([], "interrupted", ""),
        (end(), "", ""),
        (end("cancelled", "terminated"), "cancelled", "terminated"),
        (end("budget", "agent.turns"), "budget", "agent.turns"),
    ],
)
def test_how_the_last_request_ended_is_known(last: list[Event], ended: str, reason: str) -> None:
    found = read(*HEAD, *turn("t1", {"final": "x"}), *last)
    assert (found.ended, found.reason, found.worked) == (ended, reason, True)


def test_a_request_that_did_not_come_to_its_agent_is_told_apart() -> None:
    found = read(*HEAD, *turn("t1", {"final": "x"}), *end(), *begin("More"))
    assert (found.ended, found.title, found.worked, len(found.held)) == ("interrupted", "More", False, 3)
    assert read(*HEAD, *end(), *begin(cwd="/elsewhere")).cwd == "/there"  # which is what the agent knows
    assert read() == Resumed()
    assert read(*begin()).held == ()


@pytest.mark.rule("session.kill-anywhere")
def test_calls_without_results_are_known_by_the_ids_that_they_had() -> None:
    found = read(
        *HEAD, *calls("t1", "bash"), *result("c1"), *calls("t2", "bash", "read", "agent"), *result("c2")
    )
    assert [(call.id, call.tool) for call in found.unanswered] == [("c3", "read"), ("c4", "agent")]
    assert found.numbers == {"system": 1, "prompt": 1, "t": 2, "c": 4}
    assert (found.name("prompt"), found.name("planner")) == ("prompt2", "planner")


@pytest.mark.rule("session.kill-anywhere")
def test_a_foreign_shape_of_a_tool_that_the_agent_did_not_have_is_no_call() -> None:
    said = '<tool_call>\n{"name": "Bash", "arguments": {"command": "make"}}\n</tool_call>'
    foreign: list[Event] = [Message(id="t1", role="assistant", text=said), segment("t1", None, "turn")]
    planner = [*begin(), spawn(tools=["repo_map"]), *foreign, *calls("t2", "repo_map")]
    assert read(*planner, *result("c1", "repo_map")).unanswered == ()
    (lost,) = read(*begin(), spawn(tools=["bash"]), *foreign).unanswered
    assert (lost.id, lost.tool) == ("c1", "bash")


@pytest.mark.rule("session.kill-anywhere")
def test_a_turn_and_a_result_that_were_logged_without_their_segments_are_kept() -> None:
    found = read(*HEAD, *calls("t1", "bash", joined=False))
    assert ids(found) == ["system", "prompt", "t1"]
    assert (found.held[-1].segment.role, found.held[-1].segment.tokens, found.held[-1].label) == (
        "assistant",
        [1, 2, 3],
        "turn",
    )
    assert [call.id for call in found.unanswered] == ["c1"]
    found = read(*HEAD, *calls("t1", "bash"), result("c1")[0])
    assert (ids(found)[-1], found.held[-1].label, found.unanswered) == ("c1", "result", ())
    more = [*begin(), spawn(resumed=True), segment("prompt2", "More", "prompt")]
    assert ids(read(*HEAD, *calls("t1", "bash", joined=False), *more)) == [
        "system",
        "prompt",
        "t1",
        "prompt2",
    ]


def test_a_turn_that_was_cut_does_not_join() -> None:
    found = read(*HEAD, Message(id="t1", role="assistant", text='{"calls": [', kept=False))
    assert (ids(found), found.unanswered, found.numbers["t"]) == (["system", "prompt"], (), 1)


@pytest.mark.rule("session.kill-anywhere")
def test_jobs_whose_end_the_agent_was_not_told_are_known() -> None:
    def job(name: str, state: Any, how: str, command: str | None = None) -> Event:
        return Job(id=name, state=state, how=how, command=command)

    told = [Message(id="j1", role="user", text="[job j1 exited 0]", tool="job"), segment("j1", None, "job")]
    found = read(
        *HEAD, *calls("t1", "bash", "bash", "bash"), *result("c1"), *result("c2"), *result("c3"),
        job("j1", "started", "started", "make"), job("j2", "started", "started", "serve"), job("j3", "started", "started", "test"),
        job("j1", "exited", "exited 0"), *told, job("j3", "killed", "killed: agent ended"),
    )  # fmt: skip
    assert found.jobs == (LostJob("j2", "serve"), LostJob("j3", "test", "killed: agent ended"))
    assert found.numbers["j"] == 3


@pytest.mark.rule("session.kill-anywhere")
def test_a_log_that_ends_at_any_byte_gives_all_whole_lines(tmp_path: Path) -> None:
    made = [
        *HEAD,
        *calls("t1", "bash", "read"),
        *result("c1"),
        *result("c2"),
        Plan(text="1. mend"),
        *turn("t2", {"final": "x"}),
    ]
    data = b"".join(map(events.line, made))
    log = tmp_path / "log"
    for size in range(0, len(data) + 1, 7):
        log.write_bytes(data[:size])
        found = resume_from(log)
        whole = [json.loads(line) for line in data[:size].splitlines()[: data[:size].count(b"\n")]]
        logged = {line["id"] for line in whole if line["type"] in ("segment", "message")}
        assert logged <= set(ids(found))
        answered = {one.id for one in found.held if one.label == "result"}
        assert not answered & {call.id for call in found.unanswered}
        turns = sum(one.label == "turn" for one in found.held)
        assert len(answered) + len(found.unanswered) == (0, 2, 2)[turns]


# --- a log that is not what it should be


@pytest.mark.rule("session.tolerant")
def test_lines_that_are_not_what_their_types_say_are_passed_over() -> None:
    lines = [json.loads(events.line(event)) for event in [*HEAD, *calls("t1", "bash"), *result("c1"), *end()]]
    whole = ids(resume(lines))
    wrong: list[Any] = [None, 7, "x", [], {}, [7], [{}], [None], {"a": 1}, True]
    for at, line in enumerate(lines):
        for key in line.keys() - {"ts", "type", "agent"}:
            for value in wrong:
                found = resume([*lines[:at], line | {key: value}, *lines[at + 1 :]])
                assert set(ids(found)) <= {*whole, "x"}
    odd = {"ts": "", "type": "compaction", "agent": "a1", "removed": 7, "put": [3, {"id": []}]}
    assert ids(resume([*lines, odd])) == whole


@pytest.mark.rule("session.tolerant")
def test_what_was_passed_over_is_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(
        b"".join(map(events.line, HEAD)) + b"what?\n" + events.line(turn("t1", {"final": "x"})[0])
    )
    found = resume_from(log)
    assert (ids(found), found.passed_over) == (
        ["system", "prompt", "t1"],
        "1 line of its log passed over: 1 not JSON",
    )
