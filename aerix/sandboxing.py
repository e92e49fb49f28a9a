"""Whether commands run in a sandbox: what the settings want, whether bubblewrap works here, and what is in force.

bubblewrap is tried once: that it worked is kept in the cache folder, for this machine, since its start, in this container.
That it did not is tried again each time.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aerix import folders, regular
from aerix.actors import Refused
from aerix.bounds import SANDBOX_PROBE
from aerix.settings import Settings
from aerix.tools.protected import working_tree
from aerix.tools.sandbox import Sandbox

NO_SANDBOX = "no_sandbox"
"""The code of the refusal where a sandbox is asked for and there is none: settings to set right."""
_SOCKETS = (
    "XDG_RUNTIME_DIR",
    "SSH_AUTH_SOCK",
    "TMUX",
    "DBUS_SESSION_BUS_ADDRESS",
    "DOCKER_HOST",
    "VSCODE_IPC_HOOK_CLI",
)
_KEY = 1024  # bytes of the file that says where it worked


@dataclass(frozen=True, slots=True)
class InForce:
    """What holds for commands: their sandbox, or none, and the sentence that says so."""

    sandbox: Sandbox | None
    sentence: str


def sandbox_in_force(settings: Settings, cwd: Path, added: Iterable[Path] = ()) -> InForce:
    """What holds for the commands of a request in ``cwd``; ``added`` are more folders that they may write.

    Raises Refused ``no_sandbox`` where the settings ask for a sandbox and there is none.
    """
    wanted, network = settings.tools.sandbox, settings.tools.network
    bare = Sandbox(_program(), "/", network)
    why = "tools.sandbox is off" if wanted == "off" else why_not(bare)
    if not why:
        sandbox = _sandbox(bare.program, settings, cwd, added)
        return InForce(sandbox, _told(sandbox))
    if not network:
        raise Refused(
            NO_SANDBOX, f"tools.network = false needs the sandbox of commands, and there is none: {why}"
        )
    if wanted == "on":
        raise Refused(NO_SANDBOX, f'tools.sandbox = "on", but {why}; "auto" would do without a sandbox')
    return InForce(None, f"no sandbox: commands may do all that you may, because {why}")


def _told(sandbox: Sandbox) -> str:
    where = ", ".join((sandbox.tree, *sandbox.added))
    network = "use the network" if sandbox.network else "have no network"
    return f"sandbox: commands write in {where} and temporary folders only, do not see the usual places of secrets, and {network}"


def _program() -> str:
    """bubblewrap; what lies in the working directory is data, whatever PATH says."""
    found = shutil.which("bwrap") or ""
    return found if os.path.isabs(found) else ""  # noqa: PTH117 - of a text that may be empty


def _sandbox(program: str, settings: Settings, cwd: Path, added: Iterable[Path]) -> Sandbox:
    return Sandbox.around(
        program,
        working_tree(cwd),
        network=settings.tools.network,
        added=tuple(os.path.realpath(path) for path in added),
        hidden=tuple(os.path.realpath(path) for path in (str(settings.pool.socket), *_named_sockets())),
    )


def _named_sockets() -> Iterator[str]:
    """The folder of the user's sockets, and those that variables name: ``unix:path=/run/…``, ``/tmp/tmux-0/default,7,0``."""
    for name in _SOCKETS:
        path = os.environ.get(name, "").removeprefix("unix:path=").removeprefix("unix://").partition(",")[0]
        if os.path.isabs(path):  # noqa: PTH117 - of a text that may be empty
            yield path


def why_not(sandbox: Sandbox) -> str:
    """Why it does not work here; empty: it does."""
    if not sandbox.program:
        return "bubblewrap is not installed (the package bubblewrap has it)"
    memory, key = folders.cache() / "sandbox", _key(sandbox)
    with suppress(FileNotFoundError, regular.NotRead):
        if regular.read(memory, _KEY) == key:
            return ""
    if why := _probe(sandbox):
        return why
    with suppress(OSError):
        folders.private(memory.parent)
        memory.write_bytes(key)
    return ""


def _key(sandbox: Sandbox) -> bytes:
    """Where it worked: changes with the program, the machine's start, the container, the user, and what was tried."""
    status = Path(sandbox.program).stat()
    parts = [sandbox.program, status.st_dev, status.st_ino, status.st_mtime_ns, os.geteuid(), sandbox.network]
    for path in ("/proc/self/ns/mnt", "/proc/self/ns/user"):
        with suppress(OSError):
            parts.append(Path(path).readlink())
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    return " ".join(map(str, parts)).encode("utf-8", "surrogateescape")


def _probe(sandbox: Sandbox) -> str:
    """Why a program does not run in it; empty: one did."""
    import subprocess

    try:
        tried = sandbox.try_out(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except OSError as error:
        return f"bubblewrap does not work here: {(error.strerror or str(error)).lower()}"
    with tried:
        try:
            _, said = tried.communicate(timeout=SANDBOX_PROBE.value)
        except subprocess.TimeoutExpired:
            tried.kill()
            return f"bubblewrap does not work here: it did not end in {SANDBOX_PROBE.value:g} s"
    why = said.decode("utf-8", "replace").strip().rpartition("\n")[2].removeprefix("bwrap: ")
    return f"bubblewrap does not work here: {why or f'exit {tried.returncode}'}" if tried.returncode else ""
