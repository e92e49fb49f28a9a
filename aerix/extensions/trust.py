"""Which folders the user trusts, and in what state: the store of ``aerix trust``.

A folder is a project's, by its real path: neither a link to it nor a repository in it is the same. What is trusted of its
settings files is what they held when it was: whoever changes one of them later, a ``git pull`` or an agent, does not gain by
it until the folder is trusted again.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aerix import folders, regular
from aerix.bounds import SETTINGS_FILE

SETTINGS = ("settings.toml", "settings.local.toml")
"""The settings files of a project, in ``.aerix``."""
State = Literal["trusted", "changed", "unknown"]
Trusted = Mapping[str, Mapping[str, str]]
"""Each folder with the digests of its settings files, by their names."""


@dataclass(frozen=True, slots=True)
class StoreError(Exception):
    """The store cannot be used; ``message`` says why, and what to do."""

    message: str

    def __str__(self) -> str:
        return self.message


def store(env: Mapping[str, str] | None = None) -> Path:
    """The file."""
    return folders.config(env) / "trusted.json"


def read(env: Mapping[str, str] | None = None) -> Trusted:
    """What is in it. Raises StoreError where it is not what this writes."""
    path = store(env)
    try:
        found = json.loads(regular.read(path, SETTINGS_FILE.count))
    except FileNotFoundError:
        return {}
    except (regular.NotRead, ValueError, RecursionError) as why:
        raise StoreError(f"{path} cannot be read: {why}; remove it, and trust your folders again") from None
    if not isinstance(found, dict) or not all(isinstance(value, dict) for value in found.values()):
        raise StoreError(f"{path} is not a list of trusted folders; remove it, and trust your folders again")
    return found


def write(trusted: Trusted) -> None:
    """Replace it at once. Raises StoreError."""
    path = store()
    new = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        folders.private(path.parent)
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            json.dump(trusted, file, indent=1)
        new.replace(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}") from None


def key(project: Path) -> str:
    """The name of a project's folder in the store."""
    return os.path.realpath(project)


def state(trusted: Trusted, project: Path, name: str, text: str) -> State:
    """That of a settings file, which holds ``text`` now."""
    known = trusted.get(key(project))
    if known is None:
        return "unknown"
    return "trusted" if known.get(name) == digest(text) else "changed"


def digest(text: str) -> str:
    """What tells one content of a file from another."""
    import hashlib

    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
