"""What a generation may say: ``Json`` and ``OneOf`` (DESIGN section 4, Constraints).

``Json`` compiles through llguidance to a mask a token, allows no white space outside strings, and tells which tokens
the schema forces. ``OneOf`` is a list of texts; ``choice.Choice`` scores them.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from aerix.actors import Refused
from aerix.pool.bounds import SCHEMA_FUEL, SCHEMA_ITEMS, SCHEMA_STATES

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from llguidance._lib import JsonCompileOptions

    from aerix.pool.sampling import Bits

_BAD = "bad_constraint"
_STRICT: "JsonCompileOptions" = {"whitespace_flexible": False, "coerce_one_of": False, "lenient": False}
_SOME = 4
_FULL = "too many states"


_KEPT = 4
"""Schemas that stay compiled: those of an agent's turns come again and again."""

_T = TypeVar("_T")


class Json:
    """Follows one generation through a schema. Raises Refused ``bad_constraint`` for what it cannot hold."""

    def __init__(self, schema: str, guide: "LLTokenizer") -> None:
        self._guide = guide
        self._compiled = _compiled(schema, guide)
        self._matcher = self._compiled.matcher()
        self._taken: list[int] = []
        self._words = np.zeros((guide.vocab_size + 31) // 32, dtype=np.int32)

    @property
    def complete(self) -> bool:
        """Whether the value is whole and nothing can follow it."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def take(self, tokens: list[int]) -> int:
        """Go on by the tokens; how many of them fit."""
        fit = int(self._do(lambda matcher: matcher.try_consume_tokens(tokens)))
        self._taken += tokens[:fit]
        return fit

    def forced(self) -> list[int]:
        """The tokens that the schema forces next. They are already taken."""
        tokens = list(self._do(lambda matcher: matcher.compute_ff_tokens()))
        if tokens:
            self.take(tokens)
        return tokens

    def allows(self, token: int) -> bool:
        """Whether the token may come next: far cheaper than all that may. Not for a value that is whole already."""
        return self.fitting([token]) > 0

    def fitting(self, tokens: list[int]) -> int:
        """How many of the tokens may come next, one behind the other."""
        return int(self._matcher.validate_tokens(tokens))

    def allowed(self) -> "Bits":
        """Which tokens may come next, one entry a token; a token that ends the turn is among them if it may end."""
        words = self._words
        self._do(lambda matcher: matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes))
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        return bits[: self._guide.vocab_size].view(np.bool_)

    def some_allowed(self) -> list[bytes]:
        """A few of the texts that may come next, for an error message: the shortest first."""
        tokens = np.flatnonzero(self.allowed())
        pieces = sorted({bytes(self._guide.decode_bytes([int(t)])) for t in tokens[:4096]}, key=len)
        return [piece for piece in pieces if piece][:_SOME]

    def _do(self, act: Callable[[LLMatcher], _T]) -> _T:
        """Generations of one schema fill its lexer together: where that is full, this one goes on with a new one."""
        value = act(self._matcher)
        if _FULL in self._matcher.get_error() and (renewed := self._compiled.renewed()):
            self._matcher = renewed
            self._matcher.consume_tokens(self._taken)
            value = act(self._matcher)
        _check(self._matcher)
        return value


class _Compiled:
    """A schema that can be held. Its matchers share what they have found out about it."""

    def __init__(self, schema: str, guide: "LLTokenizer") -> None:
        self._schema, self._guide = schema, guide
        self._first = self._compile()
        self._users = 0

    def matcher(self) -> LLMatcher:
        """One at the start of a value."""
        self._users += 1
        return self._first.deep_copy()

    def renewed(self) -> LLMatcher | None:
        """One that knows nothing of what others have found out; None where there were no others."""
        if self._users == 1:
            return None
        self._first, self._users = self._compile(), 0
        return self.matcher()

    def _compile(self) -> LLMatcher:
        grammar = str(LLMatcher.grammar_from_json_schema(self._schema, overrides=_STRICT))
        matcher = LLMatcher(self._guide, grammar, log_level=0, limits=_limits())
        _check(matcher)
        return matcher


@lru_cache(_KEPT)
def _compiled(schema: str, guide: "LLTokenizer") -> _Compiled:
    return _Compiled(schema, guide)


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise Refused(_BAD, f"The schema cannot be held: {_reason(matcher.get_error())}")


def _limits() -> LLParserLimits:
    """What one schema may cost: about 100 MB of states, a second to compile, 0.1 s a step."""
    return LLParserLimits(
        max_lexer_states=SCHEMA_STATES.count,
        initial_lexer_fuel=SCHEMA_FUEL.count,
        step_max_items=SCHEMA_ITEMS.count,
    )


def _reason(error: str) -> str:
    """The engine's reason in one line, with what to do where that is known."""
    line = " ".join(error.partition("<state>")[0].split())
    if "oneOf constraints are not supported" in line:
        return (
            "its `oneOf` has branches that can hold for the same value. Set `additionalProperties` to false "
            "and make a required property or a `const` differ, or use `anyOf`."
        )
    if line.startswith("Unimplemented keys"):
        return f"it uses keywords that are not supported: {line.partition(':')[2].strip(' []')}."
    return line if line.endswith(".") else line + "."
