"""The command line: which command was asked for, and the exit code of its end."""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from aerix import __version__
from aerix.exits import FAILED, INTERRUPTED, STDOUT_CLOSED, USAGE

_COMMANDS_TO_COME = frozenset({
    "hooks", "plugins", "profile", "tune", "import", "farm",
})  # fmt: skip


class _NoCommand(Exception):
    """What stands where a command may is none."""


class _Parser(argparse.ArgumentParser):
    """argparse with our exit code for wrong usage, and one sentence: all flags above it would hide what is wrong."""

    commands: Collection[str] = ()
    """The names of those that it knows."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("argument COMMAND: invalid choice"):
            raise _NoCommand
        self.exit(USAGE, f"{self.prog}: {message}; {self.prog} --help tells what there is\n")


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. No problem ends in a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), 1
        )  # else Python complains at its end about what it holds for it
        return STDOUT_CLOSED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO):
            return _crashed(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _refuse(f"standard output cannot be written: {error.strerror}", FAILED)
    except Exception as error:  # noqa: BLE001  # the user gets a sentence, the program's log the traceback
        return _crashed(error)
    return code


def _crashed(error: Exception) -> int:
    from aerix.agent.ended import crash
    from aerix.output import complain

    complain(f"{crash('the command', error).reason}; AERIX_LOG_FILE=FILE keeps its traceback")
    return FAILED


def _run(arguments: list[str]) -> int:
    try:
        os.getcwd()  # noqa: PTH109 - pathlib is not needed for this
    except OSError as error:
        return _refuse(f"the working directory: {error.strerror}; go to a folder that is there")
    if (missing := _not_built(arguments)) is not None:
        return _refuse(f"{missing} is not built yet; aerix --help tells what is")
    args = _parsed(arguments)
    if wrong := _wrong_bounds():
        return max(map(_refuse, wrong))
    run = getattr(args, "run", None)
    if run is not None:
        return _run_command(args)
    if args.prompt is not None:
        from aerix.headless import run_headless

        _interruptible()
        return run_headless(args)
    from aerix.lines import run_lines

    _interruptible()
    return run_lines(args)


def _parsed(arguments: list[str]) -> argparse.Namespace:
    headless = _is_headless(arguments)
    parser = _parser(full=not headless)
    try:
        args, unknown = parser.parse_known_args(arguments)
    except _NoCommand:
        return _asked(arguments, parser.commands)
    if unknown:
        _refuse_unknown(unknown, parser, args, prompted=headless)
    return args


def _asked(arguments: list[str], commands: Collection[str]) -> argparse.Namespace:
    """The first word is no command: it is the prompt that a session begins with, unless a command was meant."""
    parser = _parser(full=False)
    parser.add_argument("first")
    args, unknown = parser.parse_known_args(arguments)
    word = args.first.lower() if len(args.first.split()) == 1 else ""
    near = _near(word, [*commands, *_COMMANDS_TO_COME, "--help", "--version"])
    if near and not (unknown and unknown[0].startswith("-")):
        parser.error(f"{args.first!r} is no command{near}")
    if unknown:
        _refuse_unknown(unknown, parser, args, prompted=True)
    return args


def _refuse_unknown(
    unknown: list[str], parser: _Parser, args: argparse.Namespace, *, prompted: bool
) -> NoReturn:
    quote = prompted and not unknown[0].startswith("-")
    hint = '; put a prompt of several words in quotes, as in "Fix the test"' if quote else ""
    if "run" not in args:  # else the flags are the command's
        hint = hint or _meant(unknown[0], parser)
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def _meant(flag: str, parser: argparse.ArgumentParser) -> str:
    """The flag that is nearest to one that there is not."""
    return _near(flag, [word.strip("[]") for word in parser.format_usage().split()])


def _near(word: str, names: list[str]) -> str:
    """The name that is like a word, as the end of a sentence; empty where none is."""
    from difflib import get_close_matches

    near = get_close_matches(word, names, 1, 0.7)
    return f"; there is {near[0]}" if near else ""


def _run_command(args: argparse.Namespace) -> int:
    if "pool_settings" in args:
        from aerix.settings import SettingsError, load_settings
        from aerix.settings_pool import pool_settings

        try:
            args.pool_settings = pool_settings(load_settings(Path.cwd(), env=os.environ))
        except SettingsError as error:
            return _refuse(str(error))
    _interruptible()
    if sys.stdout is None:  # closed before the start
        return STDOUT_CLOSED
    code: int = args.run(args)
    return code


def _wrong_bounds() -> list[str]:
    """What is wrong with the variables that set limits. Usually there are none, and this costs nothing."""
    from aerix.actors.bounds import PREFIX

    if not any(name.startswith(PREFIX) for name in os.environ):
        return []
    from aerix.bounds import wrong

    return wrong(os.environ)


def _interruptible() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt (see ``__main__``); one that is ignored stays so."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _refuse(sentence: str, code: int = USAGE) -> int:
    from aerix.output import complain

    complain(sentence)
    return code


def _not_built(arguments: list[str]) -> str | None:
    """The command that the design has and this version has not."""
    if arguments and arguments[0] in _COMMANDS_TO_COME:
        return f"aerix {arguments[0]}"
    return None


def _is_headless(arguments: list[str]) -> bool:
    """Whether this is ``-p``: its start is a figure that counts, so the other commands' parsers are not made."""
    return any(word == "-p" or word.startswith("--prompt") for word in arguments)


def _parser(*, full: bool) -> _Parser:
    parser = _Parser(
        prog="aerix",
        description="A coding agent for models that run on your own machine. aerix alone is a session on the terminal; "
        'aerix "PROMPT" begins it with that prompt.',
        epilog="Exit codes: 0 a final answer; 1 failed, killed or refused; 2 a budget was spent; 3 settings or usage; 4 no "
        "pool or no model; 5 a hook blocked it; 6 the session is locked or its storage failed; 130 interrupted; 141 "
        "output closed; 143 terminated.",
    )
    parser.add_argument("--version", action="version", version=f"aerix {__version__}")
    parser.set_defaults(first=None)
    _add_plain(parser)
    _add_headless(parser)
    if full:
        commands: Any = parser.add_subparsers(title="commands", metavar="COMMAND")
        from aerix.doctor import add_parsers as add_doctor
        from aerix.pool.cli import add_parsers
        from aerix.sessions_cli import add_parsers as add_sessions
        from aerix.settings_cli import add_parsers as add_settings
        from aerix.trust_cli import add_parsers as add_trust
        from aerix.undo_cli import add_parsers as add_undo

        add_parsers(commands)
        add_sessions(commands)
        add_settings(commands)
        add_trust(commands)
        add_undo(commands)
        add_doctor(commands)
        parser.commands = commands.choices
    return parser


def _add_plain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plain", action="store_true", help="the session in plain lines, which is what aerix alone is too"
    )


def _add_headless(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("one request, without a screen")
    add, one = group.add_argument, group.add_mutually_exclusive_group().add_argument
    add(
        "-p",
        "--prompt",
        metavar="PROMPT",
        nargs="?",
        const="-",
        help="run one request and exit; - or nothing reads it from standard input, and piped text joins it",
    )
    add(
        "--output-format",
        choices=("text", "json", "stream-json"),
        default="text",
        help="what standard output carries",
    )
    add(
        "--input-format",
        choices=("text", "stream-json"),
        default="text",
        help="what standard input is: a text, or user messages as JSON lines",
    )
    add(
        "--model",
        metavar="REF",
        help="the model: a GGUF file, a name of `aerix models list`, hf:ORG/REPO, ollama:NAME, http://HOST:PORT/v1#MODEL, or "
        "scripted:FILE",
    )
    add("--max-turns", type=_positive, metavar="N", help="turns of the root agent")
    add("--max-new-tokens", type=_positive, metavar="N", help="tokens of one turn (context.max_new_tokens)")
    add(
        "--route",
        choices=("answer", "edit", "investigate", "plan"),
        help="what kind of request it is; without it, the model classifies it",
    )
    add("--final-schema", metavar="FILE", help="a JSON schema: the answer is a JSON value of it, checked")
    add("--seed", type=_seed, metavar="N", help="the seed of every draw (generation.seed)")
    one("--resume", metavar="ID", help="go on with that session; the start of its id is enough")
    one("--continue", dest="continued", action="store_true", help="go on with the project's latest session")
    add("--cd", metavar="DIR", help="work in this folder")
    add(
        "--mode",
        choices=("ask", "auto-edit", "auto"),
        help="which calls are asked about (permissions.mode); where nobody is there to ask, they are refused",
    )
    add(
        "--allow",
        type=_rule,
        action="append",
        default=[],
        metavar="RULE",
        help="calls that run without a question, such as 'bash(git push *)'; repeat for more",
    )
    add(
        "--deny",
        type=_rule,
        action="append",
        default=[],
        metavar="RULE",
        help="calls that are refused; repeat for more",
    )
    add(
        "--add-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="one more folder to write in; repeat for more",
    )
    add("--no-diff", action="store_true", help="show no diff at the end; undo works all the same")
    add("--in-place", action="store_true", help="accepted, changes nothing: aerix always works in place")
    add("--settings", metavar="FILE", help="one more settings file")
    add(
        "-c",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting; repeat for more",
    )


def _positive(text: str) -> int:
    number = _number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _seed(text: str) -> int:
    number = _number(text)
    if not 0 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and {2**32 - 1}")
    return number


def _rule(text: str) -> str:
    from aerix.tools.permissions import BadRule, read_rule

    try:
        return read_rule(text).text
    except BadRule as bad:
        raise argparse.ArgumentTypeError(str(bad)) from None


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
