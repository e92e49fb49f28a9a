"""Models that think before they answer: on scripts, and through a real daemon."""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.client import PoolContext
from aerix.pool.generation import Job, cancelled
from aerix.pool.thinking import Closing, Opening, opening
from tests.pool.daemons import Clients, Daemons, Wire
from tests.pool.desk import Desk
from tests.pool.test_client import At, on_context, status
from tests.pool.test_scripted import JSON

TURN = {"thought": "hm", "final": "It is done."}
TEXT = json.dumps(TURN, separators=(",", ":"))
STEP = {"thinking": "I see.", "turn": TURN}
CLOSED = "</think>\n\n"


@pytest.fixture
def thinker(scripts: Any, user: Any) -> Callable[..., Desk]:
    """A desk with a script that thinks, and a context of one user's segment."""

    def make(*steps: dict[str, Any], thinking: int = 100, **args: Any) -> Desk:
        desk: Desk = scripts.desk({"thinks": True}, *(steps or (STEP,)), thinking=thinking, **args)
        desk.create(user("Hi"))
        return desk

    return make


def everything(done: p.Done) -> list[int]:
    return [*done.thinking_tokens, *done.tokens]


# --- a stretch ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("constraint.thinking-first")
def test_a_model_thinks_freely_and_then_its_answer_is_held_to_the_schema(
    thinker: Callable[..., Desk],
) -> None:
    desk = thinker()
    done = desk.generate(constraint=JSON)
    assert (done.stop, done.thinking, done.text) == ("final", "I see.", TEXT)
    assert bytes(done.thinking_tokens).decode() == "I see." + CLOSED
    assert bytes(done.tokens).decode() == TEXT
    assert done.usage.thinking_tokens == len(done.thinking_tokens)
    assert done.usage.completion_tokens == len(everything(done))


@pytest.mark.rule("constraint.thinking-first")
def test_tokens_say_whether_they_are_thought(thinker: Callable[..., Desk]) -> None:
    desk = thinker()
    done = desk.generate(constraint=JSON)
    told = [piece for piece in desk.pieces if isinstance(piece, p.Token)]
    for tokens, thinking in ((done.thinking_tokens, True), (done.tokens, False)):
        assert [t for piece in told if piece.thinking == thinking for t in piece.tokens] == tokens
    assert desk.streamed == everything(done)


def test_a_free_answer_follows_the_thinking_too(thinker: Callable[..., Desk]) -> None:
    done = thinker({"thinking": "Hm.", "text": "Hello"}).generate()
    assert (done.stop, done.thinking, done.text) == ("stop", "Hm.", "Hello")


def test_a_model_that_closes_its_thinking_at_once_has_thought_nothing(thinker: Callable[..., Desk]) -> None:
    done = thinker({"text": "Hello"}).generate()
    assert (done.thinking, done.text) == ("", "Hello")


@pytest.mark.rule("template.thinking-cut")
def test_the_context_keeps_the_answer_and_no_thought_of_it(thinker: Callable[..., Desk]) -> None:
    desk = thinker()
    before = desk.contexts.prompt(desk.context)
    done = desk.generate(constraint=JSON)
    desk.append(p.Segment("a1", "assistant", done.text, tokens=done.tokens, vocab=done.vocab))
    desk.append(p.Segment("u2", "user", "Go on"))
    after = bytes(t for t in desk.contexts.prompt(desk.context).tokens if t < 256).decode()
    assert after.startswith(f"user\nHi\nassistant\n{TEXT}\nuser\nGo on\nassistant\n")
    assert "I see" not in after
    assert before.thinking is not None
    thought = bytes(t for t in before.thinking.tokens if t < 256).decode()
    assert thought == "user\nHi\nassistant\n<think>\n"


@pytest.mark.rule("template.thinking-cut")
def test_the_next_prompt_is_cut_back_to_the_turns_start_and_no_further(thinker: Callable[..., Desk]) -> None:
    desk = thinker(STEP, STEP)
    first = desk.contexts.prompt(desk.context)
    done = desk.generate(constraint=JSON)
    desk.append(p.Segment("a1", "assistant", done.text, tokens=done.tokens, vocab=done.vocab))
    desk.append(p.Segment("u2", "user", "Go on"))
    assert first.thinking is not None
    start = len(first.thinking.tokens) - len(b"<think>\n")
    assert desk.generate(constraint=JSON).usage.recomputed_from == start


# --- the budget ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("constraint.thinking-first")
def test_a_spent_budget_closes_the_thinking_and_the_answer_begins(thinker: Callable[..., Desk]) -> None:
    done = thinker({"thinking": "So long a thought", "turn": TURN}, thinking=7).generate(constraint=JSON)
    assert (done.stop, done.thinking, done.text) == ("final", "So long", TEXT)
    assert bytes(done.thinking_tokens).decode() == "So long\n" + CLOSED


@pytest.mark.rule("constraint.thinking-first")
def test_a_budget_of_0_switches_the_thinking_off_in_the_template(thinker: Callable[..., Desk]) -> None:
    desk = thinker(thinking=0)
    prompt = desk.contexts.prompt(desk.context)
    assert prompt.thinking is None
    assert bytes(t for t in prompt.tokens if t < 256).endswith(b"assistant\n<think>\n\n</think>\n\n")
    done = desk.generate(constraint=JSON)
    assert (done.thinking, done.thinking_tokens, done.text) == (None, [], TEXT)


@pytest.mark.parametrize(("window", "thought"), [(98, None), (102, "I se"), (200, "I see.")])
def test_thinking_takes_what_the_window_leaves(
    thinker: Callable[..., Desk], window: int, thought: str | None
) -> None:
    done = thinker(window=window).generate(max_tokens=len(TEXT) + 20, constraint=JSON)
    assert (done.thinking, done.text) == (thought, TEXT)


def test_a_choice_is_made_without_thinking(thinker: Callable[..., Desk]) -> None:
    done = thinker().generate(constraint=p.Constraint(texts=["yes", "no"]))
    assert (done.text, done.thinking) == ("yes", None)


# --- losses and cancels -------------------------------------------------------------------------------------------


@pytest.mark.rule("constraint.thinking-first")
@pytest.mark.parametrize("thinking", [100, 3])
def test_a_turn_that_is_lost_anywhere_goes_on_where_it_was(
    thinker: Callable[..., Desk], thinking: int
) -> None:
    desk = thinker(thinking=thinking)
    whole = desk.generate(constraint=JSON)
    tokens = everything(whole)
    for cut in range(len(tokens) + 1):
        done = desk.generate(constraint=JSON, start=tokens[:cut])
        assert (done.thinking, done.thinking_tokens) == (whole.thinking, whole.thinking_tokens)
        assert (done.stop, done.text) == ("final", TEXT)
        assert [*tokens[:cut], *desk.streamed] == tokens


def test_ids_that_think_on_after_the_budget_are_refused(thinker: Callable[..., Desk]) -> None:
    with pytest.raises(Refused, match="after its budget") as refusal:
        thinker(thinking=3).generate(start=[*b"I see."])
    assert refusal.value.code == "bad_start"


def test_a_turn_that_is_cancelled_while_it_thinks_tells_its_thoughts(thinker: Callable[..., Desk]) -> None:
    desk = thinker()
    generation = desk.open(constraint=JSON)
    while len(desk.streamed) < 3:
        desk.step(generation)
    generation.end("cancelled")
    generation.close()
    done = generation.done
    assert done is not None
    assert (done.stop, done.thinking, done.text) == ("cancelled", "I s", "")


def test_one_that_waits_and_is_cancelled_tells_what_the_client_brought(thinker: Callable[..., Desk]) -> None:
    desk = thinker()
    start = [*("I see." + CLOSED).encode(), *b'{"th']
    job = Job(1, p.Generate(1, desk.context, 100, start=start), desk.contexts.prompt(desk.context))
    done = cancelled(job, desk.engine)
    assert (done.stop, done.thinking, done.text) == ("cancelled", "I see.", '{"th')


# --- through a daemon ---------------------------------------------------------------------------------------------


@pytest.mark.rule("constraint.thinking-first")
def test_a_daemon_tells_a_turns_thinking_apart_from_its_answer(
    pool: Daemons, script: Any, wire: Callable[..., Wire]
) -> None:
    ref = script(STEP, thinks=True)
    link = wire(pool(ref).socket)
    link.hello()
    members = link.ask("MemberList")["members"]
    assert members[0]["thinking"] == 1024
    context = link.create(ref)
    number = link.send("Generate", context=context, max_tokens=200, constraint={"schema": JSON.schema})
    said = {True: b"", False: b""}
    while (frame := link.get()) and frame["type"] in ("Token", "Progress"):
        if frame["type"] == "Token":
            said[frame["thinking"]] += frame["data"]
    assert frame is not None
    assert (frame["id"], frame["thinking"], frame["text"]) == (number, "I see.", TEXT)
    assert said == {True: ("I see." + CLOSED).encode(), False: TEXT.encode()}


@pytest.mark.rule("constraint.thinking-first")
@pytest.mark.parametrize("at", [3, 18])
def test_a_worker_that_dies_while_it_thinks_or_answers_costs_no_token(
    pool: Daemons, script: Any, client: Clients, at: int
) -> None:
    ref = script({**STEP, "per_token_delay": 0.05}, thinks=True)
    pool(ref)
    link = client.link()
    heard = At(at, lambda: os.kill(status(link).members[0].pid, signal.SIGKILL))

    def use(context: PoolContext) -> p.Done:
        return context.generate(200, constraint=JSON, on_event=heard)

    done = on_context(client.runner(), link, ref, use)
    assert (done.stop, done.thinking, done.text) == ("final", "I see.", TEXT)
    assert heard.text == "I see." + CLOSED + TEXT
    assert heard.lost


# --- openings -----------------------------------------------------------------------------------------------------

Q = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.rule("constraint.thinking-first")
@pytest.mark.parametrize(
    ("off", "on", "history", "expected"),
    [
        pytest.param(Q, Q, Q, Opening(Q, Q), id="no thinking"),
        pytest.param(
            Q + "<think>\n\n</think>\n\n",
            Q,
            Q,
            Opening(Q + "<think>\n\n</think>\n\n", Q, Q + "<think>\n", Closing("\n", "</think>", "\n\n")),
            id="the model would write the mark",
        ),
        pytest.param(
            Q + "<think>\n",
            Q + "<think>\n",
            Q,
            Opening(Q + "<think>\n\n</think>\n\n", Q, Q + "<think>\n", Closing("\n", "</think>", "\n\n")),
            id="always opened",
        ),
        pytest.param(
            "[A]</think>",
            "[A]<think>",
            "[A]</think>",
            Opening("[A]</think>", "[A]</think>", "[A]<think>", Closing("", "</think>", "")),
            id="switched off by closing",
        ),
        pytest.param(
            "[A]<|START_THINKING|><|END_THINKING|>",
            "[A]<|START_THINKING|>",
            "[A]<|START_RESPONSE|>",
            Opening(
                "[A]<|START_THINKING|><|END_THINKING|><|START_RESPONSE|>",
                "[A]<|START_RESPONSE|>",
                "[A]<|START_THINKING|>",
                Closing("", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|START_RESPONSE|>"),
            ),
            id="an answer has a mark of its own",
        ),
        pytest.param(
            "[A]",
            "[A]",
            "[A]<|channel|>final<|message|>",
            Opening("[A]<|channel|>final<|message|>", "[A]<|channel|>final<|message|>"),
            id="the model would name the channel",
        ),
    ],
)
def test_how_a_turn_is_opened_is_found_in_what_the_template_writes(
    off: str, on: str, history: str, expected: Opening
) -> None:
    assert opening(off, on, history) == expected
