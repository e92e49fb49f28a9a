"""Who may import what, and who may start a thread (DESIGN section 2), read from the source of the tree itself.

Each rule is a function from a module and what it imports to what is wrong with it; each has a test over the tree, and one
that shows it a violation.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = {"aerix": {"aerix"}, "hooks": {"hooks", "actors"}, "pool": {"pool", "actors"}, "actors": {"actors"}}


@dataclass(frozen=True)
class Module:
    """A source file by its path below the root, and everything it names: imports, and attributes like os.fork."""

    path: str
    imports: frozenset[str]
    names: frozenset[str]

    @property
    def floor(self) -> str:
        return self.path.split("/")[0]

    @property
    def name(self) -> str:
        dotted = self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return dotted if self.floor == "aerix" else f"aerix.{dotted}"

    def is_in(self, *places: str) -> bool:
        return any(self.path == place or self.path.startswith(place + "/") for place in places)

    def gets(self, *modules: str) -> list[str]:
        """Which of its imports are one of these modules or stand below one."""
        return sorted(name for name in self.imports if any((name + ".").startswith(m + ".") for m in modules))


def module(path: str, source: str) -> Module:
    tree = ast.parse(source, path)
    imports = frozenset(imported(tree))
    attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return Module(path, imports, imports | attributes)


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names, those under TYPE_CHECKING and inside functions too; a relative import begins with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant))


# --- the rules ----------------------------------------------------------------------------------------------------


def only_lower_floors(m: Module) -> list[str]:
    def floor_of(name: str) -> str:
        second = name.split(".")[1] if "." in name else ""
        return second if second in FLOORS else "aerix"

    return [name for name in m.gets("aerix") if m.floor != "aerix" and floor_of(name) not in FLOORS[m.floor]]


def hooks_and_pool_are_strangers(m: Module) -> list[str]:
    return m.gets({"hooks": "aerix.pool", "pool": "aerix.hooks"}.get(m.floor, "."))


def pure_parts_use_the_standard_library_only(m: Module) -> list[str]:
    if not m.is_in("aerix/turn", "aerix/embed.py"):
        return []
    own = m.gets("aerix.turn", "aerix.embed")
    return [
        name for name in m.imports if name not in own and name.split(".")[0] not in sys.stdlib_module_names
    ]


def only_the_engine_uses_llama(m: Module) -> list[str]:
    return [] if m.is_in("pool/engine.py") else m.gets("llama_cpp", "llama_cpp_python")


def only_the_actor_uses_pykka(m: Module) -> list[str]:
    return [] if m.is_in("actors/actor.py") else m.gets("pykka")


def only_the_screen_uses_urwid(m: Module) -> list[str]:
    return [] if m.is_in("aerix/ui") else m.gets("urwid")


def only_lines_use_prompt_toolkit(m: Module) -> list[str]:
    return [] if m.path.startswith("aerix/lines") else m.gets("prompt_toolkit")


def only_profiles_use_pygit2(m: Module) -> list[str]:
    return [] if m.is_in("aerix/profiles") else m.gets("pygit2")


def nobody_uses_short_or_relative_names(m: Module) -> list[str]:
    return m.gets("actors", "pool", "hooks") + sorted(name for name in m.imports if name.startswith("."))


def only_actors_start_threads_and_processes(m: Module) -> list[str]:
    modules = ("multiprocessing", "queue", "concurrent", "asyncio", "_thread", "sched")
    calls = {
        "threading.Thread",
        "threading.Timer",
        "os.fork",
        "os.forkpty",
    }
    if m.is_in("pool/remote_worker.py", "pool/remote_http.py"):  # the loop of a child's only thread
        modules = tuple(name for name in modules if name != "asyncio")
    return [] if m.floor == "actors" else m.gets(*modules) + sorted(m.names & calls)


def what_only_linux_has_stands_in_one_file(m: Module) -> list[str]:
    calls = {"os.pidfd_open", "signal.pidfd_send_signal", "prctl", "os.waitid", "select.epoll"}
    found = {name for name in m.names if name in calls or name.endswith(".prctl")}
    return [] if m.is_in("actors/os_linux.py") else sorted(found)


Rule = Callable[[Module], list[str]]


def rule_id(value: object) -> str:
    return getattr(value, "__name__", "").replace("_", "-")


KEPT = [
    pytest.param(only_lower_floors, marks=pytest.mark.rule("rooms.floors")),
    pytest.param(hooks_and_pool_are_strangers, marks=pytest.mark.rule("rooms.strangers")),
    pytest.param(pure_parts_use_the_standard_library_only, marks=pytest.mark.rule("rooms.pure-parts")),
    pytest.param(only_the_engine_uses_llama, marks=pytest.mark.rule("rooms.llama-in-worker")),
    pytest.param(only_the_actor_uses_pykka, marks=pytest.mark.rule("rooms.one-user")),
    pytest.param(only_the_screen_uses_urwid, marks=pytest.mark.rule("rooms.one-user")),
    pytest.param(only_lines_use_prompt_toolkit, marks=pytest.mark.rule("rooms.one-user")),
    pytest.param(only_profiles_use_pygit2, marks=pytest.mark.rule("rooms.one-user")),
    pytest.param(nobody_uses_short_or_relative_names, marks=pytest.mark.rule("rooms.no-short-names")),
    pytest.param(only_actors_start_threads_and_processes, marks=pytest.mark.rule("actors.only-actors-run")),
    pytest.param(what_only_linux_has_stands_in_one_file, marks=pytest.mark.rule("rooms.linux-in-one-file")),
]

# Each rule with a source that breaks it, and the file where that would stand.
BROKEN: list[tuple[Rule, str, str]] = [
    (only_lower_floors, "actors/actor.py", "from aerix.pool import protocol"),
    (only_lower_floors, "pool/daemon.py", "def run():\n    from aerix.settings import load"),
    (only_lower_floors, "hooks/decision.py", "import aerix"),
    (hooks_and_pool_are_strangers, "hooks/handlers.py", "from aerix import pool"),
    (hooks_and_pool_are_strangers, "pool/client.py", "import aerix.hooks.events"),
    (pure_parts_use_the_standard_library_only, "aerix/turn/parse.py", "import jsonschema"),
    (pure_parts_use_the_standard_library_only, "aerix/embed.py", "from aerix.tools import runner"),
    (only_the_engine_uses_llama, "pool/sampling.py", "from llama_cpp import llama_decode"),
    (only_the_actor_uses_pykka, "actors/mailbox.py", "import pykka.messages"),
    (only_the_screen_uses_urwid, "aerix/lines.py", "import importlib\nimportlib.import_module('urwid')"),
    (only_lines_use_prompt_toolkit, "aerix/commands.py", "def help():\n    import prompt_toolkit.styles"),
    (only_profiles_use_pygit2, "aerix/session/undo.py", "import pygit2"),
    (nobody_uses_short_or_relative_names, "aerix/cli.py", "from pool import client"),
    (nobody_uses_short_or_relative_names, "aerix/cli.py", "from . import settings"),
    (
        only_actors_start_threads_and_processes,
        "pool/member.py",
        "import threading as t\nfrom threading import Thread",
    ),
    (only_actors_start_threads_and_processes, "aerix/tools/runner.py", "import os\nos.fork()"),
    (only_actors_start_threads_and_processes, "hooks/handlers.py", "from multiprocessing import get_context"),
    (what_only_linux_has_stands_in_one_file, "actors/process.py", "import os\nos.pidfd_open(1)"),
]


@pytest.fixture(scope="module")
def tree() -> list[Module]:
    files = [path for floor in FLOORS for path in below(ROOT / floor)]
    return [module(str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in files]


def below(folder: Path) -> Iterator[Path]:
    """The sources of a floor; the links inside aerix/ are the other floors, which are read where they are."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from below(path)
        elif path.suffix == ".py":
            yield path


@pytest.mark.parametrize("rule", KEPT, ids=rule_id)
def test_the_tree_keeps(rule: Rule, tree: list[Module]) -> None:
    assert {m.path: broken for m in tree if (broken := rule(m))} == {}


@pytest.mark.parametrize(("rule", "path", "source"), BROKEN, ids=rule_id)
def test_a_violation_is_seen(rule: Rule, path: str, source: str) -> None:
    assert rule(module(path, source))


# --- a rule over the whole tree -----------------------------------------------------------------------------------


def outside_the_worker(modules: list[Module]) -> set[str]:
    """Which modules import the engine, through others too, although the worker does not import them."""
    names = {m.name: m for m in modules}
    uses = {m.name: {name for name in names if name != m.name and m.gets(name)} for m in modules}
    used_by = {name: {m for m in uses if name in uses[m]} for name in names}
    return all_from("aerix.pool.engine", used_by) - all_from("aerix.pool.worker", uses)


def all_from(start: str, steps: dict[str, set[str]]) -> set[str]:
    seen, todo = {start}, [start]
    while todo:
        new = steps[todo.pop()] - seen
        seen |= new
        todo += new
    return seen


WORKER = [
    module("pool/engine.py", "import llama_cpp"),
    module("pool/scripted.py", "from aerix.pool.engine import load_vocabulary"),
    module("pool/worker.py", "from aerix.pool import engine, scripted"),
]


@pytest.mark.rule("rooms.llama-in-worker")
def test_only_the_worker_reaches_the_engine(tree: list[Module]) -> None:
    assert outside_the_worker(tree) == set()


def test_the_workers_own_parts_may_use_the_engine() -> None:
    assert outside_the_worker(WORKER) == set()


def test_a_way_to_the_engine_past_the_worker_is_seen() -> None:
    stray = module("pool/member.py", "def load():\n    from aerix.pool.scripted import steps")
    assert outside_the_worker([*WORKER, stray]) == {"aerix.pool.member"}


def test_every_floor_is_read(tree: list[Module]) -> None:
    assert set(FLOORS) == {m.floor for m in tree}


@pytest.mark.rule("rooms.links")
def test_the_links_inside_aerix_lead_to_the_other_floors() -> None:
    links = {path.name: str(path.readlink()) for path in (ROOT / "aerix").iterdir() if path.is_symlink()}
    assert {floor: f"../{floor}" for floor in ("actors", "hooks", "pool")} == links


# --- what a start costs -------------------------------------------------------------------------------------------

HEAVY = {
    "numpy",
    "llama_cpp",
    "llguidance",
    "jinja2",
    "jsonschema",
    "structlog",
    "httpx",
    "multiprocessing",
    "psutil",
    "prompt_toolkit",
}


@pytest.mark.rule("rooms.light-start")
def test_the_start_of_a_request_imports_nothing_heavy() -> None:
    code = "import sys, aerix.__main__, aerix.cli, aerix.headless; print(*{m.split('.')[0] for m in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert HEAVY & set(loaded) == set()
