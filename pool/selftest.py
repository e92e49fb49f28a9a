"""What a worker tries before it says that it is ready: a long prefill, a constrained turn, forks (DESIGN 4, Load).

A setting that does not work on this machine dies here, by a signal, and not in somebody's generation.
"""

import dataclasses
import json
import time

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.contexts import Prompt
from aerix.pool.generation import Bench, Job, start
from aerix.pool.rates import Rates
from aerix.pool.rows import Engine, Row

_TEXT = "The self-test reads a text that is long enough for the fast paths. "
_ROWS = 96
_SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


def run(engine: Engine) -> str:
    """Try the engine, and find out whether its memory can be cut. What is found wanting, as a sentence, or nothing.

    Sets ``engine.facts``. The engine's cache is empty afterwards.
    """
    tokens = _prefill(engine)
    _snapshot(engine, tokens)
    try:
        _generate(engine, tokens)
    except (Refused, ValueError) as why:
        engine.facts = dataclasses.replace(engine.facts, json=False)
        return f"It cannot be held to a JSON schema: {why}"
    return ""


def _prefill(engine: Engine) -> list[int]:
    """One batch of at least 64 rows, where the settings allow it; then a cut in its middle."""
    text = engine.vocabulary.tokenize(_TEXT, special=False)
    count = min(_ROWS, engine.facts.batch, engine.facts.window // 2)
    tokens = (text * (count // len(text) + 1))[:count]
    began = time.perf_counter()
    engine.decode([Row(token, at, 0, at == count - 1) for at, token in enumerate(tokens)])
    rates = Rates(row=(time.perf_counter() - began) / count)
    cuttable = engine.cut(0, count // 2)
    if not cuttable:
        engine.cut(0, 0)
        engine.decode([Row(token, at, 0) for at, token in enumerate(tokens[: count // 2])])
    engine.facts = dataclasses.replace(engine.facts, cuttable=cuttable, rates=rates)
    return tokens[: count // 2]


def _snapshot(engine: Engine, tokens: list[int]) -> None:
    """The rows that are there, out and in again."""
    data = engine.save(0, 0, len(tokens))
    if data is None:
        raise Refused("load_failed", "the engine's self-test failed: it gives no snapshot of a sequence")
    began = time.perf_counter()
    if not engine.load(1, data, 0, len(tokens)):
        raise Refused("load_failed", "the engine's self-test failed: it does not take its own snapshot")
    rates = dataclasses.replace(engine.facts.rates, memory=(time.perf_counter() - began) / len(data))
    engine.facts = dataclasses.replace(engine.facts, row_bytes=len(data) // len(tokens), rates=rates)
    for sequence in (0, 1):
        engine.cut(sequence, 0)


def _generate(engine: Engine, tokens: list[int]) -> None:
    bench = Bench(engine)
    prompt = Prompt((), tuple(tokens))
    for constraint in (p.Constraint(schema=json.dumps(_SCHEMA)), p.Constraint(texts=["yes", "no"])):
        generation = start(Job(0, p.Generate(0, "", 16, constraint=constraint), prompt), bench, _ignore)
        try:
            assert generation.open()
            while generation.done is None:
                rows = generation.rows(engine.facts.batch)
                generation.take(rows, bench.decode(rows))
        finally:
            generation.close()
    for sequence in range(engine.facts.sequences):
        engine.cut(sequence, 0)


def _ignore(_piece: object) -> None:
    """Nobody reads the self-test's tokens."""
