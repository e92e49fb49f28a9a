"""What a wrong prompt is: a conversation's tokens are held against what the template itself writes for all of it.

A prompt is right when every segment's text stands in it exactly once, in order, each behind what the template writes
before it (its role's markers); when the tokens of each shorter conversation begin those of the longer one, or what is
cut back is only a thinking stretch, to its turn's start. A template for which this cannot be held must be refused.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.bytevocab import ByteVocabulary
from aerix.pool.contexts import Contexts
from aerix.pool.rendering import Jinja, Render
from aerix.pool.template import Template, _messages
from aerix.pool.thinking import _MARKS

BOS, EOS = "<s>", "</s>"
CONVERSATIONS: tuple[tuple[p.Role, ...], ...] = (
    ("system", "user", "assistant", "user", "assistant", "user"),
    ("user", "assistant", "user"),
    ("user", "assistant", "assistant", "user"),
    ("system", "system", "user", "user", "assistant", "user", "user"),
    ("system", *(("user", "assistant") * 7), "user"),
)
_STRETCH = re.compile(
    "|".join(rf"(?:{re.escape(o)})?\s*{re.escape(c)}\s*|{re.escape(o)}\s*" for o, c in _MARKS) + r"|/nothink"
)
"""An empty thinking stretch, or one end of it, and a switch that some templates put before it."""


_WAYS = ("system in user", "neighbours", "neighbouring turns")


class Wrong(AssertionError):
    """The template was not refused, and its prompt is not what it should be."""


@dataclass
class Verdict:
    """What became of a template."""

    kind: str
    """``exact``, ``merged``, ``cut at thinking`` or ``refused``."""
    why: str = ""


def judge(source: str) -> Verdict:
    """Try a template on all conversations, without thinking and with it. Raises Wrong."""
    try:
        verdicts = [_tried(source, thinking) for thinking in (0, 100)]
    except Refused as refusal:
        return Verdict("refused", refusal.message)
    return Verdict(verdicts[1].kind, verdicts[0].why)


def _tried(source: str, thinking: int) -> Verdict:
    vocabulary = ByteVocabulary()
    vocabulary.bos_text, vocabulary.eos_text = BOS, EOS
    template = Template(vocabulary, source, thinking=thinking)
    rewritten = sum(_hold(template, source, roles) for roles in CONVERSATIONS)
    ways = (template.fold_system, template.merge, template.join_turns and not template.merge)
    merged = [name for name, on in zip(_WAYS, ways, strict=True) if on]
    kept = ["a turn keeps the opening that was sent"] if rewritten else []
    kind = "cut at thinking" if template.thinking else "merged" if merged else "exact"
    return Verdict(kind, ", ".join([*merged, *kept]))


def _hold(template: Template, source: str, roles: tuple[p.Role, ...]) -> int:
    """One conversation; how many of its turns the template would write otherwise once they are past."""
    talk = Contexts(template._vocabulary, template)
    segments = [p.Segment(f"s{at}", role, f"Words{at}of{role}") for at, role in enumerate(roles)]
    texts = [segment.text for segment in segments]
    state = talk.handle(p.ContextCreate(1, "m", segments))
    assert isinstance(state, p.ContextState)
    prompt = talk.prompt(state.context)
    pieces = _parts(read(prompt.tokens), texts)
    written = _parts(_reference(template, source, roles, texts), texts)
    rewritten = 0
    for at, role in enumerate(roles):
        if pieces[at] != written[at]:
            if role != "assistant" or _STRETCH.sub("", pieces[at]) != _STRETCH.sub("", written[at]):
                raise Wrong(f"before {texts[at]}: {pieces[at]!r} is not {written[at]!r}")
            rewritten += 1
    _hold_opening(pieces[-1], written[-1])
    if prompt.thinking:
        _hold_opening(_parts(read(prompt.thinking.tokens), texts)[-1], written[-1])
    _hold_prefixes(talk, segments)
    return rewritten


def _hold_opening(ours: str, theirs: str) -> None:
    """The opening of the answer is the template's, or goes on from there: with a stretch, or a channel's name."""
    bare, written = (_STRETCH.sub("", text) for text in (ours, theirs))
    if not bare.startswith(written.rstrip()):
        raise Wrong(f"the turn is opened with {ours!r}, not with {theirs!r}")


def _hold_prefixes(talk: Contexts, segments: list[p.Segment]) -> None:
    """Each shorter conversation's prompt begins the longer one's; a thinking stretch is cut to its turn's start."""
    first = sum(segment.role == "system" for segment in segments) + 1
    asked = [_asked(talk, segments[:end]) for end in range(first, len(segments) + 1)]
    for turn, (shorter, longer) in zip(segments[first:], pairwise(asked), strict=True):
        if longer[1][: shorter[0]] != shorter[1][: shorter[0]]:
            raise Wrong(f"{shorter[0]} tokens of a shorter conversation do not begin the longer one")
        stays = turn.role == "assistant" and not talk.thinking
        if stays and longer[1][: len(shorter[1])] != shorter[1]:
            raise Wrong("the opening of a turn did not stay")


def _asked(talk: Contexts, segments: list[p.Segment]) -> tuple[int, tuple[int, ...]]:
    """The length of a context, and the prompt that a turn on it is generated from."""
    state = talk.handle(p.ContextCreate(1, "m", segments))
    assert isinstance(state, p.ContextState)
    prompt = talk.prompt(state.context)
    used = prompt.thinking.tokens if prompt.thinking else prompt.tokens
    if used[: state.tokens] != prompt.tokens[: state.tokens]:
        raise Wrong("the prompt that thinks begins otherwise than the one that does not")
    return state.tokens, used


def read(tokens: tuple[int, ...]) -> str:
    """A byte vocabulary's tokens as text, control tokens by their names."""
    names = {256: b"<|im_start|>", 257: b"<|im_end|>"}
    return b"".join(names.get(token) or bytes([token]) for token in tokens).decode()


def _reference(template: Template, source: str, roles: tuple[p.Role, ...], texts: list[str]) -> str:
    """What the template writes for the messages, with the texts themselves in them."""
    messages = _messages(
        roles, fold=template.fold_system, merge=template.merge, join_turns=template.join_turns
    )
    for message in messages:
        message["content"] = re.sub("\ue000(\\d+)\ue001", lambda m: texts[int(m[1])], message["content"])
    return Jinja(source, BOS, EOS)(Render(messages, turn=True, thinking=bool(template.thinking)))


def _parts(text: str, texts: list[str]) -> list[str]:
    parts = []
    for one in texts:
        if text.count(one) != 1 and not parts:
            raise Wrong(f"{one} stands {text.count(one)} times")
        part, found, text = text.partition(one)
        if not found or one in text:
            raise Wrong(f"{one} is missing, out of order, or there twice")
        parts.append(part)
    return [*parts, text]
