"""The members of a pool: loading, unloading, and who uses which."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from aerix.pool import protocol as p
from aerix.pool.models import resolve
from aerix.pool.room import need_of
from tests.pool.daemons import PATIENCE, Clients, Daemons, Scripts, Wire
from tests.pool.test_cli import aerix
from tests.pool.test_daemon import wait_gone

Open = Callable[..., Wire]


def members(one: Wire) -> dict[str, dict[str, Any]]:
    return {member["name"]: member for member in one.ask("MemberList")["members"]}


@pytest.mark.rule("models.unload")
def test_a_member_that_nobody_uses_is_unloaded_and_its_process_is_gone(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref, other = script(), script()
    one = wire(pool(ref, other).socket)
    one.hello()
    worker = members(one)[ref]["pid"]
    assert isinstance(worker, int)
    assert one.ask("MemberUnload", member=ref)["type"] == "Ok"
    wait_gone(worker)
    assert list(members(one)) == [other]
    assert one.ask("ContextCreate", member=ref, segments=[])["code"] == "unknown_member"
    assert one.ask("MemberLoad", ref=ref)["member"]["state"] == "ready"
    assert one.create(ref)


@pytest.mark.rule("models.unload")
def test_a_member_in_use_is_not_unloaded(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script({"text": "fine"})
    one, two = wire(pool(ref).socket), wire(pool.socket)
    one.hello()
    two.hello()
    context = one.create(ref)
    for asker, why in ((one, "has contexts of this connection"), (two, "is in use: connections 1")):
        refused = asker.ask("MemberUnload", member=ref)
        assert refused["code"] == "member_in_use"
        assert why in refused["message"]
    assert one.ask("Generate", context=context, max_tokens=9)["text"] == "fine"
    two.ask("MemberLoad", ref=ref)
    one.close()
    while (refused := two.ask("MemberUnload", member=ref))[
        "type"
    ] != "Ok":  # until the end of `one` was noticed
        assert refused["code"] == "member_in_use"


@pytest.mark.rule("models.unload")
def test_a_context_that_went_with_its_worker_holds_no_member(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script()
    one = wire(pool(ref).socket)
    one.hello()
    context = one.create(ref)
    worker = members(one)[ref]["pid"]
    assert isinstance(worker, int)
    os.kill(worker, signal.SIGKILL)
    lost = one.ask("ContextRead", context=context)
    assert lost["code"] in ("member_restarted", "unknown_context")
    assert one.ask("ContextDrop", context=one.create(ref))["type"] == "Ok"
    assert one.ask("ContextDrop", context=context)["code"] == "unknown_context"
    assert one.ask("MemberUnload", member=ref)["type"] == "Ok"


@pytest.mark.rule("models.unload")
@pytest.mark.parametrize("asked_before", [False, True])
def test_what_a_generations_connection_hears_of_a_loss_its_owner_knows(
    pool: Daemons, script: Scripts, wire: Open, asked_before: bool
) -> None:
    ref = script({"text": "one"})
    one, apart = wire(pool(ref).socket), wire(pool.socket)
    apart.hello(owner=one.hello()["owner"])
    context = one.create(ref)
    if asked_before:
        assert apart.ask("Generate", context=context, max_tokens=9)["text"] == "one"
    worker = members(one)[ref]["pid"]
    assert isinstance(worker, int)
    os.kill(worker, signal.SIGKILL)
    lost = apart.ask("Generate", context=context, max_tokens=9)
    assert lost["code"] in ("member_restarted", "unknown_context")
    assert one.ask("ContextDrop", context=one.create(ref))["type"] == "Ok"
    assert one.ask("MemberUnload", member=ref)["type"] == "Ok"


@pytest.mark.rule("models.unload")
def test_a_member_that_is_loading_or_unknown_is_refused(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script()
    one, two = wire(pool().socket), wire(pool.socket)
    one.hello()
    two.hello()
    assert one.ask("MemberUnload", member=ref)["code"] == "unknown_member"
    load = one.send("MemberLoad", ref=ref)
    refused = one.ask("MemberUnload", member=ref)
    assert (refused["code"], refused["message"]) == ("member_in_use", f"{ref} is being loaded")
    answer = one.get()
    assert answer is not None
    assert (answer["type"], answer["id"]) == ("MemberLoaded", load)


def test_a_context_that_was_being_made_while_its_member_was_unloaded_is_refused_by_name(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script()
    one, two = wire(pool(ref).socket), wire(pool.socket)
    one.hello()
    two.hello()
    unload, create = one.send("MemberUnload", member=ref), two.send("ContextCreate", member=ref, segments=[])
    first, second = one.get(), two.get()
    assert first is not None
    assert second is not None
    assert (first["id"], second["id"]) == (unload, create)
    ends = (first["type"], first.get("code"), second["type"], second.get("code"))
    assert ends in (
        ("Error", "member_in_use", "ContextState", None),
        ("Ok", None, "Error", "member_restarted"),
        ("Ok", None, "Error", "unknown_member"),
    )


@pytest.mark.rule("models.unload")
def test_a_link_that_lost_its_connection_uses_its_member_again(
    pool: Daemons, script: Scripts, wire: Open, client: Clients
) -> None:
    ref = script()
    pool()
    link = client.link()
    link.ask(p.MemberLoad(0, ref), PATIENCE)
    other = wire(pool.socket)
    other.hello()
    assert other.ask("MemberUnload", member=ref)["code"] == "member_in_use"
    assert link.ask(p.MemberUnload(0, ref), PATIENCE) == p.Ok(2)
    assert members(other) == {}


@pytest.mark.bound("pool.memory")
@pytest.mark.rule("models.making-room")
@pytest.mark.rule("models.fit")
@pytest.mark.rule("pool.budget-split")
def test_a_load_that_does_not_fit_sends_away_who_is_idle_and_nobody_else(
    pool: Daemons, wire: Open, model_file: Path, tmp_path: Path
) -> None:
    a, b = tmp_path / "a.gguf", tmp_path / "b.gguf"
    for path in (a, b):
        path.symlink_to(model_file)
    flags = {"window": 512, "cells": 512}
    takes = need_of(resolve(str(a)), flags)(2**40)
    assert takes is not None
    daemon = pool(str(a), flags=("--window", "512", "--cells", "512"), POOL_MEMORY=int(takes * 1.2))
    one, two = wire(daemon.socket), wire(daemon.socket)
    one.hello()
    two.hello()
    until(lambda: snapshots(one), {str(a): int(takes * 1.2) - takes})
    worker = members(one)[str(a)]["pid"]
    assert isinstance(worker, int)
    context = one.create(str(a))
    refused = two.ask("MemberLoad", ref=str(b))
    assert refused["code"] == "no_memory"
    assert f"{b} does not fit: it needs " in refused["message"]
    assert f"members in use take: {a} " in refused["message"]
    assert one.ask("ContextRead", context=context)["type"] == "ContextText"
    one.close()
    while two.ask("Status")["connections"] > 1:
        pass
    assert two.ask("MemberLoad", ref=str(b))["member"]["state"] == "ready"
    wait_gone(worker)
    assert list(members(two)) == [str(b)]
    second = pool(str(a), str(b), socket=tmp_path / "2.sock", wait=False, POOL_MEMORY=int(takes * 1.2))
    assert second.ended() == 4
    assert "does not fit" in second.lines[-1]


@pytest.mark.rule("cli.pool")
@pytest.mark.rule("models.unload")
def test_the_command_line_loads_and_unloads(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script(window=2048)
    pool()

    def says(*words: str) -> "subprocess.CompletedProcess[str]":
        told = aerix("pool", *words)
        assert "Traceback" not in told.stderr
        return told

    loaded = says("load", ref, "--max-batch", "2")
    assert loaded.returncode == 0
    assert loaded.stdout.startswith(f"{ref} max_batch=2: ready\n    window 2048")
    one = wire(pool.socket)
    one.hello()
    context = one.create(f"{ref} max_batch=2")
    used = says("unload", f"{ref} max_batch=2")
    assert (used.returncode, used.stderr) == (1, f"aerix: {ref} max_batch=2 is in use: connections 1\n")
    one.ask("ContextDrop", context=context)
    one.close()
    while (gone := says("unload", f"{ref} max_batch=2")).returncode:  # until the end of `one` was noticed
        assert "is in use" in gone.stderr
    assert gone.stdout == f"{ref} max_batch=2 is unloaded\n"
    says("load", ref, "--threads", "1")
    missed = says("unload", ref)
    assert missed.stderr == f"aerix: the pool has no member {ref!r}; it has: {ref} threads=1\n"
    assert says("load", "nonsense").returncode == 4
    assert "REF" in says("load", "--help").stdout
    assert "NAME" in says("unload", "--help").stdout


@pytest.mark.rule("cli.one-sentence")
@pytest.mark.parametrize("words", [("load", "MODEL"), ("unload", "MODEL")])
def test_without_a_pool_load_and_unload_say_so(
    pool: Daemons, script: Scripts, words: tuple[str, ...]
) -> None:
    ref = script()
    told = aerix("pool", *(ref if word == "MODEL" else word for word in words))
    missing = f"aerix: no pool answers on {pool.socket}: run `aerix pool start`\n"
    assert (told.returncode, told.stderr) == (4, missing)


@pytest.mark.rule("pool.budget-split")
def test_the_bytes_for_snapshots_are_shared_by_the_members_that_are_there(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    first, second = script(), script()
    one = wire(pool(first, flags=("--context-budget", "1000000")).socket)
    one.hello()

    def limits() -> dict[str, object]:
        return snapshots(one)

    until(limits, {first: 1_000_000})
    assert one.ask("MemberLoad", ref=second)["type"] == "MemberLoaded"
    until(limits, {first: 500_000, second: 500_000})
    worker = members(one)[first]["pid"]
    assert isinstance(worker, int)
    os.kill(worker, signal.SIGKILL)
    wait_gone(worker)
    assert one.ask("MemberLoad", ref=first)["type"] == "MemberLoaded"
    until(limits, {first: 500_000, second: 500_000})
    assert one.ask("MemberUnload", member=second)["type"] == "Ok"
    until(limits, {first: 1_000_000})


def snapshots(one: Wire) -> dict[str, object]:
    """The bytes of snapshots that each member may keep."""
    return {
        name: next(shelf["limit"] for shelf in member["shelves"] if shelf["name"] == "memory")
        for name, member in members(one).items()
    }


def until(look: Callable[[], object], wanted: object) -> None:
    """A worker is told beside what it answers, and may have to start again first: ask until it has heard."""
    end = monotonic() + PATIENCE
    while (seen := look()) != wanted:
        assert monotonic() < end, f"{seen} is not {wanted}"


def test_a_reference_that_the_system_cannot_even_look_at_is_refused_and_the_pool_stays(
    pool: Daemons, script: Scripts, wire: Open
) -> None:
    ref = script()
    one = wire(pool(ref).socket)
    one.hello()
    worker = members(one)[ref]["pid"]
    for bad, code in (
        ("/proc/self/mem", "model_missing"),  # opens, and cannot be read
        ("~no-such-user/m.gguf", "model_missing"),
        ("scripted:~no-such-user/s.jsonl", "model_missing"),
        ("x" * 5000, "model_unknown"),
        ("x" * 5000 + ".gguf", "model_missing"),
    ):
        assert one.ask("MemberLoad", ref=bad)["code"] == code
    assert one.ask("MemberLoad", ref="x" * 5000, file="/proc/self/mem")["code"] == "model_unknown"
    assert one.ask("MemberLoad", ref="hf:a/b", file="/proc/self/mem")["code"] == "model_missing"
    assert members(one)[ref]["pid"] == worker
