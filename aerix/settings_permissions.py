"""Permissions in the settings: the rules of every layer, the flags that add to them, and those that the user gave for ever.

What a user allows for ever while working is kept in ``permissions.toml`` beside the user's settings, a file of Aerix's own:
nothing that somebody wrote by hand is written over. A lock beside it holds off every other Aerix that adds to it.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import ETIMEDOUT
from pathlib import Path

from aerix import folders, regular
from aerix.bounds import SETTINGS_FILE, SETTINGS_LOCK
from aerix.settings_layers import Problem, SettingsError
from aerix.settings_schema import toml

_LOOK_S = 0.005  # between two looks whether the lock is free: it is held for as long as a small file takes


def overrides(mode: str | None, allow: Sequence[str], deny: Sequence[str]) -> list[str]:
    """The settings that ``--mode``, ``--allow`` and ``--deny`` name, as ``-c`` takes them."""
    found = [] if mode is None else [f"permissions.mode={toml(mode)}"]
    return found + [
        f"permissions.{key}={_list(rules)}" for key, rules in (("allow", allow), ("deny", deny)) if rules
    ]


def _list(rules: Sequence[str]) -> str:
    return json.dumps(list(rules), ensure_ascii=False)


def _text(rule: str) -> str:
    """A rule as TOML writes it, whatever characters the name of a file has."""
    return json.dumps(rule, ensure_ascii=False).replace("\x7f", "\\u007f")


def added_folders(names: Iterable[str]) -> tuple[Path, ...]:
    """The folders of ``--add-dir``, with their links followed. Raises SettingsError for one that is not there."""
    return tuple(_folder(name) for name in names)


def _folder(name: str) -> Path:
    real = Path(os.path.realpath(name))
    if not real.is_dir():
        raise SettingsError(
            Problem("no_folder", f"--add-dir {name}: there is no such folder; name one that is there")
        )
    return real


def keep_rules(rules: Iterable[str]) -> str:
    """Allow calls for ever. Gives the sentence for the user: where the rules stand now, or why they could not be kept."""
    path = folders.config() / "permissions.toml"
    try:
        with _alone(path):
            _write(path, dict.fromkeys([*_kept(path), *rules]))
    except (OSError, ValueError, regular.NotRead) as error:
        why = getattr(error, "strerror", None) or error
        return f"it holds for this session only: {path} could not be written ({why})"
    return f"kept in {path}"


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No other Aerix adds to the file meanwhile. The lock's file stays: one that was removed would lock nobody out."""
    from aerix.actors.os_linux import lock

    beside = folders.private(path.parent) / f".{path.name}.lock"
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not lock(descriptor, SETTINGS_LOCK.value, _LOOK_S):
            raise TimeoutError(ETIMEDOUT, f"another aerix has held it for {SETTINGS_LOCK.value:g} s")
        yield
    finally:
        os.close(descriptor)


def _kept(path: Path) -> list[str]:
    """Raises ValueError for a file that is not as we write it: it is not ours to write over."""
    import tomllib

    try:
        found = tomllib.loads(regular.read(path, SETTINGS_FILE.count).decode())
    except FileNotFoundError:
        return []
    match found:
        case {"permissions": {"allow": [*rules], **more}, **others} if not (more or others):
            return [str(rule) for rule in rules]
    raise ValueError("it holds more than permissions.allow")


def _write(path: Path, rules: Iterable[str]) -> None:
    lines = "".join(f"  {_text(rule)},\n" for rule in rules)
    text = f"# Calls that were allowed for ever. Aerix writes this file; take out what is to be asked again.\n[permissions]\nallow = [\n{lines}]\n"
    data = text.encode()
    if len(data) > SETTINGS_FILE.count:
        raise ValueError(f"it would be over {SETTINGS_FILE.count:,} bytes")
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_bytes(data)
        new.chmod(0o600)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
