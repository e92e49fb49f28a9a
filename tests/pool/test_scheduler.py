"""Generations side by side: who begins, what a batch holds, and that nobody disturbs the others. On scripts."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.bounds import PASSED_OVER, PROMPT_SLICE, REPLY_SLICE
from aerix.pool.contexts import Contexts
from aerix.pool.generation import Bench, Job
from aerix.pool.rates import Rates
from aerix.pool.rows import Aborted, Engine, Row
from aerix.pool.scheduler import Ended, Scheduler
from aerix.pool.scripted import ScriptedEngine
from aerix.pool.template import Template
from tests.conftest import Limit
from tests.pool.desk import Scripts

SCHEMA = {
    "type": "object",
    "properties": {"final": {"type": "string"}},
    "required": ["final"],
    "additionalProperties": False,
}


class Recorder(Bench):
    """A bench that remembers its batches: rows by sequence."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.batches: list[list[Row]] = []

    def decode(self, rows: list[Row]) -> Any:
        self.batches.append(rows)
        return super().decode(rows)


class Table:
    """A scheduler on a script, and who waits for it."""

    def __init__(self, engine: Engine, max_batch: int = 4) -> None:
        self.contexts = Contexts(engine.vocabulary, Template(engine.vocabulary))
        self.engine = engine
        self.bench = Recorder(engine)
        self.scheduler = Scheduler(self.bench, max_batch)
        self.waiting: list[Job] = []
        self.begun: list[int] = []
        self.ended: dict[int, p.Done | Refused] = {}
        self.pieces: dict[int, list[Any]] = {}

    def job(self, *texts: str, max_tokens: int = 200, **fields: Any) -> Job:
        """One more that waits, for a context of its own with these segments."""
        segments = [p.Segment(f"u{n}", "user", text) for n, text in enumerate(texts)]
        state = self.contexts.handle(p.ContextCreate(1, "m", segments))
        assert isinstance(state, p.ContextState)
        call = len(self.pieces)
        job = Job(
            call, p.Generate(call, state.context, max_tokens, **fields), self.contexts.prompt(state.context)
        )
        self.pieces[call] = []
        self.waiting.append(job)
        return job

    def admit(self) -> None:
        while (job := self.scheduler.choose(self.waiting)) is not None:
            self.waiting.remove(job)
            self.begun.append(job.call)
            self._note(self.scheduler.begin(job, self.pieces[job.call].append))

    def _note(self, *ended: Ended | None) -> None:
        self.ended |= {one.job.call: one.outcome for one in ended if one is not None}

    def step(self) -> list[Row]:
        """One step; its batch."""
        self.admit()
        before = len(self.bench.batches)
        try:
            self._note(*self.scheduler.step())
        except Aborted:
            return []
        return self.bench.batches[before] if len(self.bench.batches) > before else []

    def run(self, steps: int = 5000) -> None:
        for _ in range(steps):
            self.admit()
            if not self.scheduler.running:
                assert not self.waiting, "nobody runs, and somebody waits"
                return
            self.step()
        raise AssertionError(f"not over after {steps} steps")

    def text(self, job: Job) -> str:
        done = self.ended[job.call]
        assert isinstance(done, p.Done), done
        streamed = b"".join(piece.data for piece in self.pieces[job.call] if isinstance(piece, p.Token))
        assert streamed.decode() == done.text
        return done.text


def sequences(rows: Sequence[Row]) -> set[int]:
    return {row.sequence for row in rows}


@pytest.mark.rule("scheduler.batched")
def test_running_generations_share_each_batch_and_each_has_its_own_end(scripts: Scripts) -> None:
    lines = (
        {"match": "one", "text": "a" * 9},
        {"match": "two", "turn": {"final": "b"}},
        {"match": "three", "text": "c" * 50},
    )
    table = Table(scripts.engine({}, *lines))
    one = table.job("one")
    two = table.job("two", constraint=p.Constraint(schema=json.dumps(SCHEMA)))
    three = table.job("three", max_tokens=20)
    table.run()
    assert max(len(sequences(rows)) for rows in table.bench.batches) == 3
    assert (table.text(one), table.text(three)) == ("a" * 9, "c" * 20)
    assert json.loads(table.text(two)) == {"final": "b"}
    stops = [done.stop for done in table.ended.values() if isinstance(done, p.Done)]
    assert sorted(stops) == ["final", "length", "stop"]
    # Three prompts and the longest reply: the others cost no step of their own.
    assert len(table.bench.batches) <= 3 + 20


@pytest.mark.rule("scheduler.max-batch")
def test_more_than_max_batch_wait_in_order(scripts: Scripts) -> None:
    table = Table(scripts.engine({}, {"match": ".", "text": "ab"}), max_batch=2)
    for n in range(5):
        table.job(f"prompt {n}")
    table.run()
    assert table.begun == [0, 1, 2, 3, 4]
    assert max(len(sequences(rows)) for rows in table.bench.batches) == 2


@pytest.mark.rule("scheduler.prompt-slices")
@pytest.mark.bound("worker.prompt-slice")
def test_a_long_prompt_is_filled_in_slices_beside_the_replies(scripts: Scripts, limit: Limit) -> None:
    limit("worker.prompt-slice", 50)
    table = Table(scripts.engine({}, {"match": "short", "text": "a" * 100}, {"match": "long", "text": "b"}))
    short = table.job("short")
    table.step()
    long = table.job("long " + "x" * 1500)
    table.run()
    assert (table.text(short), table.text(long)) == ("a" * 100, "b")
    beside = [rows for rows in table.bench.batches[1:] if len(sequences(rows)) == 2]
    assert len(beside) >= 1500 // PROMPT_SLICE.count
    assert max(len(rows) for rows in beside) == PROMPT_SLICE.count
    assert {len([row for row in rows if row.logits]) for rows in beside} == {1, 2}


@pytest.mark.bound("worker.prompt-step")
@pytest.mark.parametrize(("seconds", "rows"), [(0, 64), (0.15, 128)])
def test_a_slice_beside_a_reply_takes_no_longer_than_its_bound_but_a_tile_at_least(
    scripts: Scripts, limit: Limit, seconds: float, rows: int
) -> None:
    limit("worker.prompt-slice", 200)
    limit("worker.prompt-step", seconds)
    table = Table(scripts.engine({}, {"match": "short", "text": "a" * 100}, {"match": "long", "text": "b"}))
    table.job("short")
    table.step()
    table.job("long " + "x" * 1500)
    table.bench.store.rates = Rates(row=1e-3)
    table.step()
    assert len(table.bench.batches[-1]) == rows, "the reply's row is one of them"


def test_several_prompts_share_a_step(scripts: Scripts) -> None:
    table = Table(scripts.engine({}, {"match": ".", "text": "ab"}))
    for thing in ("foxes", "ships", "clocks"):
        table.job(thing)
    table.step()
    assert len(sequences(table.bench.batches[0])) == 3


def test_one_alone_fills_its_prompt_with_whole_batches(scripts: Scripts) -> None:
    table = Table(scripts.engine({}, {"text": "b"}, window=4096))
    table.job("x" * 2000)
    table.run()
    assert len(table.bench.batches[0]) == table.engine.facts.batch


def test_the_next_prompt_takes_only_what_the_one_before_it_leaves_of_a_step(scripts: Scripts) -> None:
    table = Table(scripts.engine({}, {"match": ".", "text": "a" * 30}, window=4096))
    table.job("short")
    table.step()
    table.job("p" * 500)
    table.job("q" * 500)
    table.run()
    filling = [{row.sequence for row in rows if not row.logits} for rows in table.bench.batches[1:]]
    assert sum(len(sequences) == 2 for sequences in filling) == 1


@pytest.mark.rule("scheduler.reserved")
def test_what_does_not_fit_waits_and_nobody_behind_takes_its_room(scripts: Scripts) -> None:
    engine = scripts.engine({}, {"match": ".", "text": "a" * 50}, window=1000, cells=1000)
    table = Table(engine)
    table.job("first", max_tokens=600)
    large = table.job("large", max_tokens=600)
    small = table.job("small", max_tokens=60)
    table.admit()
    assert table.begun == [0]
    table.run()
    assert table.begun == [0, large.call, small.call]
    assert {type(outcome) for outcome in table.ended.values()} == {p.Done}


def test_who_does_not_fit_is_not_measured_again_until_somebody_comes_or_goes(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scripts.engine({}, {"match": ".", "text": "a" * 50}, window=1000, cells=1000)
    table = Table(engine)
    fits, measured = table.bench.shelf.fits, 0

    def counted(tokens: Sequence[int], *, reserve: int) -> bool:
        nonlocal measured
        measured += 1
        return fits(tokens, reserve=reserve)

    monkeypatch.setattr(table.bench.shelf, "fits", counted)
    table.job("first", max_tokens=600)
    table.job("large", max_tokens=600)
    for _ in range(20):
        table.step()
    assert (table.begun, measured) == ([0], 1)
    later = table.job("later", max_tokens=600)
    table.step()
    assert measured == 2
    table.run()
    assert table.begun == [0, 1, later.call]
    assert measured < 10


@pytest.mark.rule("scheduler.reserved")
def test_what_never_fits_is_refused_once_nobody_is_in_its_way(scripts: Scripts) -> None:
    table = Table(scripts.engine({}, {"match": ".", "text": "a"}, window=1000, cells=500))
    table.job("first", max_tokens=100)
    huge = table.job("huge", max_tokens=900)
    last = table.job("last", max_tokens=100)
    table.run()
    refusal = table.ended[huge.call]
    assert isinstance(refusal, Refused)
    assert refusal.code == "no_room"
    assert table.text(last) == "a"


@pytest.mark.rule("scheduler.resident-first")
@pytest.mark.bound("worker.passed-over")
@pytest.mark.parametrize("times", [1, 2])
def test_a_resident_prompt_goes_first_but_nobody_is_passed_over_more_than_so_often(
    scripts: Scripts, limit: Limit, times: int
) -> None:
    limit("worker.passed-over", times)
    table = Table(scripts.engine({}, {"match": ".", "text": "a"}, window=4096), max_batch=1)
    known = "k" * 300
    table.job(known)
    table.run()
    new = table.job("n" * 300)
    resident = [table.job(known) for _ in range(PASSED_OVER.count + 2)]
    table.run()
    first = [job.call for job in resident[: PASSED_OVER.count]]
    rest = [job.call for job in resident[PASSED_OVER.count :]]
    assert table.begun[1:] == [*first, new.call, *rest]


@pytest.mark.rule("scheduler.waits-for-filling")
def test_a_prompt_that_another_one_is_filling_waits_and_forks(scripts: Scripts) -> None:
    table = Table(scripts.engine({}, {"match": ".", "text": "a" * 5}, window=4096))
    shared = "s" * 1500
    jobs = [table.job(shared, f"piece {n}") for n in range(4)]
    table.run()
    prompt = len(jobs[0].prompt.tokens)
    computed = [row for rows in table.bench.batches for row in rows]
    assert len(computed) < prompt + 4 * 60, "the shared rows were computed more than once"
    assert [table.text(job) for job in jobs] == ["a" * 5] * 4
    for job in jobs[1:]:
        done = table.ended[job.call]
        assert isinstance(done, p.Done)
        assert done.usage.recomputed_from >= 1500


def test_another_prompt_does_not_wait_for_one_that_is_filled(scripts: Scripts) -> None:
    table = Table(scripts.engine({}, {"match": ".", "text": "a" * 5}, window=4096))
    table.job("s" * 1500)
    table.job("t" * 1500)
    table.admit()
    assert table.begun == [0, 1]
    table.run()


@pytest.mark.rule("scheduler.waits-for-filling")
def test_the_cancel_of_the_one_that_fills_lets_the_next_one_fill(scripts: Scripts) -> None:
    table = Table(scripts.engine({}, {"match": ".", "text": "a" * 5}, window=4096))
    first = table.job("s" * 1500, "one")
    second = table.job("s" * 1500, "two")
    third = table.job("s" * 1500, "three")
    table.step()
    assert table.begun == [0]
    first.cancelled.set()
    table.run()
    assert (table.text(second), table.text(third)) == ("a" * 5, "a" * 5)


@pytest.mark.rule("scheduler.cancel-one")
def test_cancelling_one_leaves_the_others_as_they_were(scripts: Scripts) -> None:
    table = Table(scripts.engine({}, {"match": ".", "text": "a" * 40}))
    jobs = [table.job(f"prompt {n}") for n in range(3)]
    for _ in range(6):
        table.step()
    jobs[1].cancelled.set()
    table.engine.interrupt()
    table.run()
    cancelled = table.ended[jobs[1].call]
    assert isinstance(cancelled, p.Done)
    assert cancelled.stop == "cancelled"
    assert 0 < len(table.text(jobs[1])) < 40
    assert (table.text(jobs[0]), table.text(jobs[2])) == ("a" * 40, "a" * 40)


@pytest.mark.parametrize(
    ("bad", "outcome"),
    [
        ({"text": "a" * 9, "fault": "error", "at": 4}, "scripted_error"),
        ({"text": "a" * 9, "fault": "cut", "at": 4}, "length"),
        ({"text": "no json"}, "script_mismatch"),
    ],
)
def test_what_goes_wrong_with_one_is_its_own_business(
    scripts: Scripts, bad: dict[str, Any], outcome: str
) -> None:
    bad.pop("at", None)
    table = Table(scripts.engine({}, {"match": "bad", **bad}, {"match": "good", "text": "b" * 30}))
    constraint = p.Constraint(schema=json.dumps(SCHEMA)) if outcome == "script_mismatch" else None
    good = [table.job("good one"), table.job("good two")]
    table.step()
    faulty = table.job("bad", constraint=constraint)
    table.run()
    ended = table.ended[faulty.call]
    assert (ended.code if isinstance(ended, Refused) else ended.stop) == outcome
    assert [table.text(job) for job in good] == ["b" * 30] * 2


def test_a_choice_runs_beside_turns(scripts: Scripts) -> None:
    table = Table(scripts.engine({}, {"match": "turn", "text": "a" * 30}, {"match": "which", "text": "edit"}))
    turn = table.job("turn")
    choice = table.job("which", constraint=p.Constraint(texts=["ask", "edit", "plan"]))
    table.run()
    assert (table.text(turn), table.text(choice)) == ("a" * 30, "edit")


@pytest.mark.bound("worker.reply-slice")
def test_a_forced_stretch_is_no_longer_than_a_slice(scripts: Scripts, limit: Limit) -> None:
    limit("worker.reply-slice", 20)
    limit("worker.prompt-slice", 20)
    value = "v" * 300
    schema = {
        "type": "object",
        "properties": {"final": {"const": value}},
        "required": ["final"],
        "additionalProperties": False,
    }
    table = Table(
        scripts.engine({}, {"match": "forced", "turn": {"final": value}}, {"match": "free", "text": "a" * 9})
    )
    free = table.job("free")
    forced = table.job("forced", max_tokens=400, constraint=p.Constraint(schema=json.dumps(schema)))
    table.run()
    assert table.text(free) == "a" * 9
    assert json.loads(table.text(forced)) == {"final": value}
    assert max(len(rows) for rows in table.bench.batches) <= max(REPLY_SLICE.count, PROMPT_SLICE.count) + 4


@pytest.mark.rule("scheduler.batched")
def test_a_forced_stretch_leaves_a_row_of_a_small_batch_to_everybody_else(scripts: Scripts) -> None:
    turn = {"thought": "x" * 40, "plan": "y" * 200, "final": "z"}
    kinds = {"thought": {"type": "string"}, "plan": {"const": turn["plan"]}, "final": {"type": "string"}}
    schema = SCHEMA | {"properties": kinds, "required": list(kinds)}
    lines = {"match": "forced", "turn": turn}, {"match": "free", "text": "a" * 100}
    table = Table(scripts.engine({}, *lines, batch=8))
    forced = table.job("forced", max_tokens=400, constraint=p.Constraint(schema=json.dumps(schema)))
    free = [table.job(f"free {n}") for n in range(2)]
    batches = []
    while forced.call not in table.ended:
        batches.append(table.step())
    stretch = [rows for rows in batches if len(rows) == 8 and rows[-1].logits]
    assert len(stretch) > 20, "200 tokens, six a step"
    assert {len(sequences(rows)) for rows in stretch} == {3}
    table.run()
    assert [table.text(one) for one in free] == ["a" * 100] * 2


class Guessing(ScriptedEngine):
    """A script that is drafted ahead of, as a model is: it says something behind wrong drafts too."""

    def _after(self, sequence: int, play: Any, said: bytearray) -> Any:
        if play.data.startswith(said):
            return super()._after(sequence, play, said)
        return np.zeros(self.vocabulary.size, dtype=np.float32)


@pytest.mark.rule("scheduler.drafts")
@pytest.mark.rule("scheduler.drafts-fit")
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_comes_and_goes_everybody_gets_what_is_its_own(
    scripts: Scripts, data: st.DataObject
) -> None:
    """Random arrivals, cancels and sizes in few cells: each text is whole, nobody waits for ever, no cell is lost."""
    says = {"a": "a" * 3, "b": "bbbbb.bbbbbb.bbbb", "c": "ccccc.ccccd." * 3 + "cccc"}
    lines = [{"match": f"<{kind}>", "text": text} for kind, text in says.items()]
    engine = scripts.engine({}, *lines, window=600, cells=data.draw(st.sampled_from([600, 900, 2000])))
    if data.draw(st.booleans()):
        engine.__class__ = Guessing
        engine.facts = replace(engine.facts, drafts=True)
    table = Table(engine, max_batch=data.draw(st.integers(1, 4)))
    wanted: dict[int, str] = {}
    jobs: list[Job] = []
    for _ in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["job", "job", "step", "step", "cancel"]))
        if what == "job":
            kind = data.draw(st.sampled_from("abc"))
            job = table.job("s" * data.draw(st.sampled_from([0, 5, 120])), f"<{kind}>", max_tokens=50)
            wanted[job.call] = says[kind]
            jobs.append(job)
        elif what == "step" and (table.waiting or table.scheduler.running):
            table.step()
        elif jobs:
            job = data.draw(st.sampled_from(jobs))
            if job not in table.waiting:
                job.cancelled.set()
    table.run()
    for job in jobs:
        text = table.text(job)
        assert text == wanted[job.call] or (job.cancelled.is_set() and wanted[job.call].startswith(text))
    assert table.bench.shelf.promised == 0
    assert table.bench.shelf.used <= engine.facts.cells
