"""The project of a folder: the repository around it, and the key under which its sessions are kept.

On the path to the first request: a few small files are read, and git is not started.
"""

import hashlib
import os
import re
from pathlib import Path

_SLUG = 48  # characters of a key that tell a person which project it is
_CONFIG = 1024 * 1024  # bytes read of a repository's settings
_SECTION = re.compile(r'\s*\[\s*([^\]"\s]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]')
_ESCAPE, _ESCAPED = re.compile(r"\\(.)"), r"\1"
_SCP = re.compile(r"^(?:[^@/:]+@)?(\[[^\]/]+\]|[^:/\[]+):(?!//)(.*)$")
_URL = re.compile(r"^([a-z][a-z0-9+.-]*)://(?:[^@/]*@)?([^/]*)(/.*)?$", re.IGNORECASE)
_PORTS = {"ssh": ":22", "https": ":443", "http": ":80", "git": ":9418"}


def project_key(cwd: Path) -> str:
    """A folder name for a project: a readable slug and a short hash.

    Two clones of one repository, and every folder in them, have one key, made from the origin's normalised address
    (never with its user or password). Without an origin it is made from the real path of the repository, else of
    ``cwd``.
    """
    root = repository_root(cwd)
    origin = _origin(root) if root is not None else None
    name = _normalised(origin, root) if origin and root is not None else os.path.realpath(root or cwd)
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-._")[-_SLUG:].strip("-._")
    return f"{slug or 'root'}-{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def repository_root(cwd: Path) -> Path | None:
    """The folder of the working tree around a folder, with its links resolved; None outside a repository."""
    real = Path(os.path.realpath(cwd))
    return next((folder for folder in (real, *real.parents) if _is_repository(folder / ".git")), None)


def _is_repository(marker: Path) -> bool:
    return marker.is_file() or (marker / "HEAD").is_file()


def _origin(root: Path) -> str | None:
    """The address of the remote ``origin`` in the repository's own settings, as it is written there."""
    try:
        config = _common(root / ".git") / "config"
        if not config.is_file():  # a pipe in its place would never be read to its end
            return None
        with config.open("rb") as file:
            return _remote_url(file.read(_CONFIG).decode("utf-8", "surrogateescape"), "origin")
    except OSError:
        return None


def _common(marker: Path) -> Path:
    """The folder with a repository's settings: of a worktree or a submodule it is elsewhere."""
    if not marker.is_file():
        return marker
    told = marker.read_text().removeprefix("gitdir:").strip()
    folder = marker.parent / told
    shared = folder / "commondir"
    return folder / shared.read_text().strip() if shared.is_file() else folder


def _remote_url(config: str, remote: str) -> str | None:
    section = ""
    for line in config.replace("\\\n", "").splitlines():
        header = _SECTION.match(line)
        if header:
            section = f"{header[1].lower()} {_ESCAPE.sub(_ESCAPED, header[2] or '')}"
        name, equals, value = line[header.end() if header else 0 :].partition("=")
        if section == f"remote {remote}" and equals and name.strip().lower() == "url":
            return _value(value)
    return None


def _value(text: str) -> str:
    """A value of git's settings: quotes and escapes taken off, a comment behind it too."""
    parts = re.findall(r'"((?:[^"\\]|\\.)*)"|((?:[^"\\;#]|\\.)+)|([;#].*)', text.strip())
    plain = "".join(quoted + bare for quoted, bare, _ in parts).strip()
    return _ESCAPE.sub(_ESCAPED, plain)


def _normalised(url: str, root: Path) -> str:
    """``host/path``, the same for every way to write an address of it; of a local one the real path."""
    if match := _URL.match(url):
        scheme, host, path = match[1].lower(), match[2].lower(), match[3] or ""
        if scheme == "file":
            return os.path.realpath(_bare(path))
        host = host.removesuffix(_PORTS.get(scheme.rpartition("+")[2], ""))
    elif match := _SCP.match(url):
        host, path = match[1].lower(), match[2]
    else:
        return os.path.realpath(root / _bare(url))
    return f"{host}/{_bare(path).strip('/')}"


def _bare(path: str) -> str:
    return path.rstrip("/").removesuffix(".git").rstrip("/")
