"""The pool under random traffic and random kills: nothing hangs, no word is wrong, nothing is left behind.

``SOAK_SECONDS`` sets how long; a tenth of it is calm, to see what grows.
"""

import json
import os
import random
import selectors
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from aerix.actors import Actor, Ref, Refused, start
from aerix.actors.os_linux import children
from aerix.pool import protocol as p
from aerix.pool.client import Connect, PoolLink
from tests.pool.daemons import PATIENCE, Do, Runner, Scripts
from tests.pool.soaker import Client, Plan, settings
from tests.pool.test_daemon import descriptors
from tests.pool.test_line import resident

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
SILENCE = 150.0  # seconds without a word of a client: it hangs
CLIENTS = 4
MIB = 1024 * 1024
PROMPTS = [  # in whose answers each token leads by 1.0 or more: nearer ones change places in batches of other sizes
    "Write a Python function that returns the sum of a list.",
    "Copy this line exactly: A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
    "Repeat: the cat sat on the mat. the cat sat on the mat. the cat sat on the mat.",
    "Repeat this word for word: Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.",
]


class Soaker:
    """A client process, and when it last said something."""

    def __init__(self, plan: Path, seed: int) -> None:
        command = [sys.executable, "-m", "tests.pool.soaker", str(plan), str(seed)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.heard = monotonic()
        self.rest = b""

    def lines(self) -> list[str]:
        assert self.process.stdout is not None
        data = self.process.stdout.read() or b""
        *whole, self.rest = (self.rest + data).split(b"\n")
        if whole:
            self.heard = monotonic()
        return [line.decode() for line in whole]

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


class Soak:
    """Clients that ask, and a hand that kills."""

    def __init__(self, plan: Path, link: Ref, seed: int) -> None:
        self._plan, self._link = plan, link
        self._rng = random.Random(seed)
        self._clients: list[Soaker] = []
        self._selector = selectors.DefaultSelector()
        self.done: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()

    def start(self) -> None:
        one = Soaker(self._plan, self._rng.randrange(2**31))
        self._clients.append(one)
        assert one.process.stdout is not None
        self._selector.register(one.process.stdout, selectors.EVENT_READ, one)

    def run(self, seconds: float, *, kill: bool) -> None:
        """Keep so many clients busy for that long."""
        end = monotonic() + seconds
        strike = monotonic() + 1
        while (now := monotonic()) < end:
            while len(self._clients) < CLIENTS:
                self.start()
            for key, _ in self._selector.select(max(0.0, min(end, strike) - now)):
                self._hear(key.data)
            for one in self._clients:
                assert monotonic() - one.heard < SILENCE, "a client hangs"
            if monotonic() >= strike:
                strike = monotonic() + self._rng.uniform(0.5, 6)
                if kill:
                    self._strike()

    def _hear(self, one: Soaker) -> None:
        for line in one.lines():
            assert not line.startswith("WRONG"), line
            self.done[line] += 1
        if one.process.poll() is not None:
            raise AssertionError(f"a client ended with {one.process.returncode}")

    def _strike(self) -> None:
        what = self._rng.choice(["worker", "worker", "client", "daemon", "term"])
        self.killed[what] += 1
        if what == "client":
            one = self._rng.choice(self._clients)
            one.process.kill()
            self._forget(one)
            return
        with suppress(Refused, ProcessLookupError):
            status: p.PoolStatus = self._link.ask(p.Status(0), PATIENCE)
            workers = [member.pid for member in status.members if member.pid]
            if what == "worker" and workers:
                os.kill(self._rng.choice(workers), signal.SIGKILL)
            elif what != "worker":
                os.kill(status.pid, signal.SIGKILL if what == "daemon" else signal.SIGTERM)

    def _forget(self, one: Soaker) -> None:
        assert one.process.stdout is not None
        self._selector.unregister(one.process.stdout)
        self._clients.remove(one)
        one.close()
        one.process.wait()

    def finish(self) -> None:
        """Let everybody end what it does."""
        for one in self._clients:
            assert one.process.stdin is not None
            one.process.stdin.close()
        for one in list(self._clients):
            assert one.process.wait(SILENCE) == 0
            for line in one.lines():
                self.done[line] += 1
            self._forget(one)

    def close(self) -> None:
        for one in list(self._clients):
            one.process.kill()
            self._forget(one)
        self._selector.close()


@pytest.fixture
def plan(script: Scripts, runtime_dir: Path, model_file: Path) -> Plan:
    turns = [f"Part {n}: " + "the fox runs over the hill and sees the river. " * 3 for n in range(4)]
    steps: list[dict[str, Any]] = [
        {"match": "story", "text": text, "per_token_delay": 0.001} for text in turns
    ]
    scripted = script(*steps, window=2048)
    return Plan(str(runtime_dir / "pool.sock"), scripted, str(model_file), turns, PROMPTS, [])


@pytest.fixture
def link(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ref]:
    """A link for the test itself: it watches, and stops the pool."""
    for name, value in {
        "MEMBER_RESTARTS": "1000000",
        "MEMBER_DELAY": "0.01",
        "AUTOSTART_EVERY": "0.05",
    }.items():
        monkeypatch.setenv(f"AERIX_BOUND_POOL_{name}", value)
    monkeypatch.setenv("AERIX_BOUND_SUPERVISOR_DELAY", "0.1")
    ref = start(PoolLink(settings(plan)), "watcher")
    yield ref
    stop(ref)
    ref.stop()
    assert ref.join(PATIENCE)


def undisturbed(plan: Plan, runner: Ref) -> Plan:
    """The plan, with the answers of a pool that nothing happens to."""
    link = start(PoolLink(settings(plan)), "calm")
    client = Client(plan, link, random.Random(0))

    def work(me: Actor) -> Plan:
        return replace(plan, answers=[client.ask_real(me, at).text for at in range(len(plan.prompts))])

    found: Plan = runner.ask(Do(work), 4 * PATIENCE)
    link.stop()
    assert link.join(PATIENCE)
    return found


@pytest.mark.soak
@pytest.mark.timeout(2 * SECONDS + 600)
@pytest.mark.rule("pool.soak")
def test_nothing_hangs_is_wrong_or_left_behind_under_random_kills(
    plan: Plan, link: Ref, tmp_path: Path
) -> None:
    runner = start(Runner(), "soak-runner")
    plan = undisturbed(plan, runner)
    runner.stop()
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(asdict(plan)))
    seed = random.randrange(2**31)
    print(f"\nseed {seed}")
    soak = Soak(file, link, seed)
    try:
        soak.run(SECONDS * 0.9, kill=True)
        soak.finish()
        stormy = soak.done.copy()
        soak.run(SECONDS * 0.05, kill=False)
        before = figures(link)
        soak.run(SECONDS * 0.05, kill=False)
        after = figures(link)
        soak.finish()
        settled(link)
    finally:
        soak.close()
    given_up = sum(count for line, count in soak.done.items() if "given up" in line)
    print(f"killed {dict(soak.killed)}; done {dict(soak.done)}; given up {given_up}")
    print(f"before the calm {before}, after it {after}")
    assert sum(stormy.values()) > len(soak.killed)
    assert not any("given up" in line for line in (soak.done - stormy)), "nothing is given up in the calm"
    for name, size in after.items():
        assert size < before[name] + 64 * MIB, name
    if SECONDS >= 60:
        assert soak.done.keys() >= {"scripted", "cancelled", "real", "held_to_json", "chosen"}


def figures(link: Ref) -> dict[str, int]:
    """The memory of the daemon and of its workers, in bytes."""
    link.ask(Connect(), PATIENCE)
    status: p.PoolStatus = link.ask(p.Status(0), PATIENCE)
    return {"daemon": resident(status.pid), **{m.name: resident(m.pid) for m in status.members}}


def settled(link: Ref) -> None:
    """Nothing of the clients is left in the pool, and every cell can be used."""
    end = monotonic() + PATIENCE
    while True:
        status: p.PoolStatus = link.ask(p.Status(0), PATIENCE)
        busy = [m for m in status.members if m.contexts or m.running or m.waiting or m.state != "ready"]
        if status.connections == 1 and not busy:
            break
        assert monotonic() < end, status
    living = {pid for pid in children(status.pid) if b"resource_tracker" not in command(pid)}
    assert living == {member.pid for member in status.members}
    assert descriptors(status.pid) < 60
    for member in status.members:
        text = "word " * (member.window // 8)
        state = link.ask(p.ContextCreate(0, member.name, [p.Segment("u", "user", f"story {text}")]), PATIENCE)
        reply = member.window - state.tokens - state.opening
        link.ask(p.Generate(0, state.context, min(reply, 400)), 4 * PATIENCE)
        link.ask(p.ContextDrop(0, state.context), PATIENCE)


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def stop(link: Ref) -> None:
    """Stop the pool, whose ever it is, and wait for its end."""
    link.ask(Connect(), PATIENCE)
    status: p.PoolStatus = link.ask(p.Status(0), PATIENCE)
    with suppress(Refused):
        link.ask(p.StopPool(0), PATIENCE)
    end = monotonic() + PATIENCE
    while Path(f"/proc/{status.pid}/cmdline").exists() and Path(f"/proc/{status.pid}/cmdline").read_bytes():
        assert monotonic() < end
