"""Where Aerix keeps its files: the folders of the XDG base directory specification.

Written out here because ``platformdirs`` takes 17 ms to import, and every start of ``aerix -p`` would pay them. As the
specification says, a variable that is empty or no absolute path counts as not set.
"""

import os
from collections.abc import Mapping
from pathlib import Path


def home(env: Mapping[str, str] | None = None) -> Path:
    """The user's home folder."""
    variables = os.environ if env is None else env
    return Path(variables.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - HOME may be absent: the user database


def config(env: Mapping[str, str] | None = None) -> Path:
    """``$XDG_CONFIG_HOME/aerix``: what the user writes."""
    return _base("XDG_CONFIG_HOME", ".config", env) / "aerix"


def data(env: Mapping[str, str] | None = None) -> Path:
    """``$XDG_DATA_HOME/aerix``: what is kept: models and sessions."""
    return _base("XDG_DATA_HOME", ".local/share", env) / "aerix"


def state(env: Mapping[str, str] | None = None) -> Path:
    """``$XDG_STATE_HOME/aerix``: logs."""
    return _base("XDG_STATE_HOME", ".local/state", env) / "aerix"


def cache(env: Mapping[str, str] | None = None) -> Path:
    """``$XDG_CACHE_HOME/aerix``: what can be made again."""
    return _base("XDG_CACHE_HOME", ".cache", env) / "aerix"


def runtime(env: Mapping[str, str] | None = None) -> Path:
    """``$XDG_RUNTIME_DIR/aerix``, for sockets; the state folder where the system has no runtime folder."""
    variables = os.environ if env is None else env
    base = Path(variables.get("XDG_RUNTIME_DIR", ""))
    return base / "aerix" if base.is_absolute() and base.is_dir() else state(env)


def temporary(env: Mapping[str, str] | None = None) -> list[Path]:
    """The folders for files that nobody keeps: the system's two, and ``$TMPDIR``."""
    variables = os.environ if env is None else env
    named = Path(variables.get("TMPDIR", ""))
    return [Path("/tmp"), Path("/var/tmp"), *([named] if named.is_absolute() else [])]  # noqa: S108 - to be told, not used


def private(folder: Path) -> Path:
    """Make a folder that only this user can enter, and return it; one that is there and wider is narrowed.

    The state, data and runtime folders hold what was said and read. Raises OSError, also where the folder is
    somebody else's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def _base(variable: str, default: str, env: Mapping[str, str] | None) -> Path:
    variables = os.environ if env is None else env
    base = Path(variables.get(variable, ""))
    return base if base.is_absolute() else home(env) / default
