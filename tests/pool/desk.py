"""An engine with everything above it but the process, driven step by step, and scripts for it to play."""

import json
from pathlib import Path
from typing import Any

from aerix.pool import protocol as p
from aerix.pool.contexts import Contexts
from aerix.pool.generation import Bench, Generation, Job, start
from aerix.pool.rows import Engine, Failed, OutOfRoom
from aerix.pool.scripted import ScriptedEngine
from aerix.pool.template import Template
from aerix.pool.workerargs import WorkerArgs


def no_model(path: str) -> Any:
    raise AssertionError(f"no vocabulary was wanted of {path}")


class Desk:
    """An engine, its contexts and its shelf; generations are driven to their end here, without a process."""

    def __init__(self, engine: Engine, thinking: int = 0) -> None:
        self.engine = engine
        self.contexts = Contexts(engine.vocabulary, Template(engine.vocabulary, thinking=thinking))
        self.bench = Bench(engine)
        self.pieces: list[Any] = []
        self.batches: list[int] = []
        self.context = ""
        self.ahead = 0

    def create(self, *segments: p.Segment) -> p.ContextState:
        state = self.contexts.handle(p.ContextCreate(1, "m", list(segments)))
        assert isinstance(state, p.ContextState)
        self.context = state.context
        return state

    def append(self, *segments: p.Segment) -> p.ContextState:
        state = self.contexts.handle(p.ContextAppend(1, self.context, list(segments)))
        assert isinstance(state, p.ContextState)
        return state

    def open(self, max_tokens: int = 200, **fields: Any) -> Generation:
        request = p.Generate(7, self.context, max_tokens, **fields)
        self.pieces, self.batches = [], []
        generation = start(
            Job(1, request, self.contexts.prompt(self.context)), self.bench, self.pieces.append
        )
        assert generation.open()
        return generation

    def step(self, generation: Generation) -> None:
        rows = generation.rows(self.engine.facts.batch, self.ahead)
        self.batches.append(len(rows))
        try:
            generation.take(rows, self.bench.decode(rows))
        except OutOfRoom:
            generation.end("length")
        except Failed as failed:
            raise failed.why from None

    def generate(self, max_tokens: int = 200, **fields: Any) -> p.Done:
        generation = self.open(max_tokens, **fields)
        try:
            while generation.done is None:
                self.step(generation)
        finally:
            generation.close()
        return generation.done

    @property
    def streamed(self) -> list[int]:
        return [token for piece in self.pieces if isinstance(piece, p.Token) for token in piece.tokens]


class Scripts:
    """Makes scripts in a test's own folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "play.jsonl"

    def write(self, *lines: dict[str, Any] | str) -> Path:
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        self.path.write_text(text)
        return self.path

    def engine(self, *lines: dict[str, Any] | str, **args: Any) -> ScriptedEngine:
        return ScriptedEngine(WorkerArgs(f"scripted:{self.write(*lines)}", **args), no_model)

    def desk(self, *lines: dict[str, Any] | str, **args: Any) -> Desk:
        return Desk(self.engine(*lines, **args), args.get("thinking", 0))
