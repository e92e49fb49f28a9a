"""The root agent of a request: its segments, its tools, its runner; and the segments that all agents begin with."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aerix.actors import Actor, ChildSpec, Ledger
from aerix.agent.agent import Agent, Places, Task
from aerix.agent.context import Entry
from aerix.agent.delegation import Delegation
from aerix.agent.system import system_segment
from aerix.bounds import CALLS, CANCEL
from aerix.extensions.instructions import Instructions, fit, read_instructions
from aerix.pool.protocol import MemberInfo
from aerix.session.events import ROOT
from aerix.session.project import repository_root
from aerix.tools import TOOLS
from aerix.turn.pieces import planner_note
from aerix.turn.prompt import final_text
from aerix.turn.schema import ToolSpec

if TYPE_CHECKING:
    from aerix.agent.request import RequestPlaces, RequestSpec

PLANNER_WINDOW = 16_384
"""Tokens of a window from which on the root of a large task plans, and does not work itself, unless a setting says so."""
_PLANNED = frozenset({"edit", "plan"})


def root_agent(
    spec: "RequestSpec", places: "RequestPlaces", member: MemberInfo, ledger: Ledger, route: str
) -> tuple[ChildSpec, tuple[str, ...]]:
    """How to start the root agent, and notes for the user about what it was not given.

    Its context is the system segment, the instructions, and the prompt: what changes from run to run comes last. In a
    session that goes on, it is what the log has, and the prompt.
    """
    found = read_instructions(spec.cwd)
    delegation = Delegation(spec, places, found, member)
    tools, plans = allowed_tools(delegation), _plans(delegation, route)
    resumed, notes = spec.resumed, found.notes
    if resumed.held or spec.start.resumed:
        from aerix.agent import resuming

        delegation = replace(delegation, shared=resuming.shared(resumed))
        notes += resuming.notes(spec, found)
    entries = [
        *(resuming.between(spec, plans) if resumed.held else shared_entries(found, member)),
        *_from_hooks(spec),
        Entry(resumed.name("prompt"), "user", spec.prompt, "prompt", pinned=True),
    ]
    if plans:
        tools = tuple(TOOLS[name] for name in spec.delegation.planner_tools if name in TOOLS)
        entries.append(Entry(resumed.name("planner"), "user", planner_note(tools), "note", pinned=True))
    check = None
    if spec.final is not None:
        from aerix.final_schema import checker

        check = checker(spec.final)
        told = final_text(spec.final, tools, held=member.json, max_calls=CALLS.count)
        entries.append(Entry(resumed.name("final"), "user", told, "note", pinned=True))
    spool = spool_folder(spec, ROOT)
    task = Task(
        ROOT,
        "root",
        tuple(entries),
        tools,
        spec.max_new_tokens,
        spec.sampling,
        spool,
        spec.ratios,
        final=spec.final,
        check=check,
        compact=spec.compact,
        resumed=resumed,
    )
    work = Places(
        places.log, places.screen, places.pool, places.supervisor, member, runner(spec, ROOT), delegation
    )
    child = ChildSpec(ROOT, lambda: Agent(task, work, ledger), restart="temporary", grace_s=CANCEL.value)
    return child, notes


def shared_entries(instructions: Instructions, member: MemberInfo) -> tuple[Entry, ...]:
    """What every agent of a request begins with: the system segment, which lists all tools, and the instructions."""
    system = system_segment(member.window, held=member.json)
    entries = [Entry("system", "system", system, "system", pinned=True)]
    if text := fit(instructions, member.window):
        entries.append(Entry("instructions", "user", text, "instructions", pinned=True))
    return tuple(entries)


def _from_hooks(spec: "RequestSpec") -> Iterator[Entry]:
    if text := spec.hook_context:
        yield Entry(
            spec.resumed.name("hooks"), "user", f"# Hook context\n{text}", "instructions", pinned=True
        )


def allowed_tools(delegation: Delegation) -> tuple[ToolSpec, ...]:
    """Every tool; without ``agent`` where it may not delegate."""
    return tuple(tool for tool in TOOLS.values() if tool.name != "agent" or delegation.allowed)


def _plans(delegation: Delegation, route: str) -> bool:
    """Whether the root only plans. One that may not delegate could then do nothing at all."""
    planner = delegation.spec.delegation.planner
    wide = planner == "always" or delegation.member.window >= PLANNER_WINDOW
    return delegation.allowed and planner != "never" and route in _PLANNED and wide


def runner(spec: "RequestSpec", agent: str) -> ChildSpec:
    """An agent's tool runner. Each agent has its own folder for results that were cut: call ids begin anew with each."""
    root, spool = repository_root(spec.cwd) or spec.cwd, spool_folder(spec, agent)

    def build() -> Actor:
        from aerix.tools.runner import ToolRunner

        return ToolRunner(root, spec.cwd, spool, spec.caps, spec.sandbox)

    return ChildSpec(f"tools:{agent}", build, restart="transient")


def spool_folder(spec: "RequestSpec", agent: str) -> Path:
    """Where results of an agent's calls are kept whole."""
    folder = spec.folder / "spool"
    return folder if agent == ROOT else folder / agent
