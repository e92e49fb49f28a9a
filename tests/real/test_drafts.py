"""Drafts on llama.cpp: the same turns with them and without, in fewer steps. On tiny models with random weights."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from aerix.pool import protocol as p
from aerix.pool.engine import LlamaEngine
from aerix.pool.generation import Turn
from tests.conftest import Limit
from tests.pool.desk import Desk
from tests.pool.test_scheduler import Table
from tests.pool.tiny import attentive, recurrent
from tests.real.test_store import opened

WORDS = "the list of the names of the list of the names of the list"
SCHEMA = {
    "type": "object",
    "properties": {
        "words": {
            "type": "array",
            "items": {"enum": ["alpha", "alpaca", "beta"]},
            "minItems": 9,
            "maxItems": 12,
        }
    },
    "required": ["words"],
    "additionalProperties": False,
}
FILLING = 3
"""Steps that a prompt takes at most."""
JSON = p.Constraint(schema=json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    one = opened(attentive(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))
    yield one
    one.close()


@pytest.fixture
def engine(kept: LlamaEngine) -> Iterator[LlamaEngine]:
    facts = kept.facts
    yield kept
    kept.facts = facts
    for sequence in range(kept.facts.sequences):
        kept.cut(sequence, 0)


@pytest.fixture
def desk(engine: LlamaEngine) -> Desk:
    one = Desk(engine)
    one.create(p.Segment("u", "user", WORDS))
    return one


def both(desk: Desk, max_tokens: int = 120, **fields: Any) -> tuple[p.Done, p.Done, int, int]:
    """A turn without drafts and the same with them, and the steps of each."""
    found = []
    for ahead in (0, 8):
        desk.ahead = ahead
        found.append((desk.generate(max_tokens, **fields), len(desk.batches)))
    (plain, steps), (drafted, fewer) = found
    assert plain.usage.drafted_tokens == 0
    return plain, drafted, steps, fewer


@pytest.mark.rule("scheduler.drafts")
@pytest.mark.parametrize("constraint", [None, JSON], ids=["free", "schema"])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_turn_has_the_same_tokens_with_drafts_and_without(
    desk: Desk, temperature: float, seed: int, constraint: p.Constraint | None
) -> None:
    sampling = p.Sampling(temperature, seed=seed)
    plain, drafted, steps, fewer = both(desk, sampling=sampling, constraint=constraint)
    assert (drafted.stop, drafted.tokens, drafted.text) == (plain.stop, plain.tokens, plain.text)
    assert desk.streamed == drafted.tokens
    right = drafted.usage.drafted_tokens
    assert temperature or right > steps / 2
    assert fewer < steps or not right
    if constraint is None:
        assert fewer + right <= len(plain.tokens) + FILLING, "what was right took no step"


@pytest.mark.rule("scheduler.drafts-fit")
def test_a_wrong_draft_leaves_no_row_behind(desk: Desk) -> None:
    """The next rows come where it was: an engine that still held its rows would refuse them."""
    desk.ahead = 8
    wrong = 0
    for seed in range(20):
        generation = desk.open(60, sampling=p.Sampling(0.2, seed=seed))
        assert isinstance(generation, Turn)
        while generation.done is None:
            before = generation._right
            desk.step(generation)
            wrong += desk.batches[-1] - 1 > generation._right - before
            sequence = generation._lease.sequence
            assert last_row(desk.engine, sequence) == len(desk.bench.shelf.tokens(sequence)) - 1
        generation.close()
        assert last_row(desk.engine, sequence) == len(desk.bench.shelf.tokens(sequence)) - 1
    assert wrong > 20


def last_row(engine: Any, sequence: int) -> int:
    import llama_cpp

    return int(llama_cpp.llama_memory_seq_pos_max(engine._memory, sequence))


@pytest.mark.rule("scheduler.drafts")
@pytest.mark.parametrize("limit", [57, 120])
def test_the_end_of_a_turn_counts_what_was_drafted_of_it(desk: Desk, limit: int) -> None:
    """The last tokens of a value are mostly forced, and stood in the draft all the same."""
    desk.ahead = 8
    desk.generate(limit, constraint=JSON, sampling=p.Sampling(0.3, seed=1))
    generation, right = desk.open(limit, constraint=JSON, sampling=p.Sampling(0.3, seed=1)), 0
    assert isinstance(generation, Turn)
    rows = desk.bench.shelf.tokens(generation._leased.sequence)
    while generation.done is None:
        before = len(rows)
        desk.step(generation)
        known = desk.batches[-1] - len(generation._drafted)
        right += len(rows) - before - known
    generation.close()
    assert generation.done.usage.drafted_tokens == right > 0


@pytest.mark.rule("scheduler.drafts-fit")
@pytest.mark.parametrize("limit", [1, 2, 3, 9, 10, 11])
def test_a_draft_stays_within_the_room_of_the_reply(engine: LlamaEngine, desk: Desk, limit: int) -> None:
    prompt = len(desk.contexts.prompt(desk.context).tokens)
    engine.facts = replace(engine.facts, cells=prompt + limit)
    tight = Desk(engine)
    tight.create(p.Segment("u", "user", WORDS))
    plain, drafted, _, _ = both(tight, limit, sampling=p.Sampling(0))
    assert (drafted.stop, drafted.tokens) == (plain.stop, plain.tokens)
    assert len(drafted.tokens) == limit


@pytest.mark.rule("scheduler.drafts")
@pytest.mark.rule("prefix.start-continues")
@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_turn_that_is_taken_up_again_drafts_from_what_the_client_brought(desk: Desk, cut: int) -> None:
    sampling = p.Sampling(0.3, seed=5)
    plain, _, _, _ = both(desk, sampling=sampling)
    _, drafted, _, _ = both(desk, sampling=sampling, start=plain.tokens[:cut])
    assert drafted.tokens == plain.tokens
    assert desk.streamed == plain.tokens[cut:]


@pytest.mark.rule("scheduler.drafts-less")
@pytest.mark.parametrize(("count", "most"), [(1, 7), (2, 3), (4, 3)])
def test_replies_beside_each_other_draft_half_as_many(engine: LlamaEngine, count: int, most: int) -> None:
    """Eight and four at most, so that with the row before it they are eight and four."""
    table = Table(engine)
    jobs = [table.job(f"{n} {WORDS}", max_tokens=60, sampling=p.Sampling(0)) for n in range(count)]
    most_rows: Counter[int] = Counter()
    while table.waiting or table.scheduler.running:
        rows = Counter(row.sequence for row in table.step() if row.logits)
        if len(rows) == count:
            most_rows |= rows
    assert all(isinstance(table.ended[job.call], p.Done) for job in jobs)
    assert set(most_rows.values()) == {most + 1}


@pytest.mark.rule("scheduler.drafts-less")
def test_beside_a_prompt_that_is_read_nothing_is_drafted(engine: LlamaEngine, limit: Limit) -> None:
    limit("worker.prompt-slice", 8)
    table = Table(engine)
    first = table.job(WORDS, max_tokens=200, sampling=p.Sampling(0))
    while len([row for row in table.step() if row.logits]) < 5:
        assert table.scheduler.running
    table.job(f"another prompt {WORDS}", max_tokens=4, sampling=p.Sampling(0))
    table.admit()
    seen = 0
    while table.scheduler.running == 2 and first.call not in table.ended:
        rows = table.step()
        if not all(row.logits for row in rows):
            seen += 1
            assert sum(row.logits for row in rows) <= 2
    assert seen > 5


@pytest.mark.rule("scheduler.drafts-less")
def test_a_model_that_cannot_be_cut_drafts_nothing(tmp_path: Any) -> None:
    engine = opened(recurrent(tmp_path / "tiny.gguf"))
    try:
        desk = Desk(engine)
        desk.ahead = 8
        desk.create(p.Segment("u", "user", WORDS))
        done = desk.generate(60, sampling=p.Sampling(0))
        assert done.usage.drafted_tokens == 0
        assert set(desk.batches[1:]) == {1}
    finally:
        engine.close()


@pytest.mark.bound("worker.draft")
@pytest.mark.parametrize("most", [0, 2, 3])
def test_the_table_bounds_a_draft(engine: LlamaEngine, limit: Limit, most: int) -> None:
    limit("worker.draft", most)
    table = Table(engine)
    table.job(WORDS, max_tokens=80, sampling=p.Sampling(0))
    table.run()
    asked = [sum(row.logits for row in rows) for rows in table.bench.batches]
    assert max(asked) == most + 1
