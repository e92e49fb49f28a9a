"""What a scheduler needs of an engine: rows in, logits out, and a vocabulary. Shared by llama.cpp and the scripts.

A row is one token at one position of one or more sequences; a sequence is a list of rows in the engine's memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from aerix.actors import Refused
from aerix.pool.protocol import Segment
from aerix.pool.rates import Rates

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLTokenizer
    from numpy.typing import NDArray

    Logits = NDArray[np.float32]
    """One number a vocabulary entry. Valid until the next ``decode``; nobody writes into it."""


class Aborted(Exception):
    """``decode`` was interrupted. None of its rows may be counted on: cut the sequences back to what they held."""


class OutOfRoom(Exception):
    """The engine cannot take another row (of ``sequence``); a generation ends with stop ``length``."""

    def __init__(self, sequence: int | None = None) -> None:
        super().__init__()
        self.sequence = sequence


class Failed(Exception):
    """The engine has nothing more to say on ``sequence``, and its generation ends with ``why``."""

    def __init__(self, sequence: int, why: Refused) -> None:
        super().__init__(why.message)
        self.sequence = sequence
        self.why = why


class EngineFailed(Exception):
    """The engine's state is unknown. The worker ends with it; its member starts another."""


@dataclass(frozen=True, slots=True)
class Row:
    """One token at one position. ``logits`` asks for what may come after it."""

    token: int
    position: int
    sequence: int
    logits: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """What the rows of a sequence stand for. A script chooses its step by it; llama.cpp needs none of it."""

    segments: tuple[Segment, ...]
    prompt: int
    """Rows of the prompt; what follows is generated."""
    resumed: bool
    """Whether the client brought ids of this turn (``Generate.start``)."""
    texts: tuple[str, ...] | None = None
    """The texts of a ``OneOf`` constraint."""
    closing: str = ""
    """What ends the thinking stretch that is generated now; empty: an answer is. Each begins with a scene."""


class Vocabulary(Protocol):
    """Text to tokens and back. Safe to use from several threads."""

    size: int
    digest: str
    """Names the vocabulary: exact ids are valid wherever the digest is the same."""
    bos: int | None
    """The token every prompt must begin with, if the vocabulary says so."""
    ends: tuple[int, ...]
    """The tokens that end a generation."""
    chat_template: str | None
    architecture: str
    """The kind of model, as its file names it; empty where there is no file."""
    bos_text: str
    eos_text: str

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """The text's ids, nothing added. ``special``: names of control tokens become those tokens."""
        ...

    def piece(self, token: int) -> bytes:
        """A token's bytes; none for a control token."""
        ...

    def guide(self) -> "LLTokenizer":
        """The vocabulary for llguidance; built once."""
        ...


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine serves, as its member tells it."""

    window: int
    """Rows that one sequence may hold."""
    cells: int
    """Rows that all sequences may hold together; what a fork shares counts once."""
    sequences: int
    batch: int
    """Rows that one ``decode`` takes."""
    threads: int
    json: bool = True
    scores: bool = True
    """Whether the probabilities that it tells are those of a model."""
    cuttable: bool = True
    """Whether a sequence can be cut at any row."""
    drafts: bool = False
    """Whether tokens that may come next are worth computing before they are known to."""
    chunk: int = 256
    """Rows that a snapshot holds at most, where a sequence can be cut."""
    row_bytes: int = 0
    """What a row takes in a snapshot."""
    engine: str = ""
    """What computes the rows, with its version: another one may not take them."""
    rates: Rates = field(default_factory=Rates)
    """What the self-test has measured."""


class Engine(Protocol):
    """Used by one thread, but for ``interrupt``."""

    facts: EngineFacts

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's vocabulary."""
        ...

    def begin(self, sequence: int, scene: Scene) -> None:
        """A generation starts on the sequence. Raises Refused where the engine has nothing to say to it."""
        ...

    def decode(self, rows: Sequence[Row]) -> "list[Logits]":
        """Compute the rows; the logits of those that asked, in their order.

        Raises what this module defines; then none of the rows may be counted on.
        """
        ...

    def copy(self, source: int, target: int, upto: int) -> None:
        """Give an empty sequence the first rows of another."""
        ...

    def cut(self, sequence: int, at: int) -> bool:
        """Drop the rows from ``at`` on. False where this engine's memory cannot be cut there."""
        ...

    def save(self, sequence: int, start: int, end: int) -> memoryview | None:
        """The rows from ``start`` to ``end`` as bytes; None where that failed.

        Where sequences cannot be cut these are all its rows.
        """
        ...

    def load(self, sequence: int, data: memoryview, start: int, end: int) -> bool:
        """Put the rows from ``start`` to ``end`` of what ``save`` gave behind the ``start`` rows that are there.

        False where the bytes are not taken; the sequence is as it was then.
        """
        ...

    def stuck(self, sequence: int, allowed: list[bytes]) -> Refused:
        """Why no token was possible; ``allowed`` are some of those that the constraint would have taken."""
        ...

    def interrupt(self) -> None:
        """End the running ``decode`` (or the next one) with Aborted. From any thread."""
        ...

    def resume(self) -> None:
        """Take an ``interrupt`` back."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...
