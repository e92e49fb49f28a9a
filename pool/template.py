"""Segments to tokens through a chat template. Pure: the vocabulary and the template's text are passed in.

The template is rendered with a stand-in for each segment's text and cut there, so that special tokens are read only in
what the template wrote, and no text can forge a role marker. History is never rendered again: a new segment adds what
the template puts before it, and the model's turn is opened by the generation prompt, which stays when the turn is kept.
What the template puts there is a function of the roles: of the system segments and the last few others. So it costs the
same at any length of a conversation, and is the same whether the segments came one by one or all at once.
"""

import datetime as dt
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from aerix.actors import Refused
from aerix.pool.protocol import Role
from aerix.pool.rows import Vocabulary

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The built-in template, for vocabularies that have its two control tokens."""

_DAY = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
_SAMPLE: tuple[Role, ...] = ("system", "user", "user", "assistant", "user")
_JOIN = "\n\n"
_CACHE = 4096
_RECENT = 6

Roles = tuple[Role, ...]


class Template:
    """One model's chat template. Raises Refused ``no_template`` or ``bad_template`` where there is none that works."""

    def __init__(self, vocabulary: Vocabulary, override: str = "") -> None:
        source = _source(vocabulary, override)
        self._vocabulary = vocabulary
        self._bos = vocabulary.bos
        try:
            self._jinja = _environment(vocabulary).from_string(source)
        except jinja2.TemplateError as error:
            raise _bad(error) from None
        self._fold_system, self._merge = self._way()
        self.tokens: Callable[[str], tuple[int, ...]] = lru_cache(_CACHE)(self._tokens)
        self.before: Callable[[Roles], str] = lru_cache(_CACHE)(self._before)
        self.opening: Callable[[Roles], str] = lru_cache(_CACHE)(self._opening)

    def segment(self, earlier: Roles, role: Role) -> tuple[int, ...]:
        """The tokens that stand before a new segment's text: the end of the last one, and its own role marker."""
        if role == "assistant" and earlier:
            return self.turn(earlier)
        return self._begin(earlier, self.tokens(self.before(recent((*earlier, role)))))

    def turn(self, roles: Roles) -> tuple[int, ...]:
        """The tokens that open the model's turn after all the segments."""
        return self.tokens(self.opening(recent(roles)))

    # --- private --------------------------------------------------------------------------------------------------

    def _begin(self, earlier: Roles, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The vocabulary's own first token, where it wants one and the template does not write it."""
        if earlier or self._bos is None or tokens[:1] == (self._bos,):
            return tokens
        return (self._bos, *tokens)

    def _tokens(self, piece: str) -> tuple[int, ...]:
        return tuple(self._vocabulary.tokenize(piece, special=True))

    def _before(self, roles: Roles) -> str:
        """What stands before the last of the texts. Some templates write a system text only with a user's."""
        rendered = (*roles, "user") if roles[-1] == "system" else roles
        return self._pieces(rendered, turn=False, fold=self._fold_system, merge=self._merge)[len(roles) - 1]

    def _opening(self, roles: Roles) -> str:
        return self._pieces(roles, turn=True, fold=self._fold_system, merge=self._merge)[-1]

    def _way(self) -> tuple[bool, bool]:
        """Whether system texts must go into the user's message, and whether neighbours of one role must be merged."""
        failure: Exception | None = None
        for way in ((False, False), (False, True), (True, False), (True, True)):
            try:
                self._pieces(_SAMPLE, turn=True, fold=way[0], merge=way[1])
            except Refused as error:
                failure = failure or error
            else:
                return way
        raise failure or AssertionError("a failure is why no way was found")

    def _pieces(self, roles: Roles, *, turn: bool, fold: bool, merge: bool) -> list[str]:
        """The template's own text before, between and after the segments' texts."""
        messages = _messages(roles, fold=fold, merge=merge)
        try:
            text = self._jinja.render(messages=messages, add_generation_prompt=turn)
        except jinja2.TemplateError as error:
            raise _bad(error) from None
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            raise _bad(error) from None
        return _cut(text, len(roles))


def recent(roles: Roles) -> Roles:
    """The system segments and the last few others, from a user's on: what the template is shown."""
    systems = roles.count("system")
    for start in range(len(roles) - _RECENT, systems, -1):
        if roles[start] == "user":
            return (*roles[:systems], *roles[start:])
    return roles


def _source(vocabulary: Vocabulary, override: str) -> str:
    if override and override != "chatml":
        return override
    if not override and vocabulary.chat_template:
        return vocabulary.chat_template
    if all(len(vocabulary.tokenize(mark, special=True)) == 1 for mark in ("<|im_start|>", "<|im_end|>")):
        return CHATML
    raise Refused(
        "no_template",
        "The model's file has no chat template, and the built-in ChatML needs tokens it does not have. "
        'Set `template` under [models."REF"] to a template file.',
    )


def _messages(roles: Roles, *, fold: bool, merge: bool) -> list[dict[str, str]]:
    """One message a segment: the leading system ones as one, the others as the template demands it."""
    messages: list[dict[str, str]] = []
    for number, role in enumerate(roles):
        text = _stand_in(number)
        last = messages[-1]["role"] if messages else ""
        shown = "user" if fold and role == "system" else role
        joins = shown == last and (merge or role == "system" or (fold and roles[number - 1] == "system"))
        if joins:
            messages[-1]["content"] += _JOIN + text
        else:
            messages.append({"role": shown, "content": text})
    return messages


def _stand_in(number: int) -> str:
    """A text that no template writes: a number between two private-use characters."""
    return f"\ue000{number}\ue001"


def _cut(text: str, count: int) -> list[str]:
    pieces = []
    for number in range(count):
        piece, found, text = text.partition(_stand_in(number))
        if not found or "\ue000" in piece:
            raise _bad("it leaves a message out, or changes their order")
        pieces.append(piece)
    if "\ue000" in text:
        raise _bad("it writes a message twice")
    return [*pieces, text]


def _bad(why: object) -> Refused:
    return Refused(
        "bad_template",
        f"The model's chat template cannot be used: {str(why).rstrip('.')}. "
        'Set `template` under [models."REF"] to another one.',
    )


def _environment(vocabulary: Vocabulary) -> ImmutableSandboxedEnvironment:
    """What templates of model files expect, without a clock and without a way out."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise,
        strftime_now=_DAY.strftime,
        bos_token=vocabulary.bos_text,
        eos_token=vocabulary.eos_text,
        tools=None,
        documents=None,
        enable_thinking=False,
    )
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
