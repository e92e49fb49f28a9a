"""What every test stands on: a home of its own, no leftovers, the soak option, and the real model's file.

No test sees the caller's home, settings or variables, and none may leave a thread, process or descriptor behind.
"""

import fcntl
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
LINGER = 10.0  # seconds in which what a test has ended may still be on its way out
SERVER = "xllamacpp==2026.10.11549"  # a llama.cpp server that needs no compiler
SHARED_THREADS = {"clock"}  # one for all timers of a process, by design
TRACKED = ("socket:", "pipe:", "anon_inode:")  # descriptors that are somebody's connection, child or selector
_caller = dict(os.environ)
_base = Path()


# --- options and the environment of the whole run -----------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the heavy tests too")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker is started from here, when the caller's environment was left already."""
    node.workerinput["caller"] = _caller


def pytest_configure(config: pytest.Config) -> None:
    """Leave the caller's environment before any test module is imported."""
    global _base, _caller
    _caller = getattr(config, "workerinput", {}).get("caller", _caller)
    _base = new_home()
    enter(_base)
    # How long an example takes tells of the machine, not of the program.
    settings.register_profile("aerix", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("aerix")
    resource_tracker.ensure_running()  # spawn's helper lives as long as this process: no test's leftover


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--soak"):
        return
    heavy = [item for item in items if item.get_closest_marker("soak")]
    config.hook.pytest_deselected(items=heavy)
    items[:] = [item for item in items if item not in heavy]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What fixtures of a wider scope have started must be gone too."""
    left = wait_until_none(lambda: processes_of(_base, frozenset()))
    for pid, command in left.items():
        print(f"\nleft behind by a shared fixture: {pid} {command}")
        kill(pid)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    shutil.rmtree(_base, ignore_errors=True)


def new_home() -> Path:
    """Make a folder for one home; its path is short, because a socket's may have 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="ax-", dir="/tmp"))
    (folder / "run").mkdir(mode=0o700)
    (folder / "home").mkdir()
    (folder / "home/.gitconfig").write_text(
        "[user]\n\tname = A Tester\n\temail = tester@example.org\n[init]\n\tdefaultBranch = main\n[gc]\n\tauto = 0\n"
    )
    return folder


def enter(folder: Path) -> None:
    """Make it the home of this process and of those it starts; no setting of Aerix or git comes along."""
    for name in [name for name in os.environ if name.startswith(("AERIX_", "GIT_", "XDG_"))]:
        del os.environ[name]
    home = folder / "home"
    os.environ |= {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_STATE_HOME": str(home / ".local/state"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
    }


# --- every test: no leftovers, a home of its own ------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    """Fail a test that leaves a thread or a descriptor behind."""
    threads, descriptors = set(threading.enumerate()), tracked()
    yield
    alive = wait_until_none(lambda: unfinished(threads))
    close_kept()
    open_still = wait_until_none(lambda: unclosed(descriptors))
    assert not alive, f"threads were left behind: {sorted(alive.values())}"
    assert not open_still, f"descriptors were left open: {open_still}"


def close_kept() -> None:
    """What the runtime keeps for the next ask, by design, is no leftover; one that an ask did not give back is."""
    mailbox = sys.modules.get("aerix.actors.mailbox")
    while mailbox is not None and mailbox._idle:
        mailbox._idle.pop().close()


@pytest.fixture(autouse=True)
def own_home(no_leftovers: None) -> Iterator[Path]:
    """A home, and XDG folders, of this test's own; the environment is put back, and no process of it may be left."""
    before, kept, folder = running(), dict(os.environ), new_home()
    enter(folder)
    yield folder / "home"
    left = wait_until_none(lambda: processes_of(folder, before))
    for pid in left:
        kill(pid)
    os.environ.clear()
    os.environ |= kept
    shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"processes were left behind: {left}"


def wait_until_none(look: Callable[[], dict[int, str]]) -> dict[int, str]:
    """What is still there after the time to go. Most tests leave nothing, and then this looks once."""
    left, end = look(), monotonic() + LINGER
    while left and monotonic() < end:
        gc.collect()
        threading.Event().wait(0.01)
        left = look()
    return left


def unfinished(before: set[threading.Thread]) -> dict[int, str]:
    new = set(threading.enumerate()) - before
    return {id(thread): thread.name for thread in new if thread.name not in SHARED_THREADS}


def tracked() -> dict[int, str]:
    """The open descriptors of this process that belong to somebody."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            target = str(path.readlink())
            if target.startswith(TRACKED):
                found[int(path.name)] = target
    return found


def unclosed(before: dict[int, str]) -> dict[int, str]:
    return {fd: target for fd, target in tracked().items() if before.get(fd) != target}


def running() -> frozenset[int]:
    return frozenset(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def processes_of(folder: Path, before: frozenset[int]) -> dict[int, str]:
    """The processes that were given this home, however far they went away: a zombie is none."""
    found, mark = {}, bytes(folder)
    for pid in running() - before - {os.getpid()}:
        proc = Path(f"/proc/{pid}")
        with suppress(OSError):
            if mark in (proc / "environ").read_bytes():
                found[pid] = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return {pid: command for pid, command in found.items() if "resource_tracker" not in command}


def kill(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


# --- what tests ask for -------------------------------------------------------------------------------------------

Limit = Callable[[str, float], None]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Sets a row of the table of limits by its name, in this process and in all that it starts."""
    from aerix.bounds import every_row

    rows = {row.name: row for row in every_row()}
    return lambda name, value: monkeypatch.setenv(rows[name].variable, str(value))


@pytest.fixture
def runtime_dir(own_home: Path) -> Path:
    """A folder with a short path, for sockets; it is this test's $XDG_RUNTIME_DIR."""
    return own_home.parent / "run"


@pytest.fixture
def git_repo(tmp_path: Path) -> Path:
    """A scratch repository with one commit: a README.md and a small program."""
    repo = tmp_path / "repo"
    (repo / "src").mkdir(parents=True)
    (repo / "README.md").write_text("# Scratch\n\nA repository to work in.\n")
    (repo / "src/hello.py").write_text('def hello(name):\n    return f"hello {name}"\n')
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", *command], cwd=repo, check=True, stdin=subprocess.DEVNULL)
    return repo


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The real default model's file."""
    model = _caller.get("AERIX_TEST_MODEL")
    if model is None or not Path(model).is_file():
        pytest.fail(
            "This test needs the real model: run it with scripts/test, which fetches the file, or name one with"
            f" AERIX_TEST_MODEL ({model or 'not set'}).",
            pytrace=False,
        )
    return Path(model).resolve()


@pytest.fixture(scope="session")
def test_cache() -> Path:
    """Where tests keep what they fetch, from one run to the next."""
    cache = Path(_caller.get("XDG_CACHE_HOME") or Path(_caller["HOME"], ".cache")) / "aerix-test"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@pytest.fixture(scope="session")
def pip_environment() -> dict[str, str]:
    """The variables of whoever runs the tests: they may say where pip finds the package index."""
    return dict(_caller)


@pytest.fixture(scope="session")
def server_python(test_cache: Path) -> Path:
    """The Python of an environment with a real llama.cpp server: made once, and kept in the cache folder."""
    cache = test_cache
    folder = cache / f"{SERVER.replace('==', '-')}-{sys.version_info.major}.{sys.version_info.minor}"
    with (cache / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            make_environment(folder)
    return folder / "bin/python"


def make_environment(folder: Path) -> None:
    """Some seconds, and 127 MB."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], env=_caller, check=True)
    install = [
        folder / "bin/python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    done = subprocess.run([*install, SERVER], env=_caller, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{SERVER} cannot be installed here: {done.stderr.strip().rpartition(chr(10))[2]}")
    (folder / "ready").touch()
