"""Segments to tokens through a chat template. Pure: the vocabulary and the template's text are passed in.

The template is rendered with a stand-in for each segment's text and cut there, so that special tokens are read only in
what the template wrote, and no text can forge a role marker. History is never rendered again: a new segment adds what
the template puts before it, and the model's turn is opened by the generation prompt, which stays when the turn is kept.
What the template puts there is a function of the roles: of the system segments and the last few others. So it costs the
same at any length of a conversation, and is the same whether the segments came one by one or all at once.
"""

from collections.abc import Callable
from functools import lru_cache

from aerix.actors import Refused
from aerix.pool.builtin import template_source
from aerix.pool.protocol import Role
from aerix.pool.rendering import Jinja, MakeRenderer, Render, refused
from aerix.pool.rows import Vocabulary
from aerix.pool.thinking import Opening, opening, without_stretch

_SAMPLES: tuple[tuple[Role, ...], ...] = (
    ("system", "user", "user", "assistant", "user"),
    ("user", "assistant", "user", "user", "assistant", "user"),
)
"""What a conversation may look like."""
_JOIN = "\n\n"
_CACHE = 4096
_RECENT = 6

Roles = tuple[Role, ...]


class Template:
    """One model's chat template. Raises Refused ``no_template`` or ``bad_template`` where there is none that works."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        override: str = "",
        *,
        thinking: int = 0,
        make_renderer: MakeRenderer = Jinja,
    ) -> None:
        """``override`` is the name of a built-in template or a source; ``thinking`` tokens may come before a turn."""
        source = template_source(vocabulary, override)
        self._vocabulary = vocabulary
        self._bos = vocabulary.bos
        self._render = make_renderer(source, vocabulary.bos_text, vocabulary.eos_text)
        self._thinks = False
        self.join_turns = False
        self.fold_system, self.merge = self._way()
        """Whether system texts go into the user's message, and neighbours of one role are merged: it demands it."""
        self.join_turns = self.merge or not self._tells_turns_apart()
        """Whether at least neighbouring turns of the model are one message."""
        self.tokens: Callable[[str], tuple[int, ...]] = lru_cache(_CACHE)(self._tokens)
        self.before: Callable[[Roles], str] = lru_cache(_CACHE)(self._before)
        self._opened: Callable[[Roles], Opening] = lru_cache(_CACHE)(self._opening)
        self._thinks = thinking > 0 and bool(self._opening(("user",), thinks=True).thought)
        self.thinking = thinking if self._thinks else 0
        """Tokens that the model may think with before a turn; 0: it does not."""

    def segment(self, earlier: Roles, role: Role) -> tuple[int, ...]:
        """The tokens that stand before a new segment's text: the end of the last one, and its own role marker."""
        if role == "assistant" and earlier:
            return self.tokens(self.opening(earlier).kept)
        return self._begin(earlier, self.tokens(self.before(recent((*earlier, role)))))

    def opening(self, roles: Roles) -> Opening:
        """How the model's turn is opened after all the segments."""
        return self._opened(recent(roles))

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
        return self._pieces(rendered, thinks=self._thinks)[len(roles) - 1]

    def _opening(self, roles: Roles, *, thinks: bool | None = None) -> Opening:
        """Without thinking, what was sent stays: ``kept`` is ``answer``."""
        thinks = self._thinks if thinks is None else thinks
        if self.join_turns and roles[-1] == "assistant":
            return Opening(_JOIN, _JOIN)
        off = self._pieces(roles, turn=True)[-1]
        on = self._pieces(roles, turn=True, thinks=True)[-1]
        found = opening(off, on, self._history(roles, thinks=thinks) or off)
        return found if thinks else Opening(found.answer, found.answer)

    def _tells_turns_apart(self) -> bool:
        """Whether a turn behind another is written behind its role's marker."""
        earlier: Roles = ("user", "assistant")
        try:
            found = self._opening(earlier, thinks=False).answer
        except Refused:
            return False
        return without_stretch(found) == without_stretch(self._history(earlier, thinks=False))

    def _history(self, roles: Roles, *, thinks: bool) -> str:
        """What stands before an answer that another user's text follows; nothing where the template refuses it."""
        try:
            return self._pieces((*roles, "assistant", "user"), thinks=thinks)[len(roles)]
        except Refused:
            return ""

    def _way(self) -> tuple[bool, bool]:
        failure: Exception | None = None
        for way in ((False, False), (False, True), (True, False), (True, True)):
            self.fold_system, self.merge = way
            try:
                for roles in _SAMPLES:
                    self._pieces(roles, turn=True)
            except Refused as error:
                failure = failure or error
            else:
                return way
        raise failure or AssertionError("a failure is why no way was found")

    def _pieces(self, roles: Roles, *, turn: bool = False, thinks: bool = False) -> list[str]:
        """The template's own text before, between and after the segments' texts."""
        messages = _messages(roles, fold=self.fold_system, merge=self.merge, join_turns=self.join_turns)
        return _cut(self._render(Render(messages, turn, thinks)), len(roles))


def recent(roles: Roles) -> Roles:
    """The system segments and the last few others, from a user's on: what the template is shown."""
    systems = roles.count("system")
    for start in range(len(roles) - _RECENT, systems, -1):
        if roles[start] == "user":
            return (*roles[:systems], *roles[start:])
    return roles


def _messages(roles: Roles, *, fold: bool, merge: bool, join_turns: bool) -> list[dict[str, str]]:
    """One message a segment: the leading system ones as one, the others as the template demands it."""
    messages: list[dict[str, str]] = []
    for number, role in enumerate(roles):
        text = _stand_in(number)
        last = messages[-1]["role"] if messages else ""
        shown = "user" if fold and role == "system" else role
        demanded = merge or role == "system" or (join_turns and role == "assistant")
        if shown == last and (demanded or (fold and roles[number - 1] == "system")):
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
            raise refused("it leaves a message out, or changes their order")
        pieces.append(piece)
    if "\ue000" in text:
        raise refused("it writes a message twice")
    return [*pieces, text]
