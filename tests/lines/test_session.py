"""What a session does with questions and drafts, and what is told of sessions and contexts. No terminal is needed."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from aerix.actors import Answer, Ref, Refused, StartFailed
from aerix.agent.asking import AskPermission, AskPlan, Permission, PlanAnswer
from aerix.lines_session import Session
from aerix.lines_view import Line, View, change_of
from aerix.lines_work import LiveWork, context_lines, in_shell
from aerix.live import Live, Options, User
from aerix.pool.protocol import Segment
from aerix.session import index
from aerix.session.events import Event, Note, SessionEnd, SessionStart, line
from aerix.session.project import project_key
from aerix.session.replay import Held
from aerix.session.show import Show
from aerix.session.transcript import local_time
from aerix.settings import load_settings
from aerix.tools.messages import ToolResult
from tests.conftest import Limit
from tests.lines.test_view import end, plain


class Front:
    """A terminal that keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.input = ""
        self.code: int | None = None

    def post(self, job: Callable[[], object]) -> bool:
        job()
        return True

    def show(self, lines: Sequence[Line]) -> None:
        self.shown += map(plain, lines)

    def refresh(self) -> None:
        pass

    def swap(self, text: str) -> str:
        before, self.input = self.input, text
        return before

    def leave(self, code: int) -> None:
        self.code = code

    def die(self, code: int) -> None:
        self.code = -code


class Worker:
    """Keeps what it is to do; a test does it when it likes."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.cancelled: list[str] = []

    def tell(self, message: Any) -> None:
        self.told.append(message)

    def cancel(self, reason: str) -> None:
        self.cancelled.append(reason)


class Given:
    """Where an answer goes."""

    def __init__(self) -> None:
        self.value: object = None

    def reply(self, value: object = None) -> None:
        self.value = value

    def refuse(self, error: Refused) -> None:
        self.value = error.code


class Work:
    request = "request:nobody"

    def shell(self, post: object) -> Ref:
        raise StartFailed("no such folder")


class Named:
    """A live session that has an id."""

    session = "00000003-0000-0000-0000-000000000000"


class Table:
    def __init__(self, cwd: Path) -> None:
        self.front, self.worker = Front(), Worker()
        work, worker = cast("LiveWork", Work()), cast("Ref", self.worker)
        self.session = Session(self.front, work, worker, View(lambda: 80), cwd)

    def ask(self, message: object) -> Given:
        given = Given()
        self.session.hear(message, cast("Answer", given))
        return given

    def enter(self, text: str) -> None:
        self.front.input = ""
        self.session.enter(text)

    def ended(self, **values: Any) -> None:
        self.worker.told.pop(0).done(end(**values))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_a_command_of_the_users_that_cannot_be_run_is_a_line_and_the_session_goes_on(table: Table) -> None:
    table.enter("!ls")
    assert table.front.shown[-1] == "the command was not run: no such folder"
    table.enter("hello")
    assert (len(table.worker.told), table.front.code) == (1, None)


def permission(tool: str = "bash", **values: Any) -> AskPermission:
    return AskPermission("a1", tool, values, "bash(ls)", "needs permission")


@pytest.mark.rule("lines.permission")
def test_questions_come_one_after_the_other_and_the_draft_is_kept(table: Table) -> None:
    table.enter("work")
    table.front.input = "half a prom"
    first, second = (
        table.ask(permission(command="ls")),
        table.ask(AskPermission("a1.c1", "write", {}, "", "")),
    )
    assert table.front.input == ""
    assert table.front.shown[1:] == ["? bash needs permission", "  command: ls", "  2 and 3 allow bash(ls)"]
    table.enter("2")
    assert (first.value, second.value) == (Permission("session"), None)
    assert table.front.shown[-1] == "? a1.c1 write wants to run"
    table.enter("4 not there")
    assert second.value == Permission("no", "not there")
    assert table.front.input == "half a prom"
    assert table.session.label == "> "


@pytest.mark.rule("lines.permission")
@pytest.mark.bound("lines.asked")
def test_a_command_is_shown_whole_and_a_long_text_is_not(table: Table, limit: Limit) -> None:
    limit("lines.asked", 1)
    table.ask(permission(command="one\ntwo\nthree \x1b[8mhidden"))
    assert table.front.shown[1:4] == ["  command: one", "    two", "    three ␛[8mhidden"]
    table.enter("1")
    table.ask(permission("write", path="f", content="one\ntwo\nthree"))
    assert table.front.shown[-5:-1] == ["  path: f", "  content: one", "    two", "    … 1 more lines"]


@pytest.mark.rule("lines.cancel")
@pytest.mark.parametrize(("heard", "times"), [(True, 1), (False, 2)])
def test_a_request_is_cancelled_once_or_again_when_it_has_begun(
    table: Table, monkeypatch: pytest.MonkeyPatch, heard: bool, times: int
) -> None:
    monkeypatch.setattr("aerix.lines_session.whereis", lambda _: table.worker)
    table.enter("work")
    for _ in range(heard):
        table.ask(Show((Note(text="it begins"),)))
    table.session.cancel()
    table.ask(Show((Note(text="it ends"),)))
    table.ask(Show((Note(text="it ends, indeed"),)))
    assert table.worker.cancelled == ["interrupted"] * times


@pytest.mark.rule("lines.cancel")
def test_a_cancel_takes_the_questions_back(table: Table) -> None:
    table.enter("work")
    asked = table.ask(permission(command="ls"))
    table.session.cancel()
    assert (asked.value, table.worker.cancelled, table.session.label) == ("cancelled", [], "> ")
    assert table.ask(permission(command="ls")).value == "cancelled"
    table.session.interrupt()
    assert table.front.code == -130


@pytest.mark.rule("lines.plan-gate")
def test_a_plan_is_accepted_changed_or_aborted(table: Table) -> None:
    accepted = table.ask(AskPlan("a1", "1. look"))
    table.enter("")
    assert accepted.value == PlanAnswer(accepted=True, text="1. look")
    changed = table.ask(AskPlan("a1", "1. look"))
    table.enter("e")
    assert (changed.value, table.front.input) == (None, "1. look")
    table.enter("2. act")
    assert changed.value == PlanAnswer(accepted=True, text="2. act")
    aborted = table.ask(AskPlan("a1", "1. look"))
    table.session.cancel()
    assert aborted.value == PlanAnswer(accepted=False, text="")


@pytest.mark.rule("lines.permission")
def test_a_question_leaves_the_commands(table: Table) -> None:
    asked = table.ask(AskPlan("a1", "1. look"))
    table.enter("/help")
    assert any(said.startswith("/help") for said in table.front.shown)
    assert asked.value is None
    table.enter("e")
    table.enter("/ is the root")
    assert asked.value == PlanAnswer(accepted=True, text="/ is the root")


@pytest.mark.bound("lines.told")
def test_of_many_commands_the_last_are_told(tmp_path: Path, limit: Limit) -> None:
    limit("lines.told", 1)
    table = Table(tmp_path)
    for text in ("one", "two"):
        table.session._shells = 1
        table.session._shell_ended("echo", ToolResult(text))
    table.enter("work")
    assert table.session._told == deque()
    assert table.front.shown == ["one", "two", "> work"]


@pytest.mark.rule("lines.exit-codes")
def test_the_exit_code_is_that_of_the_storage_or_of_the_signal(table: Table) -> None:
    table.enter("work")
    table.ended(outcome="failed", exit=6)
    table.enter("/quit")
    assert table.front.code == 6
    other = Table(Path("/"))
    other.enter("work")
    other.session.end("terminated")
    other.ended(outcome="cancelled", exit=143)
    assert other.front.code == 143


@pytest.mark.rule("lines.queue")
def test_what_steered_too_late_is_the_next_prompt(table: Table) -> None:
    table.enter("work")
    table.enter("after that")
    table.enter("/steer be brief")
    table.ended()
    assert table.front.shown[-1] == "> be brief"
    table.ended()
    assert table.front.shown[-1] == "> after that"


# --- what commands tell -------------------------------------------------------------------------------------------


def working(cwd: Path, **options: Any) -> LiveWork:
    settings = load_settings(cwd)
    return LiveWork(settings, cwd, Options(**options), cast("User", None), reload=lambda _: settings)


def began(title: str) -> SessionStart:
    return SessionStart(session="s", version="0", cwd="/", project="p", model="m", title=title)


@pytest.mark.rule("lines.diff")
def test_what_the_last_request_changed_is_told_or_why_that_cannot_be(git_repo: Path, tmp_path: Path) -> None:
    def told(*events: Event, cwd: Path = git_repo, **options: Any) -> list[str]:
        work = working(cwd, **options)
        work._live, work._begun = cast("Live", Named()), bool(events)
        log = index.Place(index.home(project_key(cwd)), Named.session).log
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"".join(map(line, events)))
        return list(map(plain, work.diff()))

    begun = began("work")
    diff = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-old\n+new\x1b[2J\n"
    shown = told(begun, end(diff=diff, untracked=["a\nb"]))
    assert shown[-4:] == ["-old", "+new␛[2J", "untracked: a b", change_of(diff)]
    assert told() == ["nothing was asked in this session yet"]
    assert told(begun, end(diff=diff), begun, end()) == ["the last request changed no files"]
    assert told(begun, end(diff=diff), begun) == ["the last request did not end, and told no diff"]
    assert told(begun, end(), cwd=tmp_path) == ["there is no diff: this is no git repository"]
    assert told(begun, end(), diff=False) == ["there is no diff: --no-diff takes none"]


@pytest.mark.bound("lines.sessions")
def test_sessions_are_listed_the_latest_first(tmp_path: Path, limit: Limit) -> None:
    work = working(tmp_path)
    assert work.sessions() == ["there is none yet"]
    home = index.home(project_key(tmp_path))
    home.mkdir(parents=True)
    for number in (1, 2):
        start = began(f"prompt\x1b {number}")
        over: SessionEnd = end(ts=f"2026-01-0{number}T03:04:05+00:17")
        (home / f"{number:08}-0000-0000-0000-000000000000.jsonl").write_bytes(line(start) + line(over))
    limit("lines.sessions", 1)
    first, more = work.sessions()
    assert (first, more) == (
        f"00000002  {local_time('2026-01-02T02:47:05+00:00')}  done       prompt␛ 2",
        "and 1 more: aerix sessions list",
    )


def test_a_context_is_told_in_parts() -> None:
    held = [
        Held(Segment("system", "system", "x"), "system", 600),
        Held(Segment("c1", "user", "x"), "result", 150, "read"),
        Held(Segment("c2", "user", "x"), "result", 50, "read"),
    ]
    assert context_lines(held, 1000) == [
        "system            600   60 %  1 part",
        "result read       200   20 %  2 parts",
        "together          800   80 %  of a window of 1,000",
    ]


@pytest.mark.parametrize(
    ("shell", "ran"),
    [
        ("/bin/bash", "echo 'a b'"),
        ("", "echo 'a b'"),
        ("/usr/bin/fish", """exec /usr/bin/fish -c 'echo '"'"'a b'"'"''"""),
    ],
)
def test_a_command_runs_in_the_users_shell(monkeypatch: pytest.MonkeyPatch, shell: str, ran: str) -> None:
    monkeypatch.setenv("SHELL", shell)
    assert in_shell("echo 'a b'") == ran
