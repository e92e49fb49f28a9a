"""``OneOf`` on members that cannot score: a few words of the member's own, which may be one of the texts."""

from collections.abc import Callable
from typing import Any

import pytest

from aerix.pool import protocol as p
from aerix.pool.matching import matching
from tests.pool.daemons import Daemons, Wire

WAYS = ["answer", "edit", "plan"]


@pytest.mark.rule("constraint.one-of-unscored")
@pytest.mark.parametrize(
    ("says", "choice", "stop"),
    [
        ("edit", 1, "final"),
        (' "Edit".\n', 1, "final"),
        ("cook", None, "stop"),
        ("edit it", None, "stop"),
        ("edit, or rather plan", None, "length"),
    ],
)
def test_an_answer_of_its_own_words_is_a_choice_or_none(
    scripts: Any, user: Any, says: str, choice: int | None, stop: str
) -> None:
    desk = scripts.desk({"scores": False}, {"text": says})
    desk.create(user("Which?"))
    done = desk.generate(constraint=p.Constraint(texts=WAYS))
    assert (done.choice, done.stop, done.scores) == (choice, stop, None)
    assert done.text == says[:8]
    assert desk.streamed == done.tokens


@pytest.mark.rule("constraint.one-of-unscored")
def test_it_takes_at_most_8_tokens_and_no_more_than_were_asked_for(scripts: Any, user: Any) -> None:
    desk = scripts.desk({"scores": False}, {"text": "a" * 20})
    desk.create(user("Which?"))
    texts = p.Constraint(texts=WAYS)
    assert len(desk.generate(constraint=texts).tokens) == 8
    assert len(desk.generate(max_tokens=3, constraint=texts).tokens) == 3


def test_one_that_is_cancelled_is_no_choice(scripts: Any, user: Any) -> None:
    desk = scripts.desk({"scores": False}, {"text": "edit"})
    desk.create(user("Which?"))
    generation = desk.open(constraint=p.Constraint(texts=WAYS))
    while len(desk.streamed) < 4:
        desk.step(generation)
    generation.end("cancelled")
    generation.close()
    assert generation.done is not None
    assert (generation.done.stop, generation.done.text, generation.done.choice) == ("cancelled", "edit", None)


@pytest.mark.parametrize(
    ("answer", "choice"), [("PLAN", 2), ("**plan**", 2), ("`plan`!", 2), ("plan b", None), ("", None)]
)
def test_letter_case_and_marks_around_an_answer_do_not_count(answer: str, choice: int | None) -> None:
    assert matching(WAYS, answer) == choice


@pytest.mark.rule("constraint.one-of-unscored")
def test_a_daemon_tells_that_nothing_was_chosen(
    pool: Daemons, script: Callable[..., str], wire: Callable[..., Wire]
) -> None:
    ref = script({"text": "cook"}, scores=False)
    link = wire(pool(ref).socket)
    link.hello()
    done = link.ask("Generate", context=link.create(ref), max_tokens=8, constraint={"texts": WAYS})
    assert (done["text"], done.get("choice"), done["stop"]) == ("cook", None, "stop")
