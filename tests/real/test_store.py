"""The store with engines of every kind of memory: what is resumed gives the logits of a fresh engine.

Beside the default model a tiny recurrent and a tiny hybrid one, and Gemma with a cache that forgets what its sliding
windows do not see any more.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerix.pool import protocol as p
from aerix.pool import selftest
from aerix.pool.contexts import Prompt
from aerix.pool.engine import LlamaEngine
from aerix.pool.generation import Bench
from aerix.pool.ladder import Rung, apply_signal_stack
from aerix.pool.rates import Rates
from aerix.pool.rows import Row
from aerix.pool.shelf_disk import open_heads
from aerix.pool.store import Store
from aerix.pool.workerargs import WorkerArgs
from tests.pool.desk import Desk
from tests.pool.owner import worker
from tests.pool.tiny import hybrid, recurrent
from tests.real import fetched

SPREAD = 1.0
"""By how much logits differ where the same rows were computed in other batches: here it was up to 0.95."""
EXACT = 0.05
"""By how much, where only the cells are others that the rows lie in."""
TEXT = " ".join(f"Rule {n}: write what file {n * 7} says, then stop." for n in range(200))


class Forgetful(LlamaEngine):
    """Keeps of layers with a sliding window only what it still sees."""

    def _params(self, args: WorkerArgs, cells: int, threads: int, batch: int) -> Any:
        params = super()._params(args, cells, threads, batch)
        params.swa_full = False
        return params


def opened(
    path: Path, kind: type[LlamaEngine] = LlamaEngine, *, tested: bool = True, **args: Any
) -> LlamaEngine:
    apply_signal_stack()
    engine = kind(
        WorkerArgs(str(path), **{"window": 512, "cells": 1024, **args}), Rung("", plain_weights=True)
    )
    if tested:
        selftest.run(engine)
    return engine


@pytest.fixture(scope="module", params=["default", "recurrent", "hybrid"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An engine to resume in, and one that is always fresh."""
    make = {"recurrent": recurrent, "hybrid": hybrid}.get(request.param)
    path = (
        make(tmp_path_factory.mktemp("tiny") / "tiny.gguf") if make else request.getfixturevalue("model_file")
    )
    engines = opened(path), opened(path, tested=False)
    yield engines
    for engine in engines:
        engine.close()


def emptied(engine: LlamaEngine, sequences: int) -> LlamaEngine:
    for sequence in range(16):
        engine.cut(sequence, 0)
    engine.facts = replace(engine.facts, sequences=sequences)
    return engine


def fresh(engine: LlamaEngine, tokens: list[int], cut: int) -> np.ndarray:
    """The logits after a prompt that nothing was known of; the rows up to ``cut`` in other batches than the others.

    How many rows share a batch already changes a logit: this is not what is compared.
    """
    engine.cut(0, 0)
    found = []
    for first, last in ((0, cut), (cut, len(tokens))):
        for at in range(first, last, engine.facts.batch):
            part = range(at, min(at + engine.facts.batch, last))
            found += engine.decode([Row(tokens[i], i, 0, i == len(tokens) - 1) for i in part])
    return found[-1].copy()


def resumed(store: Store, engine: LlamaEngine, prompt: Prompt) -> tuple[Any, np.ndarray]:
    """The lease and the logits of a prompt that the store starts."""
    tokens = list(prompt.tokens)
    lease = store.admit(tokens, reserve=0, prompt=prompt)
    assert lease is not None
    at, logits = lease.start, []
    while at < len(tokens):
        end = store.until(lease.sequence, min(at + engine.facts.batch, len(tokens)))
        logits = engine.decode(
            [Row(tokens[i], i, lease.sequence, i == len(tokens) - 1) for i in range(at, end)]
        )
        logits = [one.copy() for one in logits]
        store.commit(lease.sequence, tokens[at:end])
        at = end
    store.release(lease.sequence)
    return lease, logits[0]


def prompt_of(*parts: list[int], head: int = 1) -> Prompt:
    """Segments; the first ``head`` are pinned."""
    ends = [sum(map(len, parts[: at + 1])) for at in range(len(parts))]
    return Prompt(
        (), tuple(token for part in parts for token in part), ends=tuple(ends[:-1]), head=ends[head - 1]
    )


def hold(one: np.ndarray, other: np.ndarray, spread: float = SPREAD) -> None:
    assert float(np.abs(one - other).max()) <= spread
    assert one.argmax() == other.argmax()


@pytest.mark.rule("prefix.resumed-equals")
@pytest.mark.rule("prefix.uncuttable")
def test_resumed_rows_give_the_logits_of_a_fresh_engine(pair: tuple[LlamaEngine, LlamaEngine]) -> None:
    engine, other = emptied(pair[0], 2), emptied(pair[1], 1)
    store = Store(engine, 64 << 20)
    words = engine.vocabulary.tokenize(TEXT, special=False)
    heads, talks, asks = (
        [words[at : at + size] for at in range(start, start + 3 * size, size)]
        for start, size in ((0, 64), (300, 40), (600, 12))
    )
    draw = random.Random(11)
    shelves = []
    for step in range(12):
        prompt = prompt_of(draw.choice(heads[:2]), draw.choice(talks), draw.choice(asks))
        lease, logits = resumed(store, engine, prompt)
        shelves.append(lease.shelf)
        if step % 4 == 3:
            hold(logits, fresh(other, list(prompt.tokens), lease.start))
    assert "memory" in shelves


@pytest.mark.rule("prefix.resumed-equals")
def test_restored_rows_are_those_that_were_saved(pair: tuple[LlamaEngine, LlamaEngine]) -> None:
    engine = emptied(pair[0], 4)
    words = engine.vocabulary.tokenize(TEXT, special=False)
    engine.decode([Row(words[at], at, 0) for at in range(100)])
    engine.copy(0, 1, 100)
    stretches = [(0, 64), (64, 100)] if engine.facts.cuttable else [(0, 100)]
    for start, end in stretches:
        data = engine.save(0, start, end)
        assert data is not None
        assert engine.load(2, data, start, end)
    after = [engine.decode([Row(words[100], 100, sequence, logits=True)])[0].copy() for sequence in (1, 2)]
    hold(*after, EXACT)
    damaged = memoryview(bytes(data[: len(data) // 2]))
    assert not engine.load(3, damaged, 0, 36)


@pytest.mark.rule("prefix.uncuttable")
def test_what_cannot_be_cut_is_found_by_trying(pair: tuple[LlamaEngine, LlamaEngine]) -> None:
    assert pair[0].facts.cuttable == (pair[0].vocabulary.architecture == "llama")


@pytest.mark.rule("prefix.resumed-equals")
@pytest.mark.rule("prefix.pinned-outlive")
def test_a_head_on_disk_gives_the_logits_of_a_fresh_engine(
    pair: tuple[LlamaEngine, LlamaEngine], tmp_path: Path
) -> None:
    words = pair[0].vocabulary.tokenize(TEXT, special=False)
    shelves = []
    model = tmp_path / "model"
    model.write_bytes(b"what the engines have open")
    args = WorkerArgs(str(model), prefix_dir=str(tmp_path / "prefixes"))
    for ask in (words[200:210], words[220:230]):
        engine = emptied(pair[0], 2)
        store = Store(engine, 64 << 20, open_heads(args, engine.facts))
        lease, logits = resumed(store, engine, prompt_of(words[:100], ask))
        hold(logits, fresh(emptied(pair[1], 1), [*words[:100], *ask], lease.start))
        shelves.append((lease.start, lease.shelf))
        store.rest()
        store.close()
    assert shelves == [(0, "none"), (100, "disk")]


@pytest.mark.parametrize("make", [recurrent, hybrid])
def test_a_turn_and_a_choice_are_generated_where_memory_cannot_be_cut(tmp_path: Path, make: Any) -> None:
    engine = opened(make(tmp_path / "tiny.gguf"))
    desk = Desk(engine)
    store = Store(engine, 64 << 20)
    desk.bench = Bench(engine, store)
    desk.create(p.Segment("u1", "user", TEXT[:150]))
    sampling = p.Sampling(temperature=0)
    first = desk.generate(8, sampling=sampling)
    store.rates = Rates(row=1000.0)  # so that a snapshot is the cheapest plan, however busy the machine is
    choice = desk.generate(8, constraint=p.Constraint(texts=["yes", "no", "never", "often", "soon"]))
    assert choice.usage.recomputed_from > 60, "the end of the segment was kept"
    again = desk.generate(8, sampling=sampling)
    assert (first.tokens, again.usage.recomputed_from) == (again.tokens, choice.usage.recomputed_from)
    assert choice.scores is not None
    engine.close()


@pytest.mark.soak
@pytest.mark.rule("prefix.uncuttable")
@pytest.mark.parametrize("kind", [LlamaEngine, Forgetful])
def test_sliding_windows_are_kept_whole_or_at_the_ends_of_segments(
    test_cache: Path, pip_environment: dict[str, str], kind: type[LlamaEngine]
) -> None:
    """Over windows of 512: rows that a window does not see any more may be missing, and must not be wanted."""
    path = fetched.gemma(test_cache, pip_environment)
    engine, other = (
        opened(path, kind, window=1536, cells=4096),
        opened(path, tested=False, window=1536, cells=2048),
    )
    try:
        assert engine.facts.cuttable == (kind is LlamaEngine)
        store = Store(emptied(engine, 1), 64 << 20)
        words = engine.vocabulary.tokenize(TEXT, special=False)
        long = prompt_of(words[:700], words[800:900], words[1000:1010])
        resumed(store, engine, long)
        resumed(store, engine, prompt_of(words[1100:1200], words[:5]))
        for talk, start in (([*words[800:900], 9], 800), (words[900:930], 700)):
            prompt = prompt_of(words[:700], talk, words[1000:1010])
            lease, logits = resumed(store, engine, prompt)
            assert (lease.start, lease.shelf) == (start, "memory")
            hold(logits, fresh(other, list(prompt.tokens), lease.start))
            resumed(store, engine, prompt_of(words[1100:1200], words[:5]))
    finally:
        engine.close()
        other.close()


# --- workers ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("prefix.uncuttable")
@pytest.mark.parametrize("make", [recurrent, hybrid])
def test_a_running_generation_ends_at_its_next_step_and_the_others_go_on(tmp_path: Path, make: Any) -> None:
    args = WorkerArgs(str(make(tmp_path / "tiny.gguf")), window=4096)
    with worker(args) as owner:
        contexts = [owner.create(p.Segment("u", "user", text)) for text in ("one", "two")]
        sampling = p.Sampling(temperature=0)
        lone = owner.ask(p.Generate(1, contexts[1], 300, sampling)).result()
        first, second = (owner.ask(p.Generate(n, c, 300, sampling)) for n, c in enumerate(contexts))
        first.until(bool)
        owner.cancel(first)
        assert first.result().stop in ("cancelled", "length", "stop")
        assert second.result().tokens == lone.tokens


@pytest.mark.rule("prefix.uncuttable")
@pytest.mark.parametrize("make", [recurrent, hybrid])
def test_a_worker_is_stopped_in_a_step_that_cannot_be_taken_back(tmp_path: Path, make: Any) -> None:
    args = WorkerArgs(str(make(tmp_path / "tiny.gguf")), window=4096)
    with worker(args) as owner:
        context = owner.create(p.Segment("u", "user", TEXT[:1500]))
        running = owner.ask(p.Generate(1, context, 1000))
        running.until(bool)
        owner.worker.stop()
        assert not owner.end().abnormal
