"""Starting bubblewrap as root: in a user namespace of its own, so that it can do nothing to processes and mounts outside, in
which all users are who they are, so that files keep their owners.

bubblewrap by itself maps root alone; so it is told to wait until the namespace of the process that it names is mapped.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aerix.actors.mailbox import wait_readable
from aerix.bounds import SANDBOX_PROBE

_INFO = 4096
_CHILD = re.compile(rb'"child-pid": *([0-9]+)')


KEPT = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_SETUID", "CAP_SETGID")
"""What root keeps: to use the files of others, and to become one of them."""


def start_mapped(program: str, words: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start it; ``options`` are those of ``Popen``. Where it cannot be mapped, it ends by itself and says why."""
    kept = [word for name in KEPT for word in ("--cap-add", name)]
    told, tell = os.pipe()
    wait, go_on = os.pipe()
    try:
        waiting = [
            "--cap-drop",
            "ALL",
            *kept,
            "--unshare-user",
            "--userns-block-fd",
            str(wait),
            "--info-fd",
            str(tell),
        ]
        process = subprocess.Popen([program, *waiting, *words], pass_fds=(wait, tell), **options)
        os.close(tell)
        tell = -1
        if child := _child(told):
            with suppress(OSError):
                _map(child)
        return process
    finally:
        for descriptor in (told, tell, wait, go_on):
            if descriptor >= 0:
                os.close(descriptor)


def _child(told: int) -> int:
    """The process that bubblewrap names; 0 where it ends before. All that it says is read: a closed pipe would end it."""
    said = b""
    while b"}" not in said and wait_readable(told, SANDBOX_PROBE.value) and (data := os.read(told, _INFO)):
        said += data
    found = _CHILD.search(said)
    return int(found[1]) if found else 0


def _map(pid: int) -> None:
    """Every user and group is the same inside as here."""
    for kind in ("uid_map", "gid_map"):
        ranges = [line.split() for line in Path("/proc/self", kind).read_text().splitlines()]
        same = "".join(f"{inside} {inside} {count}\n" for inside, _, count in ranges)
        with Path("/proc", str(pid), kind).open("w") as file:
            file.write(same)
