"""A pool's status as Prometheus reads it: text lines, each metric with its HELP and TYPE.

Names end in their unit, counters in ``_total``; a member's name is a label. Counters of a member begin anew with its
worker, as Prometheus expects of what restarts.
"""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args, get_type_hints

from aerix.pool.protocol import MemberInfo, PoolStatus, ShelfInfo

_MEMBER: tuple[tuple[str, Literal["gauge", "counter"], str, Callable[[MemberInfo], float]], ...] = (
    ("window_tokens", "gauge", "Tokens a context may have.", lambda m: m.window),
    ("cells", "gauge", "Rows of all contexts together.", lambda m: m.cells),
    ("threads", "gauge", "Threads that the worker computes with at most.", lambda m: m.threads),
    ("contexts", "gauge", "Contexts that clients hold.", lambda m: m.contexts),
    ("generations_running", "gauge", "Generations that compute.", lambda m: m.running),
    ("generations_waiting", "gauge", "Generations that wait for their turn.", lambda m: m.waiting),
    ("restarts_total", "counter", "Restarts of the worker.", lambda m: m.restarts),
    ("generations_total", "counter", "Generations that ended.", lambda m: m.totals.generations),
    ("generations_cancelled_total", "counter", "Those that were cancelled.", lambda m: m.totals.cancelled),
    ("generations_refused_total", "counter", "Generations that were refused.", lambda m: m.totals.refused),
    ("prompt_tokens_total", "counter", "Tokens of prompts.", lambda m: m.totals.prompt_tokens),
    ("prompt_tokens_resumed_total", "counter", "Those found computed.", lambda m: m.totals.resumed_tokens),
    ("generated_tokens_total", "counter", "Tokens that were generated.", lambda m: m.totals.generated_tokens),
    (
        "generated_tokens_drafted_total",
        "counter",
        "Those that were drafted.",
        lambda m: m.totals.drafted_tokens,
    ),
    ("prompt_seconds_total", "counter", "Seconds of filling prompts.", lambda m: m.totals.fill_ms / 1000),
    ("decode_seconds_total", "counter", "Seconds of generating.", lambda m: m.totals.decode_ms / 1000),
    ("resident_memory_bytes", "gauge", "Memory of the worker.", lambda m: resident_bytes(m.pid)),
)
_SHELF: tuple[tuple[str, Literal["gauge", "counter"], str, Callable[[ShelfInfo], float]], ...] = (
    ("shelf_bytes", "gauge", "Bytes of rows that are kept on a shelf.", lambda s: s.bytes),
    ("shelf_entries", "gauge", "Sequences, snapshots or files that they are in.", lambda s: s.entries),
    ("shelf_hits_total", "counter", "Generations that found rows there.", lambda s: s.hits),
    ("shelf_misses_total", "counter", "Generations that found none.", lambda s: s.misses),
)
_STATES: tuple[str, ...] = get_args(get_type_hints(MemberInfo)["state"])


def metrics(status: PoolStatus) -> str:
    """All figures of a status, and the memory of its processes."""
    lines = [
        *_metric("aerix_pool_info", "gauge", "The pool's release.", [({"release": status.pool}, 1)]),
        *_metric("aerix_pool_uptime_seconds", "gauge", "Seconds since its start.", [({}, status.uptime_secs)]),
        *_metric("aerix_pool_connections", "gauge", "Open connections.", [({}, status.connections)]),
        *_metric(
            "aerix_pool_resident_memory_bytes", "gauge", "Memory of the daemon.",
            [({}, resident_bytes(status.pid))],
        ),
        *_metric(
            "aerix_member_state", "gauge", "1 for the state that the member is in.",
            [
                ({"member": member.name, "state": state}, float(member.state == state))
                for member in status.members
                for state in _STATES
            ],
        ),
    ]  # fmt: skip
    for name, kind, text, value in _MEMBER:
        samples = [({"member": member.name}, value(member)) for member in status.members]
        lines += _metric(f"aerix_member_{name}", kind, text, samples)
    for name, kind, text, told in _SHELF:
        samples = [
            ({"member": member.name, "shelf": shelf.name}, told(shelf))
            for member in status.members
            for shelf in member.shelves
        ]
        lines += _metric(f"aerix_member_{name}", kind, text, samples)
    return "".join(f"{line}\n" for line in lines)


def resident_bytes(pid: int) -> int:
    """Memory that a process has; 0 where there is none."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


_PAGE = resource.getpagesize()


def _metric(name: str, kind: str, text: str, samples: list[tuple[dict[str, str], float]]) -> list[str]:
    """Nothing for a metric without a sample."""
    lines = [f"{name}{_labels(labels)} {value:.15g}" for labels, value in samples]
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines] if lines else []


def _labels(labels: dict[str, str]) -> str:
    pairs = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
