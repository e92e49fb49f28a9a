"""The prompt files that ship with Aerix."""

import pytest

from aerix.prompts import load
from aerix.tools import TOOLS
from aerix.turn import prompt


def test_the_head_of_a_context_is_the_same_every_time():
    first, second = (prompt.system_text(load("system"), list(TOOLS.values())) for _ in range(2))
    assert first == second


def test_the_routing_prompt_names_the_four_routes():
    text = load("routing")
    assert all(f"{route} = " in text for route in ("answer", "edit", "investigate", "plan"))


@pytest.mark.rule("turn.contract-by-code")
def test_no_prompt_file_tells_the_shape_of_a_turn():
    assert "{" not in load("system")
    assert "# Turns" not in load("system")
