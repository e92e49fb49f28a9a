"""The command line: which command was asked for, and the exit code of its end."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from aerix import __version__
from aerix.exits import INTERRUPTED, USAGE


class _Parser(argparse.ArgumentParser):
    """argparse with our exit code for wrong usage."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        from aerix.exits import STDOUT_CLOSED

        return STDOUT_CLOSED


def _run(arguments: list[str]) -> int:
    args = _parser(full=not _is_headless(arguments)).parse_args(arguments)
    run = getattr(args, "run", None)
    if run is not None:
        code: int = run(args)
        return code
    if args.prompt is not None:
        from aerix.headless import run_headless

        return run_headless(args)
    from aerix.output import complain

    complain(
        'the interactive screen is not built yet; ask headless: aerix -p "PROMPT" (aerix --help tells more)'
    )
    return USAGE


def _is_headless(arguments: list[str]) -> bool:
    """Whether this is ``-p``: its start is a figure that counts, so the other commands' parsers are not made."""
    return any(word == "-p" or word.startswith("--prompt") for word in arguments)


def _parser(*, full: bool) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="aerix",
        description="A coding agent for models that run on your own machine.",
        epilog="Exit codes: 0 a final answer; 1 failed, killed or refused; 2 a budget was spent; 3 settings or usage; 4 no "
        "pool or no model; 6 the session's storage failed; 130 interrupted; 141 output closed; 143 terminated.",
    )
    parser.add_argument("--version", action="version", version=f"aerix {__version__}")
    _add_headless(parser)
    if full:
        commands: Any = parser.add_subparsers(title="commands", metavar="COMMAND")
        from aerix.pool.cli import add_parsers
        from aerix.settings_cli import add_parsers as add_settings

        add_parsers(commands)
        add_settings(commands)
    return parser


def _add_headless(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("one request, without a screen").add_argument
    add("-p", "--prompt", metavar="PROMPT", help="run one request and exit; - reads it from standard input")
    add(
        "--output-format",
        choices=("text", "json", "stream-json"),
        default="text",
        help="what standard output carries",
    )
    add(
        "--model",
        metavar="REF",
        help="the model: a GGUF file, a name of `aerix models list`, or scripted:FILE",
    )
    add("--max-turns", type=_positive, metavar="N", help="turns of the agent (delegation.max_turns)")
    add("--max-new-tokens", type=_positive, metavar="N", help="tokens of one turn (context.max_new_tokens)")
    add("--seed", type=_seed, metavar="N", help="the seed of every draw (generation.seed)")
    add("--cd", metavar="DIR", help="work in this folder")
    add("--no-diff", action="store_true", help="take no snapshot and show no diff")
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


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
