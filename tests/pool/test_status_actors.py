"""`aerix pool status --actors`: what hangs in a daemon, and since when; also while what is asked about hangs."""

import json
import os
import re
import signal
import socket as socket_module
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from aerix.actors.wire import FrameReader, pack
from aerix.pool.protocol import VERSION
from tests.conftest import ROOT
from tests.pool.daemons import PATIENCE, Daemon, Scripts, Wire, script, wire  # noqa: F401
from tests.pool.test_cli import aerix

HANGING_DAEMON = """
import sys, threading
from pathlib import Path
import aerix.pool.members as members
import aerix.pool.protocol as p
from aerix.actors import on
from aerix.actors.log import configure
from aerix.pool.daemon import serve
from aerix.pool.member import Member
from aerix.pool.models import resolve

def hang():
    say("it hangs")
    threading.Event().wait()

class Hanging(Member):
    def unhandled(self, message):
        if isinstance(message, p.ContextCreate) and message.segments[0].text == "hang":
            hang()
        return super().unhandled(message)

def hang_where_told(ref):
    if ref == "hang":
        hang()
    return resolve(ref)

def say(text):
    print(text, file=sys.stderr, flush=True)

members.Member, members.resolve = Hanging, hang_where_told
configure(Path(sys.argv[2]))
load = tuple(resolve(ref) for ref in sys.argv[3:])
sys.exit(serve(members.PoolOptions(Path(sys.argv[1]), load), say))
"""


@pytest.fixture
def socket(runtime_dir: Path) -> Path:
    return runtime_dir / "aerix/pool.sock"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[TextIO]:
    """What comes into the daemon's log, for a test to wait on."""
    os.mkfifo(tmp_path / "pool.log")
    # Its writing end stays open: no end comes.
    with open(os.open(tmp_path / "pool.log", os.O_RDWR)) as lines:  # noqa: PTH123 - it is a descriptor
        yield lines


@pytest.fixture
def refs(script: Scripts) -> list[str]:  # noqa: F811
    return [script(), script()]


@pytest.fixture
def daemon(socket: Path, log: TextIO, tmp_path: Path, refs: list[str]) -> Iterator[Daemon]:
    """A daemon with two members; a member hangs at a context, and the supervisor of members at a load, named hang."""
    socket.parent.mkdir(mode=0o700)
    env = os.environ | {"AERIX_BOUND_POOL_MEMBERS_WAIT": "0.3", "AERIX_BOUND_POOL_STATUS_ALONE": "0.6"}
    with subprocess.Popen(
        [sys.executable, "-c", HANGING_DAEMON, str(socket), str(tmp_path / "pool.log"), *refs],
        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=env, cwd=ROOT,
    ) as process:  # fmt: skip
        try:
            one = Daemon(process, socket)
            one.read_until("ready on")
            yield one
        finally:
            process.kill()


def line_of(name: str, text: str) -> str:
    (found,) = [line for line in text.splitlines() if f" {name}#" in line]
    return found


@pytest.fixture
def hung(daemon: Daemon, refs: list[str], socket: Path, wire: Callable[..., Wire]) -> Wire:  # noqa: F811
    """A connection that waits for a context on the first member, which hangs."""
    one = wire(socket)
    one.hello()
    one.send("ContextCreate", member=refs[0], segments=[{"id": "u", "role": "user", "text": "hang"}])
    daemon.read_until("it hangs")
    return one


@pytest.mark.rule("actors.dump")
@pytest.mark.rule("pool.status-actors")
@pytest.mark.bound("pool.members-wait")
@pytest.mark.rule("pool.status-silent")
def test_with_a_member_that_hangs_the_status_says_who_hangs_in_what_since_when_and_who_waits(
    hung: Wire, refs: list[str]
) -> None:
    told = aerix("pool", "status", "--actors")
    assert (told.returncode, told.stderr) == (0, "")
    assert f"  {refs[0]}: failed\n" in told.stdout
    assert "    it does not answer; what it does: aerix pool status --actors\n" in told.stdout
    assert f"  {refs[1]}: ready\n" in told.stdout, "the other tells as ever"
    assert "\nactors: " in told.stdout
    assert re.search(r"^ *\d\.\d  member:", line_of(f"member:{refs[0]}", told.stdout))
    assert line_of(f"member:{refs[0]}", told.stdout).endswith(" ContextCreate")
    assert f"has asked ContextCreate to member:{refs[0]} (" in line_of("connection:1", told.stdout)
    assert re.search(r"idle; its process \d+ works on 0 calls$", line_of(f"worker:{refs[1]}", told.stdout))


def test_the_status_as_json_holds_the_actors_where_they_are_asked_for(hung: Wire, refs: list[str]) -> None:
    assert "actors" not in json.loads(aerix("pool", "status", "--json").stdout)
    told = json.loads(aerix("pool", "status", "--json", "--actors").stdout)
    first = told["actors"][0]
    assert (first["name"], first["does"], first["kind"]) == (f"member:{refs[0]}", "ContextCreate", "Hanging")


@pytest.mark.bound("pool.status-alone")
@pytest.mark.rule("pool.status-actors")
def test_when_the_supervisor_of_the_members_hangs_the_status_comes_without_their_word(
    daemon: Daemon,
    socket: Path,
    refs: list[str],
    wire: Callable[..., Wire],  # noqa: F811
) -> None:
    one = wire(socket)
    one.hello()
    one.send("MemberLoad", ref="hang")
    daemon.read_until("it hangs")
    told = aerix("pool", "status", "--actors")
    assert told.returncode == 0
    assert all(f"  {ref}: failed\n" in told.stdout for ref in refs)
    assert f"pool 0 on {socket}: process {daemon.process.pid}, up " in told.stdout
    assert "connections: 2" in told.stdout
    assert " MemberLoad" in line_of("members", told.stdout)


@pytest.mark.rule("actors.dump")
def test_a_signal_writes_a_hanging_daemons_dump_into_its_log(
    daemon: Daemon, hung: Wire, log: TextIO, refs: list[str]
) -> None:
    daemon.process.send_signal(signal.SIGUSR1)
    told = next(line for line in map(json.loads, log) if line["event"] == "actors.dump")
    assert line_of(f"member:{refs[0]}", told["dump"]).endswith(" ContextCreate")
    assert "in unhandled" in told["dump"], "the traceback of the member's thread"
    assert daemon.process.poll() is None


def old_pool(listener: "socket_module.socket") -> None:
    """Answers one connection as a pool of the first release does."""
    answers: dict[str, dict[str, Any]] = {
        "Hello": {"type": "Welcome", "version": VERSION, "pool": "0.1.0", "pid": os.getpid(), "owner": "1-a"},
        "Status": {
            "type": "PoolStatus", "pool": "0.1.0", "pid": os.getpid(), "uptime_secs": 1.0, "socket": "s", "connections": 1,
            "members": [],
        },
    }  # fmt: skip
    sock, _ = listener.accept()
    reader = FrameReader()
    with sock:
        while data := sock.recv(65536):
            for frame in reader.feed(data):
                sock.sendall(pack({**answers[frame["type"]], "id": frame.get("id", 0)}))


def test_a_pool_that_is_too_old_to_tell_is_said_to_be(socket: Path) -> None:
    socket.parent.mkdir(mode=0o700)
    with socket_module.socket(socket_module.AF_UNIX) as listener:
        listener.bind(str(socket))
        listener.listen()
        serving = threading.Thread(target=old_pool, args=(listener,))
        serving.start()
        told = aerix("pool", "status", "--actors")
        serving.join(PATIENCE)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.endswith(
        "\nthe pool is of an older release, which tells nothing of its actors: run `aerix pool stop`, then again\n"
    )
