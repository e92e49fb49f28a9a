"""Requests in tests: scripted models that play by name, the real daemon they run in, and `aerix -p` from start to end.

``Desk`` runs a request in this process, with its real parts, where a test wants to see or break one of them; ``Aerix``
runs the program.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from aerix.actors import Actor, ChildSpec, Ref, StartChild, Supervisor, on, start
from aerix.agent.request import Request, RequestPlaces, RequestSpec, Run
from aerix.live import _living
from aerix.pool.client import PoolLink, PoolSettings
from aerix.pool.protocol import PoolStatus, Sampling, Segment, Status
from aerix.session import replay as session_replay
from aerix.session.events import ROOT, Event, SessionEnd, SessionStart
from aerix.session.log import SessionLog
from aerix.session.show import Show
from tests.pool.daemons import AERIX, PATIENCE, Daemons

Line = dict[str, Any]
Step = dict[str, Any]


# --- scripted models ----------------------------------------------------------------------------------------------


def call(tool: str, **values: Any) -> Step:
    return {"tool": tool, "input": values}


def calls(*made: Step, thought: str = "On it.", **extra: Any) -> Step:
    return {"turn": {"thought": thought, "calls": list(made)}, **extra}


def final(text: str = "done.", **extra: Any) -> Step:
    return {"turn": {"thought": "I know.", "final": text}, **extra}


def play(folder: Path, plays: dict[str, list[Step]], **header: Any) -> str:
    """A scripted model that answers the prompt ``play NAME`` with the steps of that name; its reference."""
    return script(folder, [(rf"play {name}\b", steps) for name, steps in plays.items()], **header)


def script(folder: Path, groups: list[tuple[str, list[Step]]], **header: Any) -> str:
    """A scripted model that answers each context with the steps of the first group whose pattern it matches."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "plays.jsonl"
    lines = [header, *({"match": match, **step} for match, steps in groups for step in steps)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{path}"


# --- a daemon for all tests of a module ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def daemon() -> Iterator[PoolSettings]:
    """A pool that a module's tests share, at its own socket; it is never started again."""
    folder = Path(tempfile.mkdtemp(prefix="ax-", dir="/tmp"))
    daemons = Daemons(folder / "pool.sock")
    one = daemons()
    yield PoolSettings(socket=one.socket, autostart=False)
    daemons.close() if one.process.poll() is not None else one.stop()
    daemons.close()
    shutil.rmtree(folder, ignore_errors=True)


def pool_status(settings: PoolSettings) -> PoolStatus:
    link = start(PoolLink(settings), "status-link")
    try:
        found = link.ask(Status(0), PATIENCE)
        assert isinstance(found, PoolStatus)
        return found
    finally:
        link.stop()
        assert link.join(PATIENCE)


def contexts_left(settings: PoolSettings) -> int:
    """The contexts that the pool holds, once those are gone that a client has just let go: that takes it a moment."""
    end = monotonic() + PATIENCE
    while (left := sum(member.contexts for member in pool_status(settings).members)) and monotonic() < end:
        pass
    return left


def worker_pid(settings: PoolSettings, model: str) -> int:
    return next(member.pid for member in pool_status(settings).members if member.name == model)


# --- logs ---------------------------------------------------------------------------------------------------------


def _no_constant(name: str) -> object:
    raise AssertionError(f"{name} is no JSON")


def json_lines(data: bytes) -> list[Line]:
    """Whole JSON lines, each with what every event has."""
    assert data.endswith(b"\n") or not data, data[-80:]
    lines = [json.loads(line, parse_constant=_no_constant) for line in data.splitlines()]
    assert all({"ts", "type", "agent"} <= line.keys() for line in lines), lines
    return lines


def of(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if line["type"] == kind]


def turns(lines: list[Line]) -> list[Line]:
    return [line for line in of(lines, "message") if line["role"] == "assistant"]


def results(lines: list[Line]) -> list[Line]:
    return [line for line in of(lines, "message") if "tool" in line]


def replay(lines: list[Line]) -> list[tuple[Segment, int]]:
    """The root's context, rebuilt from the log alone, with the count that the pool gave for each segment."""
    root = session_replay.replay(lines).get(ROOT)
    return [(one.segment, one.tokens) for one in root.held.values()] if root else []


# --- a request in this process ------------------------------------------------------------------------------------


class Recorder(Actor):
    """A screen that keeps what it is shown, and tells a test of each event as it comes."""

    def __init__(self, heard: Callable[[Event], object]) -> None:
        self._heard = heard
        self.events: list[Event] = []

    @on(Show)
    def _show(self, message: Show) -> None:
        for event in message.events:
            self.events.append(event)
            self._heard(event)


@dataclass
class Ran:
    """How a request ended, what was shown of it, and what its log says."""

    end: SessionEnd
    shown: list[Event]
    log: list[Line]

    def texts(self) -> list[str]:
        """The texts of the root's context, in order."""
        return [segment.text for segment, _ in replay(self.log)]


@dataclass
class Desk:
    """Runs requests in this process: everything is real but the terminal."""

    pool: PoolSettings
    cwd: Path
    folder: Path
    model: str = ""
    heard: Callable[[Event], object] = field(default=lambda _: None)
    before: Callable[[Ref], object] = field(default=lambda _: None)
    """Called with the request's actor before it is asked to run."""
    around: Callable[[RequestPlaces], RequestPlaces] = field(default=lambda places: places)
    """Adds actors to those around the request."""
    supervisor: Callable[[list[ChildSpec]], Supervisor] = field(
        default=lambda specs: Supervisor(specs, strategy="rest_for_one")
    )
    count: int = 0

    @property
    def log(self) -> Path:
        return self.folder / f"session{self.count}.jsonl"

    def filled(self, prompt: str, tokens: int, model: str = "") -> str:
        """The prompt made longer, so that a context of so many tokens answers it. Of a model that counts bytes."""
        probe = self(f"{prompt} ", model=model or self.model, max_turns=1, diff=False)
        used = int(turns(probe.log)[0]["usage"]["prompt_tokens"])
        return f"{prompt} {'x' * (tokens - used)}"

    def __call__(self, prompt: str, **changes: Any) -> Ran:
        self.count += 1
        screen = Recorder(self.heard)
        root = start(self.supervisor(self._specs(screen)), "aerix")
        try:
            places = RequestPlaces(
                *(_living(name) for name in ("session-log", "output", "pool-link", "request"))
            )
            places = self.around(places)
            spec = self._spec(prompt, changes)
            child = ChildSpec("the-request", lambda: Request(spec, places), restart="temporary")
            request = places.supervisor.ask(StartChild(child), PATIENCE)
            self.before(request)
            end = request.ask(Run(), 2 * PATIENCE)
        finally:
            root.stop()
            assert root.join(PATIENCE)
        return Ran(end, screen.events, json_lines(self.log.read_bytes()))

    def _specs(self, screen: Actor) -> list[ChildSpec]:
        log, pool = self.log, self.pool
        return [
            ChildSpec("session-log", lambda: SessionLog(log)),
            ChildSpec("output", lambda: screen),
            ChildSpec("pool-link", lambda: PoolLink(pool)),
            ChildSpec("request", Supervisor, restart="temporary", grace_s=None),
        ]

    def _spec(self, prompt: str, changes: dict[str, Any]) -> RequestSpec:
        model = changes.pop("model", self.model)
        begin = SessionStart(session="s", version="0", cwd=str(self.cwd), project="p", model=model)
        known: dict[str, Any] = {
            "start": begin,
            "prompt": prompt,
            "cwd": self.cwd,
            "folder": self.folder / "s",
            "flags": {},
            "caps": {},
            "max_turns": 40,
            "max_new_tokens": 4096,
            "sampling": Sampling(temperature=0.0),
            "diff": True,
        }
        return RequestSpec(**(known | changes))


# --- the program --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """A run of the program that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Line:
        found: Line = json.loads(self.out)
        return found

    @property
    def notes(self) -> list[str]:
        """The lines of standard error but those that say what is in force."""
        in_force = ("aerix: sandbox: ", "aerix: no sandbox: ")
        return [line for line in self.err.splitlines() if not line.startswith(in_force)]

    @property
    def lines(self) -> list[Line]:
        return json_lines(self.out.encode())


class Running:
    """A run of the program that a test watches, signals or kills."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.seen: list[Line] = []

    def until(self, kind: str) -> Line:
        """Read its stream up to an event of that type; fails at its end."""
        assert self.process.stdout is not None
        for text in self.process.stdout:
            line: Line = json.loads(text)
            self.seen.append(line)
            if line["type"] == kind:
                return line
        raise AssertionError(f"it ended without {kind}: {self.process.stderr and self.process.stderr.read()}")

    def until_said(self, text: str) -> None:
        """Read its stream until the model has said that."""
        while text not in "".join(line["text"] for line in of(self.seen, "token")):
            self.until("token")

    def send(self, sig: signal.Signals) -> None:
        self.process.send_signal(sig)

    def end(self, within_s: float = PATIENCE) -> Finished:
        """Its end; fails where it does not come in time."""
        out, err = self.process.communicate(timeout=within_s)
        self.seen += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return Finished(self.process.returncode, out, err)


class Aerix:
    """Runs ``aerix`` in a folder, on a pool and a model of the test's."""

    def __init__(self, cwd: Path, pool: PoolSettings | None = None, model: str | None = None) -> None:
        self.cwd = cwd
        self.options = [] if pool is None else ["-c", f"pool.socket={json.dumps(str(pool.socket))}"]
        self.model = model
        self._all: list[Running] = []

    def __call__(self, *args: str, stdin: str | None = None, **env: str) -> Finished:
        """Run it to its end."""
        running = self.start(*args, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, **env)
        out, err = running.process.communicate(stdin, timeout=2 * PATIENCE)
        return Finished(running.process.returncode, out, err)

    def start(self, *args: str, stdin: int = subprocess.DEVNULL, **env: str) -> Running:
        return self.started([*AERIX, *self.words(*args)], stdin=stdin, env=os.environ | env)

    def words(self, *args: str) -> list[str]:
        """The arguments, with the pool and the model where a request is asked for."""
        if args and args[0].startswith("-p"):
            chosen = [] if self.model is None or "--model" in args else ["--model", self.model]
            return [*args, *chosen, *self.options]
        return list(args)

    def started(self, command: list[str], **options: Any) -> Running:
        known: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": self.cwd,
            "text": True,
        }
        self._all.append(Running(subprocess.Popen(command, **(known | options))))
        return self._all[-1]

    def shell(self, line: str, *args: str) -> Finished:
        """Run a line of bash in which ``"$@"`` is the command; the code is the line's last command's."""
        words = ["bash", "-c", line, "bash", *AERIX, *self.words(*args)]
        running = self.started(words, stdin=subprocess.DEVNULL)
        out, err = running.process.communicate(timeout=2 * PATIENCE)
        return Finished(running.process.returncode, out, err)

    def close(self) -> None:
        for running in self._all:
            if running.process.poll() is None:
                running.process.kill()
            running.process.wait()
            for stream in (running.process.stdin, running.process.stdout, running.process.stderr):
                if stream is not None:
                    stream.close()


def session_logs() -> list[Path]:
    """The session logs of this test's home, the oldest first."""
    found = Path(os.environ["XDG_DATA_HOME"], "aerix/sessions").glob("*/*.jsonl")
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def session_log() -> list[Line]:
    """The newest one."""
    return json_lines(session_logs()[-1].read_bytes())
