"""What a model takes of this machine's memory, and how large a window fits. Pure arithmetic, but for ``memory_limit``.

``plan`` is all a caller needs: with a header, the size of the weights, the load's flags and the room there is, it gives
a ``Plan`` or refuses with the numbers. Calibrated against the resident memory of real workers (a test compares them).
Weights that llama.cpp repacks for the processor count once: the pages they came from are the kernel's to drop.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aerix.actors import Refused
from aerix.pool.bounds import BATCH, SEQUENCES, SNAPSHOTS
from aerix.pool.header import Header
from aerix.pool.workerargs import WorkerArgs

KV_BYTES = {
    "f32": 4.0, "f16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32,
    "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip
"""Bytes of one number in the cache, by ``kv_type``."""
WINDOWS = (32768, 16384, 8192)
"""What is tried where no window is set, the largest first."""

_ROUND = 256
"""llama.cpp rounds cells up to it."""
_SHARE = 0.75
"""Of the machine's memory: the rest is for whatever the agent runs."""
_SNAPSHOTS = 4
"""Of what may be used at all, the part that snapshots take is one in so many."""
_GPU_SHARE = 0.9
"""Of a GPU's free memory: the rest is for its driver and its fragments."""
_PROGRAM = 56 << 20
"""A worker without a model: Python, numpy and the libraries."""
_ENTRY = 700
"""Bytes of one vocabulary entry: llama.cpp's, ours and the constraint compiler's."""
_WIDE, _DEEP = 8, 3
"""Numbers that one row of a step needs at once, in embeddings and in feed-forward widths."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is loaded, and what that takes. Sizes are bytes."""

    window: int
    cells: int
    weights: int
    rows: int
    """All cells, and what recurrent layers keep."""
    compute: int
    """One step, and the program with its vocabulary."""
    gpu_layers: int = 0
    on_gpu: int = 0
    """What of all that lies in a GPU's memory."""

    @property
    def total(self) -> int:
        """What it takes in all."""
        return self.weights + self.rows + self.compute

    @property
    def host(self) -> int:
        """What it takes of the machine's own memory: its footprint."""
        return self.total - self.on_gpu


def plan(name: str, header: Header, weights: int, args: WorkerArgs, room: int, gpu: int = 0) -> Plan:
    """The largest window that was trained and fits into ``room``, or the one that is set, with its cells.

    ``weights`` are the bytes of all the model's files; ``room`` is what the machine's own memory has for it, ``gpu`` what
    its GPUs have free. The header must be ``is_known``. Raises Refused ``no_memory``, with the numbers and what helps.
    """
    assert is_known(header)
    model = _Model(header, weights, args, room, gpu)
    found = next((one for one in model.plans() if model.holds(one)), None)
    if found is None:
        raise Refused("no_memory", f"{name} does not fit: {model.refusal()}")
    return found


def is_known(header: Header) -> bool:
    """Whether the header says enough to tell what the model takes."""
    return header.trained > 0 and header.layers > 0 and header.embedding > 0 and header.head_numbers > 0


def cells_for(window: int, max_batch: int) -> int:
    """The cells that a window and its neighbours in a batch want (DESIGN section 4, Load)."""
    return window + (max_batch - 1) * (window // 4 + 1024)


def windows(trained: int) -> list[int]:
    """The windows to try where none is set, the largest first."""
    return [window for window in WINDOWS if window <= trained] or [trained]


@dataclass(frozen=True, slots=True)
class _Model:
    header: Header
    weights: int
    args: WorkerArgs
    room: int
    gpu: int

    def plans(self) -> Iterator[Plan]:
        """What to try, the best first."""
        for window in [self.args.window] if self.args.window else windows(self.header.trained):
            wanted = self.args.cells or cells_for(window, self.args.max_batch)
            fits = wanted if self.args.cells else max(window, self.most_cells(wanted))
            yield self.at(min(window, wanted), fits)

    def holds(self, one: Plan) -> bool:
        """Whether it stays within what there is, and within what its rows may take."""
        limit = self.args.memory
        return one.host <= self.room and (not limit or one.cells * self.row <= limit)

    def at(self, window: int, cells: int) -> Plan:
        """The plan for so many cells, as many layers on the GPU as it has room for."""
        rows, compute = self.row * cells + self.states, self.step + self.mask * cells
        layers, on_gpu = self.layers_on_gpu(rows)
        return Plan(window, cells, self.weights, rows, compute, layers, on_gpu)

    def layers_on_gpu(self, rows: int) -> tuple[int, int]:
        """How many layers the GPU takes, the output counted as one as llama.cpp does, and their bytes."""
        if not self.gpu:
            return 0, 0
        count = self.header.layers + 1
        share = self.weights / count + rows / self.header.layers
        room = self.gpu * _GPU_SHARE - self.step
        fits = max(0, min(count, int(room // share)))
        chosen = fits if self.args.gpu_layers < 0 else min(self.args.gpu_layers, count)
        return chosen, min(int(chosen * share), self.weights + rows)

    def most_cells(self, wanted: int) -> int:
        """The most cells that fit, at most those wanted."""
        if self.holds(self.at(0, wanted)):
            return wanted
        fits = int((self.room - self.at(0, 0).host) // (self.row + self.mask))
        if self.args.memory:
            fits = min(fits, self.args.memory // self.row)
        return max(0, min(fits, wanted)) // _ROUND * _ROUND

    # --- bytes

    @property
    def row(self) -> int:
        """One cell."""
        return max(1, int(self.header.head_numbers * KV_BYTES[self.args.kv_type]))

    @property
    def states(self) -> int:
        """What recurrent layers keep for each sequence, and for the one that rows come and go by; four bytes a number."""
        return self.header.recurrent * self.header.layers * (SEQUENCES.count + 1) * 4

    @property
    def batch(self) -> int:
        return self.args.batch or BATCH.count

    @property
    def mask(self) -> int:
        """For each cell, who of a step may see it; twice where some layers see only a part."""
        return self.batch * 2 * (2 if self.header.sliding_window else 1)

    @property
    def step(self) -> int:
        """What a step computes in, and the program around it."""
        wide = _WIDE * self.header.embedding + _DEEP * self.header.feed_forward
        logits = 2 * SEQUENCES.count * self.header.vocabulary
        return 4 * (self.batch * wide + logits) + _PROGRAM + _ENTRY * self.header.vocabulary

    # --- the refusal

    def refusal(self) -> str:
        smallest = list(self.plans())[-1]
        parts = (
            f"{size(smallest.weights)} of weights, {size(smallest.rows)} for {smallest.cells:,} cells with a window of "
            f"{smallest.window:,} tokens and {size(smallest.compute)} to compute in"
        )
        on_gpu = f", {size(smallest.on_gpu)} of it on the GPU" if smallest.on_gpu else ""
        limit = f" ({size(self.args.memory)} for its cells)" if self.args.memory else ""
        return f"it needs {size(smallest.total)} ({parts}){on_gpu}, and {size(self.room)} may be used{limit}. {self._help()}"

    def _help(self) -> str:
        fits = self.most_cells(self.header.trained)
        if fits >= _ROUND:
            return f"A window of {min(fits, self.header.trained):,} fits: set `window` (and `cells`) for this model."
        return "Take a smaller model or quantization of it, or free memory."


def size(count: int) -> str:
    """Bytes as people say them."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


# --- this machine -------------------------------------------------------------------------------------------------


def snapshot_bytes(limit: int) -> int:
    """The part for snapshots of the bytes that may be used at all, where nothing is set."""
    return min(limit // _SNAPSHOTS, SNAPSHOTS.count)


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes that all members together may take: the smaller of the control group's and three quarters of memory.

    ``root`` is where ``proc`` and ``sys`` are found.
    """
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([int(pages * _SHARE), *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    """The limits of this process's control groups and of those around them, of both versions of the interface."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers in ("", "memory"):
            base = root / "sys/fs/cgroup" / controllers
            file = "memory.limit_in_bytes" if controllers else "memory.max"
            inner = base / path.lstrip("/")
            for folder in [inner, *inner.parents]:
                if folder.is_relative_to(base) and (text := _read(folder / file).strip()).isdigit():
                    yield int(text)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
