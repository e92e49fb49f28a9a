"""Members: the supervisor of the loaded models. Loads one on request, unloads one, and tells what each is and does."""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aerix.pool.protocol as p
from aerix.actors import (
    Answer,
    ChildSpec,
    Exit,
    Intensity,
    Ref,
    Refused,
    Reply,
    StartChild,
    StopChild,
    Supervisor,
    Tick,
    on,
    whereis,
)
from aerix.actors.bounds import CHILD_STOP, CHILD_TERM
from aerix.pool.bounds import IDLE, MEMBER_LOAD, MEMBER_RESTARTS, MEMBER_WINDOW, MEMBERS_WAIT, MEMORY
from aerix.pool.connection import Unload, Uses, member_actor, silent
from aerix.pool.fit import KV_BYTES, memory_limit, snapshot_bytes
from aerix.pool.ladder import LADDER
from aerix.pool.member import Member
from aerix.pool.models import ResolvedModel, gguf_model, models_dir, parse_reference, resolve
from aerix.pool.room import House, need_of

LOAD_FLAGS: dict[str, type] = {
    "window": int, "cells": int, "max_batch": int, "batch": int, "threads": int, "memory": int, "template": str,
    "key_env": str, "kv_type": str, "gpu_layers": int, "thinking": int,
}  # fmt: skip
"""The flags of a load: WorkerArgs' fields that a client may set."""
_MOST = 2**31
_SHOWN = 64


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What a daemon is started with."""

    socket: Path
    load: tuple[ResolvedModel, ...] = ()
    flags: tuple[tuple[str, Any], ...] = ()
    """Load flags that hold for every member where its own say nothing."""
    idle_timeout_s: float = field(default_factory=lambda: IDLE.value)
    version: str = "0"
    context_budget: int | None = None
    """Bytes of snapshots of all members together; None: a part of what they may use, as far as they leave it."""


@dataclass(frozen=True, slots=True)
class StatusOf:
    """A Status, on its way from the connections to the members."""

    connections: int


class Members(Supervisor):
    """The loaded models. Loads one on request, unloads one that nobody uses, gathers what each tells about itself."""

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._since = self.clock.now()
        self._starting: dict[str, list[Answer]] = {}
        """Who waits for the start of a member, by the member's name, and below, the request for that start."""
        self._starts: dict[int, str] = {}
        self._rooms: dict[str, _Room] = {}
        """Members that others have to leave for, by their names."""
        self._limit = MEMORY.count or memory_limit()
        self._house = House(self._limit)
        self._budgets: dict[Ref, int] = {}
        """What each member was told that it may keep."""
        self._users: dict[str, set[int]] = {}
        """The connections that use a member, by its name."""
        self._stops: dict[int, Answer] = {}
        """Who waits for the end of a member, by the request for it."""
        self._gathers: list[_Gather] = []
        self._opening = True  # what the pool begins with stays together
        specs = [self._spec(model.name, model, {})[0] for model in options.load]
        self._opening = False
        super().__init__(specs, intensity=Intensity(MEMBER_RESTARTS.count, MEMBER_WINDOW.value))

    def _spec(
        self, name: str, model: ResolvedModel, flags: dict[str, Any]
    ) -> tuple[ChildSpec, tuple[str, ...]]:
        """A new member, and who has to leave for it. Raises Refused ``no_memory``."""
        flags = {**dict(self._options.flags), **flags}
        found = self._house.move_in(name, need_of(model, flags), self._in_use, self.clock.now())
        flags["room"] = found.room
        spec = ChildSpec(
            member_actor(name),
            lambda: Member(name, model, flags),
            restart="transient",
            grace_s=CHILD_STOP.value + CHILD_TERM.value + 1,
            start_timeout_s=MEMBER_LOAD.value * (len(LADDER) + 1),
        )
        return spec, found.leave

    def _names(self) -> list[str]:
        """The members that are up."""
        return [actor.removeprefix(member_actor("")) for actor in self.refs()]

    def _in_use(self, name: str) -> bool:
        return name in self._starting or bool(self._users.get(name)) or self._opening

    @on(p.MemberLoad)
    def _load(self, message: p.MemberLoad) -> None:
        """Load a model; found loaded, or loading, it answers itself."""
        model = _found(message)
        if not model.present:
            raise Refused(
                "model_missing",
                f"{model.name} is not in {models_dir()}, where this pool looks: run `aerix models pull {model.name}`; if it"
                " is elsewhere, run `aerix pool stop`, then run again",
            )
        flags = check_flags(message.flags)
        name = member_name(model.name, flags)
        if name in self._starting:
            self._starting[name].append(self.later())
        elif (ref := whereis(member_actor(name))) is not None:
            self.forward(ref, message)
        else:
            spec, leave = self._spec(name, model, flags)
            self._starting[name] = [self.later()]
            self._share_out()
            room = self._rooms[name] = _Room(spec, {self._end(other) for other in leave})
            self._start_in(name, room)

    def _end(self, name: str) -> int:
        """End a member that nobody uses; the answer to the request of that number says that it is gone."""
        self._users.pop(name, None)
        return self.request(self.ref, StopChild(member_actor(name))).token

    def _start_in(self, name: str, room: "_Room") -> None:
        if not room.leaving:
            del self._rooms[name]
            self._starts[self.request(self.ref, StartChild(room.spec)).token] = name

    @on(Uses)
    def _used(self, message: Uses) -> None:
        if message.member is not None:
            self._users.setdefault(message.member, set()).add(message.connection)
            return
        for name, users in self._users.items():
            if message.connection in users:
                users.discard(message.connection)
                self._house.used(name, self.clock.now())

    @on(Unload)
    def _unload(self, message: Unload) -> None:
        """End a member; answered when its worker is gone."""
        name = message.member
        if name in self._starting:
            raise Refused("member_in_use", f"{name} is being loaded")
        if whereis(member_actor(name)) is None:
            has = ", ".join(sorted(self._names())) or "none"
            raise Refused("unknown_member", f"the pool has no member {name!r:.200}; it has: {has}")
        others = self._users.get(name, set()) - {message.connection}
        if others:
            raise Refused("member_in_use", f"{name} is in use: connections {len(others)}")
        self._stops[self._end(name)] = self.later()
        self._house.move_out(name)

    def child_up(self, name: str, ref: Ref) -> None:
        """See Supervisor."""
        self._share_out()

    def child_down(self, name: str, exit: Exit, *, started: bool) -> None:
        """See Supervisor."""
        self._share_out()

    def _share_out(self) -> None:
        """Tell each member its part of the bytes for snapshots, where that has changed."""
        servers = tuple(member_actor(scheme) for scheme in ("http://", "https://"))  # those keep nothing here
        members = [ref for name, ref in self.refs().items() if not name.startswith(servers)]
        part = self._budget() // max(1, len(members))
        told, self._budgets = self._budgets, dict.fromkeys(members, part)
        for ref in members:
            if told.get(ref) != part:
                with suppress(Refused):  # it has just ended, and another one shares in
                    ref.tell(p.Budget(part))

    def _budget(self) -> int:
        """Bytes of snapshots of all members together. Where none are set, models and snapshots stay within the limit."""
        if self._options.context_budget is not None:
            return self._options.context_budget
        return min(snapshot_bytes(self._limit), self._house.free)

    @on(Reply)
    def _came(self, message: Reply) -> None:
        if message.token in self._starts:
            self._member_started(self._starts.pop(message.token), message)
            return
        if message.token in self._stops:
            self._stops.pop(message.token).reply(p.Ok(0))
            self._share_out()
            return
        for name, room in [(n, one) for n, one in self._rooms.items() if message.token in one.leaving]:
            room.leaving.discard(message.token)
            self._start_in(name, room)
        for gather in [one for one in self._gathers if message.token in one.missing]:
            del gather.missing[message.token]
            if message.value is not None:
                gather.found.append(message.value)
            self._if_gathered(gather)

    def _member_started(self, name: str, reply: Reply) -> None:
        for answer in self._starting.pop(name):
            if reply.error is None:
                reply.value.send(p.MemberLoad(0, ""), answer)
            else:
                self._house.move_out(name)
                self._share_out()
                why = reply.error.message.rpartition(" did not start: ")[2]
                answer.refuse(Refused("load_failed", f"{name} could not be loaded: {why}"))

    # --- what the members tell

    @on(p.MemberList)
    def _list(self, _: p.MemberList) -> None:
        self._gather(p.Members(0, []))

    @on(StatusOf)
    def _status(self, message: StatusOf) -> None:
        uptime, path = self.clock.now() - self._since, str(self._options.socket)
        self._gather(
            p.PoolStatus(0, self._options.version, os.getpid(), uptime, path, message.connections, [])
        )

    def _gather(self, blank: "p.Members | p.PoolStatus") -> None:
        refs = [child.ref for child in self._children.values() if child.ref is not None]
        missing = {self.request(ref, p.MemberList(0)).token: ref.name for ref in refs}
        gather = _Gather(self.later(), blank, missing, [])
        self._gathers.append(gather)
        self.after(MEMBERS_WAIT.value, gather)
        self._if_gathered(gather)

    @on(Tick)
    def _tick(self, message: Tick) -> None:
        """The time that members have to tell is over: those that did not are silent."""
        gather = message.token
        if not isinstance(gather, _Gather):
            super()._tick(message)
        elif gather in self._gathers:
            gather.found += [silent(actor) for actor in gather.missing.values()]
            gather.missing.clear()
            self._if_gathered(gather)

    def _if_gathered(self, gather: "_Gather") -> None:
        if not gather.missing:
            self._gathers.remove(gather)
            found = sorted(gather.found, key=lambda info: info.name)
            gather.answer.reply(replace(gather.blank, members=found))


@dataclass(slots=True, eq=False)
class _Room:
    """A member that is started when those that must leave have left."""

    spec: ChildSpec
    leaving: set[int]
    """The requests for their ends."""


@dataclass(slots=True, eq=False)
class _Gather:
    answer: Answer
    blank: "p.Members | p.PoolStatus"
    missing: dict[int, str]
    """The actors of those members that have not told yet, by the request to each."""
    found: list[p.MemberInfo]


def _found(message: p.MemberLoad) -> ResolvedModel:
    """The model in the file that the client found, where it names one; else what the reference names from here."""
    if not message.file:
        return resolve(message.ref)
    parse_reference(message.ref)
    if not Path(message.file).is_absolute():
        raise Refused("model_missing", f"model file {message.file!r:.200} is no absolute path")
    return gguf_model(message.ref, Path(message.file))


def member_name(ref: str, flags: dict[str, Any]) -> str:
    """A member is named by its reference, and the flags that its load set."""
    return " ".join([ref, *(f"{key}={_shown(flags[key])}" for key in sorted(flags))])


def _shown(value: object) -> str:
    """A flag's value in a name; of a long one, such as a template's text, the beginning of its hash."""
    text = str(value)
    short = len(text) <= _SHOWN and text.isprintable()
    return text if short else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def check_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags of a load as they are. Raises Refused ``bad_flags``."""
    for key, value in flags.items():
        if key not in LOAD_FLAGS:
            raise Refused("bad_flags", f"a load has no flag {key!r:.64}; it has {', '.join(LOAD_FLAGS)}")
        if type(value) is not LOAD_FLAGS[key]:
            raise Refused(
                "bad_flags", f"the flag {key} of a load takes {LOAD_FLAGS[key].__name__}, not {value!r:.64}"
            )
        if key == "max_batch" and value == 0:
            raise Refused(
                "bad_flags", "with the flag max_batch 0 no generation would ever begin; 1 is the least"
            )
        if isinstance(value, int) and not 0 <= value < _MOST:
            raise Refused(
                "bad_flags", f"the flag {key} of a load takes a number below {_MOST:,}, not {value:,}"
            )
    if (kind := flags.get("kv_type", "f16")) not in KV_BYTES:
        raise Refused(
            "bad_flags", f"the flag kv_type of a load takes {', '.join(KV_BYTES)}, not {kind!r:.64}"
        )
    return flags
