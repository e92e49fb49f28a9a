"""The table of commands: what each line that begins with a slash does."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from aerix.commands import COMMANDS, Work, run

PAGE = Path(__file__).resolve().parents[2] / "docs/lines.md"


class Desk:
    """Keeps what commands ask of it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.asked: list[str] = []

    def say(self, *lines: str) -> None:
        self.said += lines

    def between_requests(self, job: Callable[[Work], Sequence[str]]) -> None:
        self.said += job(self)

    def steer(self, text: str) -> None:
        self.asked.append(f"steer {text}")

    def diff(self) -> None:
        self.asked.append("diff")

    def quit(self) -> None:
        self.asked.append("quit")

    def use_model(self, ref: str) -> Sequence[str]:
        return [f"model {ref}"]

    def new(self) -> Sequence[str]:
        return ["new"]

    def resume(self, session: str) -> Sequence[str]:
        return [f"resume {session}"]

    def sessions(self) -> Sequence[str]:
        return ["sessions"]

    def undo(self) -> Sequence[str]:
        return ["undo"]

    def compact(self) -> Sequence[str]:
        return ["compact"]

    def context(self) -> Sequence[str]:
        return ["context"]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.rule("lines.commands")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/model", "model "),
        ("/model hf:a/b:Q4 ", "model hf:a/b:Q4"),
        ("/new", "new"),
        ("/resume 12ab", "resume 12ab"),
        ("/resume", "resume "),
        ("/sessions", "sessions"),
        ("/undo", "undo"),
        ("/compact", "compact"),
        ("/context", "context"),
    ],
)
def test_a_command_does_what_the_table_says(desk: Desk, line: str, said: str) -> None:
    run(desk, line)
    assert desk.said == [said]


def test_commands_of_the_desk_itself(desk: Desk) -> None:
    run(desk, "/steer be  brief")
    run(desk, "/diff")
    run(desk, "/quit")
    assert desk.asked == ["steer be  brief", "diff", "quit"]


@pytest.mark.rule("lines.commands")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/hlep", "there is no /hlep; /help is"),
        ("/exit", "there is no /exit; /quit is"),
        ("/clear", "there is no /clear; /new is"),
        ("/xyzzy", "there is no /xyzzy; /help names them all"),
        ("/", "there is no /; /help names them all"),
        ("/dif", "there is no /dif; /diff is"),
        ("/undo everything", "/undo takes nothing after it"),
        ("/steer ", "/steer needs TEXT"),
    ],
)
def test_what_is_no_command_is_a_sentence(desk: Desk, line: str, said: str) -> None:
    run(desk, line)
    assert (desk.said, desk.asked) == ([said], [])


@pytest.mark.rule("lines.commands")
def test_every_command_is_in_the_help_and_on_the_page(desk: Desk) -> None:
    run(desk, "/help")
    page = PAGE.read_text("utf-8")
    for command in COMMANDS:
        head = f"/{command.name} {command.argument}".rstrip()
        assert any(line.startswith(head) and line.endswith(command.help) for line in desk.said)
        assert f"| `{head}` | {command.help} |" in page
