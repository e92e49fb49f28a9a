"""The sandbox of commands: bubblewrap, so that they write in the working tree and temporary folders only, see no secrets,
and use the network only where they may.

The file system is read-only. Over it comes, in this order, what may be written; what of that may not (git's hooks and
settings, Aerix's own: others run later what stands there); and nothing at all in place of secrets, and of sockets behind
which another program does what it is told. A command gains no privileges, and has no rights over processes outside but to
signal its user's; it keeps its process ids, so that the next one can end what it leaves running. bubblewrap's ``--die-with-parent`` is not used: it would kill a command that is
told to end before it could clean up, and the runner's end ends all of it as without a sandbox.
"""

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from glob import escape, glob
from itertools import chain, islice
from pathlib import Path
from typing import Any

from aerix import folders
from aerix.bounds import SANDBOX_LOOK
from aerix.tools.gitfolders import git_folder
from aerix.tools.mapped import start_mapped
from aerix.tools.secrets import is_secret_name, secret_places

_DEVICES = ("/dev/dri", "/dev/kfd", "/dev/nvidia*")
_SOCKETS = (
    "/run/user", "/run/docker.sock", "/run/podman", "/run/containerd", "/run/crio", "/run/dbus", "/run/systemd/private",
    "/run/libvirt", "/run/screen", "/run/tmux", "/run/incus", "/var/lib/lxd", "/var/lib/incus", "/var/snap/lxd/common/lxd",
)  # fmt: skip
_TEMPORARY_SOCKETS = ("tmux-*", "ssh-*", "screen*", "emacs*", "vscode-ipc-*", ".X11-unix", ".ICE-unix")
_COMMON = "commondir"
"""The file that has git read hooks and settings in another folder; one stands in the git folder of each worktree."""
_GITS_OWN = ("hooks", "config", "config.worktree", _COMMON)
_PROJECTS_OWN = (".aerix", ".claude/settings.json", ".claude/settings.local.json")
_WRITE_STOPPED = (b"Read-only file system", b"EROFS", b"Device or resource busy")
_NET_STOPPED = (
    b"Network is unreachable", b"name resolution", b"Could not resolve host", b"EAI_AGAIN", b"ENETUNREACH",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What a sandbox lets through. Paths are absolute, with links resolved."""

    program: str
    """bubblewrap's."""
    tree: str
    """The working tree."""
    network: bool = True
    added: tuple[str, ...] = ()
    """More folders that may be written."""
    hidden: tuple[str, ...] = ()
    """More that is not to be seen."""
    git: str = ""
    """The git folder of the tree, which may lie elsewhere."""
    kept: tuple[str, ...] = ()
    """What of all this may not be written. As it was before the first command: no command can put a link in its place."""

    @classmethod
    def around(cls, program: str, tree: str, **more: Any) -> "Sandbox":
        """The sandbox around a tree, for commands that are still to come; ``more`` are its other fields."""
        git, own = (
            git_folder(Path(tree)),
            [folders.config(), folders.data(), folders.state(), folders.cache()],
        )
        new = [git / "hooks", *own] if git else own
        for folder in new:  # what is not there cannot be bound over; an empty folder does no harm
            if folder.parent == git or any(
                folder.is_relative_to(root) for root in (tree, *more.get("added", ()))
            ):
                with suppress(OSError):
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        gits = (
            [path for name in _GITS_OWN for path in (git / name, *git.glob(f"worktrees/*/{name}"))]
            if git
            else []
        )
        kept = _there([*gits, *(Path(tree, name) for name in _PROJECTS_OWN), *own])
        return cls(program, tree, git=str(git or ""), kept=tuple(kept), **more)

    def plain(self) -> dict[str, Any]:
        """As arguments of a child process."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any] | None) -> "Sandbox | None":
        """From such arguments."""
        if plain is None:
            return None
        lists = {name: tuple(plain[name]) for name in ("added", "hidden", "kept")}
        return cls(**plain | lists)

    def start(self, words: list[str], cwd: Path, **options: Any) -> "subprocess.Popen[bytes]":
        """Start ``words`` in it, in the folder ``cwd``; ``options`` are those of ``Popen``. Raises OSError."""
        writable, kept = self._writable(), _there(self.kept)
        over = [
            *_each("--dev-bind", _there(chain.from_iterable(map(glob, _DEVICES)))),
            *_each("--bind", writable),
            *_each("--bind", sorted(_between(writable, kept))),
            *_each("--ro-bind", kept),
            *chain.from_iterable(map(_hide, _outermost(list(self._hidden())))),
            "--chdir",
            str(cwd),
        ]
        return self._started([*over, "--", *words], cwd=cwd, **options)

    def sweep(self) -> None:
        """After a command: what it made in the git folder so that others would run it goes. What is not there cannot be
        bound over, and an empty one would be an error to git.
        """
        common = f"{self.git}/{_COMMON}"
        if self.git and common not in self.kept:
            with suppress(OSError):
                os.unlink(common)  # noqa: PTH108 - a text

    def try_out(self, **options: Any) -> "subprocess.Popen[bytes]":
        """Start a program that does nothing in a sandbox that lets nothing through; as ``start``."""
        return self._started(["--", "true"], **options)

    def _started(self, more: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        network = [] if self.network else ["--unshare-net"]
        words = [*network, "--ro-bind", "/", "/", "--dev", "/dev", *more]
        if os.geteuid() == 0:
            return start_mapped(self.program, words, **options)
        return subprocess.Popen([self.program, "--unshare-user", *words], **options)

    def remark(self, output: bytes) -> str:
        """The line for a command that failed in it, where its output tells that the sandbox stopped it; else nothing."""
        if output.startswith(b"bwrap: "):
            return (
                "[sandbox: it does not start, so the command did not run; tools.sandbox=off does without it]"
            )
        if any(word in output for word in _WRITE_STOPPED):
            where = f"commands write only in {self.tree} and in temporary folders"
            return f"[sandbox: {where}; --add-dir DIR adds a folder, tools.sandbox=off ends the sandbox]"
        if not self.network and any(word in output for word in _NET_STOPPED):
            return "[sandbox: the network is cut off; tools.network=true opens it]"
        return ""

    # --- what it makes of the file system

    def _writable(self) -> list[str]:
        return _there([*folders.temporary(), self.tree, *self.added, *filter(None, [self.git])])

    def _hidden(self) -> Iterator[str]:
        sockets = [
            *_SOCKETS,
            *(f"{escape(str(t))}/{name}" for t in folders.temporary() for name in _TEMPORARY_SOCKETS),
        ]
        places = chain.from_iterable(map(glob, [*secret_places(folders.home()), *sockets]))
        kept = [Path(path) for path in self._writable()]
        for path in _there([*places, *self.hidden, *_secrets((self.tree, *self.added))]):
            if not any(folder.is_relative_to(path) for folder in kept):
                yield path


@lru_cache(maxsize=1)
def _secrets(roots: tuple[str, ...]) -> tuple[str, ...]:
    """Those in these folders. Looked for once in a runner's life: it takes as long as a command."""
    return tuple(
        path for path in islice(_files(roots), SANDBOX_LOOK.count) if is_secret_name(path.rpartition("/")[2])
    )


def _files(roots: Iterable[str]) -> Iterator[str]:
    from aerix.tools.gitfiles import SKIPPED  # runs git: the start of a request needs none of it

    for root in roots:
        for folder, inside, names in os.walk(root):
            yield from (f"{folder}/{name}" for name in names)
            inside[:] = [name for name in inside if name not in SKIPPED]


def _between(roots: list[str], paths: list[str]) -> set[str]:
    """The folders between a root and a path in it. Bound to their places, they cannot be moved away with what they hold."""
    return {
        str(folder)
        for path in paths
        for folder in Path(path).parents
        if str(folder) not in roots and any(folder.is_relative_to(root) for root in roots)
    }


def _outermost(paths: list[str]) -> Iterator[str]:
    """Those that lie in no other: in a folder that is hidden there is no place to hide something."""
    known = set(paths)
    return (path for path in paths if known.isdisjoint(map(str, Path(path).parents)))


def _there(paths: Iterable[str | Path]) -> list[str]:
    """Those that are there, links resolved, each once: bubblewrap would make what it is to bind over, in the real place."""
    return [path for path in dict.fromkeys(map(os.path.realpath, paths)) if os.path.lexists(path)]


def _each(option: str, paths: Iterable[str]) -> Iterator[str]:
    return chain.from_iterable((option, path, path) for path in paths)


def _hide(path: str) -> tuple[str, ...]:
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises where it may not look
        return ("--perms", "0500", "--tmpfs", path, "--remount-ro", path)
    return ("--ro-bind", os.devnull, path)
