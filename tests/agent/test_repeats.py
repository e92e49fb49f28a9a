"""Calls that need not run again."""

import pytest

from aerix.agent.repeats import Repeats
from aerix.tools.messages import ToolResult
from aerix.turn.parse import Call


def made(repeats: Repeats, *results: ToolResult, **values: object) -> list[bool]:
    """Whether each of some identical calls was run."""
    run = []
    for number, result in enumerate(results, 1):
        call = Call(f"c{number}", "read", dict(values))
        run.append(repeats.answer(call) is None)
        if run[-1]:
            repeats.note(call, result)
    return run


SAME = ToolResult("same")
CHANGED = ToolResult("same", changed=True)


@pytest.mark.rule("agent.repeat-not-run")
@pytest.mark.parametrize(
    ("results", "run"),
    [
        ([SAME] * 4, [True, True, False, False]),
        ([SAME, ToolResult("other"), SAME, SAME, SAME], [True, True, True, True, False]),
        ([CHANGED] * 4, [True] * 4),
        ([SAME, SAME], [True, True]),
    ],
)
def test_only_the_third_with_the_same_result_is_not_run(results: list[ToolResult], run: list[bool]) -> None:
    assert made(Repeats(), *results, path="a") == run


@pytest.mark.rule("agent.repeat-not-run")
def test_other_inputs_count_apart_and_a_change_by_any_call_begins_anew() -> None:
    repeats = Repeats()
    assert made(repeats, SAME, SAME, path="a") == [True, True]
    assert made(repeats, SAME, SAME, SAME, path="b") == [True, True, False]
    repeats.note(Call("c9", "write", {"path": "a"}), CHANGED)
    assert made(repeats, SAME, SAME, SAME, path="a") == [True, True, False]


def test_the_order_of_an_inputs_keys_does_not_matter() -> None:
    repeats = Repeats()
    made(repeats, SAME, path="a", limit=1)
    made(repeats, SAME, limit=1, path="a")
    assert made(repeats, SAME, path="a", limit=1) == [False]


# --- going round in a circle --------------------------------------------------------------------------------------


def turns_until_over(repeats: Repeats, *cycle: str, most: int = 20) -> tuple[int, tuple[str, ...]]:
    """How many turns of one call each it takes until the circle is seen, and what it says."""
    for number in range(most):
        call = Call(f"c{number}", cycle[number % len(cycle)], {})
        if repeats.answer(call) is None:
            repeats.note(call, ToolResult(f"of {call.tool}"))
        if tools := repeats.turn_over():
            return number + 1, tools
    return most, ()


@pytest.mark.rule("agent.cycle-ends")
@pytest.mark.parametrize(
    ("cycle", "turns"), [("a", 5), ("ab", 6), ("abc", 9), ("abcd", 12), ("abcde", 20), ("aab", 9)]
)
def test_a_cycle_of_up_to_four_calls_is_over_when_it_was_seen_three_times(cycle: str, turns: int) -> None:
    assert turns_until_over(Repeats(), *cycle) == (turns, tuple(cycle) if turns < 20 else ())


@pytest.mark.rule("agent.cycle-ends")
def test_it_is_not_over_before_the_agent_was_told_in_an_earlier_turn() -> None:
    repeats = Repeats()
    assert made(repeats, *[SAME] * 8, path="a") == [True, True] + [False] * 6
    assert repeats.turn_over() == ()
    assert made(repeats, SAME, path="a") == [False]
    assert repeats.turn_over() == ("read",)


@pytest.mark.rule("agent.cycle-ends")
def test_a_change_or_another_result_breaks_a_circle() -> None:
    repeats = Repeats()
    assert turns_until_over(repeats, "a", most=4) == (4, ())
    repeats.clear()
    assert turns_until_over(repeats, "a") == (5, ("a",))
    repeats = Repeats()
    for number in range(12):
        made(repeats, ToolResult(str(number % 3)), path="a")
        assert repeats.turn_over() == ()


@pytest.mark.rule("agent.waiting-is-no-repeat")
@pytest.mark.parametrize("command", ["sleep 30", "sleep 5; cat out", "wait"])
def test_waiting_is_no_repeat(command: str) -> None:
    repeats = Repeats()
    for number in range(20):
        call = Call(f"c{number}", "bash", {"command": command})
        assert repeats.answer(call) is None
        repeats.note(call, SAME)
        assert repeats.turn_over() == ()
