"""The store with an engine under it: what moves between the shelves, and that the engine holds what they say."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.contexts import Prompt
from aerix.pool.generation import Bench
from aerix.pool.plan import plans
from aerix.pool.prefix import Place
from aerix.pool.rates import Rates
from aerix.pool.rows import EngineFacts, Row, Scene, Vocabulary
from aerix.pool.shelf_disk import HeadFiles, Kind
from aerix.pool.shelf_memory import Part
from aerix.pool.store import WORTH, Store
from aerix.pool.workerargs import WorkerArgs
from tests.conftest import Limit
from tests.pool.desk import Desk, Scripts
from tests.pool.owner import worker

CHUNK = 8
ROW = struct.Struct("<ii")


@dataclass
class Machine:
    """An engine's memory by brute force: each row an object that forks share, and never more of them than cells."""

    facts: EngineFacts
    rows: dict[int, list[tuple[object, int]]] = field(default_factory=dict)
    broken: bool = False
    """Whether it takes no snapshot."""

    @property
    def vocabulary(self) -> Vocabulary:
        raise AssertionError("no text is needed")

    def tokens(self, sequence: int) -> list[int]:
        return [token for _, token in self.rows.get(sequence, [])]

    def compute(self, sequence: int, tokens: Sequence[int]) -> None:
        self.rows.setdefault(sequence, []).extend((object(), token) for token in tokens)
        self.hold()

    def hold(self) -> None:
        assert len({id(cell) for rows in self.rows.values() for cell, _ in rows}) <= self.facts.cells

    def copy(self, source: int, target: int, upto: int) -> None:
        assert not self.rows.get(target), "a fork goes into an empty sequence"
        assert self.facts.cuttable or upto == len(self.rows[source])
        self.rows[target] = self.rows[source][:upto]

    def cut(self, sequence: int, at: int) -> bool:
        held = self.rows.setdefault(sequence, [])
        if not self.facts.cuttable and 0 < at < len(held):
            return False
        del held[at:]
        return True

    def save(self, sequence: int, start: int, end: int) -> memoryview | None:
        held = self.tokens(sequence)
        assert 0 <= start < end <= len(held)
        assert self.facts.cuttable or (start, end) == (0, len(held))
        return memoryview(b"".join(ROW.pack(at, held[at]) for at in range(start, end)))

    def load(self, sequence: int, data: memoryview, start: int, end: int) -> bool:
        if self.broken:
            return False
        held = list(ROW.iter_unpack(data))
        assert len(self.rows.get(sequence, [])) == start
        if not self.facts.cuttable:
            assert (start, end) == (0, len(held))
        spare = self.rows[-1] = [(object(), token) for _, token in held]
        self.hold()
        wanted = [row for row, (at, _) in zip(spare, held, strict=True) if start <= at < end]
        assert len(wanted) == end - start
        self.rows.setdefault(sequence, []).extend(wanted)
        del self.rows[-1]
        return True

    def begin(self, sequence: int, scene: Scene) -> None:
        raise AssertionError

    def decode(self, rows: Sequence[Row]) -> Any:
        raise AssertionError

    def stuck(self, sequence: int, allowed: list[bytes]) -> Refused:
        raise AssertionError

    def interrupt(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


def machine(sequences: int = 2, cells: int = 200, *, cuttable: bool = True) -> Machine:
    return Machine(
        EngineFacts(
            window=cells,
            cells=cells,
            sequences=sequences,
            batch=64,
            threads=1,
            cuttable=cuttable,
            chunk=CHUNK,
            row_bytes=ROW.size,
        )
    )


def prompt_of(tokens: Sequence[int], head: int = 0, ends: Sequence[int] = ()) -> Prompt:
    return Prompt((), tuple(tokens), ends=tuple(ends), head=head)


def run(store: Store, engine: Machine, tokens: list[int], prompt: Prompt | None = None) -> Any:
    """A generation that computes its prompt and ends; its lease."""
    lease = store.admit(tokens, reserve=0, prompt=prompt)
    assert lease is not None
    assert engine.tokens(lease.sequence) == tokens[: lease.start]
    at = lease.start
    while at < len(tokens):
        end = store.until(lease.sequence, len(tokens))
        engine.compute(lease.sequence, tokens[at:end])
        store.commit(lease.sequence, tokens[at:end])
        at = end
    store.release(lease.sequence)
    return lease


def conversation(first: int, rows: int = 60) -> list[int]:
    return [first, *range(1000, 1000 + rows - 1)]


@pytest.mark.rule("prefix.shelves")
def test_what_must_leave_the_cache_comes_back_from_memory() -> None:
    engine = machine(sequences=1)
    store = Store(engine, 10_000)
    run(store, engine, conversation(1))
    assert store.memory.bytes == 0, "what is resident needs no snapshot"
    run(store, engine, conversation(2))
    assert store.memory.bytes == 60 * ROW.size
    lease = run(store, engine, [*conversation(1), 5])
    assert (lease.start, lease.shelf) == (60, "memory")
    shelves = {shelf.name: (shelf.hits, shelf.misses) for shelf in store.shelves()}
    assert shelves == {"resident": (0, 3), "memory": (1, 2), "disk": (0, 2)}


def test_few_rows_are_not_kept() -> None:
    engine = machine(sequences=1)
    store = Store(engine, 10_000)
    run(store, engine, conversation(1, WORTH - 1))
    run(store, engine, conversation(2))
    assert store.memory.bytes == 0


@pytest.mark.rule("prefix.shelves")
def test_a_budget_of_nothing_keeps_nothing() -> None:
    engine = machine(sequences=1)
    store = Store(engine, 0)
    run(store, engine, conversation(1))
    run(store, engine, conversation(2))
    assert (store.memory.bytes, run(store, engine, conversation(1)).start) == (0, 0)


def test_a_fork_of_what_is_resident_goes_on_with_what_memory_holds() -> None:
    engine = machine(sequences=2, cells=130)
    store = Store(engine, 10_000)
    long = conversation(1)
    run(store, engine, long)
    run(store, engine, [*long[:20], *range(50)])
    run(store, engine, conversation(3))
    lease = run(store, engine, [*long, 9])
    assert (lease.start, lease.shelf) == (60, "memory")


def test_a_tail_that_is_cut_for_want_of_room_is_kept_first() -> None:
    engine = machine(sequences=1, cells=100)
    store = Store(engine, 10_000)
    long = conversation(1, 80)
    run(store, engine, long)
    assert run(store, engine, [*long[:20], *range(50)]).start == 20
    assert run(store, engine, long).start == 79


def test_a_snapshot_that_the_engine_does_not_take_costs_a_prefill() -> None:
    engine = machine(sequences=1)
    store = Store(engine, 10_000)
    run(store, engine, conversation(1))
    run(store, engine, conversation(2))
    engine.broken = True
    lease = run(store, engine, conversation(1))
    assert (lease.start, lease.shelf) == (0, "none")
    engine.broken = False
    run(store, engine, conversation(2))
    assert run(store, engine, conversation(1)).start == 59, "it was kept again"


# --- what is cheapest ---------------------------------------------------------------------------------------------

EMPTY, FORK = Place(None, 0, fork=False), Place(3, 100, fork=True)


def part(start: int, end: int, size: int = 1000, shelf: Any = "memory") -> Part:
    return Part(start, end, end, size, object(), shelf)


@pytest.mark.rule("prefix.cheapest-plan")
@pytest.mark.parametrize(
    ("rates", "start", "taken"),
    [
        (Rates(row=1.0, memory=0.01, disk=0.01), 500, ["memory", "memory", "disk"]),
        (Rates(row=1.0, memory=0.01, disk=1.0), 300, ["memory", "memory"]),
        (Rates(row=1.0, memory=0.2, disk=1.0), 100, []),
    ],
)
def test_restoring_goes_as_far_as_it_is_cheaper_than_computing(
    rates: Rates, start: int, taken: list[str]
) -> None:
    memory, disk = [part(0, 200), part(200, 300)], [part(0, 200, shelf="disk"), part(200, 500, shelf="disk")]
    first, second = plans([FORK, EMPTY], memory, disk, 600, rates, cuttable=True)
    assert (first.place, first.start) == (FORK, start)
    assert [one.shelf for one in first.parts] == taken
    assert first.seconds <= second.seconds


@pytest.mark.rule("prefix.cheapest-plan")
def test_of_a_memory_that_cannot_be_cut_the_fork_or_the_state_is_taken_whichever_is_cheaper() -> None:
    rates = Rates(row=1.0, memory=0.01, disk=1.0)
    found = plans([FORK, EMPTY], [part(0, 150)], [], 600, rates, cuttable=False)
    assert [(plan.place, plan.start) for plan in found] == [(EMPTY, 150), (FORK, 100)]
    found = plans([FORK, EMPTY], [part(0, 150, 10_000)], [], 600, rates, cuttable=False)
    assert [(plan.place, plan.start) for plan in found] == [(FORK, 100), (EMPTY, 150)]


@pytest.mark.rule("prefix.cheapest-plan")
def test_rates_follow_what_is_measured() -> None:
    rates = Rates(row=1.0, memory=1.0, disk=1.0)
    assert rates.filled(100, 200).row == 1.25
    assert rates.filled(4, 100) == rates, "a step of replies says nothing of filling"
    assert (rates.restored(10, 20).memory, rates.read(10, 20).disk) == (1.25, 1.25)


# --- memory that cannot be cut ------------------------------------------------------------------------------------


@pytest.mark.rule("prefix.uncuttable")
def test_states_are_kept_at_the_ends_of_segments_while_a_prompt_is_filled() -> None:
    engine = machine(cuttable=False)
    store = Store(engine, 10_000)
    tokens = conversation(1, 180)
    run(store, engine, tokens, prompt_of(tokens, head=50, ends=[50, 60, 120, 175]))
    assert sorted(len(one.tokens) for one in store.memory.all()) == [50, 120, 175]
    again = [*tokens[:120], 7, 8]
    assert run(store, engine, again, prompt_of(again)).start == 120
    assert run(store, engine, [*tokens[:55], 7]).start == 50


# --- pinned heads -------------------------------------------------------------------------------------------------


def heads_in(folder: Path, engine: Machine) -> HeadFiles:
    cuttable = engine.facts.cuttable
    return HeadFiles(folder, lambda: Kind("m", "e", str(cuttable)), known=True, cuttable=cuttable)


@pytest.mark.rule("prefix.pinned-outlive")
@pytest.mark.parametrize("cuttable", [True, False])
def test_a_head_is_written_when_nobody_waits_and_found_by_the_next_pool(
    tmp_path: Path, cuttable: bool
) -> None:
    engine = machine(cuttable=cuttable)
    store = Store(engine, 10_000, heads_in(tmp_path, engine))
    tokens = conversation(1, 70)
    run(store, engine, tokens, prompt_of(tokens, head=45, ends=[45]))
    assert list(tmp_path.glob("*/*")) == [], "nothing is written in a generation's way"
    store.rest()
    store.close()
    fresh = machine(cuttable=cuttable)
    later = Store(fresh, 0, heads_in(tmp_path, fresh))
    other = [*tokens[:45], *range(20)]
    lease = run(later, fresh, other, prompt_of(other, head=45, ends=[45]))
    assert (lease.start, lease.shelf) == (45, "disk")
    later.rest()
    later.close()
    assert len(list(tmp_path.glob("*/*"))) == 1


def crowded(limit: Limit, budget: int, **rates: float) -> tuple[Store, Machine, list[int]]:
    """A store with a conversation of 70 rows that nobody uses, in a cache where 40 of them are too many."""
    limit("prefix.idle-rows", 40)
    engine = machine(sequences=4, cells=400)
    store = Store(engine, budget)
    store.rates = Rates(**rates)
    tokens = conversation(1, 70)
    run(store, engine, tokens)
    return store, engine, tokens


@pytest.mark.rule("prefix.idle-leave")
@pytest.mark.bound("prefix.idle-rows")
@pytest.mark.parametrize("next_one", [conversation(2), [1, 1000, *range(60)]], ids=["other", "forked"])
def test_rows_that_nobody_uses_leave_the_cache_for_a_snapshot_and_come_back_whole(
    limit: Limit, next_one: list[int]
) -> None:
    store, engine, tokens = crowded(limit, 10_000, row=1.0)
    run(store, engine, next_one)
    assert len(list(store.shelf.sequences)) == 1
    lease = store.admit([*tokens, *range(200)], reserve=10)
    assert lease is not None
    assert (lease.start, lease.shelf) == (70, "memory"), "to the last row"


@pytest.mark.parametrize(
    ("budget", "rates"),
    [
        pytest.param(0, {"row": 1.0}, id="nowhere to go"),
        pytest.param(300, {"row": 1.0}, id="not all of them fit"),
        pytest.param(10_000, {"row": 1e-9}, id="the way out takes longer"),
    ],
)
def test_rows_that_nobody_uses_stay_where_nothing_is_won(
    limit: Limit, budget: int, rates: dict[str, float]
) -> None:
    store, engine, tokens = crowded(limit, budget, **rates)
    run(store, engine, conversation(2, 60))
    lease = store.admit([*tokens, *range(200)], reserve=10)
    assert lease is not None
    assert (lease.start, lease.shelf) == (70, "resident")


def test_a_head_that_has_left_the_cache_is_written_all_the_same(limit: Limit, tmp_path: Path) -> None:
    limit("prefix.idle-rows", 40)
    engine = machine(sequences=4, cells=400)
    store = Store(engine, 10_000, heads_in(tmp_path, engine))
    store.rates = Rates(row=1.0)
    tokens = conversation(1, 70)
    run(store, engine, tokens, prompt_of(tokens, head=45))
    run(store, engine, conversation(2, 60))
    store.rest()
    store.close()
    assert heads_in(tmp_path, engine).find(tokens, 70)[-1].upto == 45


def test_a_head_whose_rows_have_gone_is_not_written(tmp_path: Path) -> None:
    engine = machine(sequences=1)
    store = Store(engine, 0, heads_in(tmp_path, engine))
    tokens = conversation(1)
    run(store, engine, tokens, prompt_of(tokens, head=45))
    run(store, engine, conversation(2))
    store.rest()
    store.close()
    assert list(tmp_path.glob("*/*")) == []


def test_a_damaged_head_costs_a_prefill(tmp_path: Path) -> None:
    engine = machine()
    store = Store(engine, 0, heads_in(tmp_path, engine))
    tokens = conversation(1)
    run(store, engine, tokens, prompt_of(tokens, head=45))
    store.rest()
    store.close()
    (path,) = tmp_path.glob("*/*")
    fresh = machine()
    later = Store(fresh, 0, heads_in(tmp_path, fresh))
    path.write_bytes(path.read_bytes()[:-9] + bytes(9))
    assert run(later, fresh, tokens).start == 40, "its last part is damaged"


@pytest.mark.rule("prefix.pinned-outlive")
@pytest.mark.rule("prefix.keys")
def test_a_worker_that_was_started_again_finds_its_head_on_disk(scripts: Scripts) -> None:
    head = p.Segment("s", "system", "You are a careful agent. " * 20, pinned=True)
    args = WorkerArgs(f"scripted:{scripts.write({'window': 2000}, {'match': '.', 'text': 'yes'})}")
    usages = []
    for question in ("one", "two", "three"):
        with worker(args) as owner:
            context = owner.create(head, p.Segment("u", "user", question, pinned=True))
            usages.append(owner.ask(p.Generate(1, context, 10)).result().usage)
            (info,) = owner.ask(p.MemberList(1)).result().members
            assert [shelf.name for shelf in info.shelves] == ["resident", "memory", "disk"]
    rows = len(head.text)
    assert [usage.shelf for usage in usages] == ["none", "disk", "disk"]
    assert all(rows < usage.recomputed_from < rows + 40 for usage in usages[1:])
    assert (info.shelves[2].hits, info.shelves[2].entries) == (1, 1)
    scripts.path.write_text(scripts.path.read_text() + '{"match": "never", "text": "no"}\n')
    with worker(args) as owner:
        context = owner.create(head, p.Segment("u", "user", "four", pinned=True))
        usage = owner.ask(p.Generate(1, context, 10)).result().usage
        assert (usage.recomputed_from, usage.shelf) == (0, "none"), "its model is another one now"


# --- any traffic --------------------------------------------------------------------------------------------------

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=70)
TALK = st.builds(
    lambda first, rows, tail: [first] * rows + tail, st.integers(0, 2), st.integers(0, 60), TOKENS
)
STEP = st.one_of(
    st.tuples(st.just("admit"), TALK, st.integers(0, 10)),
    st.tuples(st.just("fill"), st.integers(0, 9), st.integers(1, 60)),
    st.tuples(st.just("release"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("rest"), st.none(), st.none()),
    st.tuples(st.just("resize"), st.integers(0, 600), st.none()),
)


@pytest.mark.parametrize("idle_rows", [10, 1000])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(STEP, max_size=50),
    sequences=st.integers(1, 4),
    cells=st.integers(40, 200),
    budget=st.integers(0, 1500),
    cuttable=st.booleans(),
)
@pytest.mark.rule("prefix.never-exceeded")
@pytest.mark.rule("prefix.lru")
def test_under_any_traffic_the_engine_holds_what_the_store_says(
    tmp_path_factory: pytest.TempPathFactory,
    limit: Limit,
    idle_rows: int,
    steps: list[tuple[str, Any, Any]],
    sequences: int,
    cells: int,
    budget: int,
    cuttable: bool,
) -> None:
    limit("prefix.idle-rows", idle_rows)
    engine = machine(sequences, cells, cuttable=cuttable)
    disk = heads_in(tmp_path_factory.mktemp("heads"), engine)
    store = Store(engine, budget, disk)
    running: dict[int, list[int]] = {}

    def admit(tokens: list[int], reserve: int) -> None:
        before = {sequence: engine.tokens(sequence) for sequence in running}
        head = len(tokens) * 2 // 3
        lease = store.admit(tokens, reserve=reserve, prompt=prompt_of(tokens, head, [head, len(tokens) - 1]))
        if lease is None:
            assert running or len(tokens) + reserve > cells, "a generation alone always finds room"
            return
        assert lease.sequence not in running
        assert engine.tokens(lease.sequence) == tokens[: lease.start], "what the plan claims is really there"
        assert lease.start < len(tokens)
        assert before == {sequence: engine.tokens(sequence) for sequence in before}, "rows in use never leave"
        running[lease.sequence] = [*tokens[lease.start :], *range(100, 100 + reserve)]

    def fill(which: int, count: int) -> None:
        if running:
            sequence = sorted(running)[which % len(running)]
            at = len(store.shelf.tokens(sequence))
            end = store.until(sequence, at + min(count, len(running[sequence])))
            rows, running[sequence] = running[sequence][: end - at], running[sequence][end - at :]
            engine.compute(sequence, rows)
            store.commit(sequence, rows)

    def release(which: int, keep: bool) -> None:
        if running:
            sequence = sorted(running)[which % len(running)]
            del running[sequence]
            store.release(sequence, keep=keep)

    def rest(_: None, __: None) -> None:
        if not running:
            store.rest()

    def resize(limit: int, _: None) -> None:
        store.memory.resize(limit)

    act: dict[str, Any] = {"admit": admit, "fill": fill, "release": release, "rest": rest, "resize": resize}
    for name, first, second in steps:
        act[name](first, second)
        engine.hold()
        assert store.shelf.used + store.shelf.promised <= cells
        assert store.memory.bytes <= store.memory.limit
        assert all(list(store.shelf.tokens(s)) == engine.tokens(s) for s in range(sequences))
        for kept in store.memory.all():
            held = [token for _, token in ROW.iter_unpack(kept.data)]
            assert held == kept.tokens
    store.close()


def test_a_generation_tells_which_shelf_served_it(scripts: Scripts, user: Any) -> None:
    engine = scripts.engine({}, {"match": ".", "text": "yes"}, window=1000, cells=1000)
    engine.facts = replace(engine.facts, sequences=1)
    desk = Desk(engine)
    desk.bench = Bench(engine, Store(engine, 100_000))
    usages = []
    for text in ("a" * 100, "b" * 100, "a" * 100, "a" * 120):
        desk.create(user(text))
        usages.append(desk.generate(10).usage)
    assert [usage.shelf for usage in usages] == ["none", "resident", "memory", "resident"]
    assert [usage.recomputed_from > 100 for usage in usages] == [False, False, True, True]
