"""The ladder of plainer settings: what a worker leaves out when a fuller setting died by a signal.

A member whose worker dies by a signal before it was ready starts it again one rung further down
(spec/engine-facts.md, trap 1). Imports nothing heavy: the member reads it too.
"""

import os
import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rung:
    """One set of engine settings. Each rung leaves out more than the one before it."""

    sentence: str
    """What the member's status says; empty where nothing is left out."""
    small_signal_stack: bool = False
    """Register a signal stack so small that the kernel refuses the AMX registers; weights are still repacked."""
    plain_weights: bool = False
    """Do not repack weights for this processor (``use_extra_bufts`` off)."""
    one_thread: bool = False
    small_batch: bool = False
    gpu_share: float = 1.0
    """Of the layers that the GPU would take."""


LADDER = (
    Rung(""),
    Rung("without AMX instructions, which crashed here", small_signal_stack=True, gpu_share=0.5),
    Rung(
        "without AMX instructions and repacked weights, which crashed here",
        small_signal_stack=True,
        plain_weights=True,
        gpu_share=0.0,
    ),
    Rung(
        "one thread, small batches, no repacked weights: every fuller setting crashed here",
        small_signal_stack=True,
        plain_weights=True,
        one_thread=True,
        small_batch=True,
        gpu_share=0.0,
    ),
)
"""Rung 0 leaves nothing out."""

FAULT = "AERIX_TEST_WORKER_FAULT"
"""A variable for tests: the rungs, as in ``0,1``, on which a worker dies by SIGSEGV while it loads."""


def fail_if_told(rung: int) -> None:
    """Die as an unfit setting would, where a test of the ladder says so (see FAULT)."""
    if str(rung) in os.environ.get(FAULT, "").split(","):
        os.kill(os.getpid(), signal.SIGSEGV)


def apply_signal_stack() -> None:
    """Make the kernel refuse AMX to this process. Call before anything of llama.cpp is loaded, in the main thread.

    The kernel grants AMX only where every registered signal stack could hold its registers (8 KiB and more).
    """
    import ctypes

    size = 4096

    class Stack(ctypes.Structure):
        _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

    buffer = ctypes.create_string_buffer(size)
    _KEPT.append(buffer)
    libc = ctypes.CDLL(None, use_errno=True)
    # Refused (ENOMEM) where the kernel itself needs more: then the rung does nothing, and the next one helps.
    libc.sigaltstack(ctypes.byref(Stack(ctypes.addressof(buffer), 0, size)), None)


_KEPT: list[object] = []
