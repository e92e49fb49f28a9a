"""``aerix settings show|schema`` and ``aerix bounds``: what is in force, and where it comes from."""

import argparse
import json
from pathlib import Path
from typing import Any

from aerix.exits import DONE, USAGE


def add_parsers(commands: Any) -> None:
    """Add the commands to the command line."""
    settings = commands.add_parser("settings", help="what is set, and the schema of the settings")
    kinds = settings.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = kinds.add_parser("show", help="each setting's value and where it comes from")
    show.add_argument("--settings", metavar="FILE", help="one more settings file")
    show.add_argument(
        "-c", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="one setting"
    )
    show.set_defaults(run=_show)
    kinds.add_parser("schema", help="the JSON Schema of a settings file").set_defaults(run=_schema)
    commands.add_parser("bounds", help="every limit, with the value in force").set_defaults(run=_bounds)


def _show(args: argparse.Namespace) -> int:
    from aerix.output import complain
    from aerix.settings import SettingsError, load_settings

    try:
        file = None if args.settings is None else Path(args.settings)
        settings = load_settings(Path.cwd(), overrides=args.overrides, settings_file=file)
    except SettingsError as error:
        complain(str(error))
        return USAGE
    print("\n".join(settings.lines()))  # noqa: T201 # what the command is for
    for note in settings.notes:
        complain(note)
    return DONE


def _schema(_args: argparse.Namespace) -> int:
    from aerix.settings_schema import schema

    print(json.dumps(schema(), indent=2, ensure_ascii=False))  # noqa: T201 # what the command is for
    return DONE


def _bounds(_args: argparse.Namespace) -> int:
    from aerix.bounds import table

    print("\n".join(table()))  # noqa: T201 # what the command is for
    return DONE
