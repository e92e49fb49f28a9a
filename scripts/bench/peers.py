"""The pool beside a plain llama.cpp server: the same work on both, in turns, in one run: ``peers.py MODEL``.

Our side is a daemon process with its real client; the other is ``xllamacpp`` from the package index, in an environment of
its own that is made once. What both are asked, and what the figures mean: docs/performance.md. Prints one JSON line:
medians over the rounds, the targets and whether they hold. What it is doing goes to standard error.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import Any

PREFIX = 2600
NEW = 40
REPLY = 64
STREAM = 96
EARLY = 8
IDLE_S = 10.0
THINGS = ("foxes", "ships", "clocks", "trees")
Figure = dict[str, float]


@dataclass(slots=True)
class Bench:
    """Both sides, and what prompts are made of. Every prefix begins with a number of its own: nobody has it."""

    pool: Any
    server: Any
    prompts: Any
    numbers: "count[int]"

    @property
    def sides(self) -> tuple[Any, Any]:
        """In the order in which they take their turns."""
        return self.pool, self.server

    def prefix(self) -> str:
        """A new one."""
        return str(self.prompts.text(PREFIX, f"{next(self.numbers)}: the files of this project."))

    def tasks(self, prefix: str) -> list[Any]:
        """One for each piece."""
        return [self.prompts(self.task(thing), prefix) for thing in THINGS]

    def task(self, thing: str) -> str:
        """A text of NEW tokens that is answered at length."""
        ask = f"Write a very long story about {thing}. Tell every detail, from the beginning to the end."
        return str(self.prompts.text(NEW, ask)) + "\nWrite the whole story now."


# --- figures of both sides ----------------------------------------------------------------------------------------


def prefix(bench: Bench) -> dict[str, Figure]:
    """First tokens behind a prefix, then four pieces on it, twice."""
    text = bench.prefix()
    first, second = (bench.prompts(bench.task(thing), text) for thing in ("rivers", "stones"))
    found: dict[str, Figure] = {name: {} for name in ("first_new", "first_new_cpu", "first_seen")}
    for side in bench.sides:
        paid = spent(side)
        found["first_new"][side.name] = one(side, first, 1).first
        found["first_new_cpu"][side.name] = spent(side) - paid
        found["first_seen"][side.name] = one(side, second, 1).first
    return (
        found
        | together(bench, "four_seen", bench.tasks(text))
        | together(bench, "four_again", bench.tasks(text))
    )


def new(bench: Bench) -> dict[str, Figure]:
    """Four pieces whose prefix nobody has."""
    return together(bench, "four_new", bench.tasks(bench.prefix()))


def constrained(bench: Bench) -> dict[str, Figure]:
    """Tool calls held to a schema, and free text: tokens a second, the sides in turns after each."""
    schema, long = turn_schema(), bench.prompts(bench.task("bridges"))
    prompts = [
        bench.prompts(f"Look for {thing} in the files of this project: call a tool.") for thing in THINGS
    ]
    for side in bench.sides:
        for prompt in (*prompts, long):
            one(side, prompt, 1)
        side.stream(long, 1, schema).result()  # what is made once for a vocabulary
    calls = in_turns(bench, lambda side, n: side.stream(prompts[n], 200, schema).result())
    texts = in_turns(bench, lambda side, _: one(side, long, REPLY))
    return {
        "call_rate": {side: spans.tokens / spans.seconds for side, spans in calls.items()},
        "call_cpu_rate": {side: spans.tokens / spans.cpu for side, spans in calls.items()},
        "call_seconds": {side: spans.seconds / len(THINGS) for side, spans in calls.items()},
        "free_rate": {side: spans.tokens / spans.seconds for side, spans in texts.items()},
    }


@dataclass(slots=True)
class Spans:
    """Several replies of one side, together."""

    tokens: int = 0
    seconds: float = 0.0
    cpu: float = 0.0


def in_turns(bench: Bench, reply: Callable[[Any, int], Any]) -> dict[str, Spans]:
    """As many replies as there are things, one side right after the other."""
    found = {side.name: Spans() for side in bench.sides}
    for n in range(len(THINGS)):
        for side in bench.sides:
            paid, spans = spent(side), found[side.name]
            done = reply(side, n)
            spans.tokens += done.tokens
            spans.seconds += done.ended - done.begun
            spans.cpu += spent(side) - paid
    return found


def turn_schema() -> dict[str, Any]:
    """The shape of ``pool.py``, its numbers bounded: small models at temperature 0 write digits without an end."""
    from scripts.bench.pool import TURN

    bounded = json.dumps(TURN).replace(
        '{"type": "integer"}', '{"type": "integer", "minimum": 0, "maximum": 9999}'
    )
    found: dict[str, Any] = json.loads(bounded)
    return found


def gap(bench: Bench) -> dict[str, Figure]:
    """A reply that runs while a new prompt comes: its longest pause, and the first token of the other."""
    found: dict[str, Figure] = {name: {} for name in ("gap", "first_beside")}
    running, coming = bench.prompts(bench.task("mountains")), bench.tasks(bench.prefix())[0]
    for side in bench.sides:
        stream = side.stream(running, STREAM)
        stream.until(EARLY)
        other = one(side, coming, 1)
        at = stream.result().at
        assert at[-1] > other.at[0] or stream.tokens == STREAM, (
            "the running reply ended before the other began"
        )
        found["gap"][side.name] = max(b - a for a, b in pairwise(at) if b > other.begun)
        found["first_beside"][side.name] = other.first
    return found


def one(side: Any, prompt: Any, tokens: int) -> Any:
    """A reply of so many tokens."""
    return whole(side.stream(prompt, tokens), prompt, tokens)


def together(bench: Bench, name: str, prompts: list[Any]) -> dict[str, Figure]:
    """Seconds from the start of all to the end of all, and what they took of the processor."""
    found: dict[str, Figure] = {name: {}, f"{name}_cpu": {}}
    for side in bench.sides:
        begin, paid = time.perf_counter(), spent(side)
        streams = [side.stream(prompt, REPLY) for prompt in prompts]
        for stream, prompt in zip(streams, prompts, strict=True):
            whole(stream, prompt, REPLY)
        found[name][side.name] = time.perf_counter() - begin
        found[f"{name}_cpu"][side.name] = spent(side) - paid
        tell(f"{name}: {side.name} computed {[stream.computed for stream in streams]} rows of the prompts")
    return found


def whole(stream: Any, prompt: Any, tokens: int) -> Any:
    """Both sides did the same: as many rows, as many tokens."""
    done = stream.result()
    assert (done.prompt, done.tokens) == (len(prompt.ids), tokens), (done.prompt, done.tokens, done.text)
    return done


# --- figures of the pool alone ------------------------------------------------------------------------------------


def runs(bench: Bench) -> dict[str, Figure]:
    """Four runs of the program, one after the other and at once; each was run before, so both find the same rows.

    What they say differs at near ties, so that one side may have more to do: hence the seconds of a generated token.
    """
    prompts = [f"Which of these files is about {thing}?" for thing in THINGS]
    found = {}
    for name, together in (("", False), ("apart", False), ("at_once", True)):
        start = time.perf_counter()
        if together:
            tokens = sum(map(finish, [begin(bench, prompt) for prompt in prompts]))
        else:
            tokens = sum(finish(begin(bench, prompt)) for prompt in prompts)
        seconds = time.perf_counter() - start
        if name:
            found |= {name: seconds, f"{name}_tokens": tokens, f"{name}_a_token": seconds / tokens}
    return {"runs": found}


def begin(bench: Bench, prompt: str) -> "subprocess.Popen[str]":
    words = ["-p", prompt, "--model", str(bench.pool.model), "-c", "generation.temperature=0"]
    words += ["--max-turns", "1", "--max-new-tokens", str(REPLY), "--output-format", "json"]
    command = [sys.executable, "-P", "-m", "aerix", *words]
    return subprocess.Popen(
        command, env=bench.pool.env, cwd=bench.pool.home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(run: "subprocess.Popen[str]") -> int:
    """It ran, whatever so small a model made of it: so many tokens."""
    out, err = run.communicate()
    assert run.returncode in (0, 1, 2), err
    usage = json.loads(out)["usage"]
    tell(f"a run used {usage}")
    return int(usage["completion_tokens"])


def busy(bench: Bench) -> dict[str, Figure]:
    """The rate of a reply, alone and while another process keeps a core busy, in turns."""
    prompt = bench.prompts(bench.task("rain"))
    one(bench.pool, prompt, 1)
    alone, beside = [], []
    for _ in THINGS:
        alone.append(one(bench.pool, prompt, REPLY).rate)
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            try:
                beside.append(one(bench.pool, prompt, REPLY).rate)
            finally:
                other.kill()
    return {"busy": {"idle": median(alone), "busy": median(beside)}}


def idle(bench: Bench) -> dict[str, Figure]:
    """Seconds of the processor that a pool with nothing to do takes; heads are written a second after the last request."""
    threading.Event().wait(IDLE_S / 2)
    before = spent(bench.pool)
    threading.Event().wait(IDLE_S)
    return {"idle": {"cpu_s": spent(bench.pool) - before, "of_s": IDLE_S}}


def restart(bench: Bench) -> dict[str, Figure]:
    """First token behind a pinned prefix: new, and from disk after a restart of the pool."""
    text = bench.prefix()
    first, second = (bench.prompts(bench.task(thing), text) for thing in THINGS[:2])
    new = one(bench.pool, first, 1).first
    bench.pool.end()
    bench.pool.begin()
    again = one(bench.pool, second, 1)
    tell(f"after the restart: {again.computed} rows computed, the others from the shelf {again.shelf}")
    if again.shelf != "disk":
        return {}
    return {"restart": {"new": new, "from_disk": again.first}}


def tree(pid: int) -> list[int]:
    """A process and what it has started."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def spent(side: Any) -> float:
    """Seconds of the processor that a side's processes took until now, in user and in system mode."""
    fields = [
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in tree(side.process.pid)
    ]
    return sum(int(ticks) for stat in fields for ticks in stat[11:13]) / os.sysconf("SC_CLK_TCK")


# --- all of it ----------------------------------------------------------------------------------------------------

BOTH: dict[str, Callable[[Bench], dict[str, Figure]]] = {
    "prefix": prefix, "new": new, "constrained": constrained, "gap": gap,
}  # fmt: skip
OURS: dict[str, Callable[[Bench], dict[str, Figure]]] = {
    "busy": busy, "runs": runs, "idle": idle, "restart": restart,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of two of the figures and what it must be; ``hard``: a release stands on it."""

    name: str
    ours: tuple[str, str]
    theirs: tuple[str, str]
    most: float = 0.0
    least: float = 0.0
    hard: bool = True

    def told(self, rounds: list[dict[str, Figure]]) -> dict[str, Any] | None:
        """The median of the rounds' ratios; nothing where it was not measured."""
        (a, one), (b, other) = self.ours, self.theirs
        ratios = [found[a][one] / found[b][other] for found in rounds if a in found and b in found]
        if not ratios:
            return None
        middle = median(ratios)
        want = f"<= {self.most:.3g}" if self.most else f">= {self.least:.3g}"
        holds = middle <= self.most if self.most else middle >= self.least
        return {"ratio": round(middle, 3), "target": want, "holds": holds, "hard": self.hard}


def ratio(figure: str, most: float = 0.0, least: float = 0.0, *, hard: bool = False) -> Target:
    """Ours against the server's."""
    return Target(figure, (figure, "pool"), (figure, "server"), most, least, hard)


TARGETS = (
    ratio("four_seen", 1 / 5, hard=True),
    ratio("four_new", 1 / 3, hard=True),
    ratio("gap", 1 / 10, hard=True),
    ratio("call_rate", least=1.3, hard=True),
    ratio("four_seen_cpu", 1 / 5),
    ratio("four_new_cpu", 1 / 3),
    ratio("call_cpu_rate", least=1.3),
    ratio("first_new", 1),
    ratio("first_seen", 1),
    ratio("four_again", 1),
    ratio("free_rate", least=1),
    Target("busy", ("busy", "busy"), ("busy", "idle"), least=0.45),
    Target("runs", ("runs", "at_once_a_token"), ("runs", "apart_a_token"), most=1),
)


def summary(rounds: list[dict[str, Figure]]) -> dict[str, Any]:
    """Medians of each figure, and the targets."""
    names = list(dict.fromkeys(name for found in rounds for name in found))
    figures = {}
    for name in names:
        taken = [found[name] for found in rounds if name in found]
        figures[name] = {side: round(median(one[side] for one in taken), 3) for side in taken[0]}
    held = {target.name: found for target in TARGETS if (found := target.told(rounds))}
    return {"rounds": len(rounds), "figures": figures, "targets": held}


def measure(options: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Every round takes every figure that was asked for, one side right after the other."""
    from scripts.bench import peers_sides as sides

    asked = options.figures or [*BOTH, *OURS]
    pool = sides.Pool(options.model, home)
    server = sides.Server(options.model) if BOTH.keys() & set(asked) else None
    bench = Bench(pool, server, sides.Prompts(options.model), count(1))
    rounds: list[dict[str, Figure]] = []
    try:
        for n in range(options.rounds):
            rounds.append({})
            for name in asked:
                rounds[-1] |= (BOTH | OURS)[name](bench)
                tell(f"round {n + 1}: {name}: {json.dumps(rounds[-1])}")
    finally:
        pool.end()
        if server:
            server.end()
    return summary(rounds)


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Measure all, or what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("figures", nargs="*", help=f"of {', '.join([*BOTH, *OURS])}; all without any")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    options.model = options.model.resolve()
    sys.path.insert(0, str(Path(__file__).parents[2]))
    home = Path(tempfile.mkdtemp(prefix="ax-"))
    load = os.getloadavg()[0]
    try:
        told = measure(options, home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    machine = {"cores": len(os.sched_getaffinity(0)), "load_before": round(load, 1)}
    print(json.dumps({"bench": "peers", "model": options.model.name, **machine, **told}))


if __name__ == "__main__":
    main()
