"""llama.cpp's tokenizer, with a small vocabulary of the older kind, which puts a space before every text."""

from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerix.pool import protocol as p
from aerix.pool.contexts import Contexts
from aerix.pool.engine import LlamaVocabulary, load_vocabulary
from aerix.pool.template import Template
from tests.pool.ggufs import gguf

NORMAL, UNKNOWN, CONTROL, DEFINED, BYTE = 1, 2, 3, 4, 6
WORDS = {"▁": -3.0, "H": -4.0, "i": -4.0, "Hi": -2.0, "▁Hi": -1.0}
MARKUP = {"<|user|>": CONTROL, "<|model|>": CONTROL, "<think>": DEFINED}
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *MARKUP, *WORDS]
KINDS = [UNKNOWN, CONTROL, CONTROL, *([BYTE] * 256), *MARKUP.values(), *([NORMAL] * len(WORDS))]
SOURCE = (
    "{{ bos_token }}{% for m in messages %}"
    "<|{{ 'user' if m.role == 'user' else 'model' }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|model|>{% endif %}"
)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> LlamaVocabulary:
    path = tmp_path_factory.mktemp("vocabulary") / "small.gguf"
    scores = [*([0.0] * (259 + len(MARKUP))), *WORDS.values()]
    path.write_bytes(
        gguf(
            {
                "general.architecture": "llama",
                "llama.context_length": 64,
                "tokenizer.ggml.model": "llama",
                "tokenizer.ggml.tokens": TOKENS,
                "tokenizer.ggml.scores": array("f", scores),
                "tokenizer.ggml.token_type": array("i", KINDS),
                "tokenizer.ggml.bos_token_id": 1,
                "tokenizer.ggml.eos_token_id": 2,
                "tokenizer.ggml.unknown_token_id": 0,
                "tokenizer.ggml.add_space_prefix": True,
            }
        )
    )
    return load_vocabulary(str(path))


def written(vocabulary: LlamaVocabulary, tokens: list[int]) -> list[str]:
    return [vocabulary.name(token) for token in tokens]


@pytest.mark.rule("template.space-prefix")
def test_no_space_comes_before_a_text_or_behind_a_special_token(vocabulary: LlamaVocabulary) -> None:
    assert written(vocabulary, vocabulary.tokenize("Hi", special=False)) == ["Hi"]
    assert written(vocabulary, vocabulary.tokenize(" Hi", special=False)) == [" Hi"]
    piece = vocabulary.tokenize("<|user|>Hi</s>Hi Hi", special=True)
    assert written(vocabulary, piece) == ["<|user|>", "Hi", "</s>", "Hi", " Hi"]


@pytest.mark.rule("template.space-prefix")
def test_a_prompt_has_the_spaces_of_its_texts_and_no_others(vocabulary: LlamaVocabulary) -> None:
    contexts = Contexts(vocabulary, Template(vocabulary, SOURCE))
    roles: tuple[p.Role, ...] = ("user", "assistant", "user")
    state = contexts.handle(
        p.ContextCreate(1, "m", [p.Segment(f"s{at}", role, "Hi") for at, role in enumerate(roles)])
    )
    assert isinstance(state, p.ContextState)
    assert written(vocabulary, list(contexts.prompt(state.context).tokens)) == [
        *("<s>", "<|user|>", "Hi", "</s>", "<|model|>", "Hi", "</s>", "<|user|>", "Hi", "</s>", "<|model|>")
    ]


@pytest.mark.rule("template.no-forged-markers")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([*MARKUP, "<s>", "</s>", "<", "think>", "Hi", " ", "\ue0000\ue001", "é"])))
def test_no_text_makes_a_special_token_and_every_byte_of_it_stays(
    vocabulary: LlamaVocabulary, parts: list[str]
) -> None:
    text = "".join(parts)
    tokens = vocabulary.tokenize(text, special=False)
    assert vocabulary.special.isdisjoint(tokens)
    assert b"".join(map(vocabulary.piece, tokens)) == text.encode()


def test_llama_cpp_alone_would_make_tokens_that_an_added_word_names(
    vocabulary: LlamaVocabulary,
) -> None:
    assert written(vocabulary, vocabulary._tokenize("<think>", special=False)) == ["<think>"]
    assert written(vocabulary, vocabulary.tokenize("<think>", special=False))[:2] == ["<", "t"]
