"""The worker's contexts: editing, forking, reading, refusing."""

from collections.abc import Callable

import pytest

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.bytevocab import ByteVocabulary
from aerix.pool.contexts import Contexts
from aerix.pool.template import Template

A, B, C = (
    p.Segment("a", "user", "one"),
    p.Segment("b", "assistant", "two"),
    p.Segment("c", "user", "three", pinned=True),
)


@pytest.fixture
def contexts() -> Contexts:
    vocabulary = ByteVocabulary()
    return Contexts(vocabulary, Template(vocabulary))


@pytest.fixture
def context(contexts: Contexts) -> str:
    return state(contexts, p.ContextCreate(1, "m", [A, B, C])).context


def state(contexts: Contexts, request: object) -> p.ContextState:
    answer = contexts.handle(request)
    assert isinstance(answer, p.ContextState)
    return answer


def read(contexts: Contexts, context: str) -> p.ContextText:
    answer = contexts.handle(p.ContextRead(1, context))
    assert isinstance(answer, p.ContextText)
    return answer


@pytest.mark.rule("contexts.read")
@pytest.mark.rule("contexts.pinned")
def test_a_context_is_read_back_segment_by_segment(contexts: Contexts, context: str) -> None:
    text = read(contexts, context)
    assert text.segments == [A, B, C]
    counts = state(contexts, p.ContextFork(1, context)).segments
    assert [count.id for count in counts] == ["a", "b", "c"]
    assert len(text.tokens) == sum(count.tokens for count in counts)


@pytest.mark.rule("contexts.counts-of-changes")
@pytest.mark.parametrize(
    ("change", "counted"),
    [
        (lambda name: p.ContextAppend(1, name, [p.Segment("d", "assistant", "four")]), ["d"]),
        (lambda name: p.ContextAppend(1, name, []), []),
        (lambda name: p.ContextReplace(1, name, p.Segment("b", "assistant", "2")), ["b", "c"]),
        (lambda name: p.ContextRemove(1, name, ["a"]), ["b", "c"]),
        (lambda name: p.ContextRemove(1, name, ["c"]), []),
        (lambda name: p.ContextRemove(1, name, []), []),
        (lambda name: p.ContextFork(1, name, "b"), ["a", "b"]),
    ],
)
def test_an_answer_counts_what_has_changed_and_sums_all(
    contexts: Contexts, context: str, change: Callable[[str], object], counted: list[str]
) -> None:
    told = state(contexts, change(context))
    assert [count.id for count in told.segments] == counted
    whole = read(contexts, told.context)
    assert told.tokens == len(whole.tokens)
    fresh = state(contexts, p.ContextCreate(1, "m", whole.segments))
    assert told.segments == [count for count in fresh.segments if count.id in counted]


@pytest.mark.rule("contexts.replace-remove")
def test_a_replaced_segment_leaves_the_tokens_before_it_as_they_were(
    contexts: Contexts, context: str
) -> None:
    before = read(contexts, context).tokens
    shared = state(contexts, p.ContextFork(1, context, "a")).tokens
    contexts.handle(p.ContextReplace(1, context, p.Segment("b", "assistant", "2")))
    assert read(contexts, context).tokens[:shared] == before[:shared]
    assert [s.text for s in read(contexts, context).segments] == ["one", "2", "three"]


@pytest.mark.rule("contexts.replace-remove")
def test_removing_segments_gives_the_context_that_never_had_them(contexts: Contexts, context: str) -> None:
    contexts.handle(p.ContextRemove(1, context, ["a", "b"]))
    fresh = state(contexts, p.ContextCreate(1, "m", [C])).context
    assert read(contexts, context).tokens == read(contexts, fresh).tokens


@pytest.mark.rule("contexts.fork-drop")
def test_a_fork_has_the_leading_segments_and_a_life_of_its_own(contexts: Contexts, context: str) -> None:
    fork = state(contexts, p.ContextFork(1, context, "b")).context
    contexts.handle(p.ContextAppend(1, fork, [p.Segment("d", "user", "four")]))
    assert [s.id for s in read(contexts, fork).segments] == ["a", "b", "d"]
    assert [s.id for s in read(contexts, context).segments] == ["a", "b", "c"]
    assert read(contexts, state(contexts, p.ContextFork(1, context)).context).segments == [A, B, C]


@pytest.mark.rule("contexts.fork-drop")
@pytest.mark.rule("contexts.unknown-refused")
def test_a_dropped_context_is_unknown(contexts: Contexts, context: str) -> None:
    assert contexts.handle(p.ContextDrop(9, context)) == p.Ok(9)
    for request in (
        p.ContextAppend(1, context, []),
        p.ContextReplace(1, context, A),
        p.ContextRemove(1, context, ["a"]),
        p.ContextFork(1, context),
        p.ContextDrop(1, context),
        p.ContextRead(1, context),
    ):
        with pytest.raises(Refused, match="create it again") as refusal:
            contexts.handle(request)
        assert refusal.value.code == "unknown_context"


def test_a_context_id_is_never_used_again(contexts: Contexts) -> None:
    ids = {state(contexts, p.ContextCreate(1, "m", [A])).context for _ in range(50)}
    assert len(ids) == 50
    assert all(len(name) == 32 for name in ids)


@pytest.mark.parametrize(
    ("request_of", "code"),
    [
        (lambda c: p.ContextAppend(1, c, [A]), "duplicate_segment"),
        (lambda c: p.ContextReplace(1, c, p.Segment("x", "user", "")), "unknown_segment"),
        (lambda c: p.ContextRemove(1, c, ["a", "x"]), "unknown_segment"),
        (lambda c: p.ContextFork(1, c, "x"), "unknown_segment"),
        (lambda c: p.ContextAppend(1, c, [p.Segment("d", "system", "")]), "late_system"),
        (lambda c: p.Status(1), "unknown_request"),
    ],
)
def test_a_refused_change_changes_nothing(
    contexts: Contexts, context: str, request_of: object, code: str
) -> None:
    before = read(contexts, context)
    with pytest.raises(Refused) as refusal:
        contexts.handle(request_of(context))  # type: ignore[operator]
    assert refusal.value.code == code
    assert refusal.value.message.endswith(".")
    assert read(contexts, context) == before


@pytest.mark.bound("worker.contexts")
@pytest.mark.bound("worker.segments")
def test_too_many_contexts_and_segments_are_refused(
    contexts: Contexts, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_WORKER_CONTEXTS", "1")
    with pytest.raises(Refused, match="drop one") as refusal:
        contexts.handle(p.ContextFork(1, context))
    assert refusal.value.code == "too_many_contexts"
    monkeypatch.setenv("AERIX_BOUND_WORKER_SEGMENTS", "3")
    with pytest.raises(Refused, match="4 segments are more than 3") as refusal:
        contexts.handle(p.ContextAppend(1, context, [p.Segment("d", "user", "")]))
    assert refusal.value.code == "too_many_segments"


def test_a_context_without_segments_has_nothing_to_answer(contexts: Contexts) -> None:
    empty = state(contexts, p.ContextCreate(1, "m", []))
    assert (empty.tokens, empty.opening) == (0, 0)
    with pytest.raises(Refused, match="no segment") as refusal:
        contexts.prompt(empty.context)
    assert refusal.value.code == "empty_context"
