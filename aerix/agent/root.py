"""The root agent of a request: its segments, its tools, its runner."""

from typing import TYPE_CHECKING

from aerix.actors import Actor, ChildSpec, Ledger
from aerix.agent.agent import Agent, Places, Task
from aerix.agent.context import Entry
from aerix.agent.system import system_segment
from aerix.bounds import CANCEL
from aerix.extensions.instructions import fit, read_instructions
from aerix.pool.protocol import MemberInfo
from aerix.session.events import ROOT
from aerix.session.project import repository_root
from aerix.tools import TOOLS

if TYPE_CHECKING:
    from aerix.agent.request import RequestPlaces, RequestSpec


def root_agent(
    spec: "RequestSpec", places: "RequestPlaces", member: MemberInfo, ledger: Ledger
) -> tuple[ChildSpec, tuple[str, ...]]:
    """How to start the root agent, and notes for the user about what it was not given.

    Its context is the system segment, the instructions, and the prompt: what changes from run to run comes last.
    """
    tools = tuple(TOOLS.values())
    found = read_instructions(spec.cwd)
    entries = [Entry("system", "system", system_segment(member.window), "system", pinned=True)]
    if instructions := fit(found, member.window):
        entries.append(Entry("instructions", "user", instructions, "instructions", pinned=True))
    entries.append(Entry("prompt", "user", spec.prompt, "prompt", pinned=True))
    spool = spec.folder / "spool"
    task = Task(ROOT, "root", tuple(entries), tools, spec.max_new_tokens, spec.sampling, spool, spec.ratios)
    work = Places(places.log, places.screen, places.pool, places.supervisor, member, _runner(spec))
    child = ChildSpec(ROOT, lambda: Agent(task, work, ledger), restart="temporary", grace_s=CANCEL.value)
    return child, found.notes


def _runner(spec: "RequestSpec") -> ChildSpec:
    root = repository_root(spec.cwd) or spec.cwd

    def build() -> Actor:
        from aerix.tools.runner import ToolRunner

        return ToolRunner(root, spec.cwd, spec.folder / "spool", spec.caps)

    return ChildSpec(f"tools:{ROOT}", build, restart="transient")
