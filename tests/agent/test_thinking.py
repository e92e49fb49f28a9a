"""An agent on a model that thinks first: the log keeps what was thought, the context does not."""

from typing import Any

import pytest

from aerix.session.events import Token
from tests.runs import Desk, call, calls, final, play, turns

PLAYS: dict[str, list[dict[str, Any]]] = {
    "think": [
        calls(call("plan", op="read"), thinking="First I look."),
        final("done.", thinking="Now I know."),
    ]
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=16384, thinks=True)


@pytest.mark.rule("constraint.thinking-first")
@pytest.mark.rule("template.thinking-cut")
def test_the_log_keeps_the_thinking_of_each_turn_and_no_prompt_does(desk: Desk) -> None:
    ran = desk("play think")
    assert (ran.end.outcome, ran.end.text) == ("done", "done.")
    made = turns(ran.log)
    assert [turn["thinking"] for turn in made] == ["First I look.", "Now I know."]
    for turn in made:
        assert bytes(turn["thinking_tokens"]).decode() == f"{turn['thinking']}</think>\n\n"
        assert turn["usage"]["thinking_tokens"] == len(turn["thinking_tokens"])
        assert bytes(turn["tokens"]).decode() == turn["text"]
    shown = "".join(event.text for event in ran.shown if isinstance(event, Token))
    assert "I know." in shown
    assert "Now I know." not in shown
    first, second = (turn["usage"] for turn in made)
    assert second["recomputed_from"] == first["prompt_tokens"] - len("<think>\n")
