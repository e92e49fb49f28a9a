"""The pool's engine against bare llama.cpp on the same model, in one process and one run: ``pool.py MODEL``.

Each figure is taken side by side with what it is compared to, again and again; a ratio is the median of the pairs.
Targets: DESIGN section 8. Prints one JSON line.
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from aerix.pool import protocol as p
from aerix.pool.bounds import DRAFT
from aerix.pool.contexts import Contexts
from aerix.pool.generation import Bench, Job
from aerix.pool.ladder import LADDER, apply_signal_stack
from aerix.pool.rows import Engine, Row
from aerix.pool.scheduler import Scheduler
from aerix.pool.store import Store, budget_of
from aerix.pool.template import Template
from aerix.pool.workerargs import WorkerArgs

PREFIX = 4096
REPLY = 32
CHUNK = 256
AT_ONCE = 4
LONG_REPLY = 48
READ = {"path": "scripts/bench/pool.py", "offset": 1, "limit": 60}
STRING = {"type": "string", "maxLength": 40}
NUMBER = {"type": "integer", "minimum": 0, "maximum": 9999}


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def call(tool: str, **inputs: Any) -> dict[str, Any]:
    return closed(tool={"const": tool}, input=closed(**inputs))


CALLS = {
    "type": "array",
    "minItems": 1,
    "maxItems": 2,
    "items": {
        "oneOf": [
            call("read", path=STRING, offset=NUMBER, limit=NUMBER),
            call("bash", command=STRING, timeout=NUMBER),
            call("grep", pattern=STRING, path=STRING, ignore_case={"type": "boolean"}),
        ]
    },
}
TURN = closed(thought=STRING, calls=CALLS)
"""A tool call of the shape that agents make."""


@dataclass(slots=True)
class Pool:
    """A worker's parts without its process."""

    engine: Engine
    contexts: Contexts
    bench: Bench
    scheduler: Scheduler
    prefix: int
    """Rows that everything begins with, where there is one."""

    def job(self, call_: int, text: str, max_tokens: int, **fields: Any) -> Job:
        """A generation on a new context."""
        segment = p.Segment("u1", "user", text)
        state = self.contexts.handle(p.ContextCreate(1, "m", [segment]))
        assert isinstance(state, p.ContextState)
        request = p.Generate(call_, state.context, max_tokens, p.Sampling(temperature=0, seed=1), **fields)
        return Job(call_, request, self.contexts.prompt(state.context))

    def run(self, *jobs: Job) -> dict[int, p.Done]:
        """Run them side by side to their ends."""
        waiting, done = list(jobs), {}
        while waiting or self.scheduler.running:
            while (job := self.scheduler.choose(waiting)) is not None:
                waiting.remove(job)
                assert self.scheduler.begin(job, lambda _: None) is None
            for ended in self.scheduler.step():
                assert isinstance(ended.outcome, p.Done), ended.outcome
                done[ended.job.call] = ended.outcome
        return done


def timed(do: Callable[[], object]) -> float:
    """Seconds."""
    begin = perf_counter()
    do()
    return perf_counter() - begin


def text_of(engine: Engine, tokens: int, start: str) -> str:
    """A text of about so many tokens."""
    words = start + " " + " ".join(f"line {n} of a file that an agent has read" for n in range(tokens))
    ids = engine.vocabulary.tokenize(words, special=False)[:tokens]
    return b"".join(map(engine.vocabulary.piece, ids)).decode("utf-8", "replace")


# --- the figures --------------------------------------------------------------------------------------------------


def resume(pool: Pool, rounds: int) -> dict[str, Any]:
    """A reply on a prefix that is resident, against the bare decode of the same tokens behind the same rows."""
    prefix = text_of(pool.engine, pool.prefix, "resume")
    first = pool.job(0, prefix, REPLY)
    pool.run(first)
    pairs = []
    for n in range(1, rounds + 1):
        job = pool.job(n, prefix, REPLY)
        whole = timed(lambda job=job: pool.run(job))
        pairs.append((whole, bare_decode(pool, list(job.prompt.tokens))))
    return ratio(pairs, "s", target="<= 1.2")


def bare_decode(pool: Pool, prompt: list[int]) -> float:
    """llama.cpp alone: one row after the other, the best token each time, behind rows that are there."""
    lease = pool.bench.store.admit(prompt, reserve=REPLY)
    assert lease is not None
    assert lease.start == len(prompt) - 1
    sequence = lease.sequence

    def decode() -> None:
        token, at = prompt[-1], len(prompt) - 1
        for position in range(at, at + REPLY):
            (logits,) = pool.engine.decode([Row(token, position, sequence, logits=True)])
            token = int(logits.argmax())

    seconds = timed(decode)
    pool.engine.cut(sequence, len(prompt) - 1)
    pool.bench.release(sequence, keep=False)
    return seconds


def forks(pool: Pool, rounds: int) -> dict[str, Any]:
    """Four forks of one prefix, together."""
    prefix = pool.job(0, text_of(pool.engine, pool.prefix, "resume"), 1).prompt.tokens
    taken = []
    for _ in range(rounds):
        begin = perf_counter()
        leases = [pool.bench.store.admit(prefix, reserve=64, latest=pool.prefix - 1) for _ in range(AT_ONCE)]
        taken.append(perf_counter() - begin)
        for lease in leases:
            assert lease is not None
            pool.bench.release(lease.sequence, keep=False)
    return {"ms": round(median(taken) * 1e3, 3), "target": "<= 5"}


def snapshots(pool: Pool, rounds: int) -> dict[str, Any]:
    """A sequence's rows out, in the stretches of a snapshot, and in again; the first way out meets new memory."""
    engine = pool.engine
    tokens = list(pool.job(0, text_of(engine, pool.prefix, "resume"), 1).prompt.tokens[: pool.prefix])
    pool.run(pool.job(0, text_of(engine, pool.prefix, "resume"), 1))
    lease = pool.bench.store.admit([*tokens, 0], reserve=0, latest=pool.prefix)
    assert lease is not None
    assert lease.start == pool.prefix
    taken: list[tuple[float, float, float]] = []
    for _ in range(rounds):
        begin = perf_counter()
        saved = [engine.save(lease.sequence, at, at + CHUNK) for at in range(0, pool.prefix, CHUNK)]
        middle = perf_counter()
        engine.cut(lease.sequence, 0)
        for at, data in zip(range(0, pool.prefix, CHUNK), saved, strict=True):
            assert data is not None
            assert engine.load(lease.sequence, data, at, at + CHUNK)
        size = sum(len(data) for data in saved if data is not None)
        taken.append((size / (middle - begin) / 1e9, size / (perf_counter() - middle) / 1e9, size / 1e6))
    pool.bench.release(lease.sequence, keep=False)
    outs, ins, sizes = zip(*taken, strict=True)
    return {
        "unit": "GB/s", "mb": round(sizes[0], 1), "first_out": round(outs[0], 2), "out": round(median(outs), 2),
        "in": round(median(ins), 2), "target": ">= 1",
    }  # fmt: skip


def at_once(pool: Pool, rounds: int) -> dict[str, Any]:
    """What four generations gain side by side, against what bare llama.cpp gains from batches of four."""
    texts = [text_of(pool.engine, 64, f"one of four, number {n}") for n in range(AT_ONCE)]
    pool.run(*(pool.job(n, text, 1) for n, text in enumerate(texts)))
    ours, bare = [], []
    for _ in range(rounds):
        apart = sum(timed(lambda t=text: pool.run(pool.job(9, t, LONG_REPLY))) for text in texts)
        jobs = [pool.job(n, text, LONG_REPLY) for n, text in enumerate(texts)]
        ours.append(apart / timed(lambda jobs=jobs: pool.run(*jobs)))
        bare.append(bare_batches(pool, [list(job.prompt.tokens) for job in jobs]))
    gain, theirs = median(ours), median(bare)
    return {
        "gain": round(gain, 3),
        "bare_gain": round(theirs, 3),
        "ratio": round(gain / theirs, 3),
        "target": ">= 0.9",
    }


def bare_batches(pool: Pool, prompts: list[list[int]]) -> float:
    """How much faster llama.cpp decodes four sequences in one batch than one after the other."""
    leases = [pool.bench.store.admit(prompt, reserve=2 * LONG_REPLY) for prompt in prompts]
    places = [
        (lease.sequence, len(prompt) - 1) for lease, prompt in zip(leases, prompts, strict=True) if lease
    ]
    last = [prompt[-1] for prompt in prompts]

    def decode(which: list[int]) -> None:
        tokens = {n: last[n] for n in which}
        for step in range(LONG_REPLY):
            rows = [Row(tokens[n], places[n][1] + step, places[n][0], logits=True) for n in which]
            for n, logits in zip(which, pool.engine.decode(rows), strict=True):
                tokens[n] = int(logits.argmax())
        for n in which:
            pool.engine.cut(*places[n])

    apart = sum(timed(lambda n=n: decode([n])) for n in range(AT_ONCE))
    together = timed(lambda: decode(list(range(AT_ONCE))))
    for sequence, _ in places:
        pool.bench.release(sequence, keep=False)
    return apart / together


def constrained(pool: Pool, rounds: int) -> dict[str, Any]:
    """Tool calls held to a schema, against the same with every token sampled."""
    from aerix.pool.constraint import Json

    text = text_of(pool.engine, 64, "Which files are there? Call a tool.")
    pool.run(pool.job(0, text, 1))
    forced = Json.forced
    pairs, share = [], []
    for n in range(rounds):
        rates = []
        for stretch in (forced, lambda _: []):
            Json.forced = stretch  # type: ignore[method-assign,assignment]  # the other side of this benchmark
            job = pool.job(n, text, 200, constraint=p.Constraint(schema=json.dumps(TURN)))
            done: dict[int, p.Done] = {}
            seconds = timed(lambda job=job, done=done: done.update(pool.run(job)))
            usage = done[n].usage
            rates.append(usage.completion_tokens / seconds)
            share.append(usage.forced_tokens / usage.completion_tokens)
        pairs.append((rates[0], rates[1]))
    Json.forced = forced  # type: ignore[method-assign]
    return ratio(pairs, "tokens_per_s", target=">= 1.3") | {"forced_share": round(max(share), 2)}


def drafts(pool: Pool, rounds: int) -> dict[str, Any]:
    """Replies that repeat what was read, with drafts, against the same without: a tool call, and a file written again."""
    source, reply = Path(__file__).read_text()[: pool.prefix // 2], pool.prefix // 20
    called = json.dumps({"thought": "I read it.", "calls": [{"tool": "read", "input": READ}]})
    asked = {
        "turn": f"You said: {called}\nThe result:\n{source}\nNow call the tool for the lines behind these.",
        "quote": f"This is a file:\n{source}\nWrite the whole file again.",
    }
    schema = p.Constraint(schema=json.dumps(TURN))
    pool.run(*(pool.job(n, text, 1) for n, text in enumerate(asked.values())))
    return {
        name: drafted(pool, rounds, lambda n, t=text, c=schema if name == "turn" else None: pool.job(n, t, reply, constraint=c))
        for name, text in asked.items()
    }  # fmt: skip


def drafted(pool: Pool, rounds: int, job: Callable[[int], Job]) -> dict[str, Any]:
    """Tokens a second of a reply, both ways, and how many of its tokens were drafted."""
    pairs, share = [], 0.0
    for n in range(rounds):
        rates = []
        for length in (str(DRAFT.default), "0"):
            os.environ[DRAFT.variable] = length
            usage = pool.run(job(n))[n].usage
            rates.append(usage.completion_tokens / usage.decode_ms * 1000)
            share = max(share, usage.drafted_tokens / usage.completion_tokens)
        pairs.append((rates[0], rates[1]))
    return ratio(pairs, "tokens_per_s", target=">= 1") | {"drafted_share": round(share, 2)}


def ratio(pairs: list[tuple[float, float]], unit: str, target: str) -> dict[str, Any]:
    """Medians of both sides and of the pairs' ratios."""
    ours, bare = (median(side) for side in zip(*pairs, strict=True))
    return {
        "unit": unit,
        "pool": round(ours, 4),
        "bare": round(bare, 4),
        "ratio": round(median(one / other for one, other in pairs), 3),
        "target": target,
    }


def open_pool(path: str, prefix: int) -> Pool:
    """The model on the settings that a worker would use."""
    from aerix.pool import selftest
    from aerix.pool.engine import LlamaEngine
    from aerix.pool.rendering import renderer

    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    apply_signal_stack()
    args = WorkerArgs(path, window=8192)
    engine = LlamaEngine(args, LADDER[0])
    selftest.run(engine)
    bench = Bench(engine, Store(engine, budget_of(args)))
    template = Template(engine.vocabulary, make_renderer=renderer)
    return Pool(engine, Contexts(engine.vocabulary, template), bench, Scheduler(bench, AT_ONCE), prefix)


def main() -> None:
    """Measure all, or what was asked for."""
    figures = {
        "resume": resume,
        "forks": forks,
        "snapshots": snapshots,
        "at_once": at_once,
        "constrained": constrained,
        "drafts": drafts,
    }
    os.environ[DRAFT.variable] = "0"  # what the others compare computes each token
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("figures", nargs="*", help=f"of {', '.join(figures)}; all without any")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="one round behind a short prefix: to see that it runs"
    )
    options = parser.parse_args()
    pool = open_pool(options.model, 2 * CHUNK if options.quick else PREFIX)
    rounds = 1 if options.quick else options.rounds
    told = {name: figures[name](pool, rounds) for name in options.figures or figures}
    print(json.dumps({"bench": "pool", "model": Path(options.model).name, **told}))


if __name__ == "__main__":
    main()
