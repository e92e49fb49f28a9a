"""Long conversations in small windows, through the real pool: bounded, append only, and replayed from their logs."""

import json
import random
from itertools import pairwise

import pytest

from aerix.agent.context import Context
from aerix.session.replay import Held, replay
from tests.runs import Desk, Line, Step, call, calls, final, json_lines, of, play, results, turns

WINDOW = 4096
ROUNDS = 60
WORDS = "and these are my words: never lose them"
OPS = ("status", "drop", "summarize", "pin", "unpin", "note")


def flood(number: int, size: int = 6000) -> Step:
    return call("bash", command=f"yes {number} | head -c {size}")


def chance(seed: int) -> list[Step]:
    """A random life: results of all sizes, failures, plans, cut turns, and an own context that is tinkered with."""
    rng = random.Random(seed)
    made = []
    for number in range(1, 26):
        ids = [f"{rng.choice('cct')}{rng.randint(1, 2 * number)}" for _ in range(rng.randint(0, 3))]
        one = rng.choice([
            flood(number, rng.randint(0, 3000)),
            call("read", path="missing" if rng.random() < 0.3 else "README.md", offset=number),
            call("plan", op="write", text="step " * number),
            call("context", op=rng.choice(OPS), ids=ids, text="so far " * rng.randint(0, 9)),
            call("context", op=rng.choice(OPS), ids=ids, text="äöü"),
        ])  # fmt: skip
        extra = {"fault": "cut"} if rng.random() < 0.1 else {}
        made.append(calls(*[one] * rng.choice([1, 1, 1, 2]), thought=f"Round {number}.", **extra))
    return [*made, final("at last")]


PLAYS = {
    "sixty": [*(calls(flood(n), thought=f"Round {n}.") for n in range(1, ROUNDS)), final("at last")],
    "eights": [
        *(calls(*(flood(10 * n + m, 900) for m in range(8)), thought=f"Round {n}.") for n in range(1, 10)),
        final("at last"),
    ],
    **{f"chance{seed}": chance(seed) for seed in range(6)},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=WINDOW)


@pytest.fixture
def live(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[list[Held]]:
    """What the agent held before each generation; each is compared with what the log said at that time."""
    seen: list[list[Held]] = []
    room = Context._room_for_turn

    def looked(context: Context) -> int:
        seen.append(context.held)
        log = replay(json_lines(desk.log.read_bytes()))["a1"]
        assert list(log.held.values()) == context.held
        return room(context)

    monkeypatch.setattr(Context, "_room_for_turn", looked)
    return seen


def assert_append_only(log: list[Line], live: list[list[Held]]) -> None:
    """A prompt extends the rows of the last one, but for one cut: where a compaction or a ``context`` call began."""
    made = turns(log)
    for (before, after), (old, new) in zip(pairwise(made), pairwise(live), strict=True):
        usage = before["usage"]
        same = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), len(old))
        rows = sum(one.tokens for one in new[:same])
        if same == len(old) and before["kept"]:
            rows = usage["prompt_tokens"] + usage["completion_tokens"]
        # What the schema forces at a turn's end, and the last token that was drawn, were never decoded.
        assert rows - 8 < after["usage"]["recomputed_from"], (before["id"], after["usage"], rows)


@pytest.mark.rule("context.small-window")
@pytest.mark.rule("request.append-only")
@pytest.mark.rule("agent.replay")
@pytest.mark.parametrize("name", ["sixty", "eights"])
def test_a_long_conversation_with_large_results_stays_in_a_small_window(
    desk: Desk, live: list[list[Held]], name: str
) -> None:
    ran = desk(f"play {name}, {WORDS}", max_turns=100)
    assert (ran.end.outcome, ran.end.text) == ("done", "at last")
    made, compactions = turns(ran.log), of(ran.log, "compaction")
    assert len(made) == len(PLAYS[name])
    for line in made:
        assert line["usage"]["prompt_tokens"] + line["usage"]["completion_tokens"] <= WINDOW
        assert line["usage"]["prompt_tokens"] + WINDOW // 4 < WINDOW  # each had the room of a whole turn
    assert 0 < len(compactions) < len(made) * 8
    assert all(one["before"] - one["after"] >= WINDOW // 20 for one in compactions)
    assert all(any(WORDS in one.segment.text for one in held) for held in live)
    assert not [line for line in of(ran.log, "spend") if line["bound"] != "agent.turns"]
    assert len(results(ran.log)) == sum(len(step["turn"].get("calls", ())) for step in PLAYS[name])
    assert_append_only(ran.log, live)


@pytest.mark.rule("agent.replay")
@pytest.mark.rule("request.append-only")
@pytest.mark.parametrize("seed", range(6))
def test_a_replay_gives_what_the_agent_held_before_each_turn(
    desk: Desk, live: list[list[Held]], seed: int
) -> None:
    ran = desk(f"play chance{seed}, {WORDS}", max_turns=100)
    assert ran.end.outcome in ("done", "failed"), ran.end.reason  # three cut turns in a row fail
    assert len(of(ran.log, "context.op")) == sum(line["tool"] == "context" for line in results(ran.log))
    assert len(live) == len(turns(ran.log))
    assert_append_only(ran.log, live)


@pytest.mark.rule("agent.replay")
def test_a_replay_passes_over_lines_that_are_not_what_their_type_says() -> None:
    good: Line = {
        "type": "segment",
        "agent": "a1",
        "id": "p",
        "role": "user",
        "label": "prompt",
        "tokens": 3,
        "text": "x",
    }
    lines: list[Line] = [
        {},
        {"type": "segment", "agent": "a1"},
        {**good, "id": 7},
        {**good, "id": "q", "role": "nobody"},
        {**good, "id": "r", "text": None},
        good,
        {"type": "compaction", "agent": "a1", "put": [{"id": "p"}, {"id": "gone"}, {}], "removed": ["never"]},
        {"type": "context.op", "agent": "a2"},
        {"type": "plan", "agent": "a1", "text": "then"},
    ]
    found = replay(json.loads(json.dumps(lines)))
    assert {name: list(one.held) for name, one in found.items()} == {"a1": ["p"], "a2": []}
    assert (found["a1"].plan, found["a1"].counts) == ("then", {"p": 3})
