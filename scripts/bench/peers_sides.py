"""Both sides of ``scripts/bench/peers.py``: a pool's daemon with its real client, and a plain llama.cpp server.

Both are given the same token ids: the pool makes them of a context's segments, the server gets them as they are.
"""

import fcntl
import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol
from urllib.parse import urlsplit

from aerix.actors import Actor, Ref, on, start
from aerix.pool import protocol as p
from aerix.pool.client import PoolContext, PoolLink, PoolSettings, load_member
from aerix.pool.contexts import Contexts
from aerix.pool.template import Template

ROOT = Path(__file__).parents[2]
SERVER = "xllamacpp==2026.10.11549"
WINDOW = 8192
CELLS = 16_384
AT_ONCE = 4
THREADS = 2
PATIENCE = 900.0
Schema = dict[str, Any]


# --- prompts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the pool is told it, and the ids that both sides compute."""

    segments: tuple[p.Segment, ...]
    ids: list[int]


class Prompts:
    """Makes prompts with the model's own vocabulary and template."""

    def __init__(self, model: Path) -> None:
        from aerix.pool.engine import load_vocabulary

        self._vocabulary = load_vocabulary(str(model))
        self._contexts = Contexts(self._vocabulary, Template(self._vocabulary))

    def __call__(self, task: str, prefix: str = "") -> Prompt:
        """``prefix`` is a pinned system text, ``task`` the user's."""
        head = [p.Segment("s", "system", prefix, pinned=True)] if prefix else []
        segments = (*head, p.Segment("u", "user", task))
        state = self._contexts.handle(p.ContextCreate(1, "m", list(segments)))
        assert isinstance(state, p.ContextState)
        ids = list(self._contexts.prompt(state.context).tokens)
        self._contexts.handle(p.ContextDrop(1, state.context))
        return Prompt(segments, ids)

    def text(self, tokens: int, start: str) -> str:
        """A text of so many tokens."""
        words = start + " " + " ".join(f"line {n} of a file that an agent has read" for n in range(tokens))
        ids = self._vocabulary.tokenize(words, special=False)[:tokens]
        return b"".join(map(self._vocabulary.piece, ids)).decode("utf-8", "replace")


# --- what a client sees -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stream:
    """A generation as its client sees it; times are of ``perf_counter``."""

    begun: float = field(default_factory=perf_counter)
    at: list[float] = field(default_factory=list)
    """When each piece of the reply came."""
    ended: float = 0.0
    prompt: int = 0
    computed: int = 0
    """Rows of the prompt that were not there."""
    tokens: int = 0
    text: str = ""
    shelf: str = ""
    failure: BaseException | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def first(self) -> float:
        """Seconds to the first piece."""
        return self.at[0] - self.begun

    @property
    def rate(self) -> float:
        """Tokens a second, the prompt included."""
        return self.tokens / (self.ended - self.begun)

    def piece(self) -> None:
        """A piece came."""
        with self.changed:
            self.at.append(perf_counter())
            self.changed.notify_all()

    def until(self, pieces: int) -> None:
        """Wait for so many pieces."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.at) >= pieces or self.ended, PATIENCE)

    def over(self, failure: BaseException | None = None) -> None:
        """It has ended."""
        with self.changed:
            self.ended, self.failure = perf_counter(), failure
            self.changed.notify_all()

    def result(self) -> "Stream":
        """Wait for its end. Raises what it failed with."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.ended, PATIENCE)
        if self.failure:
            raise self.failure
        return self


class Side(Protocol):
    """One of the two."""

    name: str

    def stream(self, prompt: Prompt, max_tokens: int, schema: Schema | None = None) -> Stream:
        """Start a generation at temperature 0."""
        ...


# --- the pool -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Do:
    """Run this in the actor's thread."""

    work: Callable[[Actor], object]


class Runner(Actor):
    """What an agent is to the pool."""

    @on(Do)
    def _do(self, message: Do) -> object:
        return message.work(self)


class Pool:
    """A daemon of the benchmark's own, in a home of its own, with one model."""

    name = "pool"

    def __init__(self, model: Path, home: Path) -> None:
        self.model, self.home = model, home
        (home / "run").mkdir(mode=0o700)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AERIX_", "XDG_"))}
        self.env = kept | {"HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run"), "PYTHONPATH": str(ROOT)}
        self._started = 0
        self.begin()

    def begin(self) -> None:
        """Start the daemon and connect."""
        socket = self.home / "run/aerix/pool.sock"
        command = [sys.executable, "-P", "-m", "aerix", "pool", "--load", str(self.model)]
        numbers = {"window": WINDOW, "cells": CELLS, "threads": THREADS, "max-batch": AT_ONCE}
        command += [part for name, value in numbers.items() for part in (f"--{name}", str(value))]
        self.process = subprocess.Popen(
            command, env=self.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        said = self._said()
        assert said and "ready on" in said[-1], said
        self._refs: list[Ref] = []
        self._link = self._start(PoolLink(PoolSettings(socket=socket, autostart=False)))
        self._member = self._runner().ask(Do(self._load), PATIENCE).name

    def _said(self) -> list[str]:
        """What the daemon says until it is ready."""
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if "ready on" in line:
                break
        return said

    def end(self) -> None:
        """Stop both."""
        for ref in reversed(self._refs):
            ref.stop()
            assert ref.join(PATIENCE)
        self.process.terminate()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def stream(self, prompt: Prompt, max_tokens: int, schema: Schema | None = None) -> Stream:
        """See Side: an actor of its own makes the context and generates on it."""
        constraint = p.Constraint(schema=json.dumps(schema)) if schema else None
        runner, stream = self._runner(), Stream()

        def work(actor: Actor) -> None:
            try:
                context = PoolContext(actor, self._link, self._member)
                context.create(prompt.segments)
                take(
                    context.generate(
                        max_tokens,
                        p.Sampling(temperature=0),
                        constraint,
                        lambda event: stream.piece() if isinstance(event, p.Token) else None,
                    )
                )
                context.drop()
            except BaseException as error:  # noqa: BLE001  # raised again where the result is asked for
                stream.over(error)
            else:
                stream.over()

        def take(done: p.Done) -> None:
            usage = done.usage
            stream.prompt, stream.computed = usage.prompt_tokens, usage.prompt_tokens - usage.recomputed_from
            stream.tokens, stream.text, stream.shelf = usage.completion_tokens, done.text, usage.shelf

        runner.tell(Do(work))
        return stream

    def _load(self, actor: Actor) -> p.MemberInfo:
        return load_member(actor, self._link, str(self.model))

    def _runner(self) -> Ref:
        return self._start(Runner())

    def _start(self, actor: Actor) -> Ref:
        self._started += 1
        self._refs.append(start(actor, f"bench{self._started}"))
        return self._refs[-1]


# --- the server ---------------------------------------------------------------------------------------------------


class Server:
    """A plain llama.cpp server with as many cells, slots and threads, and as short spins at OpenMP's barriers."""

    name = "server"

    def __init__(self, model: Path) -> None:
        command = [
            server_python(),
            Path(__file__).with_name("peers_server.py"),
            model,
            CELLS,
            AT_ONCE,
            THREADS,
        ]
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"GOMP_SPINCOUNT": "1000"} | os.environ,
            text=True,
        )
        assert self.process.stdout is not None
        self._address = urlsplit(self.process.stdout.readline().strip())
        assert self._address.hostname, "the server did not come up"

    def end(self) -> None:
        """Stop it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def stream(self, prompt: Prompt, max_tokens: int, schema: Schema | None = None) -> Stream:
        """See Side: ``/completion`` with the ids."""
        body: dict[str, Any] = {
            "prompt": prompt.ids,
            "n_predict": max_tokens,
            "temperature": 0,
            "cache_prompt": True,
            "stream": True,
        }
        if schema:
            body["json_schema"] = schema
        stream = Stream()

        def work() -> None:
            try:
                self._read(body, stream)
            except BaseException as error:  # noqa: BLE001  # raised again where the result is asked for
                stream.over(error)
            else:
                stream.over()

        threading.Thread(target=work, daemon=True).start()
        return stream

    def _read(self, body: dict[str, Any], stream: Stream) -> None:
        connection = http.client.HTTPConnection(
            self._address.hostname or "", self._address.port, timeout=PATIENCE
        )
        try:
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == http.HTTPStatus.OK, answer.read()
            for line in answer:
                if line.startswith(b"data: "):
                    self._take(json.loads(line.removeprefix(b"data: ")), stream)
        finally:
            connection.close()

    def _take(self, event: dict[str, Any], stream: Stream) -> None:
        if "error" in event:
            raise RuntimeError(event["error"])
        if event["stop"]:
            stream.tokens, stream.prompt = event["tokens_predicted"], event["tokens_evaluated"]
            stream.computed = event["timings"]["prompt_n"]
        else:
            stream.text += event["content"]
            stream.piece()


def server_python() -> Path:
    """The Python of an environment that has the server: made once, in the cache folder, 127 MB."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aerix-bench"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{SERVER.replace('==', '-')}-{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin/python"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            install = ["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", SERVER]
            subprocess.run([python, *install], check=True)
            (folder / "ready").touch()
    return python
