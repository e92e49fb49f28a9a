"""Stopping a pool, also one that does not answer: a request, then signals to the process that holds the socket's lock."""

import os
import select
import signal
from collections.abc import Callable

from aerix.actors import DeadlineExceeded, Refused, start
from aerix.actors.os_linux import pidfd_open, signal_process
from aerix.pool.address import holder
from aerix.pool.bounds import STOP_WAIT
from aerix.pool.client import PoolLink, PoolSettings
from aerix.pool.patience import patience
from aerix.pool.protocol import StopPool


def stop_pool(settings: PoolSettings, say: Callable[[str], None], complain: Callable[[str], int]) -> int:
    """Stop the pool on ``settings.socket`` and wait until its process is gone; the exit code."""
    try:
        pid = holder(settings.socket)
    except OSError as error:
        return complain(f"the pool's socket {settings.socket} cannot be used: {error.strerror}")
    if pid is None:
        return complain(f"no pool answers on {settings.socket}: there is nothing to stop")
    try:
        process = pidfd_open(pid)
    except ProcessLookupError:
        say(f"the pool on {settings.socket} has just ended")
        return 0
    try:
        if _ask_to_stop(settings) and _gone(process):
            say(f"the pool on {settings.socket} has stopped (process {pid})")
            return 0
        for sig in (signal.SIGTERM, signal.SIGKILL):
            signal_process(process, sig)
            if _gone(process):
                say(
                    f"the pool on {settings.socket} did not answer and was ended with {sig.name} (process {pid})"
                )
                return 0
        return complain(f"process {pid}, the pool on {settings.socket}, could not be ended")
    finally:
        os.close(process)


def _ask_to_stop(settings: PoolSettings) -> bool:
    link = start(PoolLink(settings), "pool-link")
    try:
        with patience(f"waiting for the pool on {settings.socket} to stop, then it is killed"):
            link.ask(StopPool(0), STOP_WAIT.value)
    except (Refused, DeadlineExceeded):
        return False
    finally:
        link.stop()
    return True


def _gone(process: int) -> bool:
    return bool(select.select([process], [], [], STOP_WAIT.value)[0])
