"""Segments to tokens through chat templates, with a vocabulary of bytes, so that tokens can be read."""

from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.builtin import CHATML
from aerix.pool.bytevocab import ByteVocabulary
from aerix.pool.contexts import Contexts
from aerix.pool.rendering import Render
from aerix.pool.template import Template
from tests.pool.prompts import judge
from tests.pool.shapes import SHAPES

ALTERNATING = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ m.role }}]{{ m.content | trim }}[/]{% endfor %}{% if add_generation_prompt %}[model]{% endif %}"
)
HISTORY_DIFFERS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think></think>{% endif %}"
)
WORKING = {name: source for name, (source, fate) in SHAPES.items() if fate != "refused"}
HOSTILE = [
    "<|im_end|>",
    "<|im_start|>",
    "user\n",
    "\ue0000\ue001",
    "\ue0001\ue001",
    "x",
    "{{ 1 }}",
    "</think>",
    "[/INST]",
    "<s>",
]
TEMPLATES = {"alternating": ALTERNATING, "history differs": HISTORY_DIFFERS, **WORKING}


def read(tokens: tuple[int, ...] | list[int]) -> str:
    """Tokens as text; the two control tokens as S and E between bars."""
    marks = {256: "|S|", 257: "|E|"}
    return "".join(marks.get(token, chr(token)) for token in tokens)


class Talk:
    """Contexts with one template, and what their tokens read like."""

    def __init__(self, source: str = CHATML, **vocabulary: Any) -> None:
        self.vocabulary = ByteVocabulary()
        for name, value in vocabulary.items():
            setattr(self.vocabulary, name, value)
        self.contexts = Contexts(self.vocabulary, Template(self.vocabulary, source))

    def create(self, *segments: p.Segment) -> p.ContextState:
        return self.ask(p.ContextCreate(1, "m", list(segments)))

    def ask(self, request: object) -> p.ContextState:
        state = self.contexts.handle(request)
        assert isinstance(state, p.ContextState)
        return state

    def drop(self, *states: p.ContextState) -> None:
        for state in states:
            self.contexts.handle(p.ContextDrop(1, state.context))

    def prompt(self, state: p.ContextState) -> list[int]:
        return list(self.contexts.prompt(state.context).tokens)


def segments(*pairs: tuple[p.Role, str]) -> list[p.Segment]:
    return [p.Segment(f"s{at}", role, text) for at, (role, text) in enumerate(pairs)]


CHAT = segments(("system", "Sys"), ("system", "More"), ("user", "Hi"), ("assistant", "Yo"), ("user", "Bye"))


@pytest.mark.rule("template.own-template")
def test_segments_are_written_as_the_template_writes_them() -> None:
    talk = Talk()
    assert read(talk.prompt(talk.create(*CHAT))) == (
        "|S|system\nSys\n\nMore|E|\n|S|user\nHi|E|\n|S|assistant\nYo|E|\n|S|user\nBye|E|\n|S|assistant\n"
    )


@pytest.mark.rule("template.one-system")
def test_system_segments_are_one_message_and_a_late_one_is_refused() -> None:
    talk = Talk()
    assert read(talk.prompt(talk.create(*CHAT))).count("|S|system") == 1
    with pytest.raises(Refused, match="at a context's start") as refusal:
        talk.create(*segments(("user", "Hi"), ("system", "Late")))
    assert refusal.value.code == "late_system"


@pytest.mark.rule("template.no-forged-markers")
@given(
    st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "user\n", "\ue0000\ue001", "x", "{{ 1 }}"])).map(
        "".join
    )
)
def test_no_text_makes_a_control_token(text: str) -> None:
    talk = Talk()
    tokens = talk.prompt(talk.create(*segments(("user", text))))
    assert (tokens.count(256), tokens.count(257)) == (2, 1)
    assert bytes(t for t in tokens if t < 256) == b"user\n" + text.encode() + b"\nassistant\n"


@lru_cache
def talk_of(source: str) -> "Talk":
    return Talk(source, bos_text="<s>", eos_text="</s>")


@pytest.mark.rule("template.no-forged-markers")
@pytest.mark.parametrize("source", WORKING.values(), ids=list(WORKING))
@settings(max_examples=25)
@given(texts=st.lists(st.lists(st.sampled_from(HOSTILE)).map("".join), min_size=4, max_size=4))
def test_no_text_changes_what_a_template_writes_around_it(source: str, texts: list[str]) -> None:
    talk = talk_of(source)
    roles: list[p.Role] = ["system", "user", "assistant", "user"]
    state = talk.create(*segments(*zip(roles, texts, strict=True)))
    plain = talk.create(*segments(*((role, "") for role in roles)))
    try:
        prompt, around = talk.prompt(state), talk.prompt(plain)
        for own, count in zip(reversed(plain.segments), reversed(state.segments), strict=True):
            text = texts[int(count.id[1:])].encode()
            assert count.tokens == own.tokens + len(text)
        assert [t for t in prompt if t > 255] == [t for t in around if t > 255]
        assert sum(map(len, texts)) - sum(text.count("\ue000") for text in texts) <= len(prompt)
    finally:
        talk.drop(state, plain)


@pytest.mark.rule("template.public-templates")
@pytest.mark.parametrize("name", SHAPES)
def test_what_becomes_of_a_public_shape(name: str) -> None:
    source, fate = SHAPES[name]
    assert judge(source).kind == fate


@pytest.mark.rule("template.markers-counted")
@pytest.mark.rule("contexts.counts-add-up")
def test_role_markers_count_to_the_segment_they_open() -> None:
    talk = Talk()
    state = talk.create(*segments(("system", "Sys"), ("user", "Hi")))
    marker = len("S") + len("system\n")
    assert [count.tokens for count in state.segments] == [marker + 3, len("E\nSuser\n") + 2]
    assert state.opening == len("E\nSassistant\n")
    assert state.tokens + state.opening == len(talk.prompt(state))


@pytest.mark.rule("template.prefix")
@pytest.mark.parametrize("source", TEMPLATES.values(), ids=list(TEMPLATES))
@settings(max_examples=25)
@given(roles=st.lists(st.sampled_from(["user", "assistant"]), max_size=20), systems=st.integers(0, 2))
def test_a_shorter_conversation_is_a_prefix_of_the_longer_one(
    source: str, roles: list[p.Role], systems: int
) -> None:
    talk = talk_of(source)
    all_roles: list[p.Role] = [*(["system"] * systems), "user", *roles]  # type: ignore[list-item]
    chat = segments(*((role, f"text {at}") for at, role in enumerate(all_roles)))
    tokens = []
    for end in range(systems + 1, len(chat) + 1):
        state = talk.create(*chat[:end])
        prompt = talk.prompt(state)
        tokens.append(prompt[: state.tokens])
        if end < len(chat) and chat[end].role == "assistant":
            tokens.append(prompt)
        talk.drop(state)
    assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(tokens))


@pytest.mark.rule("contexts.create-append")
@pytest.mark.parametrize("source", TEMPLATES.values(), ids=list(TEMPLATES))
def test_segments_one_by_one_give_the_same_tokens_as_all_at_once(source: str) -> None:
    talk = talk_of(source)
    chat = segments(("system", "Sys"), *[("user", "a"), ("user", "b"), ("assistant", "c")] * 9)
    state = talk.create(chat[0])
    for segment in chat[1:]:
        state = talk.ask(p.ContextAppend(1, state.context, [segment]))
    assert talk.prompt(state) == talk.prompt(talk.create(*chat))


@pytest.mark.rule("template.never-rendered-again")
def test_the_opening_of_a_turn_stays_when_history_would_be_written_otherwise() -> None:
    talk = Talk(HISTORY_DIFFERS)
    asked = talk.prompt(talk.create(*CHAT[2:3]))
    kept = talk.prompt(talk.create(*CHAT[2:]))
    assert read(asked).endswith("|S|assistant\n<think></think>")
    assert kept[: len(asked)] == asked
    assert "<think></think>Yo|E||S|user\nBye|E|" in read(kept)


@pytest.mark.rule("template.merged-neighbours")
def test_neighbours_are_merged_and_system_texts_moved_where_the_template_demands_it() -> None:
    talk = Talk(ALTERNATING)
    chat = segments(("system", "S"), ("user", "a"), ("user", "b"), ("assistant", "c"), ("user", "d"))
    assert read(talk.prompt(talk.create(*chat))) == "[user]S\n\na\n\nb[/][model]c[/][user]d[/][model]"


def test_neighbours_are_not_merged_where_it_is_not_demanded() -> None:
    talk = Talk()
    assert "a|E|\n|S|user\nb" in read(talk.prompt(talk.create(*segments(("user", "a"), ("user", "b")))))


@pytest.mark.rule("template.exact-ids")
def test_a_generated_turn_is_kept_with_the_very_ids() -> None:
    talk = Talk()
    ids = [*b"Y", 256, *b"o"]
    turn = p.Segment("a", "assistant", "Yo", tokens=ids, vocab="bytes")
    assert read(talk.prompt(talk.create(*CHAT[2:3], turn))).endswith("|S|assistant\nY|S|o|E|\n|S|assistant\n")


@pytest.mark.rule("template.other-vocabulary")
def test_ids_of_another_vocabulary_are_not_used_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_LOG_FILE", str(tmp_path / "log"))
    talk = Talk()
    turn = p.Segment("a", "assistant", "Yo", tokens=[1, 2, 3], vocab="another")
    assert "|S|assistant\nYo|E|" in read(talk.prompt(talk.create(*CHAT[2:3], turn)))
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert '"event": "context.other_vocabulary"' in line


def test_ids_that_the_vocabulary_does_not_have_are_refused() -> None:
    with pytest.raises(Refused, match="below 258") as refusal:
        Talk().create(p.Segment("a", "assistant", "Yo", tokens=[258], vocab="bytes"))
    assert refusal.value.code == "bad_tokens"


@pytest.mark.rule("template.frozen-dates")
def test_a_template_that_asks_for_the_date_gets_the_same_one() -> None:
    talk = Talk("{{ strftime_now('%d %b %Y') }}" + CHATML)
    assert read(talk.prompt(talk.create(*CHAT[2:3]))).startswith("01 Jan 2025|S|user")


@pytest.mark.rule("template.sandboxed")
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ ''.__class__.__bases__ }}", "unsafe"),
        ("{% for m in messages %}{{ m.content }}", "end"),
        ("{{ raise_exception('only on Sundays') }}", "only on Sundays"),
        ("{{ messages[0].content }}", "leaves a message out"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}{{ messages[0].content }}", "twice"),
        ("{{ 1 / 0 }}", "division"),
    ],
)
def test_a_template_that_fails_is_a_refusal_that_names_the_setting(source: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as refusal:
        Talk(source)
    assert refusal.value.code == "bad_template"
    assert 'Set `template` under [models."REF"]' in refusal.value.message


def test_a_template_cannot_change_what_it_was_given() -> None:
    with pytest.raises(Refused, match="unsafe"):
        Talk("{{ messages.append(1) }}" + CHATML)


@pytest.mark.rule("template.no-template")
def test_a_model_without_a_template_gets_chatml_where_its_tokens_are() -> None:
    talk = Talk("", chat_template=None)
    assert read(talk.prompt(talk.create(*CHAT[2:3]))) == "|S|user\nHi|E|\n|S|assistant\n"


@pytest.mark.rule("template.no-template")
@pytest.mark.parametrize(
    ("architecture", "marks", "opened"),
    [
        ("gemma3", ("<start_of_turn>", "<end_of_turn>"), "<end_of_turn>\n<start_of_turn>model\n"),
        (
            "llama",
            ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
            "assistant<|end_header_id|>\n\n",
        ),
        ("llama", ("[INST]", "[/INST]"), "[/INST]"),
        ("qwen2", ("<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"), "<|im_start|>assistant\n"),
        ("mistral", ("<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"), "[/INST]"),
    ],
)
def test_a_model_without_a_template_gets_the_built_in_one_of_its_architecture_and_tokens(
    architecture: str, marks: tuple[str, ...], opened: str
) -> None:
    def tokenize(text: str, *, special: bool) -> list[int]:
        return [0] if special and text in marks else list(text.encode())

    talk = Talk("", chat_template=None, tokenize=tokenize, architecture=architecture)
    assert talk.contexts._template.opening(("user",)).answer.endswith(opened)


@pytest.mark.rule("template.no-template")
def test_the_template_that_the_settings_name_is_used_before_the_models_own() -> None:
    talk = Talk("phi3")
    assert read(talk.prompt(talk.create(*CHAT[2:3]))) == "<|user|>\nHi<|end|>\n<|assistant|>\n"


@pytest.mark.rule("template.no-template")
def test_a_model_without_a_template_and_without_these_tokens_is_refused() -> None:
    def plain(text: str, *, special: bool) -> list[int]:
        return list(text.encode())

    with pytest.raises(Refused, match="Set `template`") as refusal:
        Talk("", chat_template=None, tokenize=plain)
    assert refusal.value.code == "no_template"


def test_the_first_token_that_a_vocabulary_wants_is_put_there_once() -> None:
    with_bos = Talk("{{ bos_token }}" + CHATML, bos=256, bos_text="<|im_start|>")
    without = Talk(CHATML.replace("<|im_start|>", ""), bos=256)
    assert read(with_bos.prompt(with_bos.create(*CHAT[2:3]))).startswith("|S||S|user\n")
    assert read(without.prompt(without.create(*CHAT[2:4]))).startswith("|S|user\nHi|E|\nassistant")


def test_a_long_conversation_costs_a_new_segment_no_more_than_a_short_one() -> None:
    talk = Talk()
    shown: list[int] = []
    template = talk.contexts._template
    render = template._render

    def watched(wanted: Render) -> str:
        shown.append(len(wanted.messages))
        return render(wanted)

    template._render = watched
    talk.create(*segments(("system", "S"), *[("user", "a"), ("assistant", "b")] * 300))
    assert max(shown) < 12
    assert len(shown) < 40
