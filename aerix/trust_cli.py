"""``aerix trust``: what a project brings that is not taken until its folder is trusted, and trusting it."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from aerix.exits import DONE, USAGE
from aerix.extensions import trust
from aerix.output import complain
from aerix.shown import one_line

_BROUGHT = {
    "hooks": (".claude/settings.json", ".claude/settings.local.json", ".claude/hooks"),
    "skills": (".claude/skills", ".claude/commands"),
    "agents": (".claude/agents",),
    "plugins": (".claude-plugin", ".claude/plugins"),
}
"""What else a folder may bring that is not run where it is not trusted, and where that is."""


def add_parsers(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "trust",
        help="take all settings of a project, as they are now",
        description="What a project brings is not trusted: its settings may only tighten yours. This shows what it would do"
        " beyond that, asks, and keeps your answer. A settings file that changes later is to be trusted again.",
    )
    parser.add_argument("folder", metavar="DIR", nargs="?", default=".", help="a folder of the project")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--list", action="store_true", help="the folders that are trusted")
    kind.add_argument("--remove", action="store_true", help="trust it no more")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from aerix.settings import SettingsError
    from aerix.settings_layers import project_folder

    try:
        trusted = trust.read()
        if args.list:
            return _list(trusted)
        try:
            project = project_folder(Path(args.folder).resolve(strict=True))
        except (OSError, ValueError, RuntimeError):
            return _refuse(f"{args.folder}: there is no such folder")
        if args.remove:
            return _remove(trusted, project)
        return _trust(trusted, project, sure=args.yes)
    except (trust.StoreError, SettingsError) as error:
        return _refuse(str(error))


def _trust(trusted: trust.Trusted, project: Path, *, sure: bool) -> int:
    if not project.is_dir():
        return _refuse(f"{project} is no folder")
    texts, lines = _settings(project)
    name = one_line(str(project))
    _say(f"{name}", *(f"  {line}" for line in (*lines, *_brought(project))))
    if not sure and not (sys.stdin is not None and sys.stdin.isatty()):
        return _refuse("nobody is there to ask whether this folder is trusted; --yes trusts it")
    if not sure and not _agreed():
        _say("It is not trusted.")
        return DONE
    digests = {file: trust.digest(text) for file, text in texts.items()}
    trust.write({**trusted, trust.key(project): digests})
    _say("It is trusted, as it is now. `aerix trust --remove` ends that.")
    return DONE


def _settings(project: Path) -> tuple[dict[str, str], list[str]]:
    """The texts of its settings files, and a line for each setting that needs trust. Raises SettingsError."""
    from aerix.settings_check import check, leaves, loosens
    from aerix.settings_layers import project_files, read_layers
    from aerix.settings_schema import dotted, toml

    projects = project_files(project)
    users = [
        layer for layer in read_layers(Path("/"), (), None, os.environ) if layer.in_file and layer.trusted
    ]
    check([*users, *projects], os.environ)
    below = {path: value for layer in users for _, path, value in leaves(layer)}
    lines = [
        f".aerix/{Path(layer.source).name}: {dotted(path)} = {one_line(toml(value))}"
        for layer in projects
        for key, path, value in leaves(layer)
        if loosens(layer, key, path, value, below)
    ]
    texts = {Path(layer.source).name: layer.text for layer in projects}
    return texts, lines or ["Its settings do nothing that needs trust."]


def _brought(project: Path) -> Iterator[str]:
    for what, places in _BROUGHT.items():
        found = [place for place in places if (project / place).exists()]
        if found:
            yield f"{what}: {', '.join(found)} (Aerix does not run them yet)"


def _agreed() -> bool:
    sys.stdout.write("Trust this folder? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _list(trusted: trust.Trusted) -> int:
    for folder, files in sorted(trusted.items()):
        _say(f"{one_line(folder)}{_since(Path(folder), files)}")
    if not trusted:
        complain("no folder is trusted")
    return DONE


def _since(folder: Path, files: Any) -> str:
    from aerix.settings_layers import SettingsError, project_files

    if not folder.is_dir():
        return " (it is not there)"
    with suppress(SettingsError):
        now = {Path(layer.source).name: trust.digest(layer.text) for layer in project_files(folder)}
        return "" if now.items() <= files.items() else " (its settings have changed since)"
    return " (its settings cannot be read)"


def _remove(trusted: trust.Trusted, project: Path) -> int:
    known = trust.key(project)
    if known not in trusted:
        return _refuse(f"{project} is not trusted; `aerix trust --list` names the folders that are")
    trust.write({folder: files for folder, files in trusted.items() if folder != known})
    _say(f"{one_line(str(project))} is not trusted any more.")
    return DONE


def _say(*lines: str) -> None:
    print("\n".join(lines))  # noqa: T201 # what the command is for


def _refuse(sentence: str) -> int:
    complain(sentence)
    return USAGE
