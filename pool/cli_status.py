"""``aerix pool status`` and ``aerix pool metrics``: the pool seen from outside."""

import argparse
from typing import TYPE_CHECKING

from aerix.pool.cli_ask import ask_pool, exit_code, pool_settings
from aerix.pool.cli_output import complain, out

if TYPE_CHECKING:
    from aerix.pool.protocol import MemberInfo, PoolStatus


def run_status(args: argparse.Namespace) -> int:
    """``aerix pool status``: what the pool holds and does; with ``--watch`` again and again, until Ctrl-C."""
    import sys
    import threading

    from aerix.actors import Refused

    live = args.watch is not None and not args.json and sys.stdout.isatty()
    while True:
        try:
            text = _status_text(args)
        except Refused as refusal:
            return complain(refusal.message, exit_code(refusal))
        out(f"\x1b[H\x1b[2J{text}" if live else text)
        if args.watch is None:
            return 0
        sys.stdout.flush()
        threading.Event().wait(args.watch)


def run_metrics(args: argparse.Namespace) -> int:
    """``aerix pool metrics``: the figures in Prometheus' text format."""
    from aerix.actors import Refused
    from aerix.pool.metrics import metrics

    try:
        text = metrics(_ask_status(args, actors=False))
    except Refused as refusal:
        return complain(refusal.message, exit_code(refusal))
    out(text.rstrip("\n"))
    return 0


def _ask_status(args: argparse.Namespace, *, actors: bool) -> "PoolStatus":
    from aerix.pool.bounds import CONTROL
    from aerix.pool.protocol import PoolStatus, Status

    settings = pool_settings(args, autostart=False)
    status = ask_pool(settings, Status(0, actors), CONTROL.value + 1)
    assert isinstance(status, PoolStatus)
    return status


def _status_text(args: argparse.Namespace) -> str:
    status = _ask_status(args, actors=args.actors)
    if not args.json:
        return "\n".join([*_status_lines(status), *(_actor_lines(status) if args.actors else ())])
    import json

    from aerix.pool.protocol import CODEC

    plain = CODEC.encode(status)
    unasked = ("type", "id") if args.actors else ("type", "id", "actors")
    return json.dumps({key: value for key, value in plain.items() if key not in unasked})


def _actor_lines(status: "PoolStatus") -> list[str]:
    from aerix.actors.dump import actor_lines

    if status.actors is None:
        return [
            "the pool is of an older release, which tells nothing of its actors: run `aerix pool stop`, then again"
        ]
    return actor_lines(status.actors)


def _status_lines(status: "PoolStatus") -> list[str]:
    up = f"up {_duration(status.uptime_secs)}"
    head = f"pool {status.pool} on {status.socket}: process {status.pid}, {up}, connections: {status.connections}"
    return [head, *(line for member in status.members for line in member_lines(member))] + (
        [] if status.members else ["no member is loaded"]
    )


def member_lines(member: "MemberInfo") -> list[str]:
    """A member as ``status`` and ``load`` show it."""
    about = ", counts ≈" if member.estimated else ""
    numbers = (
        f"window {member.window}{about}, cells {member.cells}, threads {member.threads}, contexts {member.contexts}, "
        f"running {member.running}, waiting {member.waiting}, restarts {member.restarts}, process {member.pid}"
    )
    last = f"last restart: {member.restarted}" if member.restarted and member.restarted != member.note else ""
    lines = (*_work_lines(member), *_shelf_lines(member), member.settings, member.note, last)
    notes = [f"    {note}" for note in lines if note]
    return [f"  {member.name}: {member.state}", f"    {numbers}", *notes]


def _work_lines(member: "MemberInfo") -> list[str]:
    """What it has done, and how fast."""
    done = member.totals
    if not done.generations and not done.refused:
        return []
    filled = done.prompt_tokens - done.resumed_tokens
    prompts = f"prompts {done.prompt_tokens} tokens, {done.resumed_tokens} of them resumed"
    drafted = f", {done.drafted_tokens} of them drafted" if done.drafted_tokens else ""
    return [
        f"generations {done.generations} ({done.cancelled} cancelled), refused {done.refused}",
        f"{prompts}, the others {_rate(filled, done.fill_ms)}",
        f"generated {done.generated_tokens} tokens{drafted}, {_rate(done.generated_tokens, done.decode_ms)}",
    ]


def _shelf_lines(member: "MemberInfo") -> list[str]:
    """What is kept of prompts, once something is."""
    from aerix.pool.fit import size

    return [
        f"kept {_PLACES[shelf.name]}: {size(shelf.bytes)} of {size(shelf.limit)}, entries {shelf.entries}, "
        f"hits {shelf.hits}, misses {shelf.misses}"
        for shelf in member.shelves
        if any(one.entries or one.misses for one in member.shelves)
    ]


_PLACES = {"resident": "in the cache", "memory": "in memory", "disk": "on disk"}


def _rate(tokens: int, ms: float) -> str:
    return f"{tokens / ms * 1000:.1f} a second" if ms else "at no measured rate"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
