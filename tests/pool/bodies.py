"""Bodies of worker processes that misbehave while they start."""

import os
import signal
from typing import Any

from aerix.actors.child import Channel
from aerix.pool.protocol import CODEC


def fragile(channel: Channel, args: dict[str, Any]) -> None:
    """Die by a signal on every rung above the good one."""
    channel.codec = CODEC
    if args["rung"] < args["good"]:
        os.kill(os.getpid(), signal.Signals[args["signal"]])
    channel.ready({"window": 1})
    channel.receive()


def slow(channel: Channel, args: dict[str, Any]) -> None:
    """Never get ready."""
    channel.receive()
