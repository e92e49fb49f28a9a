"""How a command asks the pool one thing."""

import argparse
from typing import TYPE_CHECKING, Any

from aerix.pool.cli_output import FAILED, UNREACHABLE

if TYPE_CHECKING:
    from aerix.pool.client import PoolSettings


def pool_settings(args: argparse.Namespace, **changes: Any) -> "PoolSettings":
    """The pool that a command is about; ``changes`` are fields of the settings."""
    from dataclasses import replace

    from aerix.pool.address import default_socket
    from aerix.pool.client import PoolSettings

    known = args.pool_settings or PoolSettings(default_socket())
    if args.socket is not None:
        changes["socket"] = args.socket.absolute()
    return replace(known, **changes)


def ask_pool(settings: "PoolSettings", request: Any, deadline_s: float) -> Any:
    """Ask the pool one thing. Raises Refused."""
    from aerix.actors import DeadlineExceeded, Refused, start
    from aerix.pool.client import PoolLink
    from aerix.pool.patience import patience

    link = start(PoolLink(settings), "pool-link")
    try:
        with patience(f"waiting for the pool on {settings.socket}, at most {deadline_s:.0f} s"):
            return link.ask(request, deadline_s)
    except DeadlineExceeded as error:
        raise Refused("pool_silent", str(error)) from None
    finally:
        link.stop()
        link.join(1.0)


def exit_code(refusal: Any) -> int:
    """What a command ends with that was refused."""
    from aerix.pool.client import POOL_UNREACHABLE

    return UNREACHABLE if refusal.code in POOL_UNREACHABLE else FAILED
