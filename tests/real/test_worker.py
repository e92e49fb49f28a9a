"""Worker processes with the real model: the self-test, the ladder, cancels inside a prefill, deaths."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerix.pool import protocol as p
from aerix.pool.ladder import FAULT, LADDER
from aerix.pool.workerargs import WorkerArgs
from tests.pool.daemons import Daemons
from tests.pool.owner import Owner, worker

SCHEMA = {
    "type": "object",
    "properties": {
        "thought": {"type": "string", "maxLength": 200},
        "final": {"type": "string", "maxLength": 200},
    },
    "required": ["thought", "final"],
    "additionalProperties": False,
}
LONG = p.Segment("u1", "user", "Read this and say what it is about. " * 100)
SHORT = p.Segment("u1", "user", "Say hello in three words.")


@pytest.fixture(scope="module")
def rung(model_file: Path) -> int:
    """The first rung that works on this machine: what the member's ladder finds."""
    for rung in range(len(LADDER)):
        with worker(WorkerArgs(str(model_file), rung=rung)) as owner:
            if owner.info:
                return rung
    pytest.fail("the real model runs on no rung of the ladder")


@pytest.fixture
def owner(model_file: Path, rung: int) -> Iterator[Owner]:
    with worker(WorkerArgs(str(model_file), rung=rung, batch=128)) as owner:
        yield owner


@pytest.mark.rule("worker.self-test")
def test_a_worker_that_is_ready_has_tested_itself(owner: Owner, rung: int) -> None:
    assert owner.info | {"vocab": "", "threads": 0} == {
        "window": 8192,
        "cells": 17408,
        "vocab": "",
        "json": True,
        "thinking": 0,
        "threads": 0,
        "settings": LADDER[rung].sentence,
        "note": "",
    }
    assert len(owner.info["vocab"]) == 64
    context = owner.create(SHORT)
    usage = owner.ask(p.Generate(1, context, 5)).result().usage
    assert usage.recomputed_from == 0, "nothing of the self-test is left"


@pytest.mark.rule("worker.ladder")
@pytest.mark.parametrize("rung_", range(1, len(LADDER)))
def test_every_rung_below_one_that_dies_serves(
    model_file: Path, monkeypatch: pytest.MonkeyPatch, rung: int, rung_: int
) -> None:
    monkeypatch.setenv(FAULT, str(rung_ - 1))
    with worker(WorkerArgs(str(model_file), rung=rung_ - 1)) as dying:
        assert dying.end().detail.startswith("signal SIGSEGV")
    if rung_ >= rung:
        with worker(WorkerArgs(str(model_file), rung=rung_)) as owner:
            assert owner.info["settings"] == LADDER[rung_].sentence
            assert owner.ask(p.Generate(1, owner.create(SHORT), 3)).result().usage.completion_tokens == 3


@pytest.mark.rule("protocol.progress")
@pytest.mark.rule("scheduler.cancel-in-a-batch")
def test_a_cancel_ends_a_prefill_within_one_batch(owner: Owner) -> None:
    context = owner.create(LONG)
    running = owner.ask(p.Generate(1, context, 10))
    running.until(bool)
    owner.cancel(running)
    done = running.result()
    assert done.stop == "cancelled"
    assert [type(piece) for piece in running.pieces] in ([p.Progress], [p.Progress, p.Progress])
    again = owner.ask(p.Generate(2, context, 1)).result().usage
    assert again.recomputed_from >= running.pieces[-1].done, "what was computed before the cancel is kept"


def test_a_stop_ends_a_prefill(owner: Owner) -> None:
    running = owner.ask(p.Generate(1, owner.create(LONG), 10))
    running.until(bool)
    owner.worker.stop()
    assert owner.end().kind == "shutdown"


@pytest.mark.rule("prefix.start-continues")
def test_a_stream_goes_on_in_the_next_worker_where_a_death_cut_it(model_file: Path, rung: int) -> None:
    constraint = p.Constraint(schema=json.dumps(SCHEMA))
    with worker(WorkerArgs(str(model_file), rung=rung)) as owner:
        running = owner.ask(p.Generate(1, owner.create(SHORT), 200, constraint=constraint))
        running.until(lambda pieces: len(pieces) >= 3)
        os.kill(owner.pid, signal.SIGKILL)
        assert running.refusal().code == "worker_died"
    have = [token for piece in running.pieces for token in piece.tokens]
    with worker(WorkerArgs(str(model_file), rung=rung)) as owner:
        again = owner.ask(p.Generate(1, owner.create(SHORT), 200, constraint=constraint, start=have))
        done = again.result()
    assert done.stop in ("final", "length")
    assert have + [token for piece in again.pieces for token in piece.tokens] == done.tokens


@pytest.mark.rule("log.engine-quiet")
def test_what_the_engine_says_reaches_no_terminal(pool: Daemons, model_file: Path) -> None:
    daemon = pool(str(model_file))
    assert daemon.stop() == 0
    assert daemon.lines, "the daemon says itself what it does"
    assert [line for line in daemon.lines if not line.startswith("aerix")] == []
