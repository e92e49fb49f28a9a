"""``aerix pool …``: be the pool, start it, ask it, end it."""

import argparse
from contextlib import suppress
from pathlib import Path
from typing import Any

from aerix.pool.cli_ask import ask_pool, exit_code, pool_settings
from aerix.pool.cli_output import UNREACHABLE, complain, note, out, say, version
from aerix.pool.cli_status import member_lines, run_metrics, run_status


def add_pool(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``pool`` and its commands."""
    pool = subparsers.add_parser("pool", help="run the model pool, or ask the one that runs")
    _add_serving(pool)
    pool.set_defaults(run=run_pool, pool_settings=None)
    commands = pool.add_subparsers(metavar="start | status | metrics | load | unload | stop")
    start = commands.add_parser("start", help="start the pool in the background, unless it runs")
    _add_serving(start, again=True)
    start.set_defaults(run=run_start)
    status = commands.add_parser(
        "status", help="show the members, their windows, restarts, queues and contexts"
    )
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.add_argument(
        "--watch",
        nargs="?",
        type=_interval,
        const=2.0,
        metavar="S",
        help="again every S seconds (2), until Ctrl-C",
    )
    status.add_argument(
        "--actors", action="store_true",
        help="also show what every actor of the daemon does or waits for, and since when: where does it hang?",
    )  # fmt: skip
    _add_socket(status, again=True)
    status.set_defaults(run=run_status)
    metrics = commands.add_parser("metrics", help="print the pool's figures in Prometheus' text format")
    _add_socket(metrics, again=True)
    metrics.set_defaults(run=run_metrics)
    stop = commands.add_parser("stop", help="stop the pool; agents that run lose one prefill each")
    _add_socket(stop, again=True)
    stop.set_defaults(run=run_stop)
    _add_loading(commands)


def _add_loading(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    load = commands.add_parser("load", help="load a model into the pool that runs, or find it loaded")
    load.add_argument("ref", metavar="REF", help="a path, a name of the catalogue, or another reference")
    _add_flags(load, None)
    _add_socket(load, again=True)
    load.set_defaults(run=run_load)
    unload = commands.add_parser("unload", help="unload a member that nobody uses")
    unload.add_argument(
        "name", metavar="NAME", help="the member as `aerix pool status` names it, or its reference"
    )
    _add_socket(unload, again=True)
    unload.set_defaults(run=run_unload)


def _add_socket(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """``--socket``; a command's own parser must not reset what stood before the command."""
    default = argparse.SUPPRESS if again else None
    parser.add_argument("--socket", type=Path, metavar="PATH", default=default, help="the pool's Unix socket")


def _add_serving(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    nothing = argparse.SUPPRESS if again else None
    _add_socket(parser, again=again)
    parser.add_argument(
        "--load", action="append", metavar="REF", default=nothing,
        help="load this model before the socket appears; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--idle-timeout", type=_seconds, metavar="S", default=nothing,
        help="end after S seconds without a connection (1800; 0: never)",
    )  # fmt: skip
    parser.add_argument(
        "--context-budget", type=_bytes, metavar="BYTES", default=nothing,
        help="bytes of snapshots in memory, of all members together; 0: none (a quarter of what may be used)",
    )  # fmt: skip
    parser.add_argument(
        "--prefix-dir", type=Path, metavar="DIR", default=nothing,
        help="where the heads of prompts are kept on disk, for the next pool (in the cache folder)",
    )  # fmt: skip
    _add_flags(parser, nothing)


def _add_flags(parser: argparse.ArgumentParser, nothing: str | None) -> None:
    """The flags of a load; ``nothing`` is what they are when they are not given."""
    for flag, meaning in _NUMBERS.items():
        parser.add_argument(f"--{flag}", type=_count, metavar="N", default=nothing, help=meaning)
    parser.add_argument(
        "--template",
        type=Path,
        metavar="FILE",
        default=nothing,
        help="a chat template in place of the model's own, or the name of one that Aerix brings",
    )


_NUMBERS = {
    "window": "rows a context may take",
    "cells": "rows of all contexts together",
    "max-batch": "generations at once in a batch",
    "batch": "rows computed in one step",
    "threads": "threads to compute with",
    "memory": "bytes that the rows may take",
}


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (value := float(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")


def _interval(text: str) -> float:
    value = _seconds(text)
    if value < 0.1:
        raise argparse.ArgumentTypeError("less than 0.1 seconds is no interval")
    return value


def _bytes(text: str) -> int:
    with suppress(ValueError):
        if (value := int(text)) >= 0:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a number of bytes")


def _count(text: str) -> int:
    with suppress(ValueError):
        if (value := int(text)) >= 1:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a positive number")


# --- aerix pool ---------------------------------------------------------------------------------------------------


def run_pool(args: argparse.Namespace) -> int:
    """``aerix pool``: be the pool, in the foreground, until it is stopped."""
    from aerix.actors import Refused
    from aerix.actors.log import configure
    from aerix.pool.address import state_dir
    from aerix.pool.bounds import IDLE
    from aerix.pool.daemon import serve
    from aerix.pool.members import PoolOptions

    configure(state_dir() / "pool.log")
    try:
        options = PoolOptions(
            socket=pool_settings(args).socket.absolute(),
            load=tuple(_fetched(ref) for ref in args.load or ()),
            flags=tuple((_load_flags(args) | _prefix_dir(args)).items()),
            idle_timeout_s=IDLE.value if args.idle_timeout is None else args.idle_timeout,
            version=version(),
            context_budget=args.context_budget,
        )
    except Refused as refusal:
        return complain(refusal.message, UNREACHABLE)
    return serve(options, say)


def _fetched(ref: str) -> Any:
    from aerix.pool.models import ensure_model

    return ensure_model(ref, say)


def _prefix_dir(args: argparse.Namespace) -> dict[str, str]:
    return {} if args.prefix_dir is None else {"prefix_dir": str(args.prefix_dir.absolute())}


def _load_flags(args: argparse.Namespace) -> dict[str, Any]:
    names = [flag.replace("-", "_") for flag in _NUMBERS]
    flags: dict[str, Any] = {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.template is not None:
        flags["template"] = str(args.template) if _is_built_in(args.template) else _text_of(args.template)
    return flags


def _is_built_in(template: Path) -> bool:
    from aerix.pool.builtin import BUILT_IN

    return str(template) in BUILT_IN


def _text_of(template: Path) -> str:
    from aerix.actors import Refused
    from aerix.pool.builtin import BUILT_IN

    try:
        text = template.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        names = ", ".join(BUILT_IN)
        raise Refused(
            "bad_flags", f"the template {template} cannot be read: {why}; give a file, or one of {names}"
        ) from None
    if not text.strip():  # it would be as if there were none
        raise Refused("bad_flags", f"the template {template} is empty")
    return text


def run_start(args: argparse.Namespace) -> int:
    """``aerix pool start``: find a pool, or start one and wait until it answers."""
    from aerix.actors import Refused
    from aerix.pool.client import Connect
    from aerix.pool.models import ensure_model
    from aerix.pool.starter import started

    try:
        loads = [ensure_model(ref, note).name for ref in args.load or ()]
        flags = _start_flags(args)
        settings = pool_settings(args, load=tuple(loads), flags=tuple(flags))
        welcome = ask_pool(settings, Connect(), settings.start_timeout_s + 1)
    except Refused as refusal:
        return complain(refusal.message, exit_code(refusal))
    out(f"the pool answers on {settings.socket} (process {welcome.pid})")
    if (loads or flags) and welcome.pid not in started:
        note("it ran already, and took none of these flags: `aerix pool load REF` loads one more model")
    return 0


def _start_flags(args: argparse.Namespace) -> list[str]:
    flags = [] if args.idle_timeout is None else ["--idle-timeout", f"{args.idle_timeout:g}"]
    if args.context_budget is not None:
        flags += ["--context-budget", str(args.context_budget)]
    if args.prefix_dir is not None:
        flags += ["--prefix-dir", str(args.prefix_dir.absolute())]
    for flag in _NUMBERS:
        if (value := getattr(args, flag.replace("-", "_"))) is not None:
            flags += [f"--{flag}", str(value)]
    if args.template is not None:
        template = args.template if _is_built_in(args.template) else args.template.absolute()
        flags += ["--template", str(template)]
    return flags


def run_stop(args: argparse.Namespace) -> int:
    """``aerix pool stop``: ask it to go; a pool that does not answer, or has not come up yet, gets SIGTERM, then SIGKILL."""
    from aerix.pool.stop import stop_pool

    return stop_pool(pool_settings(args, autostart=False), out, lambda text: complain(text, UNREACHABLE))


def run_load(args: argparse.Namespace) -> int:
    """``aerix pool load REF``: load a model, or find it loaded."""
    from aerix.actors import Refused
    from aerix.pool.models import ensure_model
    from aerix.pool.protocol import MemberLoad

    settings = pool_settings(args, autostart=False)
    try:
        model = ensure_model(args.ref, note)
        file = str(model.path) if model.kind == "gguf" else ""
        request = MemberLoad(0, model.name, _load_flags(args), file)
        member = ask_pool(settings, request, settings.start_timeout_s + 1).member
    except Refused as refusal:
        return complain(refusal.message, exit_code(refusal))
    out("\n".join(member_lines(member)).strip())
    return 0


def run_unload(args: argparse.Namespace) -> int:
    """``aerix pool unload NAME``: end a member that nobody uses."""
    from aerix.actors import Refused
    from aerix.pool.bounds import CONTROL
    from aerix.pool.protocol import MemberUnload

    name = _member_name(args.name)
    try:
        ask_pool(pool_settings(args, autostart=False), MemberUnload(0, name), CONTROL.value + 1)
    except Refused as refusal:
        return complain(refusal.message, exit_code(refusal))
    out(f"{name} is unloaded")
    return 0


def _member_name(text: str) -> str:
    """A member's name, also where its reference was given as the user writes it."""
    from aerix.actors import Refused
    from aerix.pool.models import resolve

    try:
        return resolve(text).name
    except Refused:  # a name with flags, or of a file that is gone
        return text
