"""Everything of a turn but the model: ``turn.py [MODEL] [--quick] [-c KEY=VALUE]``. Prints one JSON line.

``aerix -p`` runs through a pool of the benchmark's own, with a scripted model that does not wait; every turn reads a file,
runs a command or writes a file. Its tokens are those of MODEL's vocabulary; without a MODEL they are bytes, about four
times as many. A turn lasts from the end of the turn before it, as the reader of ``stream-json`` sees it,
to its own end; its overhead is that time without what the pool says the generation took (``restore_ms + fill_ms +
decode_ms``): the tool, the log, what the context is told, the way to the pool and back. Milliseconds; a figure at turn N
is the mean, over the three kinds of turn, of the median of the last five of the kind. ``client_cpu_ms`` is what the
program itself took of the processor, a turn, since the mark before: a busy machine changes it less. ``remote_ms`` are the
whole turns of the same work through a member that is a model on a server, which answers at once. Targets: DESIGN section 8.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from threading import Event
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parents[2]
TOOLS = ("read", "bash", "write")
SAMPLES = 5
WINDOW = 1_000_000
IDLE_S = 1.0
MODEL_PARTS = ("restore_ms", "fill_ms", "decode_ms")
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """A generated turn: when it came, and what the pool says of it."""

    at: float
    usage: dict[str, Any]
    cpu_s: float
    """Of the processor, by the program, since its start."""

    @property
    def model_ms(self) -> float:
        """What the pool says that it took."""
        return float(sum(self.usage[part] for part in MODEL_PARTS))


@dataclass(slots=True)
class Run:
    """What a run of the program was seen to do."""

    turns: list[Turn] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)

    @property
    def whole(self) -> list[float]:
        """What each turn but the first took, in milliseconds."""
        return [
            (turn.at - before.at) * 1000 for before, turn in zip(self.turns, self.turns[1:], strict=False)
        ]

    @property
    def overheads(self) -> list[float]:
        """The same without the model."""
        return [ms - turn.model_ms for ms, turn in zip(self.whole, self.turns[1:], strict=True)]

    @property
    def reused(self) -> float:
        """Of the rows of each turn's last prompt, which are the start of its own: the share that was not computed again."""
        pairs = [
            (min(turn.usage["recomputed_from"], reusable), reusable)
            for before, turn in zip(self.turns, self.turns[1:], strict=False)
            if (reusable := before.usage["prompt_tokens"])
        ]
        return float(sum(had for had, _ in pairs) / sum(reusable for _, reusable in pairs))


# --- the run ------------------------------------------------------------------------------------------------------


def steps(turns: int) -> Iterator[Line]:
    """The turns of a model that makes so many calls, and then answers."""
    inputs = (
        lambda n: {"path": "notes.txt", "offset": n % 50 + 1, "limit": 5},
        lambda n: {"command": f"echo {n}"},
        lambda n: {"path": f"out{n % 7}.txt", "content": f"line {n}\n" * 5},
    )
    for n in range(turns):
        call = {"tool": TOOLS[n % 3], "input": inputs[n % 3](n)}
        yield {"thought": f"Step {n} of the work.", "calls": [call]}
    yield {"thought": "", "final": "done"}


@contextmanager
def scripted(home: Path, turns: int, tokenizer: Path | None) -> Iterator[str]:
    """A model of the pool that plays them, and waits a while before its answer. Its window holds all of it."""
    header = {"window": WINDOW, "tokenizer": str(tokenizer or "bytes")}
    played: list[Line] = [{"turn": turn} for turn in steps(turns)]
    played[-1]["delay"] = IDLE_S
    path = home / "model.jsonl"
    path.write_text("".join(json.dumps(step) + "\n" for step in (header, *played)))
    yield f"scripted:{path}"


@contextmanager
def served(home: Path, turns: int) -> Iterator[str]:
    """The same on a server."""
    from tests.pool.remote_server import Answer, Handler, fake, says, usage

    def after_a_while(handler: Handler) -> None:
        Event().wait(IDLE_S)
        answers[-1](handler)

    answers: list[Answer] = [says(json.dumps(turn), spent=usage(1000, 40)) for turn in steps(turns)]
    with fake() as server:
        server.pages = {"/v1/models": {"data": [{"id": "m", "max_model_len": WINDOW}]}}
        server.answers.extend([*answers[:-1], after_a_while])
        yield server.ref


def run(home: Path, env: dict[str, str], turns: int, model: str, settings: list[str]) -> Run:
    """The program, from its first turn to its last."""
    work = home / "work"
    work.mkdir(exist_ok=True)
    (work / "notes.txt").write_text("".join(f"line {n} of the notes\n" for n in range(100)))
    words = ["-p", "work", "--model", model, "--output-format", "stream-json", "--route", "edit"]
    words += ["--max-turns", str(turns + 1)]
    words += [word for setting in ("delegation.planner=never", *settings) for word in ("-c", setting)]
    command = [sys.executable, "-P", "-m", "aerix", *words]
    found = Run()
    with subprocess.Popen(
        command, env=env, cwd=work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        for at, line in lines(process):
            watch(found, at, line, process.pid, turns)
    assert process.returncode == 0, process.returncode
    assert len(found.turns) == turns + 1, len(found.turns)
    return found


def lines(process: "subprocess.Popen[str]") -> Iterator[tuple[float, Line]]:
    """Its events, each with the time at which it came."""
    assert process.stdout is not None
    for text in process.stdout:
        at = perf_counter()
        yield at, json.loads(text)


def watch(found: Run, at: float, line: Line, pid: int, turns: int) -> None:
    """Keep what counts; where nothing is done but to wait for the model, look at the memory."""
    if line["type"] == "agent.spawn":
        found.memory["at_start"] = memory(pid)
    if line["type"] != "message":
        return
    if line["role"] == "assistant":
        found.turns.append(Turn(at, line["usage"], processor(pid)))
    elif len(found.turns) == turns:
        found.memory[f"after_{turns}_turns"] = memory(pid)
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        children = [child for task in tasks for child in task.read_text().split()]
        found.memory["its_children"] = round(sum(memory(int(child)) for child in children), 1)


def processor(pid: int) -> float:
    """Seconds that a process took of the processor, in user and in system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> float:
    """MiB of a process: what is resident."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kib,) = (int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    return round(kib / 1024, 1)


# --- figures ------------------------------------------------------------------------------------------------------


def at_turn(times: list[float], number: int) -> dict[str, float]:
    """The times of turns around one, by kind of the call that was run in it."""
    kinds: dict[str, list[float]] = {tool: [] for tool in TOOLS}
    for n, ms in enumerate(times[:number]):
        kinds[TOOLS[n % 3]].append(ms)
    found = {tool: median(values[-SAMPLES:]) for tool, values in kinds.items()}
    return {name: round(ms, 2) for name, ms in {"all": mean(found.values()), **found}.items()}


def processor_ms(run: Run, marks: tuple[int, ...]) -> dict[str, float]:
    """Of the processor, a turn, between a mark and the one before it."""
    begins = (1, *marks)
    return {
        str(end): round((run.turns[end].cpu_s - run.turns[begin].cpu_s) * 1000 / (end - begin), 1)
        for begin, end in zip(begins, marks, strict=False)
    }


def start(*, quick: bool) -> float:
    """Milliseconds from the program's start to its first request; see ``start.py``."""
    command = [sys.executable, str(Path(__file__).with_name("start.py"))]
    env = os.environ | {"RUNS": "1" if quick else "9", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["first_request"])


COUNT = """
import json, sys
from llama_cpp import Llama
llama = Llama(sys.argv[1], vocab_only=True, verbose=False)
count = lambda text: len(llama.tokenize(text.encode(), add_bos=False, special=False))
print(json.dumps({name: count(text) for name, text in json.load(sys.stdin).items()}))
"""


def sizes(model: Path) -> dict[str, int]:
    """Tokens of what every request begins with; only a process of its own imports the engine."""
    from aerix.agent.system import SHORT_BELOW, system_segment
    from aerix.tools import SHORT_TOOLS, TOOLS
    from aerix.turn.prompt import tools_section

    texts = {
        "system_long": system_segment(SHORT_BELOW),
        "tools_long": tools_section(tuple(TOOLS.values())),
        "system_short": system_segment(SHORT_BELOW - 1),
        "tools_short": tools_section(SHORT_TOOLS),
    }
    command = [sys.executable, "-c", COUNT, str(model)]
    done = subprocess.run(command, input=json.dumps(texts), check=True, capture_output=True, text=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def environment(home: Path) -> dict[str, str]:
    """Nothing of the caller's settings or pool."""
    (home / "run").mkdir(mode=0o700)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AERIX_", "XDG_"))}
    return kept | {"HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run"), "PYTHONPATH": str(ROOT)}


def measure(tokenizer: Path | None, settings: list[str], *, quick: bool) -> dict[str, Any]:
    """The runs and what they show."""
    marks = (6, 12, 18) if quick else (10, 100, 300)
    with tempfile.TemporaryDirectory(prefix="ax-", dir="/tmp") as name:
        home = Path(name)
        env = environment(home)
        try:
            with scripted(home, marks[-1], tokenizer) as model:
                seen = run(home, env, marks[-1], model, settings)
            with served(home, marks[-1]) as model:
                remote = run(home, env, marks[-1], model, settings)
        finally:
            stop = [sys.executable, "-P", "-m", "aerix", "pool", "stop"]
            subprocess.run(stop, env=env, capture_output=True, check=False)
    model_ms = [turn.model_ms for turn in seen.turns]
    return {
        "overhead_ms": {str(mark): at_turn(seen.overheads, mark) for mark in marks},
        "model_ms": {str(mark): round(median(model_ms[mark - SAMPLES : mark]), 2) for mark in marks},
        "remote_ms": {str(mark): at_turn(remote.whole, mark) for mark in marks},
        "client_cpu_ms": processor_ms(seen, marks),
        "reused": round(seen.reused, 4),
        "memory_mib": seen.memory,
    }


def main() -> None:
    """Measure all; without a model no text is counted in its tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file, whose vocabulary is used")
    parser.add_argument("-c", dest="settings", action="append", default=[], help="a setting, as of aerix")
    parser.add_argument("--quick", action="store_true", help="few turns: to see that it runs")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    load = round(os.getloadavg()[0], 1)
    model = options.model and options.model.resolve()
    figures = measure(model, options.settings, quick=options.quick)
    figures["first_request_ms"] = start(quick=options.quick)
    if model:
        figures["tokens"] = sizes(model)
    print(
        json.dumps({"bench": "turn", "cores": len(os.sched_getaffinity(0)), "load_before": load, **figures})
    )


if __name__ == "__main__":
    main()
