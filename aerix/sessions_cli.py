"""``aerix sessions list|show|rm|export``: what is kept of the sessions, and how to be rid of it."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerix.exits import DONE, FAILED, STORAGE, USAGE

if TYPE_CHECKING:
    from aerix.session.index import Entry, Place

_ID = 8  # characters of an id that are shown; more where they are not enough to tell two sessions apart


def add_parsers(commands: Any) -> None:
    """Add the commands to the command line."""
    sessions = commands.add_parser("sessions", help="list, show, remove and export sessions")
    kinds = sessions.add_subparsers(title="commands", metavar="list | show | rm | export", required=True)
    listing = kinds.add_parser("list", help="the sessions of this project, the latest first")
    listing.add_argument("--all", action="store_true", help="of every project")
    listing.add_argument("--json", action="store_true", help="as JSON")
    listing.set_defaults(run=_guarded(_list))
    show = kinds.add_parser("show", help="what happened in a session, and what is kept of it")
    show.add_argument("id", metavar="ID", help="its id; the start is enough")
    show.set_defaults(run=_guarded(_show))
    rm = kinds.add_parser("rm", help="remove sessions with all that is kept of them; asks nothing")
    rm.add_argument("ids", metavar="ID", nargs="+", help="an id; the start is enough")
    rm.set_defaults(run=_guarded(_rm))
    export = kinds.add_parser("export", help="a whole session as markdown, or its events as JSON")
    export.add_argument("id", metavar="ID", help="its id; the start is enough")
    export.add_argument("--format", choices=("markdown", "json"), default="markdown")
    export.add_argument("-o", "--output", metavar="FILE", help="a new file, instead of standard output")
    export.set_defaults(run=_guarded(_export))


def _guarded(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """What is refused is a sentence and an exit code."""

    def guarded(args: argparse.Namespace) -> int:
        from aerix.actors import Refused

        try:
            return run(args)
        except Refused as refused:
            return _refuse(refused)

    return guarded


def _refuse(refused: Any) -> int:
    from aerix.output import complain

    complain(f"{refused.message} [{refused.code}]")
    return USAGE if refused.code == "no_session" else STORAGE


def _list(args: argparse.Namespace) -> int:
    from aerix.session.index import Place, entries, home, sessions
    from aerix.session.project import project_key

    folders = sorted(sessions().glob("*/")) if args.all else [home(project_key(Path.cwd()))]
    found = [(Place(folder, entry.id), entry) for folder in folders for entry in entries(folder)]
    found.sort(key=lambda one: (one[1].last, one[1].mtime_ns), reverse=True)
    if args.json:
        _print(json.dumps([_plain(*one) for one in found], indent=2) + "\n")
        return DONE
    _print("".join(_lines(found, folders=args.all)))
    if not found:
        from aerix.output import complain

        complain(
            "there is no session" + ("" if args.all else " of this project; --all lists those of others")
        )
    return DONE


def _lines(found: "list[tuple[Place, Entry]]", *, folders: bool) -> Iterator[str]:
    from aerix.session.transcript import local_time
    from aerix.shown import one_line

    width = _enough([entry.id for _, entry in found])
    for place, entry in found:
        where = f"  {one_line(entry.cwd)}" if folders else ""
        turns = _count(entry.turns, "turn")
        yield f"{entry.id[:width]}  {local_time(entry.last)}  {_state(place, entry):11}  {turns:>9}{where}  {one_line(entry.title)}\n"


def _enough(ids: list[str]) -> int:
    """How many characters tell all of these ids apart."""
    return next((n for n in range(_ID, 36) if len({one[:n] for one in ids}) == len(ids)), 36)


def _state(place: "Place", entry: "Entry") -> str:
    """How the session stands; one without an end runs, or was cut off."""
    from aerix.session.remove import running

    return entry.outcome or ("running" if running(place) else "interrupted")


def _plain(place: "Place", entry: "Entry") -> dict[str, Any]:
    names = ("id", "started", "last", "title", "requests", "turns", "model", "cwd")
    return {
        **{name: getattr(entry, name) for name in names},
        "state": _state(place, entry),
        "log": str(place.log),
    }


def _show(args: argparse.Namespace) -> int:
    from aerix.output import complain
    from aerix.session.read import Reading
    from aerix.session.written import shown

    place, entry = _found(args.id)
    for line in _about(place, entry):
        _print(f"{line}\n")
    reading = Reading(place.log)
    _print_all(shown(reading))
    if said := reading.said():
        complain(said)
    return DONE


def _about(place: "Place", entry: "Entry") -> Iterator[str]:
    from aerix.session.transcript import local_time
    from aerix.shown import one_line

    yield f"session {entry.id}: {one_line(entry.title)}"
    yield f"  {local_time(entry.started)} to {local_time(entry.last)}, {_state(place, entry)}"
    yield f"  {_count(entry.requests, 'prompt')}, {_count(entry.turns, 'turn')}"
    yield f"  model {one_line(entry.model)}, in {one_line(entry.cwd)}"
    yield f"  log {place.log} ({entry.size:,} bytes)"
    for path in sorted((place.folder / "spool").rglob("*")):
        if path.is_file():
            yield f"  kept {path} ({path.stat().st_size:,} bytes)"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _rm(args: argparse.Namespace) -> int:
    from aerix.actors import Refused
    from aerix.session.remove import remove

    code = DONE
    for name in args.ids:
        try:
            place, _ = _found(name)
            remove(place)
        except Refused as refused:
            code = max(code, _refuse(refused))
        else:
            _print(f"removed {place.id}\n")
    return code


def _export(args: argparse.Namespace) -> int:
    from aerix.output import complain
    from aerix.session.read import Reading
    from aerix.session.written import as_json, markdown

    place, entry = _found(args.id)
    reading = Reading(place.log)
    text = (as_json if args.format == "json" else markdown)(entry, reading)
    if args.output is None:
        _print_all(text)
    elif (wrong := _written(Path(args.output), text)) is not None:
        complain(wrong)
        return FAILED
    if said := reading.said():
        complain(said)
    return DONE


def _written(path: Path, text: Iterable[str]) -> str | None:
    """Write a new file that only its owner reads; what went wrong."""
    import os

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}; name a file that is not there yet"
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.writelines(text)
    except OSError as error:
        path.unlink(missing_ok=True)
        return f"{path} cannot be written: {error.strerror}"
    return None


def _found(prefix: str) -> "tuple[Place, Entry]":
    from aerix.session.index import find, read
    from aerix.session.log import unreadable

    place = find(prefix)
    try:
        return place, read(place)
    except OSError as error:
        raise unreadable(place.log, error) from None


def _print(text: str) -> None:
    print(text.encode("utf-8", "replace").decode(), end="")  # noqa: T201 # what the command is for


def _print_all(texts: Iterable[str]) -> None:
    for text in texts:
        _print(text)
