"""What the machine's GPUs have free, as a process of its own finds it: the daemon loads no llama.cpp."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from aerix.pool.bounds import GPU_LOOK

_BACKENDS = ("cuda", "hip", "vulkan", "sycl", "metal", "musa", "cann", "opencl")
_LOOK = "from aerix.pool.engine import gpu_memory; print(gpu_memory())"


def free_on_gpus() -> int:
    """Bytes that are free on all GPUs together; 0, at once, where llama.cpp was built for none. Blocks for a second."""
    if not _built_for_one(_libraries()):
        return 0
    command = [sys.executable, "-P", "-c", _LOOK]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=GPU_LOOK.value, check=False
        )
    except subprocess.TimeoutExpired:
        return 0
    found = done.stdout.split()
    return int(found[-1]) if found and found[-1].isdigit() else 0


def _libraries() -> Path:
    """Where llama.cpp's libraries are; nothing is imported for it."""
    spec = importlib.util.find_spec("llama_cpp")
    return Path(spec.origin).parent / "lib" if spec is not None and spec.origin else Path("/nowhere")


def _built_for_one(folder: Path) -> bool:
    return any(
        path.name.startswith(f"libggml-{kind}") for path in folder.glob("libggml-*") for kind in _BACKENDS
    )
