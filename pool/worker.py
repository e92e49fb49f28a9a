"""The worker process: one model, its contexts, and the loop that generates on them.

Two threads: a reader takes requests off the channel, changes contexts and counts their tokens at once, whatever is
computed meanwhile; the main thread runs the generations, one at a time in the order they came.
"""

import os
import threading
from collections import deque
from dataclasses import replace
from typing import Any

from aerix.actors import Refused
from aerix.actors.child import Channel, ChannelClosed, Incoming, IncomingCall, IncomingCancel
from aerix.actors.log import log
from aerix.pool import protocol as p
from aerix.pool.bounds import QUEUE
from aerix.pool.constraint import check
from aerix.pool.contexts import Contexts, check_tokens
from aerix.pool.generation import Bench, Generation, Job, cancelled, start
from aerix.pool.ladder import LADDER, apply_signal_stack, fail_if_told
from aerix.pool.rows import Aborted, Engine, OutOfRoom
from aerix.pool.scripted import PREFIX, ScriptedEngine
from aerix.pool.template import Template
from aerix.pool.workerargs import WorkerArgs


def main(channel: Channel, args: dict[str, Any]) -> None:
    """The body of a worker process; ``args`` are WorkerArgs'. Raises Refused where the model cannot be served."""
    channel.codec = p.CODEC
    settings = WorkerArgs.from_dict(args)
    engine, note = load(settings)
    template = Template(engine.vocabulary, settings.template)
    facts = engine.facts
    channel.ready(
        {
            "window": facts.window,
            "cells": facts.cells,
            "vocab": engine.vocabulary.digest,
            "json": facts.json,
            "threads": facts.threads,
            "settings": LADDER[settings.rung].sentence,
            "note": note,
        }
    )
    log(
        "worker.ready",
        model=settings.model,
        rung=settings.rung,
        window=facts.window,
        cells=facts.cells,
        note=note,
    )
    Worker(channel, engine, template).run()


def load(args: WorkerArgs) -> tuple[Engine, str]:
    """The engine on the rung that ``args`` names, tested, and what the test found. Raises Refused."""
    from aerix.pool import selftest

    rung = LADDER[args.rung]
    fail_if_told(args.rung)
    if args.model.startswith(PREFIX):
        return ScriptedEngine(args, _vocabulary), ""
    _set_environment()
    if rung.small_signal_stack:
        apply_signal_stack()
    from aerix.pool.engine import LlamaEngine

    engine = LlamaEngine(args, rung)
    return engine, selftest.run(engine)


def _vocabulary(path: str) -> Any:
    from aerix.pool.engine import load_vocabulary

    return load_vocabulary(path)


def _set_environment() -> None:
    """Before llama.cpp is loaded: short spins at OpenMP's barriers, no debugger started when it gives up."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")


class Worker:
    """Serves one channel with one engine. ``run`` returns when the owner says stop."""

    def __init__(self, channel: Channel, engine: Engine, template: Template) -> None:
        self._channel = channel
        self._engine = engine
        self._bench = Bench(engine)
        self._contexts = Contexts(engine.vocabulary, template)
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._closed = False
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Generate until the channel closes. What the reader thread dies of is raised here."""
        self._channel.start_reader(self.take)
        while (job := self._next()) is not None:
            self._generate(job)
        if self._failure is not None:
            raise self._failure

    # --- the reader thread ----------------------------------------------------------------------------------------

    def take(self, incoming: Incoming | None) -> None:
        """Handle what came; None is the end."""
        try:
            match incoming:
                case IncomingCall(call, message):
                    self._handle(call, message)
                case IncomingCancel(call):
                    self._cancel(call)
                case None:
                    self._close()
        except ChannelClosed:
            self._close()
        except BaseException as error:  # noqa: BLE001  # raised again by the main thread
            self._close(error)

    def _handle(self, call: int, message: object) -> None:
        try:
            if isinstance(message, p.Generate):
                self._queue(call, message)
            elif isinstance(message, p.MemberList):
                self._channel.reply(call, p.Members(message.id, [self._status()]))
            else:
                self._channel.reply(call, self._contexts.handle(message))
        except Refused as refusal:
            self._channel.refuse(call, refusal.code, refusal.message)

    def _queue(self, call: int, request: p.Generate) -> None:
        if request.constraint is not None:
            check(request.constraint, json_able=self._engine.facts.json)
        check_tokens(request.start, self._engine.vocabulary)
        job = Job(call, request, self._contexts.prompt(request.context))
        with self._changed:
            if len(self._waiting) >= QUEUE.count:
                raise Refused("pool_busy", f"{len(self._waiting)} generations wait already; ask again later.")
            self._waiting.append(job)
            self._changed.notify()

    def _cancel(self, call: int) -> None:
        """One that waits ends here and now, the running one at its next step at the latest."""
        with self._changed:
            job = next((job for job in self._waiting if job.call == call), None)
            if job is not None:
                self._waiting.remove(job)
            elif self._running is not None and self._running.call == call:
                self._running.cancelled.set()
                self._engine.interrupt()
        if job is not None:
            self._channel.reply(call, cancelled(job, self._engine.vocabulary))

    def _close(self, failure: BaseException | None = None) -> None:
        with self._changed:
            self._closed, self._failure = True, failure
            self._engine.interrupt()
            self._changed.notify()

    def _status(self) -> p.MemberInfo:
        facts = self._engine.facts
        with self._changed:
            return p.MemberInfo(
                name="",
                state="ready",
                window=facts.window,
                cells=facts.cells,
                vocab=self._engine.vocabulary.digest,
                json=facts.json,
                contexts=len(self._contexts),
                running=int(self._running is not None),
                waiting=len(self._waiting),
                threads=facts.threads,
                pid=os.getpid(),
            )

    # --- the main thread ------------------------------------------------------------------------------------------

    def _next(self) -> Job | None:
        with self._changed:
            self._running = None
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            self._running = self._waiting.popleft()
            return self._running

    def _generate(self, job: Job) -> None:
        try:
            done = self._played(job)
        except Refused as refusal:
            self._channel.refuse(job.call, refusal.code, refusal.message)
        else:
            self._channel.reply(job.call, done)

    def _played(self, job: Job) -> p.Done:
        pieces = _Pieces(self._channel, job.call)
        generation = start(job, self._bench, pieces.send)
        try:
            if not generation.open():
                raise Refused("no_room", "The prompt and its reply do not fit into the member's cells.")
            while generation.done is None:
                if job.cancelled.is_set():
                    generation.end("cancelled")
                else:
                    self._step(generation)
            pieces.flush()
            return generation.done
        finally:
            generation.close()

    def _step(self, generation: Generation) -> None:
        rows = generation.rows(self._engine.facts.batch)
        self._channel.progress()
        try:
            logits = self._bench.decode(rows)
        except Aborted:
            if self._closed:
                raise ChannelClosed("stop") from None
        except OutOfRoom:
            generation.end("length")
        else:
            generation.take(rows, logits)


class _Pieces:
    """A generation's way out: never waits for a slow client, whose tokens are put together until it takes them."""

    def __init__(self, channel: Channel, call: int) -> None:
        self._channel = channel
        self._call = call
        self._kept: p.Token | None = None

    def send(self, piece: object) -> None:
        """Send, or keep a token; progress that is not taken is passed over, for the next says more."""
        if not isinstance(piece, p.Token):
            self._channel.offer(self._call, piece)
            return
        if self._kept is not None:
            piece = replace(
                piece, tokens=[*self._kept.tokens, *piece.tokens], data=self._kept.data + piece.data
            )
        self._kept = None if self._channel.offer(self._call, piece) else piece

    def flush(self) -> None:
        """Send what was kept, before the last word."""
        if self._kept is not None:
            self._channel.offer(self._call, self._kept, last=True)
