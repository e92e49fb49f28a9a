"""What a generation may say: ``Json`` and ``OneOf`` (DESIGN section 4, Constraints).

``Json`` compiles through llguidance to a mask a token, allows no white space outside strings, and tells which tokens
the schema forces. ``OneOf`` is a list of texts; ``choice.Choice`` scores them.
"""

from typing import TYPE_CHECKING, Any

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


class Json:
    """Follows one generation through a schema. Raises Refused ``bad_constraint`` for what it cannot hold."""

    def __init__(self, schema: dict[str, Any], guide: "LLTokenizer") -> None:
        self._guide = guide
        self._matcher = LLMatcher(guide, _grammar(schema), log_level=0, limits=_limits())
        self._check()
        self._words = np.zeros((guide.vocab_size + 31) // 32, dtype=np.int32)

    @property
    def complete(self) -> bool:
        """Whether the value is whole and nothing can follow it."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def take(self, tokens: list[int]) -> int:
        """Go on by the tokens; how many of them fit."""
        return int(self._matcher.try_consume_tokens(tokens))

    def forced(self) -> list[int]:
        """The tokens that the schema forces next. They are already taken."""
        tokens = list(self._matcher.compute_ff_tokens())
        if tokens:
            self._matcher.consume_tokens(tokens)
        self._check()
        return tokens

    def allowed(self) -> "Bits":
        """Which tokens may come next, one entry a token; a token that ends the turn is among them if it may end."""
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        self._check()
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
        return bits[: self._guide.vocab_size].view(np.bool_)

    def some_allowed(self) -> list[bytes]:
        """A few of the texts that may come next, for an error message: the shortest first."""
        tokens = np.flatnonzero(self.allowed())
        pieces = sorted({bytes(self._guide.decode_bytes([int(t)])) for t in tokens[:4096]}, key=len)
        return [piece for piece in pieces if piece][:_SOME]

    def _check(self) -> None:
        if self._matcher.is_error():
            raise Refused(_BAD, f"The schema cannot be held: {_reason(self._matcher.get_error())}")


def _grammar(schema: dict[str, Any]) -> str:
    return str(LLMatcher.grammar_from_json_schema(schema, overrides=_STRICT))


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
