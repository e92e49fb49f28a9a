"""The commands of an interactive session, in one table: the lines use it, and so does every other screen.

A command is ``/name argument``. What it does is a function of a ``Desk``, which is whatever shows the session.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol


class Work(Protocol):
    """What can be done with a session between two requests. Each method blocks, and gives lines to show.

    Raises Refused, or another error that is a sentence.
    """

    def use_model(self, ref: str) -> Sequence[str]:
        """Have the next request run on another model; without one, say which one it is."""

    def new(self) -> Sequence[str]:
        """Begin another session, with an empty context."""

    def resume(self, session: str) -> Sequence[str]:
        """Go on with another session of this project: the latest, or the one whose id begins so."""

    def sessions(self) -> Sequence[str]:
        """The sessions of this project."""

    def undo(self) -> Sequence[str]:
        """Take back what the last request changed."""

    def compact(self) -> Sequence[str]:
        """Have the next request begin by compacting the context."""

    def context(self) -> Sequence[str]:
        """What the root agent's context consists of, and what share of the window each part takes."""


class Desk(Protocol):
    """What a command may ask of whoever shows the session."""

    def say(self, *lines: str) -> None:
        """Show lines."""

    def between_requests(self, job: Callable[[Work], Sequence[str]]) -> None:
        """Do something with the session, and show what it gives. No request runs: see ``waits``."""

    def diff(self) -> None:
        """Show what the last request changed. No request runs: see ``waits``."""

    def steer(self, text: str) -> None:
        """Send a message into the running turn; where none runs it is a prompt."""

    def quit(self) -> None:
        """End the session."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its name, what may follow it, and what it does, in one line."""

    name: str
    argument: str
    help: str
    run: Callable[[Desk, str], None]
    least: bool = False
    """Whether something has to follow it."""
    waits: bool = False
    """Whether it has to wait for the end of a request that runs."""


def _help(desk: Desk, _argument: str) -> None:
    heads = {command.name: f"/{command.name} {command.argument}".rstrip() for command in COMMANDS}
    width = max(map(len, heads.values()))
    desk.say(*(f"{heads[command.name]:{width}}  {command.help}" for command in COMMANDS), *KEYS)


def _resume(desk: Desk, session: str) -> None:
    desk.between_requests(lambda work: work.resume(session))


COMMANDS: tuple[Command, ...] = (
    Command("help", "", "this list", _help),
    Command(
        "model",
        "[REF]",
        "the model; with REF, the next request runs on that one",
        lambda desk, ref: desk.between_requests(lambda work: work.use_model(ref)),
        waits=True,
    ),
    Command(
        "new",
        "",
        "begin another session, with an empty context",
        lambda desk, _: desk.between_requests(lambda work: work.new()),
        waits=True,
    ),
    Command(
        "resume", "[ID]", "go on with another session: the latest before this one, or ID", _resume, waits=True
    ),
    Command(
        "sessions",
        "",
        "the sessions of this project",
        lambda desk, _: desk.between_requests(lambda work: work.sessions()),
        waits=True,
    ),
    Command(
        "undo",
        "",
        "take back what the last request changed in files; said again, the request before it",
        lambda desk, _: desk.between_requests(lambda work: work.undo()),
        waits=True,
    ),
    Command("diff", "", "what the last request changed in files", lambda desk, _: desk.diff(), waits=True),
    Command(
        "compact",
        "",
        "shorten the context before the next request",
        lambda desk, _: desk.between_requests(lambda work: work.compact()),
        waits=True,
    ),
    Command(
        "context",
        "",
        "what the context consists of, in tokens",
        lambda desk, _: desk.between_requests(lambda work: work.context()),
        waits=True,
    ),
    Command(
        "steer", "TEXT", "tell the running agent something", lambda desk, text: desk.steer(text), least=True
    ),
    Command("quit", "", "end the session", lambda desk, _: desk.quit()),
)
_ELSEWHERE = {"exit": "quit", "q": "quit", "clear": "new", "reset": "new", "continue": "resume"}
"""What other programs call them."""
KEYS = (
    "@PATH brings a file in (Tab completes), !COMMAND runs a command of yours and tells the model what it gave",
    "Enter sends, Alt-Enter or Ctrl-J begins a new line, Ctrl-Enter steers; Esc or Ctrl-C cancels; Ctrl-D ends",
)


def waits(line: str) -> bool:
    """Whether what the line says has to wait for the end of a request that runs."""
    name = line.removeprefix("/").partition(" ")[0]
    return any(one.waits for one in COMMANDS if one.name == name)


def run(desk: Desk, line: str) -> None:
    """Do what a line that begins with a slash says; one that is no command is answered with the nearest."""
    name, _, argument = line.removeprefix("/").partition(" ")
    command = next((one for one in COMMANDS if one.name == name), None)
    if command is None:
        names = [one.name for one in COMMANDS]
        near = [_ELSEWHERE[name]] if name in _ELSEWHERE else get_close_matches(name, names, 1)
        desk.say(f"there is no /{name}; " + (f"/{near[0]} is" if near else "/help names them all"))
    elif argument.strip() and not command.argument:
        desk.say(f"/{name} takes nothing after it")
    elif command.least and not argument.strip():
        desk.say(f"/{name} needs {command.argument}")
    else:
        command.run(desk, argument.strip())
