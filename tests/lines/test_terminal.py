"""The session on a real terminal, from the first line to the last; the model plays a script."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aerix.pool.client import PoolSettings
from tests.lines.terminal import CLEAR, CTRL_C, CTRL_D, CTRL_ENTER, CTRL_J, ENTER, ESC, TAB, UP, Terminal
from tests.pool.daemons import PATIENCE
from tests.runs import Aerix, call, calls, daemon, final, of, play, results, session_log, turns  # noqa: F401
from tests.tools.waiting import until

Open = Callable[..., Terminal]
HOLD = calls(call("bash", command="touch held; until test -e go; do sleep 0.01; done; seq 999"))
PLAN = calls(call("plan", op="write", text="1. look"))
WORK = calls(call("write", path="new.txt", content="x\n"), call("read", path="no"), thought="I write.")
PLAYS: dict[str, list[dict[str, Any]]] = {
    "first": [WORK, final("Written.\nBye."), final("Again."), final("Still here.")],
    "cancel": [HOLD, final("second")],
    "queue": [HOLD, final("early"), final("late"), final("next")],
    "lost": [HOLD],
    "paste": [final("first"), final("second"), final("third"), final("fourth")],
    "ask": [*(calls(call("bash", command=f"touch {name}")) for name in ("first", "second")), final("over")],
    "plan": [PLAN, PLAN, final("one"), PLAN, final("two"), PLAN],
    "files": [final("seen")],
    "opened": [final("Opened."), final("Again.")],
    "commands": [HOLD, final("one"), final("short")],
    "signal": [HOLD],
    "stuck": [calls(call("bash", command="touch held; kill -STOP $PPID; sleep 60"))],
    "columns": [calls(call("read", path="src/hello.py")), final("a" * 90)],
    "dumb": [calls(call("bash", command="touch asked")), PLAN, final("over"), HOLD, final("pasted")],
}
READY = "as the model serves it"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """It answers a session whose first prompt is `play NAME` with the steps of that name."""
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=16384)


@pytest.fixture
def open_(daemon: PoolSettings, model: str, git_repo: Path) -> Iterator[Open]:  # noqa: F811
    """Opens a session."""
    opened: list[Terminal] = []

    def one(mode: str = "auto", args: tuple[str, ...] = (), **more: Any) -> Terminal:
        flags = [
            "--model",
            model,
            "-c",
            f'pool.socket="{daemon.socket}"',
            "--mode",
            mode,
            "--route",
            "answer",
        ]
        opened.append(Terminal(git_repo, *flags, *args, **more))
        opened[-1].until(READY)
        return opened[-1]

    yield one
    for terminal in opened:
        terminal.close()


def prompts() -> list[str]:
    """What the root agent was asked, in order."""
    return [line["text"] for line in of(session_log(), "segment") if line["label"] == "prompt"]


@pytest.mark.rule("lines.events")
@pytest.mark.rule("lines.no-json")
@pytest.mark.rule("lines.last-exchange")
@pytest.mark.rule("lines.diff")
def test_a_session_from_its_first_line_to_its_last(open_: Open, git_repo: Path) -> None:
    terminal = open_()
    terminal.say("play first")
    shown = terminal.until_over()
    for line in (
        "> play first\n",
        "I write.\n",
        "● write new.txt — created",
        "✗ read no — error",
        "Written.\n",
        "Bye.\n",
        "+x\n",
    ):
        assert line in shown, line
    assert '{"' not in shown
    terminal.say("/diff")
    terminal.until("+x\n")
    terminal.until(" in 1 file\n")
    terminal.say("once more")
    terminal.until("Again.")
    terminal.until_over()
    terminal.say("/diff")
    terminal.until("the last request changed no files\n")
    terminal.say("/quit")
    assert terminal.end() == 0
    terminal = open_(args=("--continue",))
    assert "(resumed): play first\n" in terminal.text
    assert "\n> once more\nAgain.\n" in terminal.text
    terminal.say("and now")
    terminal.until("Still here.")
    terminal.until_over()
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert (git_repo / "new.txt").read_text() == "x\n"
    assert prompts() == ["play first", "once more", "and now"]


@pytest.mark.rule("lines.first-prompt")
def test_a_session_begins_with_the_prompt_of_the_command_line(open_: Open) -> None:
    terminal = open_(args=("play opened\nby the shell",))
    terminal.until("> play opened\n  by the shell\n")
    terminal.until("Opened.\n")
    terminal.until_over()
    terminal.type(UP)
    terminal.until("by the shell")
    terminal.type(ENTER)
    terminal.until("Again.\n")
    terminal.until_over()
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert prompts() == ["play opened\nby the shell"] * 2


@pytest.mark.rule("lines.first-prompt")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("pol", "status"), "'pol' is no command; there is pool"),
        ((" ",), "the prompt is empty"),
        (("\udcff and more",), "the prompt is not UTF-8 text"),
    ],
)
def test_what_is_no_prompt_begins_no_session(git_repo: Path, words: tuple[str, ...], why: str) -> None:
    terminal = Terminal(git_repo, *words)
    try:
        terminal.until(why)
        assert terminal.end() == 3
    finally:
        terminal.close()


@pytest.mark.rule("lines.cancel")
@pytest.mark.rule("lines.queue")
def test_what_runs_is_cancelled_and_what_waits_is_on_the_input_line_again(
    open_: Open, git_repo: Path
) -> None:
    terminal = open_()
    terminal.say("play cancel")
    until((git_repo / "held").exists)
    terminal.say("then this")
    terminal.until("queued: then this")
    terminal.type(ESC)
    terminal.until("cancelled: interrupted")
    terminal.until("what was queued was not sent")
    terminal.until("> then this")
    terminal.type(" too" + ENTER)
    terminal.until("second")
    terminal.until_over()
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert prompts() == ["play cancel", "then this too"]


@pytest.mark.rule("lines.queue")
def test_prompts_queue_and_messages_steer(open_: Open, git_repo: Path) -> None:
    terminal = open_()
    terminal.say("play queue")
    until((git_repo / "held").exists)
    terminal.say("the next one")
    terminal.until("queued: the next one")
    terminal.say("/steer be brief")
    terminal.until("steers at the next turn: be brief")
    terminal.type("and kind")
    terminal.until("and kind")
    terminal.type(CTRL_ENTER)
    terminal.until("steers at the next turn: and kind")
    (git_repo / "go").touch()
    terminal.until("> the next one")
    terminal.until_over()
    terminal.say("/quit")
    assert terminal.end() == 0
    assert prompts() == ["play queue", "be brief", "and kind", "the next one"]


@pytest.mark.rule("lines.queue")
@pytest.mark.bound("lines.queue")
def test_no_prompt_is_lost(open_: Open, git_repo: Path) -> None:
    terminal = open_(AERIX_BOUND_LINES_QUEUE="1")
    terminal.say("play lost")
    until((git_repo / "held").exists)
    terminal.say("one")
    terminal.until("queued: one")
    terminal.say("two")
    terminal.until("as many inputs wait as may (1); this one is not taken")
    terminal.until("> two")
    terminal.type(CLEAR)
    terminal.say("/quit")
    terminal.until("1 not sent, kept in the history:\n  one")
    assert terminal.end() == 0
    assert prompts() == ["play lost"]


@pytest.mark.rule("lines.history-paste")
def test_several_lines_are_one_prompt_pasted_or_typed_and_come_back(open_: Open) -> None:
    terminal = open_()
    terminal.type("\x1b[200~play paste\r\ntwo\rthree\n\x1b[201~")
    terminal.until("three")
    terminal.type(ENTER)
    terminal.until("first")
    terminal.until_over()
    terminal.type("four\rfive\rsix")  # by a terminal that does not mark a paste
    terminal.until("six")
    terminal.type(ENTER)
    terminal.until("second")
    terminal.until_over()
    terminal.type(f"seven{CTRL_J}eight{ESC}{ENTER}nine")
    terminal.until("nine")
    terminal.type(ENTER)
    terminal.until("third")
    terminal.until_over()
    terminal.type(UP)
    terminal.until("nine")
    terminal.type(" again" + ENTER)
    terminal.until("fourth")
    terminal.until_over()
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    sent = ["play paste\ntwo\nthree", "four\nfive\nsix", "seven\neight\nnine", "seven\neight\nnine again"]
    assert prompts() == sent
    history = Path(os.environ["XDG_STATE_HOME"], "aerix/history")
    assert [json.loads(line).strip() for line in history.read_text().splitlines()] == sent


@pytest.mark.rule("lines.permission")
def test_a_call_is_asked_about(open_: Open, git_repo: Path) -> None:
    terminal = open_(mode="ask")
    terminal.say("play ask")
    asked = terminal.until("no, and why >")
    assert "? bash" in asked
    assert "  command: touch first\n" in asked
    terminal.type("yes" + ENTER)
    terminal.until("1, 2, 3, or 4 and why not")
    terminal.type("1" + ENTER)
    terminal.until("● bash touch first")
    terminal.until("  command: touch second\n")
    terminal.type("4 one is enough" + ENTER)
    terminal.until("✗ bash touch second — refused:")
    terminal.until_over()
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert "one is enough" in results(session_log())[1]["text"]
    assert [(git_repo / name).exists() for name in ("first", "second")] == [True, False]


@pytest.mark.rule("lines.plan-gate")
def test_the_first_plan_waits_for_the_user(open_: Open) -> None:
    terminal = open_()
    terminal.say("play plan")
    terminal.until("● plan\n  1. look\n")
    terminal.until("Esc aborts >")
    terminal.type(ENTER)
    terminal.until("one")  # the second plan did not wait
    terminal.until_over()
    terminal.say("change it")
    terminal.until("Esc aborts >")
    terminal.type("e")
    terminal.until("1. look")
    terminal.type(" twice" + ENTER)
    terminal.until("two")
    terminal.until_over()
    terminal.say("abort it")
    terminal.until("Esc aborts >")
    terminal.type(ESC)
    terminal.until("cancelled: interrupted")
    terminal.until_over()
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert [line["text"] for line in of(session_log(), "plan")] == ["1. look", "1. look", "1. look twice"]
    assert "It is now:\n1. look twice" in results(session_log())[2]["text"]


@pytest.mark.rule("lines.files-completed")
@pytest.mark.rule("lines.shell")
def test_files_are_completed_and_commands_of_the_user_told(open_: Open, git_repo: Path) -> None:
    terminal = open_()
    terminal.say("!touch held; sleep 60")
    until((git_repo / "held").exists)
    terminal.type(ESC)
    terminal.until("cancelled\n")
    terminal.say("!echo $((6 * 7)); pwd >&2; exit 3")
    terminal.until("42\n")
    terminal.until("[exit 3]")
    terminal.type("play files @src/he" + TAB)
    terminal.until("@src/hello.py")
    terminal.type(ENTER)
    terminal.until("seen")
    terminal.until_over()
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    (prompt,) = prompts()
    assert prompt.startswith("play files @src/hello.py\n\n# File src/hello.py\ndef hello(name):")
    assert "# A command that the user ran\n$ echo $((6 * 7)); pwd >&2; exit 3\n42\n" in prompt


@pytest.mark.rule("lines.commands")
def test_commands_wait_for_the_end_of_a_request(open_: Open, git_repo: Path, model: str) -> None:
    terminal = open_()
    terminal.say("/compact")
    terminal.until("the context is empty")
    terminal.say("play commands")
    until((git_repo / "held").exists)
    terminal.say("/context")
    terminal.until("queued: /context")
    terminal.say("/compact")
    terminal.until("queued: /compact")
    (git_repo / "go").touch()
    terminal.until("> /context")
    assert "system" in terminal.until("of a window of 16,384")
    terminal.until("the next request begins by compacting the context")
    terminal.say("go on")
    terminal.until("compacted ")
    terminal.until("short")
    terminal.until_over()
    terminal.say("/undo")
    terminal.until("held")
    terminal.until("aerix undo --redo takes it back")
    assert not (git_repo / "held").exists()
    terminal.say("/undo")
    terminal.until("nothing is left to undo")
    terminal.say("/model nowhere.gguf")
    terminal.until("nowhere.gguf")
    terminal.say(f"/model {model}")
    terminal.until("the next request runs on scripted:")
    terminal.say("/sessions")
    terminal.until("play commands")
    terminal.say("/resume")
    terminal.until("there is no other session of this project")
    terminal.say("/new")
    terminal.until("nothing was asked yet")
    terminal.say("/resume")
    terminal.until(": play commands\n> go on\nshort\n")
    terminal.type(CTRL_D)
    assert terminal.end() == 0


# --- every end ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("lines.restored")
def test_a_signal_ends_it_and_the_terminal_is_as_it_was(open_: Open, git_repo: Path) -> None:
    terminal = open_()
    terminal.say("play signal")
    until((git_repo / "held").exists)
    assert terminal.left() != terminal.before
    terminal.process.send_signal(signal.SIGTERM)
    terminal.until("cancelled: terminated")
    assert terminal.process.wait(PATIENCE) == 143
    assert terminal.left() == terminal.before
    terminal.end()
    assert b"\x1b[?2004l" in terminal.raw


@pytest.mark.rule("lines.restored")
def test_a_terminal_that_is_closed_ends_it(open_: Open, git_repo: Path) -> None:
    terminal = open_()
    terminal.say("play signal")
    until((git_repo / "held").exists)
    terminal.hang_up()
    assert terminal.process.wait(PATIENCE) == 143
    assert of(session_log(), "session.end")[-1]["outcome"] == "cancelled"


@pytest.mark.rule("lines.restored")
def test_a_second_ctrl_c_ends_it_at_once(open_: Open, git_repo: Path) -> None:
    terminal = open_(AERIX_BOUND_REQUEST_CANCEL="60")
    terminal.say("play stuck")
    until((git_repo / "held").exists)
    terminal.type(CTRL_C + CTRL_C)
    assert terminal.process.wait(PATIENCE) == 130
    assert terminal.left() == terminal.before


@pytest.mark.rule("lines.exit-codes")
def test_a_session_whose_storage_fails_is_exit_code_6(git_repo: Path, model: str) -> None:
    Path(os.environ["XDG_DATA_HOME"]).mkdir(parents=True)
    Path(os.environ["XDG_DATA_HOME"], "aerix").touch()
    terminal = Terminal(git_repo, "--model", model)
    try:
        terminal.until("[session_storage]")
        assert terminal.end() == 6
    finally:
        terminal.close()


@pytest.mark.rule("lines.exit-codes")
def test_without_a_terminal_it_refuses(git_repo: Path) -> None:
    done = Aerix(git_repo)("--plain")
    assert (done.code, done.out) == (3, "")
    assert "aerix alone is a session on a terminal, and this is none; ask headless" in done.err


def test_flags_for_headless_runs_are_refused(git_repo: Path) -> None:
    terminal = Terminal(git_repo, "--output-format", "json")
    try:
        terminal.until("--output-format goes with -p only")
        assert terminal.end() == 3
    finally:
        terminal.close()


# --- every terminal -----------------------------------------------------------------------------------------------


@pytest.mark.rule("lines.any-terminal")
def test_a_terminal_may_be_narrow(open_: Open) -> None:
    terminal = open_(columns=20, rows=12)
    terminal.say("play columns")
    terminal.until("● ")
    call_line = terminal.until("\n")
    assert len(call_line) <= 20
    terminal.until("a" * 90 + "\n")
    terminal.until_over()
    terminal.type(CTRL_D)
    assert terminal.end() == 0


@pytest.mark.rule("lines.any-terminal")
def test_a_terminal_that_can_do_nothing_is_enough(open_: Open, git_repo: Path) -> None:
    terminal = open_(mode="ask", TERM="dumb")
    terminal.type("play dumb\n")
    terminal.until("and why > ")
    terminal.type("2\n")
    terminal.until("● bash touch asked")
    terminal.until("Esc aborts > ")
    terminal.type("2. rest\n")
    terminal.until("over\n")
    terminal.until_over()
    terminal.until("> ")
    terminal.type("!echo mine\n")
    terminal.until("mine\n[exit 0]")
    terminal.type("one\ntwo\n")
    terminal.until("and why > ")
    terminal.type("1\n")
    until((git_repo / "held").exists)
    terminal.type("later\n")
    terminal.until("queued: later")
    terminal.type(CTRL_C)
    terminal.until("cancelled: interrupted")
    terminal.until("what was queued was not sent")
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert b"\x1b" not in terminal.raw
    assert prompts()[0] == "play dumb"
    assert prompts()[1].startswith("one\ntwo\n\n# A command that the user ran\n$ echo mine\nmine\n")
    assert [line["text"] for line in of(session_log(), "plan")] == ["2. rest"]
