"""Real worker processes that play scripts: requests, cancels, deaths, the end."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerix.actors.bounds import CHILD_CREDIT
from aerix.actors.child import Channel, ChannelClosed, IncomingCall
from aerix.actors.wire import unpack
from aerix.pool import protocol as p
from aerix.pool import worker as under_test
from aerix.pool.generation import Bench
from aerix.pool.ladder import FAULT, LADDER
from aerix.pool.scripted import ScriptedEngine
from aerix.pool.template import Template
from aerix.pool.workerargs import WorkerArgs
from tests.conftest import Limit
from tests.pool import owner
from tests.pool.desk import Scripts, no_model
from tests.pool.owner import Owner, worker

HI = p.Segment("u1", "user", "Hi")
LONG = {"text": "a" * 50, "delay": 3600}
SLOW = {"text": "a" * 5000, "per_token_delay": 0.01}


@pytest.fixture
def play(scripts: Scripts) -> Any:
    """A worker that plays these lines."""
    return lambda *lines, **args: worker(WorkerArgs(f"scripted:{scripts.write({}, *lines)}", **args))


def generate(owner: Owner, context: str, **fields: Any) -> Any:
    return owner.ask(p.Generate(5, context, fields.pop("max_tokens", 6000), **fields))


@pytest.mark.rule("scripted.same-path")
def test_a_worker_says_what_it_serves_and_generates(play: Any) -> None:
    with play({"text": "Hello"}, window=500) as owner:
        assert owner.info == {
            "window": 500,
            "cells": 2000,
            "vocab": "bytes",
            "json": True,
            "threads": 1,
            "thinking": 0,
            "settings": "",
            "note": "",
        }
        asked = generate(owner, owner.create(HI), max_tokens=100)
        done = asked.result()
        assert (done.text, done.id) == ("Hello", 5)
        assert b"".join(piece.data for piece in asked.pieces) == b"Hello"


@pytest.mark.rule("scheduler.counting-beside")
def test_contexts_are_changed_and_counted_while_a_generation_computes(play: Any) -> None:
    with play(LONG) as owner:
        context = owner.create(HI)
        running = generate(owner, context)
        state = owner.ask(p.ContextAppend(2, context, [p.Segment("u2", "user", "more")])).result()
        assert [count.id for count in state.segments] == ["u2"]
        owner.status(lambda info: (info.contexts, info.running, info.waiting) == (1, 1, 0))
        owner.cancel(running)
        assert running.result().usage.prompt_tokens < state.tokens + state.opening, (
            "it sees the context as it was"
        )


@pytest.mark.rule("protocol.passed-on")
def test_a_token_leaves_its_worker_packed_for_its_client(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[bytes] = []
    monkeypatch.setattr(owner, "unpack", lambda body: packed.append(body) or unpack(body))
    with play({"text": "Hi"}) as one:
        asked = generate(one, one.create(HI), max_tokens=10)
        assert asked.result().text == "Hi"
    found = [p.CODEC.decode(unpack(body)) for body in packed]
    assert found == [piece for piece in asked.pieces if isinstance(piece, p.Token)]
    assert [token.id for token in found] == [5] * len(found)
    assert b"".join(token.data for token in found) == b"Hi"


@pytest.mark.rule("contexts.generate-appends")
def test_what_a_generation_appends_is_counted_before_all_else(play: Any) -> None:
    with play({"text": "Yes?"}, {"text": "Hello"}) as owner:
        context = owner.create(HI)
        append = [p.Segment("a1", "assistant", "Yes?"), p.Segment("u2", "user", "more")]
        asked = generate(owner, context, max_tokens=100, append=append)
        usage = asked.result().usage
        state = asked.pieces[0]
        assert [count.id for count in state.segments] == ["a1", "u2"]
        assert usage.prompt_tokens == state.tokens + state.opening
        assert owner.ask(p.ContextRead(2, context)).result().segments == [HI, *append]


@pytest.mark.rule("contexts.generate-appends")
@pytest.mark.parametrize(
    ("append", "fields", "code"),
    [
        (HI, {}, "duplicate_segment"),
        (replace(HI, id="u2"), {"start": [-1]}, "bad_tokens"),
        (replace(HI, id="u2"), {"sampling": p.Sampling(temperature=-1.0)}, "bad_request"),
    ],
)
def test_a_generation_that_is_refused_at_once_has_appended_nothing(
    play: Any, append: p.Segment, fields: dict[str, Any], code: str
) -> None:
    with play({"text": "Hello"}) as owner:
        context = owner.create(HI)
        asked = generate(owner, context, append=[append], **fields)
        assert asked.refusal().code == code
        assert asked.pieces == []
        assert owner.ask(p.ContextRead(2, context)).result().segments == [HI]


@pytest.mark.rule("scheduler.cancel-in-a-batch")
@pytest.mark.rule("constraint.stop-reasons")
def test_a_cancelled_generation_ends_with_what_it_has(play: Any) -> None:
    with play(SLOW) as owner:
        running = generate(owner, owner.create(HI))
        running.until(bool)
        owner.cancel(running)
        done = running.result()
        assert done.stop == "cancelled"
        assert done.text == b"".join(piece.data for piece in running.pieces).decode()
        assert 0 < len(done.text) < 5000


@pytest.mark.rule("process.credit")
def test_a_client_that_does_not_listen_holds_up_nobody_and_misses_nothing(play: Any) -> None:
    with play({"match": "Hi", "text": "a" * 5000}, {"match": "Ho", "text": "next"}) as owner:
        slow = owner.ask(p.Generate(5, owner.create(HI), 6000), paused=True)
        slow.until(lambda pieces: len(pieces) == CHILD_CREDIT.count)
        assert generate(owner, owner.create(replace(HI, text="Ho"))).result().text == "next"
        assert slow.result().text == "a" * 5000
        assert b"".join(piece.data for piece in slow.pieces).decode() == "a" * 5000
        assert len(slow.pieces) == CHILD_CREDIT.count + 1, "what was not taken comes in one piece"


@pytest.mark.rule("scheduler.queue-order")
def test_generations_wait_in_order_and_a_waiting_one_is_cancelled_at_once(play: Any) -> None:
    with play({"match": "first", **LONG}, {"text": "b"}, max_batch=1) as owner:
        blocked = owner.create(p.Segment("u1", "user", "first"))
        others = [owner.create(HI) for _ in range(3)]
        first = generate(owner, blocked)
        second, third, fourth = (generate(owner, context, start=[97]) for context in others)
        owner.status(lambda info: (info.running, info.waiting) == (1, 3))
        owner.cancel(third)
        done = third.result()
        assert (done.stop, done.text, done.tokens) == ("cancelled", "a", [97])
        assert not (first.over.is_set() or second.over.is_set() or fourth.over.is_set())
        owner.cancel(first)
        assert first.result().stop == "cancelled"
        assert fourth.refusal().code == "script_mismatch"
        assert second.over.is_set()


@pytest.mark.bound("worker.queue")
def test_more_generations_than_may_wait_are_refused(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_WORKER_QUEUE", "1")
    with play(LONG) as owner:
        context = owner.create(HI)
        asked = [generate(owner, context)]
        owner.status(lambda info: info.running == 1)
        asked += [generate(owner, context) for _ in range(2)]
        refused = asked[2].refusal()
        assert (refused.code, refused.message) == (
            "pool_busy",
            "1 generations wait already; ask again later.",
        )
        for one in asked[:2]:
            owner.cancel(one)
            assert one.result().stop == "cancelled"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"context": "nowhere"}, "unknown_context"),
        ({"start": [999]}, "bad_tokens"),
        ({"constraint": p.Constraint()}, "bad_constraint"),
        ({"constraint": p.Constraint(schema='{"not": {}}')}, "bad_constraint"),
        ({"constraint": p.Constraint(schema="bytes")}, "bad_constraint"),
        ({"max_tokens": 10_000}, "context_overflow"),
    ],
)
def test_a_refused_generation_leaves_the_worker_as_it_was(
    play: Any, fields: dict[str, Any], code: str
) -> None:
    with play({"text": "fine"}) as owner:
        context = owner.create(HI)
        assert generate(owner, fields.pop("context", context), **fields).refusal().code == code
        assert generate(owner, context).result().text == "fine"


@pytest.mark.rule("scripted.faults")
@pytest.mark.rule("scripted.resumes")
def test_a_step_that_dies_takes_the_worker_with_it_and_goes_on_in_the_next_one(play: Any) -> None:
    with play({"turn": {"thought": "deadly", "final": "done"}, "fault": "die"}) as owner:
        running = generate(owner, owner.create(HI))
        assert running.refusal().code == "worker_died"
        assert owner.end().detail.startswith("signal SIGKILL")
        have = [token for piece in running.pieces for token in piece.tokens]
        assert have
        assert b'{"thought":"deadly","final":"done"}'.startswith(bytes(have))
    with play({"turn": {"thought": "deadly", "final": "done"}, "fault": "die"}) as owner:
        again = generate(owner, owner.create(HI), start=have)
        assert again.result().text == '{"thought":"deadly","final":"done"}'
        assert again.result().tokens == have + [token for piece in again.pieces for token in piece.tokens]


@pytest.mark.rule("scripted.faults")
def test_a_step_that_hangs_stops_its_generation_and_not_the_process(play: Any) -> None:
    with play({"text": "abc", "fault": "hang"}, max_batch=1) as owner:
        context = owner.create(HI)
        running = generate(owner, context)
        running.until(lambda pieces: len(pieces) == 3)
        waiting = generate(owner, context)
        owner.status(lambda info: (info.running, info.waiting) == (1, 1))
        owner.cancel(waiting)
        assert waiting.result().stop == "cancelled"
        assert not running.over.is_set()
        os.kill(owner.pid, signal.SIGKILL)
        assert running.refusal().code == "worker_died"


@pytest.mark.rule("contexts.unknown-refused")
def test_a_context_of_the_worker_before_is_unknown_to_the_next(play: Any) -> None:
    with play({"text": "x"}) as owner:
        context = owner.create(HI)
    with play({"text": "x"}) as owner:
        owner.create(HI)
        assert owner.ask(p.ContextRead(1, context)).refusal().code == "unknown_context"


@pytest.mark.parametrize("step", [LONG, SLOW])
def test_a_stop_ends_a_worker_that_generates(play: Any, step: dict[str, Any]) -> None:
    with play(step) as owner:
        running = generate(owner, owner.create(HI))
        owner.status(lambda info: info.running == 1)
        owner.worker.stop()
        assert owner.end().kind == "shutdown"
        assert running.refusal().code == "worker_died"


@pytest.mark.rule("worker.load-failure-named")
def test_what_cannot_be_loaded_is_a_refusal_in_the_workers_last_words(tmp_path: Path) -> None:
    script = tmp_path / "play.jsonl"
    script.write_text("{}\n{\n")
    no_model = tmp_path / "no.gguf"
    no_model.write_bytes(b"GGUF")
    other = tmp_path / "other.jsonl"
    other.write_text('{"tokenizer": "no.gguf"}\n')
    for model, why in (
        (f"scripted:{script}", f"Refused: {script}, line 2: no JSON ("),
        (f"{no_model}", f"Refused: {no_model} is a GGUF file of version 0"),
        (f"scripted:{other}", f"Refused: llama.cpp cannot load {no_model}: "),
    ):
        with worker(WorkerArgs(model)) as owner:
            assert why in owner.end().detail.splitlines()[-1]


@pytest.mark.rule("worker.ladder")
def test_a_rung_that_dies_by_a_signal_says_so_and_a_later_one_names_itself(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAULT, "0,1")
    for rung in (0, 1):
        with play({"text": "x"}, rung=rung) as owner:
            assert owner.end().detail.startswith("signal SIGSEGV")
    with play({"text": "x"}, rung=2) as owner:
        assert owner.info["settings"] == LADDER[2].sentence
        assert "crashed here" in owner.info["settings"]


def test_every_rung_leaves_out_more_than_the_one_before() -> None:
    plain = [sum((r.small_signal_stack, r.plain_weights, r.one_thread, r.small_batch)) for r in LADDER]
    assert plain == sorted(set(plain))
    assert not LADDER[0].sentence
    assert all(rung.sentence for rung in LADDER[1:])


@pytest.mark.rule("worker.spin-count")
@pytest.mark.parametrize(
    ("before", "after"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "passive"}, None)],
)
def test_the_environment_keeps_openmp_from_spinning_long(
    monkeypatch: pytest.MonkeyPatch, before: dict[str, str], after: str | None
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "GGML_NO_BACKTRACE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    under_test._set_environment()
    assert os.environ.get("GOMP_SPINCOUNT") == after
    assert os.environ["GGML_NO_BACKTRACE"] == "1"


class Broken(Channel):
    """A channel whose owner is gone when it is answered, or that fails otherwise."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def start_reader(self, take: Any) -> None:
        threading.Thread(target=take, args=(IncomingCall(1, p.ContextDrop(1, "x")),)).start()

    def refuse(self, call: int, code: str, sentence: str) -> None:
        raise self._error


def serve(channel: Channel, engine: Any, template: Template) -> None:
    served = under_test.Worker(channel, Bench(engine), template, 4)
    channel.start_reader(served.take)
    served.run()


def test_what_the_reader_thread_dies_of_ends_the_worker(scripts: Scripts) -> None:
    engine = scripts.engine({})
    template = Template(engine.vocabulary)
    with pytest.raises(ZeroDivisionError):
        serve(Broken(ZeroDivisionError()), engine, template)
    serve(Broken(ChannelClosed()), engine, template)


class Stiff(ScriptedEngine):
    """Its memory cannot be cut inside a sequence; a step that is interrupted has computed its rows."""

    def cut(self, sequence: int, at: int) -> bool:
        held = self._sequences.get(sequence)
        return not (held and 0 < at < len(held.tokens)) and super().cut(sequence, at)


class Asked(Channel):
    """A channel with one generation, and then the end, in the middle of its first step."""

    def __init__(self) -> None:
        self.answers: list[object] = []

    def start_reader(self, take: Any) -> None:
        self.take = take

    def progress(self) -> None:
        threading.Timer(0.05, self.take, [None]).start()

    def offer(self, call: int, message: Any, *, last: bool = False) -> bool:
        return True

    def reply(self, call: int, message: Any) -> None:
        self.answers.append(message)


@pytest.mark.rule("prefix.uncuttable")
def test_a_worker_that_is_stopped_in_a_step_that_cannot_be_taken_back_ends_in_order(scripts: Scripts) -> None:
    engine = Stiff(WorkerArgs(f"scripted:{scripts.write({}, LONG)}"), no_model)
    engine.facts = replace(engine.facts, cuttable=False)
    channel = Asked()
    served = under_test.Worker(channel, Bench(engine), Template(engine.vocabulary), 4)
    channel.start_reader(served.take)
    served.take(IncomingCall(1, p.ContextCreate(1, "m", [HI])))
    (state,) = channel.answers
    assert isinstance(state, p.ContextState)
    served.take(IncomingCall(2, p.Generate(2, state.context, 100)))
    with pytest.raises(ChannelClosed):
        served.run()


def test_the_arguments_survive_the_way_into_the_process() -> None:
    args = WorkerArgs(
        "m.gguf", rung=2, threads=3, window=4, cells=5, max_batch=6, batch=7, memory=8, template="t"
    )
    assert WorkerArgs.from_dict(args.to_dict()) == args
    with pytest.raises(TypeError, match="colour"):
        WorkerArgs.from_dict({"model": "m", "colour": 1})


@pytest.mark.bound("prefix.disk-quiet")
@pytest.mark.parametrize(("quiet", "at_once"), [(0.01, True), (3600, False)])
def test_a_head_is_written_in_a_quiet_moment_or_at_the_end(
    play: Any, limit: Limit, tmp_path: Path, quiet: float, at_once: bool
) -> None:
    limit("prefix.disk-quiet", quiet)
    folder = tmp_path / "prefixes"
    with play({"text": "Hello"}, prefix_dir=str(folder)) as owner:
        head = p.Segment("s1", "system", "x" * 100, pinned=True)
        generate(owner, owner.create(head, HI), max_tokens=100).result()
        while at_once and not list(folder.glob("*/*.rows")):
            owner.status(lambda _: True)
        owner.status(lambda info: info.shelves[2].entries == at_once)
    assert len(list(folder.glob("*/*.rows"))) == 1
