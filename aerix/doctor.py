"""``aerix doctor``: what works here and what does not: a line a check, and what to do where something is wrong.

Each check runs in an actor of its own, within its own limit: one that fails or hangs stops none of the others.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from aerix.actors import Actor, Ref
    from aerix.actors.bounds import Bound
    from aerix.pool.models import ResolvedModel
    from aerix.pool.protocol import MemberInfo, Welcome
    from aerix.settings import Settings

State = Literal["ok", "warn", "bad"]
_lookers = count(1)
_LINK_S = 2.0  # it only closes its sockets
_MARKS: dict[State, str] = {"ok": "✓", "warn": "▲", "bad": "✗"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found: a sentence, what to do about it, and its figures for programs."""

    state: State
    found: str
    do: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Looked:
    """What is looked at, and what earlier checks have found of it that later ones need. Absent: they found none."""

    cwd: Path
    overrides: list[str]
    settings_file: Path | None
    settings: "Settings | None" = None
    model: "ResolvedModel | None" = None
    link: "Ref | None" = None
    welcome: "Welcome | None" = None
    refusal: str = ""
    """The code with which the pool refused."""
    member: "MemberInfo | None" = None


Look = Callable[["Actor", Looked], Finding]


@dataclass(frozen=True, slots=True)
class Check:
    """A check: what it is called, what looks, within which limit, and the field of ``Looked`` that it needs."""

    name: str
    look: Look
    limit: "Bound"
    needs: str = ""


def add_parsers(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="what works here, and what to do about what does not",
        description="Looks at everything that a request needs, a line each: ✓ is well, ▲ is worth a look, ✗ is wrong. It starts the "
        "pool and loads the model, as a request would, and fetches nothing.",
        epilog="Exit codes: 0 nothing is wrong; 1 something is; 130 interrupted.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model", metavar="REF", help="look at this model")
    parser.add_argument("--settings", metavar="FILE", help="one more settings file")
    parser.add_argument(
        "-c", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="one setting"
    )
    parser.set_defaults(run=run_doctor)


def run_doctor(args: argparse.Namespace) -> int:
    """Look at everything and tell it; the exit code."""
    from aerix.doctor_checks import CHECKS
    from aerix.exits import DONE, FAILED
    from aerix.live import model_overrides

    before = _end_on_ctrl_c()
    overrides = [*args.overrides, *model_overrides(args.model)]
    looked = Looked(Path.cwd(), overrides, None if args.settings is None else Path(args.settings))
    found: dict[str, Finding] = {}
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    try:
        for check in CHECKS:
            found[check.name] = look(check, looked)
            if not args.json:
                print(_line(check.name, found[check.name]), flush=True)  # noqa: T201 # what the command is for
    finally:
        if looked.link is not None:
            looked.link.stop()
            looked.link.join(_LINK_S)
        signal.signal(signal.SIGINT, before)
    well = all(one.state != "bad" for one in found.values())
    if args.json:
        checks = [{"name": name, **asdict(one)} for name, one in found.items()]
        print(json.dumps({"ok": well, "checks": checks}, indent=2, ensure_ascii=False))  # noqa: T201
    return DONE if well else FAILED


def _end_on_ctrl_c() -> Any:
    """Let Ctrl-C end the process by itself (130 in a shell), and not by an exception: that comes late where the main
    thread has just begun to wait for a check. Nothing has to be put away. Returns what Ctrl-C did before.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return before


def look(check: Check, looked: Looked) -> Finding:
    """What a check finds, whatever becomes of it."""
    from aerix.actors import DeadlineExceeded, Refused, start

    if check.needs and getattr(looked, check.needs) is None:
        return Finding("warn", f"not looked at: without {_WITHOUT[check.needs]} there is nothing to see")
    from aerix.doctor_looker import Looker, LookNow

    looker = start(Looker(check.look, looked), f"doctor:{next(_lookers)}")
    limit = check.limit
    try:
        finding: Finding = looker.ask(LookNow(), limit.value)
    except DeadlineExceeded:
        return Finding(
            "bad", f"it did not end within {limit.value:g} s ({limit.name})", "try again, with less load"
        )
    except Refused as refused:
        return Finding("bad", f"{refused.message} [{refused.code}]")
    finally:
        looker.stop()
    return finding


_WITHOUT = {
    "settings": "settings",
    "model": "a model",
    "link": "a pool",
    "welcome": "a pool",
    "member": "a loaded model",
}


def _line(name: str, found: Finding) -> str:
    from aerix.shown import one_line

    do = f"; {found.do}" if found.do else ""
    return one_line(f"{_MARKS[found.state]} {name}: {found.found}{do}")
