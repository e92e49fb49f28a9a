"""What a snapshot before a call costs: ``snapshot.py [--files N …] [--quick]``. Prints one JSON line.

In a scratch repository of so many files: the first tree of a request, and a later one where nothing changed, where a file
was changed, and where one is new; beside them, in turns and in the same run, what git alone takes for a tree
(``git add --all`` and ``git write-tree`` on a copy of the index that is kept, as peers do it). Medians in milliseconds, and
``of_git``: the time of a tree after one change, divided by git's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

ROOT = Path(__file__).parents[2]
FILES = (100, 1000, 10_000)


def repository(folder: Path, files: int) -> Path:
    """Files of a kilobyte, a hundred in a folder, committed."""
    repo = folder / f"repo{files}"
    for n in range(files):
        path = repo / f"d{n // 100}/f{n}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"line {n}\n" * 100)
    for command in (
        "init --quiet",
        "add --all",
        "-c user.name=a -c user.email=a@b commit --quiet --message first",
    ):
        subprocess.run(["git", *command.split()], cwd=repo, check=True)
    return repo


class Git:
    """A tree by git's own means: the index that it keeps from one tree to the next spares it the files' contents."""

    def __init__(self, repo: Path, folder: Path) -> None:
        index = folder / f"index-{repo.name}"
        index.write_bytes((repo / ".git/index").read_bytes())
        self._repo, self._env = repo, os.environ | {"GIT_INDEX_FILE": str(index)}

    def take(self) -> None:
        """Take it."""
        for command in (["add", "--all"], ["write-tree"]):
            subprocess.run(["git", *command], cwd=self._repo, env=self._env, check=True, capture_output=True)


def took_ms(act: Callable[[], object]) -> float:
    """Milliseconds of a call."""
    begun = perf_counter()
    act()
    return (perf_counter() - begun) * 1000


def measure(repo: Path, folder: Path, rounds: int) -> dict[str, float]:
    """The figures of one size."""
    from aerix.session.worktree import WorkingTree

    times: dict[str, list[float]] = {}

    def note(name: str, act: Callable[[], object]) -> None:
        times.setdefault(name, []).append(took_ms(act))

    git = Git(repo, folder)
    git.take()
    for n in range(rounds):
        store = folder / f"store-{repo.name}-{n}"
        made: list[WorkingTree] = []
        note("first", lambda: (made.append(WorkingTree(repo, store)), made[0].take()))  # noqa: B023 - called at once
        tree = made[0]
        note("unchanged", tree.take)
        (repo / "d0/f1.py").write_text(f"changed {n}\n" * 50)
        note("changed", tree.take)
        note("git", git.take)
        (repo / f"d0/new{n}.py").write_text(f"new {n}\n" * 50)
        note("new", tree.take)
    found = {name: round(median(values), 2) for name, values in times.items()}
    return found | {"of_git": round(median(times["changed"]) / median(times["git"]), 2)}


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=FILES, help="sizes of the repository")
    parser.add_argument(
        "--quick", action="store_true", help="one small size, few rounds: to see that it runs"
    )
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    load = round(os.getloadavg()[0], 1)
    sizes = (30,) if options.quick else options.files
    with tempfile.TemporaryDirectory(prefix="ax-", dir="/tmp") as name:
        folder = Path(name)
        figures = {str(n): measure(repository(folder, n), folder, 2 if options.quick else 11) for n in sizes}
    print(
        json.dumps(
            {
                "bench": "snapshot",
                "cores": len(os.sched_getaffinity(0)),
                "load_before": load,
                "files": figures,
            }
        )
    )


if __name__ == "__main__":
    main()
