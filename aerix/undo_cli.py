"""``aerix undo``: what it would put back, and what came of it."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerix.exits import DONE, FAILED, STORAGE, USAGE
from aerix.shown import one_line

if TYPE_CHECKING:
    from aerix.actors import Ref
    from aerix.session.index import Place
    from aerix.session.undo import Plan
    from aerix.session.undoing import Offer
    from aerix.session.was import Change

_NAMED = 10  # names of what is not covered that are shown
_STOP_S = 5.0


def add_parsers(commands: Any) -> None:
    """Add the command to the command line."""
    undo = commands.add_parser(
        "undo",
        help="put files back to how they were before a prompt",
        description="Puts the files of this project back to how they were before the last prompt of its latest session that had "
        "calls which may change files; said again, to before the one before that. It lists each path. Paths that changed since "
        "the session left them stay, unless --force. In a git repository it covers all that git does not ignore; elsewhere what the tools write and edit touched.",
        epilog="Exit codes: 0 everything is as it was; 1 something was left; 3 usage, or nothing is left to undo; "
        "6 the session is in use.",
    )
    undo.add_argument("--session", metavar="ID", help="this session, by the beginning of its id")
    undo.add_argument(
        "--to",
        metavar="TURN",
        help="before what: a turn by its id in the log (t3), a prompt by its number (2), or start",
    )
    undo.add_argument("--dry-run", action="store_true", help="only list what would be put back")
    undo.add_argument("--force", action="store_true", help="also what changed since; that is kept for --redo")
    undo.add_argument("--redo", action="store_true", help="take back what was undone since the last prompt")
    undo.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from aerix.actors import DeadlineExceeded, Refused, StartFailed
    from aerix.git import GitError
    from aerix.output import complain
    from aerix.session.history import NoTarget
    from aerix.session.index import NoSession
    from aerix.session.undo import Lost

    try:
        return _undo(args)
    except (NoSession, NoTarget) as error:
        complain(str(error))
        return USAGE
    except Refused as refused:
        complain(f"{refused.message} [{refused.code}]")
        return STORAGE
    except GitError as error:
        complain(f"{error.message} [{error.code}]")
    except (Lost, StartFailed, DeadlineExceeded) as error:
        complain(str(error))
    except BrokenPipeError:  # whoever read the list is gone, as with any command
        raise
    except OSError as error:
        complain(
            f"undo stopped at {error.filename or 'its store'}: {error.strerror}; run it again when that is gone"
        )
    return FAILED


def _undo(args: argparse.Namespace) -> int:
    from aerix.session.undoing import Undoing

    place = _session(args.session, Path.cwd())
    with _held(place) as log:
        undoing = Undoing(place, Path.cwd(), log)
        offer = (
            undoing.offer_back(force=args.force) if args.redo else undoing.offer(args.to, force=args.force)
        )
        print("\n".join(report(offer, place.id, dry=args.dry_run)), flush=True)  # noqa: T201 # what the command is for
        if args.dry_run:
            return DONE
        done = undoing.do(offer)
        if offer.plan.steps:
            print("\n".join(outcome(offer, done)))  # noqa: T201
        return FAILED if done.left else DONE


def _session(prefix: str | None, cwd: Path) -> "Place":
    """The session that is meant: by default the latest that worked here. Raises NoSession."""
    from aerix.session.index import NoSession, Place, entries, find, home
    from aerix.session.project import project_key

    project = project_key(cwd)
    if prefix is not None:
        return find(prefix, project)
    here = _where(str(cwd))
    for entry in entries(home(project)):
        if entry.cwd and _where(entry.cwd) == here:
            return Place(home(project), entry.id)
    raise NoSession("no session has worked here yet: there is nothing to undo")


def _where(cwd: str) -> str:
    """The folder that a session's undo is about, as a log can have it."""
    from aerix.session.project import repository_root

    return str(repository_root(Path(cwd)) or cwd).encode("utf-8", "replace").decode()


@contextmanager
def _held(place: "Place") -> "Iterator[Ref]":
    """The session's log, locked. Raises Refused ``session_locked`` where another Aerix has it."""
    from aerix.actors import start
    from aerix.session.log import SessionLog

    log = start(SessionLog(place.log), "session-log")
    try:
        yield log
    finally:
        log.stop()
        log.join(_STOP_S)


# --- what is shown


def report(offer: "Offer", session: str, *, dry: bool = False) -> list[str]:
    """What an undo is about to do, line by line."""
    verb = ("would put back" if dry else "putting back") if offer.plan.steps else "nothing to put back"
    before = one_line(offer.to if offer.back else f"before {offer.to}")
    lines = [f"{verb}: session {session[:8]}, {before}", *map(_step, offer.plan.steps)]
    lines += [f"  left      {shown(path)}: {why}" for path, why in offer.plan.left]
    if offer.earlier and not offer.plan.steps:
        lines.append("the undo after this one goes one step further back")
    if offer.limits:
        lines.append(
            f"{offer.limits}: only what the tools write and edit touched is covered, not commands (bash)"
        )
    if offer.not_covered:
        rest = len(offer.not_covered) + offer.more - _NAMED
        names = ", ".join(map(shown, offer.not_covered[:_NAMED]))
        lines.append(f"not covered: {names}{f' and {rest} more' if rest > 0 else ''}")
    return lines


def outcome(offer: "Offer", done: "Plan") -> list[str]:
    """What came of it."""
    from aerix.session.undo import SINCE

    failed = done.left[len(offer.plan.left) :]
    lines = [f"  left      {shown(path)}: {why}" for path, why in failed]
    hint = " (--force takes those that changed since)" if any(why == SINCE for _, why in done.left) else ""
    left = f"; {len(done.left)} left as they are{hint}" if done.left else ""
    back = f"; {'aerix undo' if offer.back else 'aerix undo --redo'} takes it back" if done.steps else ""
    return [*lines, f"{len(done.steps)} put back{left}{back}"]


def _step(step: "Change") -> str:
    match step.old.kind, step.new.kind:
        case _, "none":
            what = "remove"
        case "none", _:
            what = "recreate"
        case _ if step.old.blob == step.new.blob and step.old.kind == step.new.kind:
            return f"  mode      {shown(step.path)} ({step.old.mode:04o} to {step.new.mode:04o})"
        case _:
            what = "restore"
    slash = "/" if "folder" in (step.old.kind, step.new.kind) else ""
    return f"  {what:9} {shown(step.path)}{slash}"


def shown(path: str) -> str:
    """A path for a terminal: relative where it is below this folder, odd characters as escapes."""
    base = f"{Path.cwd()}/"
    short = path.removeprefix(base)
    return short if short.isprintable() else ascii(short)
