"""Turns and choices from their first row to Done, on scripts."""

import json
from typing import Any

import pytest

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.rows import Aborted

SCHEMA = {
    "type": "object",
    "properties": {"thought": {"type": "string"}, "final": {"type": "string"}},
    "required": ["thought", "final"],
    "additionalProperties": False,
}
TURN = {"thought": "hm", "final": "It is done."}
TEXT = json.dumps(TURN, separators=(",", ":"))
JSON = p.Constraint(schema=json.dumps(SCHEMA))


@pytest.mark.rule("constraint.stop-reasons")
def test_a_free_turn_ends_where_the_model_ends_it(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": "Hällo"})
    desk.create(user("Hi"))
    done = desk.generate()
    assert (done.stop, done.text, bytes(done.tokens)) == ("stop", "Hällo", "Hällo".encode())
    assert b"".join(piece.data for piece in desk.pieces) == "Hällo".encode()
    assert desk.streamed == done.tokens


@pytest.mark.rule("constraint.stop-reasons")
def test_a_value_that_is_whole_is_final(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"turn": TURN})
    desk.create(user("Hi"))
    done = desk.generate(constraint=JSON)
    assert (done.stop, done.text, done.vocab) == ("final", TEXT, "bytes")
    assert desk.streamed == done.tokens


@pytest.mark.rule("constraint.cut-is-length")
@pytest.mark.parametrize("limit", range(1, len(TEXT)))
def test_a_value_that_max_tokens_cut_is_never_final(scripts: Any, user: Any, limit: int) -> None:
    desk = scripts.desk({}, {"turn": TURN})
    desk.create(user("Hi"))
    done = desk.generate(limit, constraint=JSON)
    assert (done.stop, done.text) == ("length", TEXT[:limit])
    assert desk.streamed == done.tokens


def test_a_value_that_just_fits_is_final(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"turn": TURN})
    desk.create(user("Hi"))
    assert desk.generate(len(TEXT), constraint=JSON).stop == "final"


@pytest.mark.rule("constraint.forced-in-batches")
def test_forced_tokens_are_computed_together_and_counted(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"turn": TURN})
    desk.create(user("Hi"))
    done = desk.generate(constraint=JSON)
    forced = len('{"thought":"') + len(',"final":"') + len("}")
    assert done.usage.forced_tokens == forced
    assert done.usage.completion_tokens == len(TEXT)
    assert len(desk.batches) == len(TEXT) - forced, "one step a token that was drawn"
    assert desk.pieces[0].data == b'{"thought":"h'


@pytest.mark.rule("protocol.start-ids")
@pytest.mark.rule("prefix.start-continues")
@pytest.mark.parametrize("cut", range(len(TEXT) + 1))
def test_a_turn_goes_on_from_the_ids_the_client_has(scripts: Any, user: Any, cut: int) -> None:
    desk = scripts.desk({}, {"turn": TURN})
    desk.create(user("Hi"))
    have = list(TEXT.encode()[:cut])
    done = desk.generate(constraint=JSON, start=have)
    assert (done.stop, done.text) == ("final", TEXT)
    assert have + desk.streamed == done.tokens
    assert done.usage.prompt_tokens == len(desk.contexts.prompt(desk.context).tokens)


def test_ids_that_reach_the_limit_end_at_once(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": "abc"})
    desk.create(user("Hi"))
    done = desk.generate(2, start=[*b"ab"])
    assert (done.stop, done.text, desk.batches) == ("length", "ab", [])


def test_ids_that_the_schema_does_not_allow_are_refused(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"turn": TURN})
    desk.create(user("Hi"))
    with pytest.raises(Refused, match="no beginning of what the schema allows") as refusal:
        desk.generate(constraint=JSON, start=[*b'{"other"'])
    assert refusal.value.code == "bad_start"


@pytest.mark.parametrize("constraint", [None, JSON])
def test_ids_that_end_the_turn_are_refused(scripts: Any, user: Any, constraint: p.Constraint | None) -> None:
    desk = scripts.desk({}, {"turn": TURN})
    desk.create(user("Hi"))
    with pytest.raises(Refused, match="end the turn: there is nothing to go on with") as refusal:
        desk.generate(constraint=constraint, start=[*TEXT.encode(), desk.engine.vocabulary.ends[0]])
    assert refusal.value.code == "bad_start"


@pytest.mark.rule("contexts.overflow-refused")
def test_what_does_not_fit_the_window_is_refused_with_the_numbers(scripts: Any, user: Any) -> None:
    desk = scripts.desk({"window": 60}, {"text": "x" * 20})
    prompt = desk.create(user("Hi"))
    size = prompt.tokens + prompt.opening
    assert desk.generate(60 - size).stop == "stop"
    with pytest.raises(
        Refused,
        match=f"The prompt's {size} tokens and a reply of up to {61 - size} are 61, more than the window's 60",
    ) as refusal:
        desk.generate(61 - size)
    assert refusal.value.code == "context_overflow"
    with pytest.raises(Refused, match="The prompt's"):
        desk.generate(1, constraint=p.Constraint(texts=["a", "b" * 60]))


@pytest.mark.parametrize(("limit", "start"), [(0, []), (-1, []), (1, [1, 2])])
def test_a_senseless_limit_is_refused(scripts: Any, user: Any, limit: int, start: list[int]) -> None:
    desk = scripts.desk({}, {"text": "x"})
    desk.create(user("Hi"))
    with pytest.raises(Refused, match="max_tokens") as refusal:
        desk.generate(limit, start=start)
    assert refusal.value.code == "bad_request"


@pytest.mark.rule("protocol.progress")
def test_a_long_prompt_reports_its_progress_before_the_first_token(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": "x"}, batch=10)
    state = desk.create(user("y" * 20))
    total = state.tokens + state.opening
    desk.generate()
    progress = [piece for piece in desk.pieces if isinstance(piece, p.Progress)]
    assert progress == [p.Progress(7, done, total) for done in range(10, total, 10)]
    assert desk.pieces[: len(progress)] == progress


@pytest.mark.rule("prefix.longest")
@pytest.mark.rule("prefix.shared-by-contexts")
def test_a_turn_resumes_where_prompt_and_output_before_it_end(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": "first"}, {"text": "second"})
    desk.create(user("Hi"))
    one = desk.generate()
    assert (one.usage.recomputed_from, one.usage.shelf) == (0, "none")
    turn = p.Segment("a1", "assistant", one.text, tokens=one.tokens, vocab=one.vocab)
    desk.create(user("Hi"), turn, user("More", "u2"))
    two = desk.generate()
    assert two.text == "second"
    assert (two.usage.recomputed_from, two.usage.shelf) == (
        one.usage.prompt_tokens + len(one.tokens),
        "resident",
    )


@pytest.mark.rule("constraint.one-of")
def test_a_choice_gives_one_text_with_the_scores_of_all(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"match": "fix", "text": "edit"})
    desk.create(user("fix it"))
    texts = ["answer", "edit", "editor", "investigate", "plan", "zzz"]
    done = desk.generate(8, constraint=p.Constraint(texts=texts))
    assert (done.choice, done.text, done.stop, bytes(done.tokens)) == (1, "edit", "final", b"edit")
    assert done.scores is not None
    assert [score > -1e-3 for score in done.scores] == [text == "edit" for text in texts]
    assert done.usage.completion_tokens == 4


@pytest.mark.rule("constraint.one-of-scored")
def test_without_a_step_for_it_the_first_text_is_chosen(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": "turn"})
    desk.create(user("Hi"))
    assert desk.generate(8, constraint=p.Constraint(texts=["b", "a"])).choice == 0


@pytest.mark.rule("prefix.probe-keeps-prompt")
def test_a_choice_keeps_its_prompt_and_only_that(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": "x"})
    desk.create(user("Hi"))
    done = desk.generate(8, constraint=p.Constraint(texts=["one", "two", "three", "four", "five"]))
    assert desk.bench.shelf.used == done.usage.prompt_tokens
    assert desk.bench.shelf.promised == 0
    again = desk.generate(8, constraint=p.Constraint(texts=["one", "two"]))
    assert again.usage.recomputed_from == done.usage.prompt_tokens - 1


def test_an_interrupted_step_is_computed_again(scripts: Any, user: Any) -> None:
    desk = scripts.desk({}, {"text": "Hello"})
    desk.create(user("Hi"))
    generation = desk.open()
    desk.step(generation)
    desk.engine.interrupt()
    with pytest.raises(Aborted):
        desk.step(generation)
    while generation.done is None:
        desk.step(generation)
    generation.close()
    assert generation.done.text == "Hello"


@pytest.mark.parametrize("constraint", [None, JSON, p.Constraint(texts=["a", "bb"])])
def test_a_generation_that_ends_early_gives_everything_back(scripts: Any, user: Any, constraint: Any) -> None:
    desk = scripts.desk({}, {"turn": TURN})
    desk.create(user("Hi"))
    for steps in range(4):
        generation = desk.open(constraint=constraint)
        for _ in range(steps):
            if generation.done is None:
                desk.step(generation)
        generation.end("cancelled")
        generation.close()
        assert generation.done is not None
        assert generation.done.stop == "cancelled"
        assert desk.bench.shelf.promised == 0
