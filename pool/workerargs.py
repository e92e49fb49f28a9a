"""What a member tells its worker process at birth. Imports nothing heavy."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from aerix.pool.bounds import THINKING


@dataclass(frozen=True, slots=True)
class WorkerArgs:
    """How to load and serve one model. A zero means "decide yourself"."""

    model: str
    """The path of a GGUF file, ``scripted:`` and the path of a script, or ``http://host:port/v1#model``."""
    rung: int = 0
    """Which step of ``ladder.LADDER`` to run on."""
    threads: int = 0
    """Threads to compute with; 0: one a core that this process may use."""
    window: int = 0
    """Rows a context may take; 0: the largest of 8k, 16k, 32k that the model was trained for and that fits."""
    cells: int = 0
    """Rows of all contexts together; 0: the window and ``max_batch - 1`` quarters of it, reduced to fit."""
    max_batch: int = 4
    """Generations at once that ``cells`` is made for."""
    batch: int = 0
    """Rows computed in one step; 0: the bound ``worker.batch``."""
    memory: int = 0
    """Bytes that the rows may take; 0: no limit but what the system gives."""
    room: int = 0
    """Bytes that the whole worker may take; 0: the machine's limit (``fit.memory_limit``)."""
    kv_type: str = "f16"
    """The type of the numbers in the cache, a key of ``fit.KV_BYTES``."""
    gpu_layers: int = -1
    """Layers on the GPU; negative: as many as fit."""
    template: str = ""
    """A chat template (its text, not its file), or the name of a built-in one, in place of the model's own."""
    thinking: int = dataclasses.field(default_factory=lambda: THINKING.count)
    """Tokens that a model which thinks first may think with before a turn; 0 switches it off."""
    key_env: str = ""
    """The environment variable with the key of the server that the model is on."""

    context_budget: int = -1
    """Bytes of snapshots in memory; 0: none; negative: a quarter of the machine's limit, at most the bound."""
    prefix_dir: str = ""
    """Where pinned heads are kept on disk; empty: in the cache folder."""
    leashed: bool = False
    """Whether it computes only what its daemon permits it to."""

    @property
    def remote(self) -> bool:
        """Whether the model is on a server."""
        return self.model.startswith(("http://", "https://"))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a child process's arguments."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The reverse of ``to_dict``; an unknown key is a TypeError."""
        return cls(**plain)
