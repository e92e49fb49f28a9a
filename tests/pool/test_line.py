"""What a client that does not read costs the daemon and the other clients: nothing that grows."""

import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerix.actors.wire import pack
from tests.pool.daemons import PATIENCE, Daemons, Scripts, Wire

Open = Callable[..., Wire]
MIB = 1024 * 1024


def resident(pid: int) -> int:
    """Bytes of memory that the process has."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def pushed(one: Wire, data: bytes, total: int) -> int:
    """Send ``data`` again and again until so much is sent, or the other end takes no more."""
    one.sock.setblocking(False)
    sent, rest = 0, b""
    while sent < total:
        rest = rest or data
        try:
            count = one.sock.send(rest)
        except BlockingIOError:
            if not select.select([], [one.sock], [], 0.2)[1]:
                return sent
            continue
        sent, rest = sent + count, rest[count:]
    return sent


@pytest.mark.rule("pool.unread-bounded")
@pytest.mark.parametrize(
    "request_",
    [
        {"type": "Status", "id": 1},
        {"type": "Dance", "id": 1},
        {"type": "ContextRead", "id": 1, "context": "nowhere"},
        {"type": "ContextCreate", "id": 1, "member": "nobody", "segments": [], "more": "x" * 10_000},
        {"type": "Cancel", "target": 7},
    ],
    ids=lambda request: request["type"],
)
def test_who_sends_and_never_reads_costs_no_memory_and_holds_up_nobody(
    pool: Daemons, script: Scripts, wire: Open, request_: dict[str, Any]
) -> None:
    daemon = pool(script())
    one, other = wire(daemon.socket), wire(daemon.socket)
    one.hello()
    other.hello()
    before = resident(daemon.process.pid)
    pushed(one, pack(request_) * 100, 4 * MIB)
    assert resident(daemon.process.pid) - before < 16 * MIB
    assert other.ask("Status")["type"] == "PoolStatus"


@pytest.mark.soak
@pytest.mark.rule("pool.unread-bounded")
def test_a_hundred_megabytes_of_requests_cost_no_memory(pool: Daemons, script: Scripts, wire: Open) -> None:
    daemon = pool(script())
    one = wire(daemon.socket)
    one.hello()
    before = resident(daemon.process.pid)
    frame = pack({"type": "Cancel", "target": 7, "more": "x" * 1000})
    assert pushed(one, frame * 100, 100 * MIB) >= 100 * MIB
    assert resident(daemon.process.pid) - before < 16 * MIB


@pytest.mark.bound("pool.unread")
@pytest.mark.rule("pool.unread-bounded")
def test_requests_that_were_held_up_are_answered_when_their_client_reads(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    one = wire(pool(script(), POOL_UNREAD=2000).socket)
    one.hello()
    count = 20_000
    data = b"".join(
        pack({"type": "ContextRead", "id": id_, "context": "none"}) for id_ in range(1, count + 1)
    )
    sender = threading.Thread(target=one.sock.sendall, args=(data,))
    sender.start()
    for id_ in range(1, count + 1):
        answer = one.get()
        assert answer is not None
        assert (answer["id"], answer["code"]) == (id_, "unknown_context")
    sender.join(PATIENCE)


@pytest.mark.rule("pool.unread-bounded")
def test_a_client_that_goes_without_having_read_is_forgotten(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script()
    one, other = wire(pool(ref).socket), wire(pool.socket)
    one.hello()
    other.hello()
    context = one.create(ref)
    pushed(one, pack({"type": "ContextRead", "id": 1, "context": context}) * 100, 4 * MIB)
    one.close()
    while other.ask("Status")["connections"] > 1:
        pass
    while other.ask("MemberList")["members"][0]["contexts"]:
        pass


@pytest.mark.rule("pool.unread-bounded")
def test_a_generation_for_a_slow_reader_is_done_in_its_time_and_reaches_it_whole(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    text = "x" * 12_000  # a token each: more than the socket takes
    ref = script({"text": text, "match": "long"}, {"text": "fine", "match": "short"}, window=16_000)
    slow, other = wire(pool(ref, POOL_UNREAD=4000).socket), wire(pool.socket)
    slow.hello()
    other.hello()
    id_ = slow.send("Generate", context=slow.create(ref, "long"), max_tokens=14_000)
    assert other.ask("Generate", context=other.create(ref, "short"), max_tokens=9)["text"] == "fine"
    data, tokens = b"", 0
    while (frame := slow.get()) and frame["type"] != "Done":
        if frame["type"] == "Token":
            data, tokens = data + frame["data"], tokens + len(frame["tokens"])
    assert frame is not None
    assert (frame["id"], frame["text"], data.decode(), tokens) == (id_, text, text, len(text))


@pytest.mark.bound("pool.open-requests")
def test_requests_over_the_bound_of_a_connection_are_refused(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script({"text": "x" * 500, "per_token_delay": 0.05})
    one = wire(pool(ref, POOL_OPEN_REQUESTS=2).socket)
    one.hello()
    context = one.create(ref)
    for _ in range(2):
        last = one.send("Generate", context=context, max_tokens=500)
    refused = one.ask("MemberList")
    assert (refused["code"], refused["message"]) == (
        "pool_busy",
        "2 requests of this connection are not answered yet",
    )
    one.sock.sendall(pack({"type": "Cancel", "target": last}))  # still taken
    while (frame := one.get()) and not (frame["type"] in ("Done", "Error") and frame["id"] == last):
        pass
    assert frame is not None
    assert "cancelled" in (frame.get("stop"), frame.get("code"))  # or it had not begun
