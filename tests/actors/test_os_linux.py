"""What only Linux has: pidfds, parent-death signals, process groups, and finding descendants."""

import os
import select
import signal
import socket
import subprocess
import sys

import pytest

from aerix.actors import os_linux
from tests.actors.bodies import PATIENCE

SLEEPER = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]


def sleeper(**options: object) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(SLEEPER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    assert process.stdout.readline()
    return process  # type: ignore[no-any-return]


def over(process: "subprocess.Popen[bytes]") -> int:
    with process:
        process.kill()
        return process.wait(PATIENCE)


def run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_a_pidfd_becomes_readable_when_the_process_ends() -> None:
    process = sleeper()
    pidfd = os_linux.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(0) == []
    os_linux.signal_process(pidfd, signal.SIGKILL)
    assert poll.poll(PATIENCE * 1000)
    assert over(process) == -signal.SIGKILL
    os_linux.signal_process(pidfd, signal.SIGKILL)  # it is gone, and that is fine
    os.close(pidfd)


def test_a_group_is_signalled_and_an_empty_one_is_told() -> None:
    process = sleeper(start_new_session=True)
    assert os_linux.signal_group(process.pid, signal.SIGTERM)
    assert process.wait(PATIENCE) == -signal.SIGTERM
    assert not os_linux.signal_group(process.pid, signal.SIGTERM)
    over(process)


def test_children_and_descendants_are_found() -> None:
    child = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    assert child.pid in os_linux.children(os.getpid())
    assert grandchild not in os_linux.children(os.getpid())
    assert os_linux.children(child.pid) == [grandchild]
    found = os_linux.descendants(os.getpid())
    assert found.index(child.pid) < found.index(grandchild)
    os.killpg(child.pid, signal.SIGKILL)
    with child:
        child.wait(PATIENCE)
    assert os_linux.descendants(child.pid) == []


@pytest.mark.rule("process.dies-with-owner")
def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    ended = run(
        "import signal; from aerix.actors.os_linux import *; die_with_parent(signal.SIGKILL, 1); print('alive')"
    )
    assert (ended.returncode, ended.stdout) == (70, "")


@pytest.mark.rule("process.subreaper")
@pytest.mark.rule("process.escapee-killed")
def test_a_sweep_ends_every_descendant_wherever_it_went() -> None:
    """Orphans in sessions of their own, one that ignores TERM, one below a child that lives; zombies are reaped."""
    ended = run(
        "import os, signal, subprocess\n"
        "from aerix.actors.os_linux import adopt_orphans, descendants, sweep\n"
        "adopt_orphans()\n"
        "escape = 'setsid sh -c \"trap : TERM; setsid sleep 600 & echo; exec sleep 600\" & exit'\n"
        "shells = [subprocess.Popen(['sh', '-c', escape], stdout=subprocess.PIPE) for _ in range(3)]\n"
        "for shell in shells: shell.stdout.readline(); shell.wait()\n"
        "child = subprocess.Popen(['sh', '-c', 'sleep 600 & echo; wait'], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(len(sweep()), descendants(os.getpid()), sweep())\n"
    )
    assert (ended.stdout, ended.stderr) == ("8 [] []\n", "")


def test_the_user_at_the_other_end_of_a_socket_is_known() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert os_linux.peer_uid(one) == os.getuid()
