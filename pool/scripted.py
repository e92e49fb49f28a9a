"""The engine that plays a script: for the rows of a generation it gives the logits of the script's next token.

Everything above it (scheduler, sampler, constraint, prefix store) runs as with a model. Faults are real: the process
dies, or hangs.
"""

import os
import signal
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aerix.actors import Refused
from aerix.pool.bounds import BATCH, CHUNK, SEQUENCES
from aerix.pool.builtin import CHATML_THINKING
from aerix.pool.bytevocab import ByteVocabulary
from aerix.pool.rows import Aborted, EngineFacts, Failed, OutOfRoom, Row, Scene, Vocabulary
from aerix.pool.script import Script, Step
from aerix.pool.workerargs import WorkerArgs

if TYPE_CHECKING:
    from aerix.pool.rows import Logits

PREFIX = "scripted:"

_ROW = struct.Struct("<ii")
_UNLIKELY = -30.0
_SHOWN = 40


@dataclass(slots=True)
class _Play:
    """A step that is being played, with the token that comes next at each byte of its text."""

    step: Step
    scene: Scene
    data: bytes
    plan: dict[int, int] = field(default_factory=dict)
    drawn: int = 0

    @property
    def fault_at(self) -> int:
        """The byte from which on the step's fault comes: in the middle of a turn, after a text."""
        return len(self.data) // 2 if self.step.whole else len(self.data)

    @property
    def faulty(self) -> bool:
        """Deaths come once: not in a generation that was taken up again. In a turn, not before its first token."""
        return not self.scene.closing and not self.scene.resumed and (bool(self.drawn) or not self.step.whole)


@dataclass(slots=True)
class _Rows:
    """What a sequence holds, and what of it is generated."""

    tokens: list[int] = field(default_factory=list)
    play: _Play | None = None
    said: bytearray = field(default_factory=bytearray)


class ScriptedEngine:
    """See Engine. Raises Refused ``bad_script`` or ``load_failed`` where it cannot be made."""

    def __init__(self, args: WorkerArgs, load_vocabulary: Callable[[str], Vocabulary]) -> None:
        """``load_vocabulary`` reads that of a model file; it is not called for ``bytes``."""
        self._script = Script(Path(args.model.removeprefix(PREFIX)))
        name = self._script.header.tokenizer
        path, thinks = self._script.path.parent / name, self._script.header.thinks
        self.vocabulary: Vocabulary = (
            ByteVocabulary(thinks=thinks) if name == "bytes" else load_vocabulary(str(path))
        )
        if thinks:
            self.vocabulary.chat_template = CHATML_THINKING
        window = args.window or self._script.header.window
        self.facts = EngineFacts(
            window=window,
            cells=args.cells or window * args.max_batch,
            sequences=SEQUENCES.count,
            batch=args.batch or BATCH.count,
            threads=1,
            json=self._script.header.json,
            scores=self._script.header.scores,
            engine="scripted",
            chunk=CHUNK.count,
            row_bytes=_ROW.size,
        )
        self._sequences: dict[int, _Rows] = {}
        self._interrupted = threading.Event()

    def begin(self, sequence: int, scene: Scene) -> None:
        """Choose the step. Raises Refused ``script_ended``, ``script_mismatch``."""
        step = self._chosen(scene) if scene.texts else self._script.step(scene.segments)
        rows = self._sequences.setdefault(sequence, _Rows())
        says = step.thinking + scene.closing if scene.closing else step.text
        rows.play = self._planned(_Play(step, scene, says.encode()), 0)
        rows.said = self._said(rows)

    def decode(self, rows: Sequence[Row]) -> "list[Logits]":
        """See Engine. A generation that the script has no more for is Failed (``script_mismatch``, ``scripted_error``)."""
        if self._interrupted.is_set():
            raise Aborted
        logits, plays = [], []
        for row in rows:
            if held := self._add(row):
                assert held.play is not None, "a generation begins before its rows are decoded"
                plays.append(held.play)
                logits.append(self._after(row.sequence, held.play, held.said))
        self._wait(plays)
        return logits

    def copy(self, source: int, target: int, upto: int) -> None:
        """See Engine. A fork plays on where its source is."""
        held = self._sequences[source]
        fork = self._sequences[target] = _Rows(held.tokens[:upto], held.play)
        fork.said = self._said(fork)

    def cut(self, sequence: int, at: int) -> bool:
        """See Engine."""
        held = self._sequences.get(sequence)
        if held:
            del held.tokens[at:]
            held.said = self._said(held)
        return True

    def save(self, sequence: int, start: int, end: int) -> memoryview | None:
        """See Engine: a row is its position and its token."""
        rows = enumerate(self._sequences[sequence].tokens[start:end], start)
        return memoryview(b"".join(_ROW.pack(*row) for row in rows))

    def load(self, sequence: int, data: memoryview, start: int, end: int) -> bool:
        """See Engine."""
        held = self._sequences.setdefault(sequence, _Rows())
        assert start == len(held.tokens), "rows come in order"
        if len(data) % _ROW.size:
            return False
        rows = [token for at, token in _ROW.iter_unpack(data) if start <= at < end]
        if len(rows) != end - start:
            return False
        held.tokens += rows
        held.said = self._said(held)
        return True

    def stuck(self, sequence: int, allowed: list[bytes]) -> Refused:
        """The constraint does not take what the script says."""
        held = self._sequences[sequence]
        assert held.play is not None
        says = held.play.data[len(held.said) :] or b"the end of the turn"
        taken = ", ".join(repr(piece.decode("utf-8", "replace")) for piece in allowed) or "nothing"
        return self._mismatch(
            held.play, held.said, says, f"only this is allowed there, among others: {taken}"
        )

    def interrupt(self) -> None:
        """See Engine."""
        self._interrupted.set()

    def resume(self) -> None:
        """See Engine."""
        self._interrupted.clear()

    def close(self) -> None:
        """See Engine."""

    # --- private --------------------------------------------------------------------------------------------------

    def _chosen(self, scene: Scene) -> Step:
        assert scene.texts is not None
        text = self._script.choice(scene.segments, scene.texts)
        return Step(0, None, text, whole=False, delay=0, per_token_delay=0, fault=None)

    def _add(self, row: Row) -> _Rows | None:
        held = self._sequences.setdefault(row.sequence, _Rows())
        assert row.position == len(held.tokens), "rows come in order"
        held.tokens.append(row.token)
        if held.play and row.position >= held.play.scene.prompt:
            held.said += self.vocabulary.piece(row.token)
        return held if row.logits else None

    def _said(self, held: _Rows) -> bytearray:
        generated = held.tokens[held.play.scene.prompt :] if held.play else []
        return bytearray(b"".join(self.vocabulary.piece(token) for token in generated))

    def _after(self, sequence: int, play: _Play, said: bytearray) -> "Logits":
        """The logits of what comes next: the script's token, and nothing else; or the fault that the step says."""
        if play.scene.texts:
            return self._scored(play, said)
        try:
            if not play.data.startswith(said):
                agreed = bytes(said[: _start_of_difference(said, play.data)])
                raise self._mismatch(play, agreed, play.data, "the schema forces more")
            if len(said) >= play.fault_at and play.faulty:
                self._fail(sequence, play)
            return self._only(self._next(play, len(said)), otherwise=-np.inf)
        except Refused as refusal:
            raise Failed(sequence, refusal) from None

    def _scored(self, play: _Play, said: bytearray) -> "Logits":
        """For ``OneOf``: the chosen text is likely, every other one is not."""
        if not play.data.startswith(said):
            return np.zeros(self.vocabulary.size, dtype=np.float32)
        return self._only(self._next(play, len(said)), otherwise=_UNLIKELY)

    def _only(self, token: int, *, otherwise: float) -> "Logits":
        logits = np.full(self.vocabulary.size, otherwise, dtype=np.float32)
        logits[token] = 0
        return logits

    def _next(self, play: _Play, at: int) -> int:
        """The token at byte ``at``: forced stretches may have been split otherwise than the text's own tokens."""
        if at == len(play.data):
            return self.vocabulary.ends[0]
        if at not in play.plan:
            self._planned(play, at)
        return play.plan[at]

    def _planned(self, play: _Play, at: int) -> _Play:
        """Split the text from byte ``at`` on into tokens. Some vocabularies lack bytes of rare characters."""
        offset = at
        for token in self._tokens(play.data[at:]):
            piece = self.vocabulary.piece(token)
            if not play.data.startswith(piece, offset):
                break
            play.plan.setdefault(offset, token)
            offset += len(piece)
        if offset < len(play.data):
            why = "this vocabulary cannot write it"
            raise self._mismatch(play, play.data[:offset], play.data[offset:], why)
        return play

    def _tokens(self, data: bytes) -> list[int]:
        try:
            return self.vocabulary.tokenize(data.decode(), special=False)
        except UnicodeDecodeError:
            return list(self.vocabulary.guide().tokenize_bytes(data))

    def _wait(self, plays: list[_Play]) -> None:
        """A batch takes as long as the slowest in it."""
        if self._interrupted.wait(max(map(_delay, plays), default=0)):
            raise Aborted
        for play in plays:
            play.drawn += 1

    def _fail(self, sequence: int, play: _Play) -> None:
        match play.step.fault:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                # For ever, on purpose: whoever waits for this process must have a deadline.
                threading.Event().wait()
            case "cut":
                raise OutOfRoom(sequence)
            case "error":
                raise Refused("scripted_error", f"{self._where(play)}: the step says `fault: error`.")

    def _mismatch(self, play: _Play, said: bytes | bytearray, says: bytes, why: str) -> Refused:
        after, then = (part.decode("utf-8", "replace") for part in (bytes(said[-_SHOWN:]), says[:_SHOWN]))
        return Refused(
            "script_mismatch", f"{self._where(play)}: after {after!r} the step says {then!r}, but {why}."
        )

    def _where(self, play: _Play) -> str:
        return f"{self._script.path}, line {play.step.line}"


def _delay(play: _Play) -> float:
    first = not play.drawn and not play.scene.resumed
    return 0 if play.scene.texts else play.step.delay if first else play.step.per_token_delay


def _start_of_difference(one: bytes | bytearray, other: bytes) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
