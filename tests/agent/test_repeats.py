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
