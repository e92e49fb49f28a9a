"""The time from the start of ``aerix -p`` to its first request at a running pool, part by part.

Prints one JSON line: medians in milliseconds over the runs, each part with the time since the part before it, and, in
the same run, what a bare interpreter takes. The pool is one of its own, with a scripted model, in a scratch home. What
Python compiles is kept there from the first run on, as that of an installed program is, whatever the environment says.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = int(os.environ.get("RUNS", "15"))

# Runs in the process that is measured. The clock is the machine's, so that the parent's start can be subtracted.
PROBE = r"""
import sys, time, json
marks = [("interpreter", time.monotonic())]
def mark(name):
    marks.append((name, time.monotonic()))
def after(module, name, label):
    inner = getattr(module, name)
    def call(*args, **more):
        try:
            return inner(*args, **more)
        finally:
            mark(label)
    setattr(module, name, call)
import aerix.headless as headless
import aerix.live as live
mark("imports")
after(headless, "load_settings", "settings")
after(live, "ensure_model", "model")
after(live, "project_key", "project")
after(live, "start", "actors")
from aerix.pool.line import Line
send = Line.send
def first(self, message, *rest):
    send(self, message, *rest)
    name = type(message).__name__
    if name in ("MemberLoad", "ContextCreate", "Generate") and all(name != seen for seen, _ in marks):
        mark(name)
Line.send = first
from aerix.cli import run
sys.argv[0] = "aerix"
run(sys.argv[1:])
print("MARKS " + json.dumps(marks), file=sys.stderr)
"""


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AERIX_", "XDG_"))}
    (home / "run").mkdir()
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(home / "compiled")}
    return kept | compiled | {"HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run")}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ax-") as name:
        home = Path(name)
        env = environment(home)
        script = home / "model.jsonl"
        script.write_text('{"window": 8192}\n{"turn": {"thought": "", "final": "ok"}}\n')
        command = ["-p", "hi", "--model", f"scripted:{script}", "--output-format", "json"]
        probe = [sys.executable, "-c", PROBE, *command]
        try:
            subprocess.run(probe, env=env, cwd=home, check=True, capture_output=True)
            rows = [one(probe, env, home) for _ in range(RUNS)]
            bare = [timed([sys.executable, "-c", ""], env) for _ in range(RUNS)]
            whole = [timed([sys.executable, "-m", "aerix", *command], env) for _ in range(RUNS)]
        finally:
            subprocess.run(
                [sys.executable, "-m", "aerix", "pool", "stop"], env=env, capture_output=True, check=False
            )
    parts = {part: round(statistics.median(row[part] for row in rows), 1) for part in rows[0]}
    print(json.dumps({"what": "start to first request", "unit": "ms", "runs": RUNS, "parts": parts,
                      "first_request": round(statistics.median(sum(r.values()) - r["Generate"] for r in rows), 1),
                      "first_generation": round(statistics.median(sum(r.values()) for r in rows), 1),
                      "bare_interpreter": round(statistics.median(bare), 1),
                      "whole_run": round(statistics.median(whole), 1)}))  # fmt: skip


def one(probe: list[str], env: dict[str, str], cwd: Path) -> dict[str, float]:
    begin = time.monotonic()
    done = subprocess.run(probe, env=env, cwd=cwd, check=True, capture_output=True, text=True)
    line = next(line for line in done.stderr.splitlines() if line.startswith("MARKS "))
    parts = {}
    for label, at in json.loads(line.removeprefix("MARKS ")):
        parts.setdefault(label, round((at - begin) * 1000, 2))
        begin = at
    return parts


def timed(command: list[str], env: dict[str, str]) -> float:
    begin = time.monotonic()
    subprocess.run(command, env=env, check=True, capture_output=True)
    return (time.monotonic() - begin) * 1000


main()
