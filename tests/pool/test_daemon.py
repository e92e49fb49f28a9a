"""The daemon: its socket, its handshake, who owns what, and its end."""

import os
import select
import signal
import stat
import struct
import subprocess
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from aerix.actors.os_linux import pidfd_open
from aerix.pool.address import connect
from aerix.pool.members import member_name
from aerix.pool.protocol import VERSION
from tests.pool.daemons import PATIENCE, TEXT, Daemons, Scripts, Wire
from tests.pool.ggufs import LLAMA, gguf
from tests.tools.waiting import until

Open = Callable[..., Wire]


def wait_gone(pid: int) -> None:
    try:
        process = pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([process], [], [], PATIENCE)[0], f"process {pid} lives on"
    os.close(process)


# --- the socket ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("pool.socket-private")
def test_the_socket_has_mode_0600_in_a_folder_of_mode_0700(pool: Daemons) -> None:
    daemon = pool()
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(daemon.socket.parent.stat().st_mode) == 0o700


@pytest.mark.rule("pool.long-path")
def test_a_socket_path_over_107_bytes_works(pool: Daemons, wire: Open, tmp_path: Path) -> None:
    path = tmp_path / ("long" * 20) / ("longer" * 10) / "pool.sock"
    pool(socket=path)
    assert len(bytes(path)) > 107
    assert wire(path).hello()["type"] == "Welcome"


@pytest.mark.rule("pool.stale-socket")
def test_a_socket_that_a_killed_daemon_left_is_replaced(pool: Daemons, wire: Open) -> None:
    first = pool()
    first.stop(signal.SIGKILL)
    assert first.socket.exists()
    second = pool()
    assert wire(second.socket).hello()["pid"] == second.process.pid


@pytest.mark.rule("pool.stale-socket")
def test_a_second_daemon_finds_the_first_alive_and_says_so(pool: Daemons, wire: Open) -> None:
    first = pool()
    second = pool(wait=False)
    assert second.ended() == 0
    assert f"another pool (process {first.process.pid}) has {first.socket} already" in second.lines[-1]
    assert wire(first.socket).hello()["pid"] == first.process.pid


def test_a_file_that_is_no_socket_is_left_alone(pool: Daemons) -> None:
    pool.socket.parent.mkdir()
    pool.socket.write_text("mine")
    daemon = pool(wait=False)
    assert daemon.ended() == 4
    assert "it is there and is no socket" in daemon.lines[-1]
    assert pool.socket.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_one_sentence(pool: Daemons, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    daemon = pool(socket=tmp_path / "file" / "pool.sock", wait=False)
    assert daemon.ended() == 4
    assert "cannot be taken" in daemon.lines[-1]


@pytest.mark.rule("pool.bound-when-loaded")
def test_the_socket_appears_only_when_every_load_has_loaded(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    refs = script(), script()
    daemon = pool(*refs, wait=False)
    daemon.read_until("loading")
    daemon.read_until("loading")
    states = None
    while states is None:  # whenever the socket is there, everything is ready
        try:
            with connect(daemon.socket):
                states = [m["state"] for m in members(wire(daemon.socket))]
        except (FileNotFoundError, ConnectionRefusedError):
            select.select([], [], [], 0.01)
    assert states == ["ready", "ready"]


def members(one: Wire) -> list[dict[str, object]]:
    one.hello()
    found = one.ask("Status")["members"]
    assert isinstance(found, list)
    return found


@pytest.mark.rule("worker.load-failure-named")
def test_a_load_that_fails_ends_the_daemon_with_the_workers_sentence(pool: Daemons, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"window": 0}\n')
    daemon = pool(f"scripted:{tmp_path}/bad.jsonl", wait=False)
    assert daemon.ended() == 4
    assert "`window` must be at least 1" in daemon.lines[-1]
    assert "Traceback" not in "".join(daemon.lines)
    assert not daemon.socket.exists()


# --- the handshake ------------------------------------------------------------------------------------------------


@pytest.mark.rule("protocol.hello-first")
def test_another_first_message_than_hello_is_refused(pool: Daemons, wire: Open) -> None:
    one = wire(pool().socket)
    one.send("Status")
    answer = one.get()
    assert answer is not None
    assert (answer["type"], answer["code"]) == ("Error", "no_hello")
    assert one.get() is None


@pytest.mark.bound("pool.hello")
@pytest.mark.rule("protocol.hello-first")
def test_a_connection_that_says_nothing_is_closed(pool: Daemons, wire: Open) -> None:
    one = wire(pool(POOL_HELLO=0.05).socket)
    answer = one.get()
    assert answer is not None
    assert answer["code"] == "no_hello"
    assert one.get() is None


@pytest.mark.rule("protocol.mismatch")
def test_another_version_is_refused_with_the_command_to_run(pool: Daemons, wire: Open) -> None:
    answer = wire(pool().socket).hello(version=1)
    assert answer["code"] == "protocol_version"
    assert f"version {VERSION}" in answer["message"]
    assert "version 1" in answer["message"]
    assert "aerix pool stop" in answer["message"]


@pytest.mark.rule("protocol.json-frames")
def test_who_speaks_json_is_answered_in_json(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script({"text": "hé"})
    one = wire(pool(ref).socket, as_json=True)
    one.send("Hello", version=VERSION, client="test")
    body = one.body()
    assert body is not None
    assert body.startswith(b'{"type":"Welcome"')
    done = one.ask("Generate", context=one.create(ref), max_tokens=8)
    assert done["text"] == "hé"


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        struct.pack(">I", 5) + b"\xc1\x00\x00\x00\x00",
        b"\0\0\0\x01\x80",
    ],
)
@pytest.mark.rule("protocol.errors")
def test_garbage_is_answered_with_an_error_and_the_daemon_lives(
    pool: Daemons, wire: Open, garbage: bytes
) -> None:
    daemon = pool()
    for greet in (False, True):
        one = wire(daemon.socket)
        if greet:
            one.hello()
        one.sock.sendall(garbage)
        answer = one.get()
        assert answer is not None
        assert answer["type"] == "Error"
        assert answer["code"] in ("bad_frame", "frame_too_large")
        assert one.get() is None
    assert wire(daemon.socket).hello()["type"] == "Welcome"


def test_half_a_frame_and_a_closed_connection_harm_nobody(pool: Daemons, wire: Open) -> None:
    daemon = pool()
    one = wire(daemon.socket)
    one.hello()
    one.sock.sendall(struct.pack(">I", 1000) + b"\xa1")
    one.close()
    assert wire(daemon.socket).hello()["type"] == "Welcome"


@pytest.mark.rule("protocol.errors")
@pytest.mark.rule("protocol.answers-carry-id")
def test_a_message_that_cannot_be_read_is_refused_and_the_connection_stays(pool: Daemons, wire: Open) -> None:
    one = wire(pool().socket)
    one.hello()
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("Dance", {}, "unknown_message"),
        ("ContextCreate", {"member": 7, "segments": []}, "bad_message"),
        ("Generate", {"context": "x"}, "bad_message"),
        ("ContextRead", {"context": "nowhere"}, "unknown_context"),
        ("ContextCreate", {"member": "nobody", "segments": []}, "unknown_member"),
        ("Hello", {"version": VERSION, "client": "again"}, "unexpected_message"),
        ("Welcome", {"version": VERSION, "pool": "", "pid": 1, "owner": ""}, "unexpected_message"),
    ]
    for type_, fields, code in wrong:
        id_ = one.send(type_, **fields)
        answer = one.get()
        assert answer is not None
        assert (answer["type"], answer["code"]) == ("Error", code)
        assert answer["id"] in (id_, 0)
        assert answer["message"]
    assert one.ask("Status")["type"] == "PoolStatus"


# --- who owns what ------------------------------------------------------------------------------------------------


@pytest.mark.rule("protocol.owner-token")
def test_a_generation_has_a_connection_of_its_own_with_its_owners_token(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script({"text": "fine"})
    control = wire(pool(ref).socket)
    owner = control.hello()["owner"]
    context = control.create(ref)
    apart = wire(pool.socket)
    apart.send("Hello", version=VERSION, client="test", owner=owner)
    generate = apart.send("Generate", context=context, max_tokens=10)  # with no wait for Welcome
    welcome = apart.get()
    assert welcome is not None
    assert welcome["type"] == "Welcome"
    frames: list[dict[str, Any]] = []
    while not frames or frames[-1]["type"] != "Done":
        frame = apart.get()
        assert frame is not None
        frames.append(frame)
    assert {frame["id"] for frame in frames} == {generate}
    assert frames[-1]["text"] == "fine"
    assert apart.ask("ContextRead", context=context)["code"] == "wrong_connection"


@pytest.mark.rule("contexts.unknown-refused")
def test_a_generations_connection_knows_no_context_that_its_owner_has_not(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script({"text": "fine"})
    control = wire(pool(ref).socket)
    owner = control.hello()["owner"]
    context = control.create(ref)
    apart = wire(pool.socket)
    apart.hello(owner=owner)
    assert apart.ask("Generate", context="", max_tokens=10)["code"] == "unknown_context"
    assert apart.ask("Generate", context=context, max_tokens=10)["type"] == "Done"
    assert apart.ask("Generate", context="", max_tokens=10)["code"] == "unknown_context"
    control.ask("ContextDrop", context=context)
    assert apart.ask("Generate", context=context, max_tokens=10)["code"] == "unknown_context"


@pytest.mark.rule("protocol.owner-token")
@pytest.mark.parametrize("token", ["", "1", "999-abc", "1-wrong", "x-y"])
def test_a_wrong_owner_token_is_refused(pool: Daemons, wire: Open, token: str) -> None:
    control = wire(pool().socket)
    control.hello()
    one = wire(pool.socket)
    assert one.hello(owner=token)["code"] == "unknown_owner"
    assert one.get() is None


@pytest.mark.rule("contexts.foreign-refused")
@pytest.mark.rule("contexts.unknown-refused")
def test_nobody_can_use_another_owners_context(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script()
    mine, other = wire(pool(ref).socket), wire(pool.socket)
    mine.hello()
    owner = other.hello()["owner"]
    context = mine.create(ref)
    apart = wire(pool.socket)
    apart.hello(owner=owner)
    assert apart.ask("Generate", context=context, max_tokens=1)["code"] == "unknown_context"
    for request in ("ContextRead", "ContextDrop", "ContextFork"):
        assert other.ask(request, context=context)["code"] == "unknown_context"
    assert mine.ask("ContextRead", context=context)["type"] == "ContextText"


@pytest.mark.rule("protocol.control-owns")
def test_contexts_go_when_their_control_connection_closes(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script()
    watcher, one = wire(pool(ref).socket), wire(pool.socket)
    watcher.hello()
    one.hello()
    for _ in range(3):
        one.ask("ContextFork", context=one.create(ref))
    assert watcher.ask("MemberList")["members"][0]["contexts"] == 6
    one.send("ContextCreate", member=ref, segments=[])  # one that is not answered yet
    one.close()
    while watcher.ask("MemberList")["members"][0]["contexts"]:
        pass


@pytest.mark.rule("protocol.lost-generation-only")
def test_losing_a_generations_connection_cancels_that_generation_only(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script({"text": "x" * 2000, "per_token_delay": 0.05})
    control = wire(pool(ref).socket)
    owner = control.hello()["owner"]
    context = control.create(ref)
    apart = wire(pool.socket)
    apart.hello(owner=owner)
    apart.send("Generate", context=context, max_tokens=2000)
    frame = apart.get()
    assert frame is not None
    assert frame["type"] in ("Token", "Progress")
    apart.close()
    while control.ask("MemberList")["members"][0]["running"]:
        pass
    assert control.ask("ContextRead", context=context)["type"] == "ContextText"


def test_cancel_ends_the_generation_it_names(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script({"text": "x" * 2000, "per_token_delay": 0.05})
    one = wire(pool(ref).socket)
    one.hello()
    target = one.send("Generate", context=one.create(ref), max_tokens=2000)
    while (frame := one.get()) and frame["type"] != "Token":
        pass
    one.sock.sendall(one._pack({"type": "Cancel", "target": target}))
    while (frame := one.get()) and frame["type"] == "Token":
        pass
    assert frame is not None
    assert (frame["type"], frame["id"], frame["stop"]) == ("Done", target, "cancelled")


# --- loads --------------------------------------------------------------------------------------------------------


def test_a_model_is_loaded_once_on_request_and_found_again(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script()
    one, two = wire(pool().socket), wire(pool.socket)
    one.hello()
    two.hello()
    first, second = one.send("MemberLoad", ref=ref, flags={}), two.send("MemberLoad", ref=ref, flags={})
    for conn, id_ in ((one, first), (two, second)):
        answer = conn.get()
        assert answer is not None
        assert (answer["type"], answer["id"], answer["member"]["state"]) == ("MemberLoaded", id_, "ready")
    assert len(one.ask("MemberList")["members"]) == 1
    named = one.ask("MemberLoad", ref=ref, flags={"window": 2048})["member"]
    assert named["name"] == f"{ref} window=2048"
    assert len(two.ask("MemberList")["members"]) == 2


@pytest.mark.rule("models.missing-file")
def test_a_load_that_cannot_be_is_refused_by_name(pool: Daemons, wire: Open, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    (tmp_path / "bad.jsonl").write_text("nothing\n")
    one = wire(pool().socket)
    one.hello()
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("nonsense", {}, "model_unknown"),
        ("hf:org/repo", {}, "model_missing"),
        (f"{tmp_path}/none.gguf", {}, "model_missing"),
        (f"{tmp_path}/text.gguf", {}, "model_not_gguf"),
        ("smollm2-135m-instruct", {}, "model_missing"),
        (f"scripted:{tmp_path}/bad.jsonl", {}, "load_failed"),
        (f"scripted:{tmp_path}/bad.jsonl", {"windw": 1}, "bad_flags"),
        (f"scripted:{tmp_path}/bad.jsonl", {"window": "big"}, "bad_flags"),
        (f"scripted:{tmp_path}/bad.jsonl", {"window": -1}, "bad_flags"),
        (f"scripted:{tmp_path}/bad.jsonl", {"cells": 2**31}, "bad_flags"),
        (f"scripted:{tmp_path}/bad.jsonl", {"max_batch": 0}, "bad_flags"),
        (f"scripted:{tmp_path}/bad.jsonl", {"kv_type": "q99"}, "bad_flags"),
    ]
    for ref, flags, code in wrong:
        answer = one.ask("MemberLoad", ref=ref, flags=flags)
        assert (answer["type"], answer["code"]) == ("Error", code), answer
    assert one.ask("MemberList")["members"] == []


@pytest.mark.rule("models.file-named")
def test_a_client_names_the_file_that_it_found(pool: Daemons, wire: Open, tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.gguf"
    file.write_bytes(gguf(LLAMA | {"llama.context_length": 0}))
    one = wire(pool().socket)
    one.hello()
    for ref in ("smollm2-135m-instruct", "hf:org/repo:Q4_K_M"):
        assert one.ask("MemberLoad", ref=ref)["code"] == "model_missing"
        answer = one.ask("MemberLoad", ref=ref, file=str(file))
        assert (answer["code"], str(file) in answer["message"]) == ("load_failed", True), answer
    for ref, path, code in (
        ("nonsense", str(file), "model_unknown"),
        ("hf:org/repo", "elsewhere.gguf", "model_missing"),
        ("hf:org/repo", "/dev/null", "model_missing"),
    ):
        assert one.ask("MemberLoad", ref=ref, file=path)["code"] == code


def test_a_long_flag_stands_in_a_members_name_by_its_hash() -> None:
    assert member_name("m", {"template": "chatml", "window": 9}) == "m template=chatml window=9"
    names = {member_name("m", {"template": "{{ messages }}" * count}) for count in (9, 10)}
    assert [len(name) for name in names] == [len("m template=") + 8] * 2


# --- its end ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("pool.stop")
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon_and_its_workers_with_a_generation_running(
    pool: Daemons, script: Scripts, wire: Open, sig: signal.Signals
) -> None:
    ref = script({"text": "x" * 2000, "per_token_delay": 0.05})
    daemon = pool(ref)
    one = wire(daemon.socket)
    one.hello()
    worker = one.ask("MemberList")["members"][0]["pid"]
    one.send("Generate", context=one.create(ref), max_tokens=2000)
    one.get()
    assert daemon.stop(sig) == 0
    assert f"stopped: {sig.name}" in daemon.lines[-1]
    assert not daemon.socket.exists()
    wait_gone(worker)


@pytest.mark.rule("pool.stop")
def test_a_signal_while_it_loads_ends_it(pool: Daemons, script: Scripts) -> None:
    daemon = pool(script(), wait=False)
    daemon.read_until("loading")
    assert daemon.stop() == 0
    assert not daemon.socket.exists()


def test_a_killed_daemon_takes_its_workers_along(pool: Daemons, script: Scripts, wire: Open) -> None:
    daemon = pool(script())
    one = wire(daemon.socket)
    one.hello()
    worker = one.ask("MemberList")["members"][0]["pid"]
    daemon.stop(signal.SIGKILL)
    wait_gone(worker)


@pytest.mark.rule("bounds.idle-exit")
def test_a_pool_without_a_connection_ends(pool: Daemons) -> None:
    daemon = pool(flags=("--idle-timeout", "0.1"))
    assert daemon.ended() == 0
    assert "stopped: idle" in daemon.lines[-1]


@pytest.mark.rule("bounds.idle-exit")
def test_idle_time_begins_when_the_last_connection_closes(pool: Daemons, wire: Open) -> None:
    daemon = pool(flags=("--idle-timeout", "0.3"))
    one, two = wire(daemon.socket), wire(daemon.socket)
    one.hello()
    two.hello()
    one.close()
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.process.wait(0.6)
    two.close()
    assert daemon.ended() == 0


@pytest.mark.rule("pool.status")
@pytest.mark.rule("protocol.status")
def test_status_tells_members_contexts_and_what_runs(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script({"text": TEXT, "per_token_delay": 0.2})
    daemon = pool(ref, flags=("--max-batch", "1"))
    one, two = wire(daemon.socket), wire(daemon.socket)
    one.hello()
    two.hello()
    context = one.create(ref)
    one.send("Generate", context=context, max_tokens=50)
    one.send("Generate", context=context, max_tokens=50)
    frame = one.get()
    assert frame is not None
    status = two.ask("Status")
    assert (status["pid"], status["connections"]) == (daemon.process.pid, 2)
    assert status["socket"] == str(daemon.socket)
    (member,) = status["members"]
    assert (member["name"], member["state"], member["window"]) == (ref, "ready", 4096)
    assert (member["contexts"], member["running"], member["waiting"], member["restarts"]) == (1, 1, 1, 0)


@pytest.mark.bound("pool.open-connections")
def test_connections_over_the_bound_are_refused(pool: Daemons, wire: Open) -> None:
    daemon = pool(POOL_OPEN_CONNECTIONS=1)
    first = wire(daemon.socket)
    assert first.hello()["type"] == "Welcome"
    second = wire(daemon.socket).get()
    assert second is not None
    assert second["code"] == "too_many_connections"


@pytest.mark.bound("worker.batch")
@pytest.mark.rule("protocol.progress-token-done")
def test_a_generation_answers_progress_then_tokens_then_one_done(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script({"text": TEXT})
    pool(ref, WORKER_BATCH=64)
    line = wire(pool.socket)
    line.hello()
    context = line.create(ref, "A long prompt. " * 40)
    id_ = line.send("Generate", context=context, max_tokens=200)
    kinds: list[str] = []
    while not kinds or kinds[-1] != "Done":
        answer = line.get()
        assert answer is not None
        assert answer["id"] == id_
        kinds.append(answer["type"])
    assert [kind for kind, _ in groupby(kinds)] == ["Progress", "Token", "Done"]
    assert min(kinds.count("Progress"), kinds.count("Token")) > 1


# --- what goes wrong around it ------------------------------------------------------------------------------------


@pytest.mark.rule("pool.disk-full")
def test_a_full_disk_costs_log_lines_and_no_work(
    pool: Daemons, script: Scripts, wire: Open, own_home: Path
) -> None:
    log = own_home / ".local/state/aerix/pool.log"
    log.parent.mkdir(parents=True)
    log.symlink_to("/dev/full")
    ref = script({"text": "fine"})
    one = wire(pool(ref).socket)
    one.hello()
    os.kill(one.ask("MemberList")["members"][0]["pid"], signal.SIGKILL)  # which is told to the log
    while (member := one.ask("MemberList")["members"][0])["state"] != "ready" or not member["restarts"]:
        pass
    assert one.ask("Generate", context=one.create(ref), max_tokens=9)["text"] == "fine"


def descriptors(pid: int) -> int:
    """How many a daemon holds. Its log is opened for its first line, whenever that comes, and does not count."""
    targets = (os.path.realpath(path) for path in Path(f"/proc/{pid}/fd").iterdir())
    return sum(not target.endswith("pool.log") for target in targets)


@pytest.mark.rule("pool.client-vanishes")
def test_a_client_that_vanishes_in_any_state_leaves_nothing_behind(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script({"text": "x" * 2000, "per_token_delay": 0.02}, window=9000)
    daemon = pool(ref, POOL_MEMBER_DELAY=0.3)
    watcher = wire(daemon.socket)
    watcher.hello()

    def info() -> dict[str, Any]:
        (member,) = watcher.ask("MemberList")["members"]
        assert isinstance(member, dict)
        return member

    def generating(one: Wire) -> None:
        one.hello()
        one.send("Generate", context=one.create(ref), max_tokens=2000)
        frame = one.get()
        assert frame is not None
        assert frame["type"] in ("Token", "Progress")

    def waiting(one: Wire) -> None:
        one.hello()
        context = one.create(ref)
        for _ in range(6):
            one.send("Generate", context=context, max_tokens=2000)

    def apart(one: Wire) -> None:
        owner = one.hello()["owner"]
        context = one.create(ref)
        other = wire(daemon.socket)
        other.send("Hello", version=VERSION, client="test", owner=owner)
        other.send("Generate", context=context, max_tokens=2000)
        other.get()
        other.close()

    def held(one: Wire) -> None:
        one.hello()
        os.kill(info()["pid"], signal.SIGKILL)
        one.send("ContextCreate", member=ref, segments=[])

    states: dict[str, Callable[[Wire], object]] = {
        "connected": lambda one: None,
        "half a Hello": lambda one: one.sock.sendall(b"\0\0\0\x09\xa1"),
        "greeted": lambda one: one.hello(),
        "asked for a context": lambda one: (one.hello(), one.send("ContextCreate", member=ref, segments=[])),
        "has a context": lambda one: (one.hello(), one.create(ref)),
        "half a request": lambda one: (one.hello(), one.sock.sendall(b"\0\0\xff\xff\xa1")),
        "generating": generating,
        "waiting": waiting,
        "generating apart": apart,
        "loading": lambda one: (one.hello(), one.send("MemberLoad", ref=f"{ref}.none")),
        "waiting for a restart": held,
    }
    while info()["state"] != "ready":
        pass
    before = descriptors(daemon.process.pid)
    for state in states.values():
        one = wire(daemon.socket)
        state(one)
        one.close()
    while watcher.ask("Status")["connections"] > 1:
        pass
    while (now := info())["state"] != "ready" or now["contexts"] or now["running"] or now["waiting"]:
        pass
    # A connection is counted out before it is closed.
    until(lambda: descriptors(daemon.process.pid) <= before)
