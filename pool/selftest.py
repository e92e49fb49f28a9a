"""What a worker tries before it says that it is ready: a long prefill, a constrained turn, forks (DESIGN 4, Load).

A setting that does not work on this machine dies here, by a signal, and not in somebody's generation.
"""

import dataclasses

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.contexts import Prompt
from aerix.pool.generation import Bench, Job, start
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
    engine.decode([Row(token, at, 0, at == count - 1) for at, token in enumerate(tokens)])
    cuttable = engine.cut(0, count // 2)
    engine.cut(0, 0)
    engine.facts = dataclasses.replace(engine.facts, cuttable=cuttable)
    return tokens


def _generate(engine: Engine, tokens: list[int]) -> None:
    bench = Bench(engine)
    prompt = Prompt((), tuple(tokens[: len(tokens) // 2]))
    for constraint in (p.Constraint(schema=_SCHEMA), p.Constraint(texts=["yes", "no"])):
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
