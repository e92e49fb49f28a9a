"""A request, end to end: its order, its diff, what it loses on the way, and how each loss and cancel ends."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from aerix.actors import ChildSpec, Ref, Supervisor, whereis
from aerix.pool.client import PoolSettings
from aerix.session.events import Event, Message, Note, Route, SessionStart, Token
from aerix.session.events import Segment as SegmentEvent
from tests.runs import Desk, Ran, call, calls, final, of, play, replay, results, turns, worker_pid
from tests.tools.waiting import a_second, is_gone, pid_in

LONG = "The quick brown fox jumps over the lazy dog, again and again and again."

PLAYS: dict[str, list[dict[str, Any]]] = {
    "answer": [final("42")],
    "changes": [
        calls(
            call("write", path="new.txt", content="new\n"),
            call("edit", path="README.md", old="A repository", new="The repository"),
            call("bash", command="rm src/hello.py; git init -q nested; touch nested/f"),
        ),
        final(),
    ],
    "slow": [final(LONG, per_token_delay=0.02)],
    "slow slow": [final(LONG, delay=30)],
    "sleeps": [calls(call("bash", command="echo $$ > pid; sleep 30")), final()],
    "stubborn": [
        calls(call("bash", command="trap '' TERM; echo $$ > pid; while :; do sleep 1; done")),
        final(),
    ],
    "looks": [calls(call("bash", command="echo seen")), final(LONG, per_token_delay=0.001)],
    "dies": [final(LONG, fault="die")],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS)


def ends(ran: Ran) -> tuple[str, str, int]:
    """How it ended; its ends are logged once, the session's last, and no agent ends that has not begun."""
    kinds = [line["type"] for line in ran.log]
    assert kinds[-1] == "session.end"
    assert kinds.count("session.end") == 1
    assert kinds.count("agent.end") == kinds.count("agent.spawn") <= 1
    return ran.end.outcome, ran.end.reason, ran.end.exit


# --- the parts of a request ---------------------------------------------------------------------------------------


@pytest.mark.rule("request.order")
@pytest.mark.rule("request.segments")
@pytest.mark.rule("session.events")
def test_a_request_writes_its_events_in_order(desk: Desk) -> None:
    (desk.cwd / "AGENTS.md").write_text("Be kind.\n")
    ran = desk("play answer")
    assert [line["type"] for line in ran.log] == [
        "session.start", "route", "agent.spawn", "segment", "segment", "segment", "spend", "message", "segment",
        "agent.end", "session.end",
    ]  # fmt: skip
    held = [segment for segment, _ in replay(ran.log)]
    assert [segment.id for segment in held] == ["system", "instructions", "prompt", "t1"]
    assert "Be kind." in held[1].text
    assert held[2].text == "play answer"


@pytest.mark.rule("context.result-at-once")
def test_a_result_is_logged_and_shown_before_the_next_turn_is_generated(desk: Desk) -> None:
    logged: list[bool] = []

    def heard(event: Event) -> None:
        if isinstance(event, Token):
            logged.append(b"[exit 0]" in desk.log.read_bytes())

    desk.heard = heard
    ran = desk("play looks")
    assert logged == sorted(logged), "none of the second turn's tokens comes before it"
    assert logged[-1]
    kinds = ["result" if isinstance(one, Message) and one.call else one.type for one in ran.shown]
    assert "token" in kinds[kinds.index("result") :]
    assert kinds[kinds.index("message") : kinds.index("result")].count("token") == 0


@pytest.mark.rule("context.result-at-once")
def test_the_last_result_is_logged_where_no_turn_follows(desk: Desk) -> None:
    ran = desk("play looks", max_turns=1)
    assert ends(ran)[0] == "budget"
    assert [line["call"] for line in results(ran.log)] == ["c1"]
    assert replay(ran.log)[-1][0].id == "c1"


@pytest.mark.rule("request.head-steady")
@pytest.mark.rule("request.prefix-shared")
def test_nothing_near_the_start_changes_from_run_to_run(desk: Desk) -> None:
    first, second = desk("play answer, first"), desk("play answer, second")
    assert first.texts()[0] == second.texts()[0]
    system = replay(first.log)[0][1]
    assert turns(second.log)[0]["usage"]["recomputed_from"] >= system


@pytest.mark.rule("request.diff-at-end")
@pytest.mark.rule("snapshot.own-edits-only")
@pytest.mark.rule("headless.untracked-named")
def test_the_diff_shows_what_the_request_changed_and_names_what_it_leaves_out(desk: Desk) -> None:
    (desk.cwd / "mine.txt").write_text("my own, before\n")
    ran = desk("play changes")
    assert ends(ran)[0] == "done"
    assert "+++ b/new.txt" in ran.end.diff
    assert "new file mode 100644" in ran.end.diff
    assert "-A repository to work in.\n+The repository to work in." in ran.end.diff
    assert "deleted file mode 100644\nindex" in ran.end.diff
    assert "mine.txt" not in ran.end.diff
    assert ran.end.untracked == ["nested/"]


@pytest.mark.rule("snapshot.own-edits-only")
def test_the_first_snapshot_is_taken_before_the_first_call(desk: Desk) -> None:
    """Also where the model is faster than git: what is there when the agent begins is the user's."""

    def heard(event: Event) -> None:
        if isinstance(event, SegmentEvent) and event.id == "prompt":
            (desk.cwd / "late.txt").write_text("by the user, after the snapshot\n")

    desk.heard = heard
    assert "late.txt" in desk("play answer").end.diff


@pytest.mark.rule("snapshot.outside-git")
@pytest.mark.rule("headless.no-diff")
def test_there_is_no_diff_outside_a_repository_nor_where_none_is_wanted(desk: Desk, tmp_path: Path) -> None:
    assert desk("play changes", diff=False).end.diff == ""
    desk.cwd = tmp_path / "plain"
    desk.cwd.mkdir()
    (desk.cwd / "README.md").write_text("A repository\n")
    ran = desk("play changes")
    assert (ran.end.outcome, ran.end.diff, ran.end.untracked) == ("done", "", [])
    assert (desk.cwd / "new.txt").exists()
    assert not [event for event in ran.shown if isinstance(event, Note) and "diff" in event.text]


@pytest.mark.rule("bounds.git-diff")
@pytest.mark.usefixtures("slow_git")
def test_a_git_that_takes_too_long_costs_the_diff_and_nothing_else(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_GIT_CALL", "0.2")
    ran = desk("play answer")
    assert ends(ran) == ("done", "", 0)
    assert ["git" in event.text for event in ran.shown if isinstance(event, Note)][1:] == [True]


@pytest.mark.rule("agent.cancel")
@pytest.mark.rule("snapshot.given-up")
def test_a_cancel_leaves_no_git_behind(desk: Desk, slow_git: Path) -> None:
    def cancel() -> None:
        pid_in(slow_git)
        request().cancel("interrupted")

    def heard(event: Event) -> None:
        if isinstance(event, SessionStart):
            threading.Thread(target=cancel, name="cancel").start()

    desk.heard = heard
    assert ends(desk("play answer")) == ("cancelled", "interrupted", 130)
    assert is_gone(pid_in(slow_git), 0)


# --- what is lost on the way --------------------------------------------------------------------------------------


def at_token(count: int, act: Callable[[], object]) -> Callable[[Event], None]:
    left = [count]

    def heard(event: Event) -> None:
        if isinstance(event, Token) and left[0] > 0:
            left[0] -= len(event.text)
            if left[0] <= 0:
                act()

    return heard


@pytest.mark.rule("request.pool-lost")
@pytest.mark.rule("pool.one-way-back")
def test_a_worker_that_is_killed_in_a_generation_changes_neither_text_nor_outcome(
    desk: Desk, daemon: PoolSettings
) -> None:
    whole = desk("play slow")
    desk.heard = at_token(40, lambda: os.kill(worker_pid(daemon, desk.model), signal.SIGKILL))
    ran = desk("play slow")
    assert ends(ran) == ends(whole) == ("done", "", 0)
    assert ran.end.text == whole.end.text == LONG
    streamed = "".join(event.text for event in ran.shown if isinstance(event, Token))
    assert streamed == turns(ran.log)[0]["text"]
    assert any("asked again" in event.text for event in ran.shown if isinstance(event, Note))


@pytest.mark.rule("request.pool-lost")
def test_a_worker_that_dies_by_itself_is_no_outcome_either(desk: Desk) -> None:
    ran = desk("play dies")
    assert ends(ran) == ("done", "", 0)
    assert ran.end.text == LONG


@pytest.mark.rule("request.no-model")
@pytest.mark.rule("headless.exit-codes")
def test_without_a_pool_or_a_model_it_ends_with_4(desk: Desk, daemon: PoolSettings, tmp_path: Path) -> None:
    missing = desk("hi", model="scripted:/nowhere/at-all.jsonl")
    assert ends(missing)[2] == 4
    assert "[model_missing]" in missing.end.reason
    desk.pool = PoolSettings(socket=tmp_path / "nobody.sock", autostart=False)
    alone = desk("hi")
    assert ends(alone)[::2] == ("failed", 4)
    assert "[no_pool]" in alone.end.reason


@pytest.mark.rule("agent.crash-named")
@pytest.mark.rule("cli.no-traceback")
def test_a_request_that_crashes_ends_by_name(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerix.agent.route.ROUTES", ("no",))  # the choice is then out of range
    monkeypatch.setattr("aerix.agent.route.ROUTE_TOKENS", None)
    ran = desk("play answer")
    outcome, reason, code = ends(ran)
    assert (outcome, code) == ("failed", 1)
    assert "the request crashed" in reason


@pytest.mark.rule("bounds.named-outcome")
@pytest.mark.rule("supervisor.reason-upward")
def test_a_part_that_fails_for_good_ends_the_request_by_name_and_says_why(desk: Desk) -> None:
    def heard(event: Event) -> None:
        if isinstance(event, Token):
            supervisor = whereis("request")
            assert supervisor is not None
            supervisor.stop("restart limit: pool-link ended again: OSError: no disk")

    desk.heard = heard
    outcome, reason, code = ends(desk("play slow"))
    assert (outcome, code) == ("killed", 1)
    assert reason == (
        "a part of Aerix that this request needs has ended"
        " (restart limit: pool-link ended again: OSError: no disk)"
    )


@pytest.mark.rule("session.full-disk")
def test_a_log_that_fails_ends_the_request_with_6_and_the_end_is_still_shown(desk: Desk) -> None:
    class Unlogged(Supervisor):
        """Does not start the log again."""

    def tree(specs: list[ChildSpec]) -> Supervisor:
        log, *rest = specs
        return Unlogged([ChildSpec(log.name, log.build, restart="temporary"), *rest])

    def heard(event: Event) -> None:
        if isinstance(event, Route):
            log = whereis("session-log")
            assert log is not None
            log.stop()
            assert log.join(30)

    desk.supervisor, desk.heard = tree, heard
    ran = desk("play answer")
    assert (ran.end.outcome, ran.end.exit) == ("failed", 6)
    assert "[session_storage]" in ran.end.reason
    assert ran.shown[-1] == ran.end
    assert [line["type"] for line in ran.log] == ["session.start", "route"]


# --- cancelled ----------------------------------------------------------------------------------------------------


def request() -> Ref:
    found = whereis("the-request")
    assert found is not None
    return found


@pytest.mark.rule("headless.interrupt")
@pytest.mark.rule("agent.cancel")
@pytest.mark.parametrize(("reason", "code"), [("interrupted", 130), ("terminated", 143)])
def test_a_cancel_before_it_begins_ends_it_as_cancelled(desk: Desk, reason: str, code: int) -> None:
    desk.before = lambda request: request.cancel(reason)
    ran = desk("play answer")
    assert ends(ran) == ("cancelled", reason, code)
    assert [line["type"] for line in ran.log] == ["session.start", "session.end"]


@pytest.mark.rule("headless.interrupt")
@pytest.mark.rule("agent.cancel")
@pytest.mark.parametrize("at", [SessionStart, Route, SegmentEvent, Token, Message])
def test_a_cancel_at_any_step_ends_it_as_cancelled_and_is_logged_once(desk: Desk, at: type[Event]) -> None:
    """The reader is the one who cancels, so that the request is at that very step."""
    once = threading.Event()

    def heard(event: Event) -> None:
        if isinstance(event, at) and not once.is_set():
            once.set()
            request().cancel("interrupted")

    desk.heard = heard
    ran = desk("play sleeps" if at is Message else "play slow")
    assert ends(ran) == ("cancelled", "interrupted", 130)
    assert ran.shown[-1] == ran.end


@pytest.mark.rule("agent.cancel")
@pytest.mark.rule("tools.bash-cancel")
@pytest.mark.parametrize("name", ["sleeps", "stubborn"])
def test_a_cancelled_command_is_over_before_the_agent_is(desk: Desk, name: str) -> None:
    pid = desk.cwd / "pid"
    began: list[float] = []

    def cancel() -> None:
        while not (pid.exists() and pid.read_text().strip()):
            threading.Event().wait(0.01)
        began.append(monotonic())
        request().cancel("interrupted")

    def heard(event: Event) -> None:
        if isinstance(event, Message) and event.role == "assistant":
            threading.Thread(target=cancel, name="cancel").start()
        if event.type == "agent.end":
            ended.append(not Path(f"/proc/{pid.read_text().strip()}").exists())

    ended: list[bool] = []
    desk.heard = heard
    ran = desk(f"play {name}")
    assert ends(ran) == ("cancelled", "interrupted", 130)
    assert ended == [True]
    assert monotonic() - began[0] < a_second()
    assert "pid" in ran.end.diff  # and what it did is seen


@pytest.mark.rule("agent.cancel")
def test_a_cancel_ends_a_generation_in_the_pool(desk: Desk, daemon: PoolSettings) -> None:
    threading.Timer(0.3, lambda: request().cancel("interrupted")).start()
    begun = monotonic()
    assert ends(desk("play slow slow"))[0] == "cancelled"
    assert monotonic() - begun < 2 * a_second()
    desk.heard = lambda _: None
    assert ends(desk("play answer"))[0] == "done"  # nothing holds the member up


@pytest.mark.rule("headless.interrupt")
def test_a_reader_that_takes_nothing_does_not_hold_up_a_cancel(desk: Desk) -> None:
    gate = threading.Event()

    def heard(event: Event) -> None:
        if isinstance(event, Token):
            request().cancel("interrupted")
            gate.wait(1.2)

    desk.heard = heard
    begun = monotonic()
    ran = desk("play slow")
    assert (ran.end.outcome, ran.end.exit) == ("cancelled", 130)
    assert monotonic() - begun < 4
    assert of(ran.log, "session.end")
