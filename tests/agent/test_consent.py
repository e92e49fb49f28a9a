"""Permissions in a running request: what is refused, what is asked, what an answer holds for, what the log says of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from aerix import folders
from aerix.actors import Actor, Ref, on, start
from aerix.agent.asking import AskPermission, Permission
from aerix.agent.consent import Consent
from aerix.agent.extensions import NoExtensions
from aerix.hooks.events import Decision, Event, NoHooks, PreToolUse
from aerix.permissions import Permissions
from aerix.pool.client import PoolSettings
from aerix.session.resume import resume
from tests.pool.daemons import PATIENCE
from tests.runs import Aerix, Desk, Line, call, calls, daemon, final, of, play, results, script  # noqa: F401 - daemon

PUSH = call("bash", command="echo push origin")
PLAYS = {
    "pushes": [calls(PUSH), final()],
    "twice": [calls(PUSH, call("bash", command="echo push elsewhere")), final()],
    "files": [
        calls(
            call("write", path="a.txt", content="x"),
            call("edit", path="a.txt", old="x", new="y"),
            call("write", path="/dev/shm/aerix-outside", content="x"),
            call("read", path=".env"),
            call("write", path=".git/hooks/pre-commit", content="x"),
            call("grep", pattern="."),
            call("glob", pattern="*env*"),
            call("read", path="~/.ssh/id_rsa"),
        ),
        final(),
    ],
    "wants": [calls(call("write", path="a.txt", content="x"), call("bash", command="ls")), final()],
}

NOBODY = "needs permission and nobody is there to ask"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=16384)


class User(Actor):
    """Answers as a test says, and keeps what was asked."""

    def __init__(self, answer: Callable[[AskPermission], Permission]) -> None:
        self._answer = answer
        self.asked: list[AskPermission] = []

    @on(AskPermission)
    def _ask(self, message: AskPermission) -> Permission:
        self.asked.append(message)
        return self._answer(message)


@contextmanager
def user(desk: Desk, permissions: Permissions, *answers: Permission) -> Iterator[User]:
    """Somebody who gives these answers, and the session's actor that asks."""
    left = list(answers)
    one = User(lambda _: left.pop(0))
    asker = start(one, "user")
    consent = start(Consent(asker, permissions, desk.cwd), "consent")
    desk.around = lambda places: replace(places, consent=consent)
    try:
        yield one
    finally:
        for ref in (consent, asker):
            ref.stop()
            assert ref.join(PATIENCE)


def said(log: list[Line]) -> list[str]:
    return [line["text"].split("\n", 1)[1] for line in results(log)]


def verdicts(log: list[Line]) -> list[tuple[str, str, list[str]]]:
    return [(line["call"], line["verdict"], line["rules"]) for line in of(log, "permission")]


# --- nobody there -------------------------------------------------------------------------------------------------


@pytest.mark.rule("permissions.nobody-there")
@pytest.mark.rule("permissions.logged")
def test_a_call_that_would_be_asked_about_is_refused_with_the_rule_that_allows_it(desk: Desk) -> None:
    ran = desk("play wants", permissions=Permissions("auto-edit"))
    assert ran.end.outcome == "done"
    assert said(ran.log) == [
        "created a.txt (1 line).",
        f"refused: bash(ls) {NOBODY}; allow it with --allow 'bash(ls)' or permissions.allow in settings.",
    ]
    assert verdicts(ran.log) == [("c2", "refused", ["bash(ls)"])]
    assert (
        desk("play wants", permissions=Permissions("ask", allow=("edit", "bash(ls)"))).log[-1]["outcome"]
        == "done"
    )


@pytest.mark.rule("permissions.rules")
def test_a_denied_call_is_refused_by_the_name_of_its_rule(desk: Desk) -> None:
    ran = desk("play pushes", permissions=Permissions(deny=("Bash(echo push:*)",)))
    assert said(ran.log) == ["refused: bash(echo push origin) is denied by the rule Bash(echo push:*)."]
    assert verdicts(ran.log) == [("c1", "denied", ["Bash(echo push:*)"])]


@pytest.mark.rule("permissions.nobody-there")
def test_what_a_rule_has_asked_about_is_refused_without_advice_that_would_not_help(desk: Desk) -> None:
    ran = desk("play pushes", permissions=Permissions(allow=("bash",), ask=("bash(echo *)",)))
    why = "is asked about by the rule bash(echo *), and nobody is there to ask."
    assert said(ran.log) == [f"refused: bash(echo push origin) {why}"]


@pytest.mark.rule("permissions.secrets")
@pytest.mark.rule("permissions.outside-tree")
@pytest.mark.rule("permissions.granting")
def test_in_auto_the_tree_is_open_and_what_is_outside_or_secret_is_not(desk: Desk) -> None:
    (desk.cwd / ".env").write_text("KEY=1\n")
    hook = desk.cwd / ".git/hooks/pre-commit"
    before = hook.exists()
    ran = desk("play files")
    texts = said(ran.log)
    assert texts[:2] == ["created a.txt (1 line).", "edited a.txt: replaced at line 1."]
    assert texts[2].startswith(
        "refused: write(/dev/shm/aerix-outside) is outside the working tree and needs an allow rule"
    )
    assert texts[3].startswith(
        "refused: read(.env) may show secrets and needs an allow rule, and nobody is there to ask"
    )
    assert "--allow 'read(./.env)'" in texts[3]
    assert texts[4].startswith("refused: write(.git/hooks/pre-commit) may change what is permitted")
    assert "KEY" not in texts[5]
    assert texts[5].endswith("[1 file left out: they may hold secrets, or a rule leaves them out]")
    assert texts[6].startswith("no file matches")
    assert "refused: read(~/.ssh/id_rsa)" in texts[7]
    assert not Path("/dev/shm/aerix-outside").exists()
    assert hook.exists() == before


@pytest.mark.rule("permissions.secrets")
def test_what_a_rule_allows_is_read_and_searched(desk: Desk) -> None:
    (desk.cwd / ".env").write_text("KEY=1\n")
    texts = said(desk("play files", permissions=Permissions(allow=("read(.env)",))).log)
    assert texts[3] == "1\tKEY=1"
    assert ".env:1:KEY=1" in texts[5]
    assert texts[6] == ".env"


# --- somebody there -----------------------------------------------------------------------------------------------


@pytest.mark.rule("permissions.asks-once")
@pytest.mark.rule("permissions.logged")
@pytest.mark.parametrize(("verdict", "asked"), [("once", 2), ("session", 1), ("always", 1)])
def test_a_permission_holds_once_for_the_session_or_for_ever(desk: Desk, verdict: str, asked: int) -> None:
    permissions = Permissions("ask")
    answer = Permission(verdict)  # type: ignore[arg-type]
    with user(desk, permissions, answer, answer) as somebody:
        ran = desk("play pushes", permissions=permissions)
        again = desk("play pushes", permissions=permissions)
    assert [message.rule for message in somebody.asked] == ["bash(echo push origin)"] * asked
    assert said(ran.log) == said(again.log) == ["push origin\n[exit 0]"]
    assert verdicts(ran.log) == [("c1", verdict, ["bash(echo push origin)"])]
    kept = folders.config() / "permissions.toml"
    assert kept.exists() == (verdict == "always")
    resumed = resume([*ran.log, {"type": "permission", "verdict": "session", "rules": ["no rule (", 7]}])
    assert resumed.granted == (() if verdict == "once" else ("bash(echo push origin)",))


@pytest.mark.rule("permissions.asks-once")
def test_a_no_is_told_to_the_model(desk: Desk) -> None:
    with user(desk, Permissions("ask"), Permission("no", "not today"), Permission("no")):
        ran = desk("play twice", permissions=Permissions("ask"))
    assert said(ran.log) == [
        "refused: the user does not allow bash(echo push origin): not today",
        "refused: the user does not allow bash(echo push elsewhere).",
    ]
    assert [verdict for _, verdict, _ in verdicts(ran.log)] == ["no", "no"]


@pytest.mark.rule("permissions.asks-once")
def test_a_grant_lifts_a_rule_that_asks_for_this_session_only(desk: Desk) -> None:
    permissions = Permissions(ask=("bash(echo *)",))
    with user(desk, permissions, Permission("always")) as somebody:
        ran = desk("play pushes", permissions=permissions)
        desk("play pushes", permissions=permissions)
    assert len(somebody.asked) == 1
    assert somebody.asked[0].why == "is asked about by the rule bash(echo *)"
    assert not (folders.config() / "permissions.toml").exists()
    notes = [event.text for event in ran.shown if event.type == "note"]  # type: ignore[attr-defined]
    assert "it holds for this session: is asked about by the rule bash(echo *)" in notes


@pytest.mark.rule("permissions.nobody-there")
def test_a_user_who_is_gone_is_nobody(desk: Desk) -> None:
    with user(desk, Permissions("ask")):
        ran = desk("play pushes", permissions=Permissions("ask"))
    assert "nobody is there to ask" in said(ran.log)[0]


@pytest.mark.rule("permissions.asks-once")
def test_a_cancel_ends_a_question(desk: Desk) -> None:
    request: list[Ref] = []
    desk.before = request.append
    with user(desk, Permissions("ask")) as somebody:
        somebody._answer = lambda _: [request[0].cancel("interrupted"), somebody.later()][1]  # type: ignore[assignment, return-value]
        ran = desk("play pushes", permissions=Permissions("ask"))
    assert (ran.end.outcome, ran.end.reason) == ("cancelled", "interrupted")


# --- hooks, pieces ------------------------------------------------------------------------------------------------


@dataclass
class Asks(NoExtensions):
    """Has every call asked about."""

    fired: list[Event] = field(default_factory=list)

    def fire(self, actor: Actor, event: Event) -> Decision:
        return Decision(ask="policy") if isinstance(event, PreToolUse) else NoHooks().fire(actor, event)


@pytest.mark.rule("permissions.hooks")
def test_a_hook_has_a_call_asked_about_and_lifts_no_denial(desk: Desk) -> None:
    ran = desk("play pushes", extensions=Asks())
    assert said(ran.log) == [
        "refused: bash(echo push origin) is asked about by a hook (policy), and nobody is there to ask."
    ]
    with user(desk, Permissions(), Permission("session"), Permission("session")) as somebody:
        assert said(desk("play twice", extensions=Asks()).log)[0].startswith("push origin")
    assert len(somebody.asked) == 2, "no rule can answer for a hook"
    denied = desk("play pushes", extensions=Asks(), permissions=Permissions(deny=("bash",)))
    assert "is denied by the rule bash" in said(denied.log)[0]


@pytest.mark.rule("permissions.pieces")
def test_pieces_and_their_verifiers_are_bound_by_the_same_rules(
    desk: Desk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    groups = [
        (
            "Another agent did",
            [calls(PUSH), {"turn": {"thought": "", "final": {"verdict": "pass", "reason": "ok"}}}],
        ),
        ("the piece", [calls(PUSH), final("made.")]),
        ("play delegates", [calls(call("agent", brief="the piece")), final()]),
    ]
    model = script(tmp_path_factory.mktemp("piece"), groups, window=16384)
    ran = desk("play delegates", model=model, permissions=Permissions(deny=("bash(echo *)",)), route="edit")
    denied = [(line["agent"], line["verdict"]) for line in of(ran.log, "permission")]
    assert denied == [("a1.c1", "denied"), ("a1.c1.v1", "denied")]


# --- the program --------------------------------------------------------------------------------------------------


@pytest.mark.rule("permissions.modes")
@pytest.mark.rule("permissions.nobody-there")
@pytest.mark.rule("permissions.said")
def test_the_flags_of_a_headless_run_hold(daemon: PoolSettings, model: str, git_repo: Path) -> None:  # noqa: F811
    aerix = Aerix(git_repo, daemon, model)
    try:
        asked = aerix("-p", "play files", "--mode", "ask", "--output-format", "stream-json")
        assert [line["verdict"] for line in of(asked.lines, "permission")] == ["refused"] * 6
        assert asked.err.splitlines()[0].endswith("; mode: ask")
        flags = ("--allow", "edit", "--deny", "Edit(a.txt)", "--add-dir", "/dev/shm")
        denied = aerix("-p", "play files", "--mode", "auto-edit", "--output-format", "stream-json", *flags)
        assert of(denied.lines, "permission")[0]["verdict"] == "denied"
        assert Path("/dev/shm/aerix-outside").read_text() == "x"
    finally:
        Path("/dev/shm/aerix-outside").unlink(missing_ok=True)
        aerix.close()
    assert not (git_repo / "a.txt").exists()
