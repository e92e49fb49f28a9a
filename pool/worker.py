"""The worker process: one model, its contexts, and the loop that generates on them.

Two threads: a reader takes requests off the channel, changes contexts and counts their tokens at once, whatever is
computed meanwhile; the main thread drives the scheduler, which runs several generations side by side.
"""

import os
import threading
from collections import deque
from typing import Any

from aerix.actors import Refused
from aerix.actors.child import Channel, ChannelClosed, Incoming, IncomingCall, IncomingCancel
from aerix.actors.log import log
from aerix.actors.os_linux import be_killed_first
from aerix.pool import protocol as p
from aerix.pool.asked import check_constraint, check_sampling
from aerix.pool.bounds import DISK_QUIET, QUEUE
from aerix.pool.contexts import Contexts, check_tokens
from aerix.pool.generation import Bench, Job, cancelled
from aerix.pool.ladder import LADDER, apply_signal_stack, fail_if_told
from aerix.pool.leash import Door, Leash
from aerix.pool.pieces import Pieces
from aerix.pool.rendering import renderer
from aerix.pool.rows import Aborted, Engine, EngineFailed
from aerix.pool.scheduler import Ended, Scheduler
from aerix.pool.scripted import PREFIX, ScriptedEngine
from aerix.pool.shelf_disk import open_heads
from aerix.pool.store import Store, budget_of
from aerix.pool.tally import Tally
from aerix.pool.template import Template
from aerix.pool.workerargs import WorkerArgs


def main(channel: Channel, args: dict[str, Any]) -> None:
    """The body of a worker process; ``args`` are WorkerArgs'. Raises Refused where the model cannot be served."""
    channel.codec = p.WORKER_CODEC
    be_killed_first()
    settings = WorkerArgs.from_dict(args)
    leash = Leash(channel if settings.leashed else None)
    door = Door(leash)
    channel.start_reader(door.take)
    engine, note = load(settings, leash)
    template = Template(
        engine.vocabulary, settings.template, thinking=settings.thinking, make_renderer=renderer
    )
    facts = engine.facts
    channel.ready(
        {
            "window": facts.window,
            "cells": facts.cells,
            "vocab": engine.vocabulary.digest,
            "json": facts.json,
            "threads": facts.threads,
            "thinking": template.thinking,
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
    store = Store(engine, budget_of(settings), open_heads(settings, engine.facts))
    worker = Worker(channel, Bench(engine, store), template, settings.max_batch)
    door.open(worker.take)
    worker.run()


def load(args: WorkerArgs, leash: Leash) -> tuple[Engine, str]:
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

    engine = LlamaEngine(args, rung, leash)
    return engine, " ".join(filter(None, (engine.note, selftest.run(engine))))


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

    def __init__(self, channel: Channel, bench: Bench, template: Template, max_batch: int) -> None:
        self._channel = channel
        self._engine = bench.engine
        self._store = bench.store
        self._scheduler = Scheduler(bench, max_batch)
        self._pieces: dict[int, Pieces] = {}
        self._contexts = Contexts(bench.engine.vocabulary, template)
        self._changed = threading.Condition()
        self._tally = Tally()
        self._waiting: deque[Job] = deque()
        self._running: dict[int, Job] = {}
        self._budget: int | None = None
        """Bytes of snapshots that the store has not been told of."""
        self._closed = False
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Generate until the end was taken. What the reader thread dies of is raised here."""
        try:
            while self._wait_for_work():
                self._resize()
                self._begin_some()
                if self._scheduler.running:
                    self._step()
            self._store.rest()
        finally:
            self._store.close()
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
            elif isinstance(message, p.Budget):
                self._budget_changed(message.bytes)
                self._channel.reply(call, p.Ok(0))
            elif isinstance(message, p.MemberList):
                self._channel.reply(call, p.Members(message.id, [self._status()]))
            else:
                self._channel.reply(call, self._contexts.handle(message))
        except Refused as refusal:
            if isinstance(message, p.Generate):
                self._tally.refused()
            self._channel.refuse(call, refusal.code, refusal.message)

    def _budget_changed(self, bytes_: int) -> None:
        """The store is the main thread's: it is told there."""
        with self._changed:
            self._budget = bytes_
            self._changed.notify()

    def _queue(self, call: int, request: p.Generate) -> None:
        if request.constraint is not None:
            check_constraint(request.constraint, json_able=self._engine.facts.json)
        check_sampling(request.sampling)
        check_tokens(request.start, self._engine.vocabulary)
        if len(self._waiting) >= QUEUE.count:  # nobody else adds to them
            raise Refused("pool_busy", f"{len(self._waiting)} generations wait already; ask again later.")
        if request.append:
            append = p.ContextAppend(request.id, request.context, request.append)
            self._channel.offer(call, self._contexts.handle(append), last=True)
        job = Job(call, request, self._contexts.prompt(request.context))
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()

    def _cancel(self, call: int) -> None:
        """One that waits ends here and now, the running one at its next step at the latest."""
        with self._changed:
            job = next((job for job in self._waiting if job.call == call), None)
            if job is not None:
                self._waiting.remove(job)
                self._scheduler.forget(job)
            elif call in self._running:
                self._running[call].cancelled.set()
                if self._engine.facts.cuttable:  # the others compute the step that is given up once more
                    self._engine.interrupt()
        if job is not None:
            done = cancelled(job, self._engine)
            self._tally.done(done)
            self._channel.reply(call, done)

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
                thinking=self._contexts.thinking,
                contexts=len(self._contexts),
                running=len(self._running),
                waiting=len(self._waiting),
                threads=facts.threads,
                pid=os.getpid(),
                totals=self._tally.totals,
                shelves=self._store.shelves(),
            )

    # --- the main thread ------------------------------------------------------------------------------------------

    def _wait_for_work(self) -> bool:
        """Whether there is something to do; False at the end. Heads are written in a quiet moment."""
        while not self._work_came(DISK_QUIET.value if self._store.due else None):
            self._store.rest()
        return not self._closed

    def _work_came(self, within_s: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: bool(
                    self._waiting or self._scheduler.running or self._closed or self._budget is not None
                ),
                within_s,
            )

    def _resize(self) -> None:
        with self._changed:
            budget, self._budget = self._budget, None
        if budget is not None:
            self._store.memory.resize(budget)

    def _begin_some(self) -> None:
        """Start whatever may start now."""
        while (job := self._chosen()) is not None:
            self._pieces[job.call] = pieces = Pieces(self._channel, job.call)
            if (ended := self._scheduler.begin(job, pieces.send)) is not None:
                self._answer(ended)

    def _chosen(self) -> Job | None:
        with self._changed:
            job = self._scheduler.choose(self._waiting)
            if job is not None:
                self._waiting.remove(job)
                self._running[job.call] = job
            return job

    def _step(self) -> None:
        self._channel.progress()
        try:
            for ended in self._scheduler.step():
                self._answer(ended)
        except (Aborted, EngineFailed) as error:
            if (
                self._closed
            ):  # a step that the end has interrupted; what cannot be cut back is not needed any more
                raise ChannelClosed("stop") from None
            if isinstance(error, EngineFailed):
                raise

    def _answer(self, ended: Ended) -> None:
        call = ended.job.call
        with self._changed:
            del self._running[call]
        self._pieces.pop(call).flush()
        if isinstance(ended.outcome, Refused):
            self._tally.refused()
            self._channel.refuse(call, ended.outcome.code, ended.outcome.message)
        else:
            self._tally.done(ended.outcome)
            self._channel.reply(call, ended.outcome)
