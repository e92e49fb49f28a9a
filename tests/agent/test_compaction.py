"""Which segments give way, and to what."""

import random
from collections.abc import Sequence
from typing import Literal

import pytest

from aerix.agent.compaction import SMALL, changes, compact, freed
from aerix.pool.protocol import Segment
from aerix.session.replay import Held

Role = Literal["system", "user", "assistant"]
ROLES: dict[str, Role] = {"system": "system", "turn": "assistant"}


def one(name: str, label: str, tokens: int = 300, *, pinned: bool = False) -> Held:
    segment = Segment(name, ROLES.get(label, "user"), f"{name} " * tokens, pinned)
    return Held(segment, label, tokens, "read" if label == "result" else None)


def talk(turns: int, *, result: int = 300, turn: int = 100) -> list[Held]:
    """A conversation: each turn but the last has a result that the next one has read."""
    made = [one("system", "system"), one("prompt", "prompt")]
    for number in range(1, turns + 1):
        made += [one(f"t{number}", "turn", turn), one(f"c{number}", "result", result)]
    return made


def given_way(before: Sequence[Held], after: Sequence[Held]) -> set[str]:
    kept = {one.id: one for one in after}
    return {old.id for old in before if kept.get(old.id) != old}


@pytest.mark.rule("context.oldest-results-first")
def test_results_give_way_the_oldest_first_and_then_turns() -> None:
    held = talk(4)
    assert given_way(held, compact(held, 1)) == {"c1"}
    assert given_way(held, compact(held, 300)) == {"c1", "c2"}
    assert given_way(held, compact(held, 3 * 276 + 1)) == {"c1", "c2", "c3", "t1"}
    assert compact(held, 0) == held


@pytest.mark.rule("context.markers")
def test_a_marker_names_the_call_its_tool_and_its_tokens() -> None:
    held = [*talk(3, result=3210), one("t4", "turn")]
    texts = {one.id: one.segment.text for one in compact(held, 3 * 3186 + 3 * 76)}
    assert texts["c1"] == "[compacted tool result of call c1 (read, 3210 tokens)]"
    assert texts["t1"] == "[compacted turn t1 (100 tokens)]"


@pytest.mark.rule("context.small-skipped")
def test_small_segments_are_passed_over() -> None:
    held = talk(3, result=SMALL)
    assert given_way(held, compact(held, 1)) == {"t1"}
    assert given_way(talk(3, result=SMALL + 1), compact(talk(3, result=SMALL + 1), 1)) == {"c1"}


@pytest.mark.rule("context.never-compacted")
def test_only_unpinned_results_turns_and_notes_give_way() -> None:
    kept = [
        one(label, label)
        for label in ("system", "instructions", "hook", "prompt", "brief", "user", "summary", "scratchpad")
    ]
    held = [*kept, one("c1", "result", pinned=True), one("t1", "turn", pinned=True), *talk(1)[2:]]
    assert compact(held, 10_000) == held


@pytest.mark.rule("context.unread-stays")
def test_what_was_not_read_yet_stays_unless_there_is_no_other_room() -> None:
    held = talk(2)
    assert not {"t2", "c2"} & given_way(held, compact(held, 10_000))
    assert "c2" in given_way(held, compact(held, 10_000, unread=True))
    assert "c2" not in given_way(held, compact(held, 200, unread=True))
    assert "t2" not in given_way(held, compact(held, 10_000, unread=True))


@pytest.mark.rule("context.folded")
def test_when_markers_are_too_much_the_oldest_of_them_become_one() -> None:
    held = talk(20)
    texts = [one.segment.text for one in compact(held, 100_000)]
    assert texts[2:-2] == ["[compacted: turns and results, t1 to c19]"]
    assert [one.segment.role for one in compact(held, 100_000)][1:4] == ["user", "user", "assistant"]


@pytest.mark.rule("context.folded")
def test_markers_are_folded_up_to_the_excess_and_never_over_what_stays() -> None:
    held = talk(4)
    held.insert(6, one("steer", "user"))
    texts = {one.id: one.segment.text for one in compact(held, 100_000)}
    assert list(texts) == ["system", "prompt", "t1", "steer", "t3", "t4", "c4"]
    assert texts["t3"] == "[compacted: turns and results, t3 to c3]"


@pytest.mark.rule("context.never-compacted")
@pytest.mark.parametrize("seed", range(40))
def test_a_compaction_only_shrinks_keeps_the_order_and_what_must_stay(seed: int) -> None:
    rng = random.Random(seed)
    labels = ("turn", "result", "note", "user", "summary", "marker")
    held = [one("system", "system"), one("prompt", "prompt")]
    held += [
        one(f"x{n}", rng.choice(labels), rng.randint(1, 400), pinned=rng.random() < 0.2) for n in range(30)
    ]
    after = compact(held, rng.randint(0, 6000), unread=rng.random() < 0.5)
    ids = [one.id for one in held]
    assert [one.id for one in after] == [name for name in ids if name in {one.id for one in after}]
    assert freed(held, after) >= 0
    stay = [one for one in held if one.segment.pinned or one.label in ("system", "prompt", "user", "summary")]
    assert [one for one in after if one in stay] == stay
    put, removed = changes(held, after)
    assert {one["id"] for one in put} | set(removed) == given_way(held, after)
    rounds = 0
    while (more := compact(after, 100_000, unread=True)) != after:
        after, rounds = more, rounds + 1
        assert rounds < 100
