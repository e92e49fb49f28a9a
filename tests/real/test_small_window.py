"""A small window, counted in the tokens of the default model: a script says the turns, the vocabulary is the real one."""

from itertools import pairwise
from pathlib import Path

import pytest

from aerix.agent.system import SHORT_BELOW, system_segment
from tests.agent.conftest import desk  # noqa: F401 - a fixture
from tests.real.test_prompt_size import tokens
from tests.runs import Desk, Line, call, calls, daemon, final, of, play, replay, turns  # noqa: F401 - a fixture

WORDS = "and these are my words: never lose them"
ROUNDS = 60


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> dict[int, str]:
    made = [call("bash", command=f"seq {n} {n + 3000}") for n in range(ROUNDS - 1)]
    steps = [*(calls(one, thought=f"Round {n}.") for n, one in enumerate(made)), final("at last")]
    eight = [calls(*(call("bash", command=f"seq {n} {n + 3000}") for n in range(8))), final()]
    folder = tmp_path_factory.mktemp("model")
    return {
        window: play(folder, {"sixty": steps, "eight": eight}, window=window, tokenizer=str(model_file))
        for window in (2048, 4096)
    }


@pytest.fixture
def model(models: dict[int, str]) -> str:
    return models[4096]


@pytest.mark.rule("context.small-window")
@pytest.mark.rule("request.append-only")
@pytest.mark.parametrize("window", [2048, 4096])
def test_sixty_turns_with_large_results_fit_into_a_small_window(
    desk: Desk,  # noqa: F811
    models: dict[int, str],
    window: int,
) -> None:
    (desk.cwd / "CLAUDE.md").write_text("Follow the style of the code around you.\n" * 400)
    ran = desk(f"play sixty, {WORDS}", max_turns=100, model=models[window])
    assert (ran.end.outcome, ran.end.text) == ("done", "at last")
    made, compactions = turns(ran.log), of(ran.log, "compaction")
    assert len(made) == ROUNDS
    assert all(line["usage"]["prompt_tokens"] + window // 4 < window for line in made)
    assert 3 < len(compactions) < ROUNDS
    assert f"play sixty, {WORDS}" in ran.texts()
    assert {line["bound"] for line in of(ran.log, "spend")} == {"agent.turns"}
    computed = sum(line["usage"]["prompt_tokens"] - line["usage"]["recomputed_from"] for line in made[1:])
    assert computed < 0.6 * sum(line["usage"]["prompt_tokens"] for line in made[1:])
    assert_extends(ran.log)
    held = {segment.id: count for segment, count in replay(ran.log)}
    assert held["instructions"] <= window / 4


def assert_extends(log: list[Line]) -> None:
    """A prompt extends the last one's rows, but after a compaction."""
    steps = [line for line in log if line["type"] == "compaction" or line in turns(log)]
    for before, after in pairwise(steps):
        if before["type"] == after["type"] == "message":
            rows = before["usage"]["prompt_tokens"] + before["usage"]["completion_tokens"]
            assert rows - 8 < after["usage"]["recomputed_from"] < rows


@pytest.mark.rule("tools.short-texts")
@pytest.mark.rule("request.prompt-size")
def test_the_short_form_is_under_700_tokens_and_the_long_one_under_2000(model_file: Path) -> None:
    short, long = (tokens(model_file, system_segment(window)) for window in (2048, SHORT_BELOW))
    assert 200 < short < 700
    assert short < long < 2000


@pytest.mark.rule("context.unread-stays")
def test_eight_large_results_of_one_turn_leave_the_first_ones_whole(desk: Desk) -> None:  # noqa: F811
    ran = desk("play eight", max_turns=2)
    assert ran.end.outcome == "done"
    assert of(ran.log, "compaction") == []
    texts = [line["text"].partition("\n")[2] for line in of(ran.log, "message") if "tool" in line]
    assert len(texts) == 8
    assert all("[truncated: " in text for text in texts)
    assert texts[0].startswith("0\n1\n2\n")
    assert texts[7].startswith("[truncated: ")
