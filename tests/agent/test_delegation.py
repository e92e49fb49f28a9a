"""Delegation through the real pool: planner, implementers, verifiers, retries, bounds, cancels and losses."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from aerix.actors import start, whereis
from aerix.agent.delegation import Rules
from aerix.pool.client import PoolLink, PoolSettings
from aerix.pool.protocol import MemberLoad
from aerix.session.events import AgentSpawn, Event, Message, PieceState, Token
from aerix.session.replay import replay
from aerix.session.resume import resume
from tests.pool.daemons import PATIENCE
from tests.runs import (
    Aerix,
    Desk,
    Line,
    Ran,
    Step,
    call,
    calls,
    contexts_left,
    final,
    of,
    pool_status,
    results,
    script,
    session_log,
    turns,
    worker_pid,
)
from tests.tools.waiting import a_second, until

VERIFYING = r"Another agent did[\s\S]*"
"""Stands in every verifier's context, and in no other."""
AGAIN = r"[\s\S]*rejected it"
PASS = {"turn": {"thought": "It holds.", "final": {"verdict": "pass", "reason": "seen"}}}


def fail(reason: str) -> Step:
    return {"turn": {"thought": "No.", "final": {"verdict": "fail", "reason": reason}}}


def piece(name: str, **more: str) -> Step:
    return call("agent", brief=f"Do work {name}.", **more)


def write(name: str) -> Step:
    return calls(call("write", path=f"{name}.txt", content=f"{name}\n"))


GROUPS: list[tuple[str, list[Step]]] = [
    # verifiers
    (VERIFYING + "work one", [calls(call("bash", command="cat one.txt")), PASS]),
    (VERIFYING + "work twice[^§]*third try", [PASS]),
    (VERIFYING + "work twice[^§]*second try", [fail("still no good")]),
    (VERIFYING + "work twice", [fail("no good")]),
    (VERIFYING + "work never", [fail("never good")]),
    (VERIFYING + "work mute", [{"turn": PASS["turn"], "fault": "error"}]),
    (VERIFYING, [PASS]),
    # roots: their contexts hold the briefs of their calls too
    ("play four", [calls(*[piece(name) for name in ("one", "two", "three", "four")], thought="Split."), final("all")]),
    ("play mixed", [calls(piece("one", check="cat one.txt"), call("bash", command="ls one.txt")), final()]),
    ("play ahead", [calls(call("bash", command="echo first"), piece("three")), final()]),
    ("play twice", [calls(piece("twice")), final()]),
    ("play never", [calls(piece("never")), final()]),
    ("play mute", [calls(piece("mute")), final()]),
    ("play single", [calls(piece("three")), final()]),
    ("play endless", [calls(piece("endless"), piece("one")), final()]),
    ("play deep", [calls(piece("deep")), final()]),
    ("play odd", [calls(piece("one", definition="reviewer"), piece("two", member="scripted:/nowhere.jsonl")), final()]),
    ("play sleep", [calls(*[piece(f"sleep{n}") for n in range(4)]), final()]),
    ("play half", [calls(piece("three"), piece("sleep7"), call("bash", command="echo beside")), final()]),
    ("play slow", [calls(*[piece(f"slow{n}") for n in range(4)]), final("all")]),
    ("play runner", [calls(piece("runner")), final()]),
    ("play long", [calls(piece("long")), final()]),
    # implementers
    ("work twice" + AGAIN + "[^§]*still no good", [final("third try")]),
    ("work twice" + AGAIN, [final("second try")]),
    ("work twice", [write("twice"), final("first try")]),
    ("work never", [final("I think so")]),
    ("work mute", [final("done")]),
    ("work endless", [calls(call("plan", op="write", text=str(n))) for n in range(9)]),
    ("work deepest", [final("at the bottom")]),
    ("work deeper", [calls(piece("deepest")), final("below")]),
    ("work deep", [calls(piece("deeper")), final("deep")]),
    (r"work sleep(?P<n>\d)", [calls(call("bash", command="echo $$ >> pids; sleep 60")), final()]),
    (r"work slow\d", [final("The quick brown fox jumps over the lazy dog.", per_token_delay=0.02)]),
    ("work runner", [calls(call("bash", command="kill -9 $PPID")), write("runner"), final()]),
    ("work long", [final("\"quoted\" and\nlong " * 120)]),
    *((f"work {name}", [write(name), final(f"wrote {name}")]) for name in ("one", "two", "three", "four")),
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return script(tmp_path_factory.mktemp("model"), GROUPS, window=16384)


def spawned(ran: Ran) -> list[str]:
    return [line["agent"] for line in of(ran.log, "agent.spawn")]


def about(ran: Ran, agent: str, kind: str) -> list[Line]:
    return [line for line in of(ran.log, kind) if line["agent"] == agent]


def told(ran: Ran, call_id: str = "c1") -> dict[str, Any]:
    """The result of a root's ``agent`` call."""
    (line,) = [line for line in results(ran.log) if (line["agent"], line["call"]) == ("a1", call_id)]
    found: dict[str, Any] = json.loads(line["text"].partition("\n")[2])
    return found


def text_of(ran: Ran, agent: str) -> list[str]:
    return [segment.text for segment in replay(ran.log)[agent].segments]


def states(ran: Ran) -> list[tuple[str, str]]:
    return [(line["agent"], line["state"]) for line in of(ran.log, "piece")]


def shared(ran: Ran, agent: str, upto: str) -> int:
    """Tokens of an agent's context up to and including a segment."""
    counts = replay(ran.log)[agent].counts
    names = list(counts)
    return sum(counts[name] for name in names[: names.index(upto) + 1])


def resumed(ran: Ran, agent: str) -> int:
    first = next(line for line in turns(ran.log) if line["agent"] == agent)
    found: int = first["usage"]["recomputed_from"]
    return found


# --- a piece ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("delegation.ids")
@pytest.mark.rule("delegation.result")
@pytest.mark.rule("delegation.implementer-fork")
@pytest.mark.rule("delegation.resumes-shared")
@pytest.mark.rule("delegation.own-turn-budget")
def test_four_pieces_at_once_resume_at_the_end_of_the_segments_they_share(desk: Desk) -> None:
    (desk.cwd / "AGENTS.md").write_text("Be kind.\n")
    ran = desk("play four", route="edit")
    assert (ran.end.outcome, ran.end.text, ran.end.turns) == ("done", "all", 2)
    pieces = [f"a1.c{n}" for n in (1, 2, 3, 4)]
    assert sorted(spawned(ran)) == sorted(["a1", *pieces, *(f"{one}.v1" for one in pieces)])
    assert [agent for agent, state in states(ran) if state == "begins"] == pieces
    for n, (one, name) in enumerate(zip(pieces, ("one", "two", "three", "four"), strict=True), 1):
        assert list(replay(ran.log)[one].counts)[:3] == ["system", "instructions", "brief"]
        assert resumed(ran, one) >= shared(ran, one, "instructions") > 0
        assert resumed(ran, f"{one}.v1") >= shared(ran, f"{one}.v1", "system") > 0
        assert told(ran, f"c{n}") == {
            "summary": f"wrote {name}",
            "files_touched": [f"{name}.txt"],
            "checks_run": ["cat one.txt [exit 0]"] if name == "one" else [],
            "outcome": "done",
        }
        assert f"+++ b/{name}.txt" in ran.end.diff
        assert about(ran, one, "agent.spawn")[0]["max_turns"] == 40
        assert about(ran, one, "agent.end")[0]["turns"] == 2
    order = [line["call"] for line in results(ran.log) if line["agent"] == "a1"]
    assert order == ["c1", "c2", "c3", "c4"]
    assert ran.end.usage["generations"] == len(turns(ran.log))  # those of its pieces too


@pytest.mark.rule("delegation.implementer-fork")
@pytest.mark.rule("delegation.verifier-fresh")
@pytest.mark.rule("turn.verdict")
def test_a_piece_sees_its_brief_and_nothing_of_the_conversation(desk: Desk) -> None:
    (desk.cwd / "AGENTS.md").write_text("Be kind.\n")
    ran = desk("play mixed")
    root, implementer, verifier = (text_of(ran, agent) for agent in ("a1", "a1.c1", "a1.c1.v1"))
    assert root[:2] == implementer[:2]
    assert implementer[2].startswith("You do one piece")
    assert "Do work one." in implementer[2]
    assert "cat one.txt" in implementer[2]
    assert not any("play mixed" in text for text in (*implementer, *verifier))
    assert verifier[0] == root[0]
    assert verifier[1].startswith("Another agent")
    parts = ("Do work one.", "wrote one", "- one.txt", '"verdict":{"enum":["pass","fail"]}')
    assert all(part in verifier[1] for part in parts)
    assert not any("Be kind" in text for text in verifier)
    (spawn,) = about(ran, "a1.c1.v1", "agent.spawn")
    assert (spawn["kind"], spawn["tools"]) == (
        "verifier",
        [name for name in ("read", "bash", "grep", "glob", "repo_map") if name in spawn["tools"]],
    )
    assert {"read", "bash", "grep", "glob"} <= set(spawn["tools"])
    assert of(ran.log, "verdict")[0]["verdict"] == "pass"


@pytest.mark.rule("agent.agent-calls-last")
def test_pieces_run_after_the_other_calls_and_results_stand_in_call_order(desk: Desk) -> None:
    ran = desk("play mixed")
    mine = [line for line in results(ran.log) if line["agent"] == "a1"]
    assert [line["call"] for line in mine] == ["c1", "c2"]
    assert "No such file" in mine[1]["text"]  # the piece had not written it yet
    assert told(ran)["files_touched"] == ["one.txt"]


@pytest.mark.rule("agent.agent-calls-last")
def test_the_result_of_a_call_before_the_first_piece_does_not_wait_for_the_pieces(desk: Desk) -> None:
    ran = desk("play ahead")
    (first, _) = [line for line in results(ran.log) if line["agent"] == "a1"]
    (piece_began,) = [line for line in of(ran.log, "agent.spawn") if line["agent"] == "a1.c2"]
    assert first["call"] == "c1"
    assert ran.log.index(first) < ran.log.index(piece_began)


@pytest.mark.rule("delegation.result")
def test_a_long_summary_is_cut_and_the_result_stays_json(desk: Desk) -> None:
    ran = desk("play long", caps={"agent": 1000})
    (line,) = [line for line in results(ran.log) if line["agent"] == "a1"]
    found = told(ran)
    assert len(line["text"].encode()) <= 1000 + len("[agent c1]\n")
    assert found["outcome"] == "done"
    assert 'read with read(path="' in found["summary"]
    assert Path(line["spool"]).read_text() == '"quoted" and\nlong ' * 120
    assert Path(line["spool"]).parent == desk.folder / "s/spool"


# --- verification -------------------------------------------------------------------------------------------------


@pytest.mark.rule("delegation.retry-with-reason")
@pytest.mark.rule("delegation.ids")
@pytest.mark.rule("bounds.retries")
@pytest.mark.rule("bounds.ledger")
def test_a_piece_that_is_rejected_twice_is_tried_again_with_the_reason_and_passes(desk: Desk) -> None:
    ran = desk("play twice")
    assert spawned(ran) == ["a1", "a1.c1", "a1.c1.v1", "a1.c1.r1", "a1.c1.v2", "a1.c1.r2", "a1.c1.v3"]
    assert told(ran) == {
        "summary": "third try", "files_touched": ["twice.txt"], "checks_run": [], "outcome": "done",
    }  # fmt: skip
    again = text_of(ran, "a1.c1.r1")
    assert "rejected it" in again[-2]
    assert again[-2].endswith("\nno good")
    assert text_of(ran, "a1.c1.r2")[-2].endswith("\nstill no good")
    assert not any("first try" in text for text in again)  # a fresh fork
    assert [line["verdict"] for line in of(ran.log, "verdict")] == ["fail", "fail", "pass"]
    spends = [(line["agent"], line["bound"]) for line in of(ran.log, "spend")]
    assert spends.count(("a1.c1", "pieces.retries")) == 2
    assert spends.count(("a1.c1.r1", "agent.turns")) == 1  # turns of its own
    assert of(ran.log, "piece")[-1]["attempts"] == 3


@pytest.mark.rule("delegation.attempts-named")
@pytest.mark.rule("bounds.retries")
@pytest.mark.rule("bounds.named-outcome")
@pytest.mark.parametrize(("retries", "attempts"), [(2, 3), (0, 1)])
def test_a_piece_that_is_always_rejected_fails_by_the_number_of_attempts(
    desk: Desk, retries: int, attempts: int
) -> None:
    ran = desk("play never", delegation=Rules(retries=retries))
    assert told(ran)["outcome"] == f"failed: verification failed after {attempts} attempts: never good"
    assert len(of(ran.log, "verdict")) == attempts
    assert ran.end.outcome == "done"  # the caller reads it, and goes on
    ended = of(ran.log, "piece")[-1]
    assert (ended["outcome"], ended["attempts"]) == ("failed", attempts)


@pytest.mark.rule("delegation.no-verdict-fails")
def test_a_verifier_that_ends_without_a_verdict_counts_as_fail(desk: Desk) -> None:
    ran = desk("play mute", delegation=Rules(retries=1))
    outcome = told(ran)["outcome"]
    assert outcome.startswith(
        "failed: verification failed after 2 attempts: the verifier ended without a ver"
    )
    assert "scripted_error" in outcome
    assert "without a verdict" in text_of(ran, "a1.c1.r1")[-2]


@pytest.mark.rule("delegation.not-done-ends")
@pytest.mark.rule("delegation.own-turn-budget")
@pytest.mark.rule("bounds.turns")
def test_a_piece_that_spends_its_turns_ends_at_once_and_no_other_one_pays(desk: Desk) -> None:
    ran = desk("play endless", delegation=Rules(turns=3))
    assert told(ran)["outcome"].startswith("budget: turns 3: ")
    assert told(ran, "c2")["outcome"] == "done"
    assert [agent for agent in spawned(ran) if agent.startswith("a1.c1")] == ["a1.c1"]
    assert about(ran, "a1.c1", "agent.end")[0]["turns"] == 3
    assert (ran.end.outcome, ran.end.turns) == ("done", 2)
    assert about(ran, "a1", "agent.spawn")[0]["max_turns"] == 40


# --- bounds -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("bounds.depth")
@pytest.mark.rule("delegation.ids")
def test_an_agent_at_the_depth_limit_cannot_delegate(desk: Desk) -> None:
    ran = desk("play deep")
    tools = {line["agent"]: line["tools"] for line in of(ran.log, "agent.spawn")}
    assert [agent for agent in tools if "v" not in agent] == ["a1", "a1.c1", "a1.c1.c1", "a1.c1.c1.c1"]
    assert ["agent" in tools[agent] for agent in tools if "v" not in agent] == [True, True, True, False]
    assert "may not call `agent`" in "\n".join(text_of(ran, "a1.c1.c1.c1"))
    assert "may not call `agent`" not in "\n".join(text_of(ran, "a1.c1.c1"))
    assert told(ran)["outcome"] == "done"


@pytest.mark.rule("bounds.depth")
def test_a_call_of_an_agent_that_may_not_delegate_is_refused_by_the_depth(
    desk: Desk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of a member that cannot be held to the schema."""
    loose = script(tmp_path_factory.mktemp("loose"), GROUPS, window=16384, json=False)
    ran = desk("play deep", model=loose, delegation=Rules(depth=2))
    (refused,) = [line for line in results(ran.log) if line["agent"] == "a1.c1.c1"]
    assert refused["error"]
    assert "\nrefused: depth 2: " in refused["text"]
    ran = desk("play deep", model=loose, delegation=Rules(depth=0, planner="always"), route="edit")
    assert spawned(ran) == ["a1"]
    assert "\nrefused: depth 0: " in results(ran.log)[0]["text"]


@pytest.mark.rule("bounds.parallel")
@pytest.mark.rule("delegation.start-order")
def test_pieces_over_the_limit_wait_and_begin_in_the_order_of_their_calls(desk: Desk) -> None:
    ran = desk("play four", delegation=Rules(parallel=2))
    seen = states(ran)
    assert [agent for agent, state in seen if state == "waits"] == ["a1.c3", "a1.c4"]
    assert [agent for agent, state in seen if state == "begins"] == ["a1.c1", "a1.c2", "a1.c3", "a1.c4"]
    running, most = 0, 0
    for _, state in seen:
        running += {"begins": 1, "ended": -1, "waits": 0}[state]
        most = max(most, running)
    assert most == 2
    assert ran.end.outcome == "done"


# --- the planner --------------------------------------------------------------------------------------------------


@pytest.mark.rule("delegation.planner")
@pytest.mark.rule("route.shapes-only")
@pytest.mark.rule("route.forced")
@pytest.mark.parametrize(
    ("route", "planner", "window", "plans"),
    [
        ("edit", "auto", 16384, True),
        ("plan", "auto", 16384, True),
        ("answer", "auto", 16384, False),
        ("investigate", "always", 16384, False),
        ("edit", "auto", 8192, False),
        ("edit", "always", 8192, True),
        ("plan", "never", 16384, False),
    ],
)
def test_the_root_plans_where_route_window_and_setting_say_so(
    desk: Desk, route: str, planner: Any, window: int, plans: bool
) -> None:
    rules = Rules(planner=planner, planner_tools=("plan", "agent"))
    ran = desk("play single", route=route, delegation=rules, flags={"window": window}, diff=False)
    (spawn,) = about(ran, "a1", "agent.spawn")
    assert spawn["window"] == window
    assert (spawn["tools"] == ["plan", "agent"]) == plans
    assert any("You plan this task" in text for text in text_of(ran, "a1")) == plans
    assert "- bash(" in text_of(ran, "a1")[0]  # the system segment lists all
    assert "bash" in about(ran, "a1.c1", "agent.spawn")[0]["tools"]
    assert ran.end.outcome == "done"
    (chosen,) = of(ran.log, "route")
    assert (chosen["route"], chosen["forced"], "usage" in chosen) == (route, True, False)


@pytest.mark.rule("route.forced")
@pytest.mark.rule("delegation.turns-of-root")
@pytest.mark.rule("headless.max-turns")
def test_the_program_takes_a_route_and_each_kind_of_agent_its_turns(
    daemon: PoolSettings,
    git_repo: Path,
    model: str,
) -> None:
    aerix = Aerix(git_repo, daemon, model)
    settings = ("-c", "delegation.max_turns=3", "-c", 'delegation.planner_tools=["agent"]')
    done = aerix("-p", "play endless", "--route", "edit", "--max-turns", "5", *settings)
    assert (done.code, done.out.startswith("done.\n")) == (0, True)
    log = session_log()
    spawns = {line["agent"]: line for line in of(log, "agent.spawn")}
    assert (spawns["a1"]["tools"], spawns["a1"]["max_turns"]) == (["agent"], 5)
    assert spawns["a1.c1"]["max_turns"] == spawns["a1.c2.v1"]["max_turns"] == 3
    assert (of(log, "route")[0]["route"], of(log, "route")[0]["forced"]) == ("edit", True)
    assert "aerix: a1.c2: c1 write " in done.err


# --- where pieces may run -----------------------------------------------------------------------------------------


def load(settings: PoolSettings, ref: str) -> None:
    link = start(PoolLink(settings), "loading-link")
    try:
        link.ask(MemberLoad(0, ref), PATIENCE)
    finally:
        link.stop()
        assert link.join(PATIENCE)


@pytest.mark.rule("delegation.other-member")
@pytest.mark.rule("delegation.resumes-shared")
def test_the_first_piece_on_another_member_builds_the_shared_segments_and_the_others_fork(
    desk: Desk,
    daemon: PoolSettings,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("other")
    other = script(folder, GROUPS, window=8192)
    load(daemon, other)
    names = ("one", "two", "three", "four")
    planner = script(
        folder, [("play", [calls(*[piece(name, member=other) for name in names]), final()])], window=16384
    )
    ran = desk("play", model=planner, route="plan")
    spawns = {line["agent"]: line for line in of(ran.log, "agent.spawn")}
    assert [told(ran, f"c{n}")["outcome"] for n in (1, 2, 3, 4)] == ["done"] * 4
    assert [spawns[f"a1.c{n}"]["member"] for n in (1, 2, 3, 4)] == [other] * 4
    assert spawns["a1.c1.v1"]["member"] == other
    starts = sorted(resumed(ran, f"a1.c{n}") for n in (1, 2, 3, 4))
    assert starts[0] == 0
    assert starts[1] >= shared(ran, "a1.c1", "system")
    assert all(resumed(ran, f"a1.c{n}.v1") >= shared(ran, "a1.c1.v1", "system") for n in (1, 2, 3, 4))
    assert spawns["a1.c1"]["window"] == 8192


@pytest.mark.rule("delegation.definition-refused")
@pytest.mark.rule("delegation.members-loaded")
def test_a_definition_is_refused_and_so_is_a_member_that_is_not_loaded(
    desk: Desk, daemon: PoolSettings
) -> None:
    ran = desk("play odd")
    (first, _) = [line for line in results(ran.log) if line["agent"] == "a1"]
    assert first["text"].startswith("[agent c1]\nrefused: there are no agent definitions")
    outcome = told(ran, "c2")["outcome"]
    assert outcome.startswith("refused: the pool has no member 'scripted:/nowhere.jsonl'; it has: ")
    assert desk.model in outcome
    assert spawned(ran) == ["a1"]
    assert contexts_left(daemon) == 0


# --- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.rule("agent.cancel")
@pytest.mark.rule("delegation.cancel")
def test_a_cancel_costs_no_result_that_is_there_already(desk: Desk) -> None:
    def cancel() -> None:
        until((desk.cwd / "pids").exists)
        request = whereis("the-request")
        assert request is not None
        request.cancel("interrupted")

    def heard(event: Event) -> None:
        if isinstance(event, PieceState) and (event.agent, event.state) == ("a1.c2", "begins"):
            threading.Thread(target=cancel, name="cancel").start()

    desk.heard = heard
    ran = desk("play half", delegation=Rules(parallel=1))
    assert (ran.end.outcome, ran.end.exit) == ("cancelled", 130)
    assert told(ran)["summary"] == "wrote three"
    assert [line["call"] for line in results(ran.log) if line["agent"] == "a1"] == ["c1", "c3"]
    assert [call.id for call in resume(ran.log).unanswered] == ["c2"]


@pytest.mark.rule("agent.cancel")
@pytest.mark.rule("delegation.cancel")
def test_a_cancel_reaches_every_piece_within_a_second_and_leaves_nothing(
    desk: Desk, daemon: PoolSettings
) -> None:
    began: list[float] = []
    pids = desk.cwd / "pids"

    def cancel() -> None:
        while not (pids.exists() and len(pids.read_text().split()) == 4):
            threading.Event().wait(0.01)
        began.append(monotonic())
        request = whereis("the-request")
        assert request is not None
        request.cancel("interrupted")

    def heard(event: Event) -> None:
        if isinstance(event, AgentSpawn) and event.agent == "a1.c4":
            threading.Thread(target=cancel, name="cancel").start()

    desk.heard = heard
    ran = desk("play sleep")
    assert (ran.end.outcome, ran.end.exit) == ("cancelled", 130)
    assert monotonic() - began[0] < 0.3 + a_second()  # the tree's own end included
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.read_text().split())
    ends = [(line["agent"], line["outcome"]) for line in of(ran.log, "agent.end")]
    assert sorted(ends) == [(agent, "cancelled") for agent in ("a1", "a1.c1", "a1.c2", "a1.c3", "a1.c4")]
    assert [line["outcome"] for line in of(ran.log, "piece") if line["state"] == "ended"] == ["cancelled"] * 4
    assert sum(member.running for member in pool_status(daemon).members) == 0


@pytest.mark.rule("delegation.losses")
@pytest.mark.rule("request.pool-lost")
def test_a_worker_that_is_killed_below_four_pieces_changes_nothing_of_their_ends(
    desk: Desk, daemon: PoolSettings
) -> None:
    whole = desk("play slow")
    killed = threading.Event()

    def heard(event: Event) -> None:
        if isinstance(event, Token) and event.agent == "a1.c2" and not killed.is_set():
            killed.set()
            os.kill(worker_pid(daemon, desk.model), signal.SIGKILL)

    desk.heard = heard
    ran = desk("play slow")
    assert killed.is_set()
    assert [told(ran, f"c{n}") for n in (1, 2, 3, 4)] == [told(whole, f"c{n}") for n in (1, 2, 3, 4)]
    assert (ran.end.outcome, ran.end.text) == ("done", "all")


@pytest.mark.rule("delegation.losses")
@pytest.mark.rule("tools.runner-dies")
def test_a_tool_runner_that_dies_costs_a_piece_one_call(desk: Desk) -> None:
    ran = desk("play runner")
    died, written = [line for line in results(ran.log) if line["agent"] == "a1.c1"]
    assert "error: tool runner died" in died["text"]
    assert not written["error"]
    assert told(ran)["outcome"] == "done"


@pytest.mark.rule("delegation.losses")
@pytest.mark.rule("supervisor.never-restarted")
def test_a_piece_that_crashes_ends_by_name_and_is_not_begun_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("aerix.agent.piece.brief_text", broken)
    ran = desk("play mixed")
    outcome = told(ran)["outcome"]
    assert outcome.startswith("failed: the piece crashed, which is a fault of Aerix: ZeroDivisionError")
    assert (ran.end.outcome, spawned(ran)) == ("done", ["a1"])


@pytest.mark.rule("delegation.losses")
@pytest.mark.rule("supervisor.reason-upward")
def test_a_piece_whose_supervisor_gives_up_is_killed_by_name_and_its_caller_goes_on(desk: Desk) -> None:
    def stop() -> None:
        supervisor = whereis("request:a1.c1")
        assert supervisor is not None
        supervisor.stop("restart limit: tools:a1.c1 ended again")

    desk.heard = at_first(Token, "a1.c1", stop)
    ran = desk("play slow")
    assert told(ran)["outcome"] == (
        "killed: a part of Aerix that this piece needs has ended (restart limit: tools:a1.c1 ended again)"
    )
    assert [told(ran, f"c{n}")["outcome"] for n in (2, 3, 4)] == ["done"] * 3


def at_first(kind: type[Event], agent: str, act: Callable[[], object]) -> Callable[[Event], None]:
    once = threading.Event()

    def heard(event: Event) -> None:
        if isinstance(event, kind) and event.agent == agent and not once.is_set():
            once.set()
            act()

    return heard


@pytest.mark.rule("session.full-disk")
def test_a_log_that_fails_under_a_piece_ends_the_request_with_6(desk: Desk) -> None:
    def lose() -> None:
        log = whereis("session-log")
        assert log is not None
        log.stop()
        assert log.join(30)

    desk.heard = at_first(Message, "a1.c1", lose)
    ran = desk("play mixed")
    assert (ran.end.outcome, ran.end.exit) == ("failed", 6)
