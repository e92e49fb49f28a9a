"""``aerix settings show|schema`` and ``aerix bounds``: what is in force, and where it comes from."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerix.exits import DONE, USAGE

if TYPE_CHECKING:
    from aerix.settings import Settings


def add_parsers(commands: Any) -> None:
    """Add the commands to the command line."""
    settings = commands.add_parser("settings", help="what is set, and the schema of the settings")
    kinds = settings.add_subparsers(title="commands", metavar="show | schema", required=True)
    show = kinds.add_parser("show", help="each setting's value and where it comes from")
    _add_sources(show)
    show.set_defaults(run=_show)
    kinds.add_parser("schema", help="the JSON Schema of a settings file").set_defaults(run=_schema)
    bounds = commands.add_parser(
        "bounds",
        help="every limit, with the value in force",
        description="Every limit of Aerix, a line each: its name, the value in force, what it counts; who owns it and what "
        "happens there; how that end is called; the setting that changes it; what has set it now, where it is not the "
        "default; and whether it is built yet.",
        epilog="For a test, any limit is set by a variable: AERIX_BOUND_AGENT_TURNS=3 is agent.turns. A setting that is set "
        "goes before the variable of its limit.",
    )
    _add_sources(bounds)
    bounds.set_defaults(run=_bounds)


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settings", metavar="FILE", help="one more settings file")
    parser.add_argument(
        "-c", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="one setting"
    )


def _show(args: argparse.Namespace) -> int:
    return _print(args, lambda settings: settings.lines())


def _bounds(args: argparse.Namespace) -> int:
    from aerix.bounds import table

    return _print(args, table)


def _print(args: argparse.Namespace, lines: "Callable[[Settings], list[str]]") -> int:
    """Print what the settings of this folder give, then the notes about them."""
    from aerix.output import complain
    from aerix.settings import SettingsError, load_settings
    from aerix.shown import clean

    try:
        file = None if args.settings is None else Path(args.settings)
        settings = load_settings(Path.cwd(), overrides=args.overrides, settings_file=file)
    except SettingsError as error:
        complain(str(error))
        return USAGE
    print("\n".join(clean(line).replace("\n", " ") for line in lines(settings)))  # noqa: T201 # what the command is for
    for note in settings.notes:
        complain(note)
    return DONE


def _schema(_args: argparse.Namespace) -> int:
    from aerix.settings_schema import schema

    print(json.dumps(schema(), indent=2, ensure_ascii=False))  # noqa: T201 # what the command is for
    return DONE
