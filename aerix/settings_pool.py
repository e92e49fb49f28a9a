"""What the settings say about the pool, as its client takes it."""

import os
from pathlib import Path
from typing import Any

from aerix import __version__, folders, regular
from aerix.actors import Refused
from aerix.bounds import SETTINGS_FILE, in_force
from aerix.pool.bounds import AUTOSTART, CONNECTIONS
from aerix.pool.client import PoolSettings
from aerix.pool.protocol import Sampling
from aerix.settings import Settings


def load_flags(settings: Settings, *refs: str) -> dict[str, Any]:
    """The flags that a model is loaded with, by its names. A template's file is read here: the pool gets its text.

    Raises Refused ``bad_template``.
    """
    flags = settings.models.of(*refs).flags()
    template = flags.get("template")
    if isinstance(template, str) and "/" in template:
        flags["template"] = _text_of(template)
    return flags


def sampling(settings: Settings, *refs: str) -> Sampling:
    """How a model's tokens are drawn, by its names."""
    drawn = settings.generation_of(*refs)
    return Sampling(drawn.temperature, drawn.top_p, drawn.min_p, drawn.seed)


def _text_of(name: str) -> str:
    path = folders.home(os.environ) / name[2:] if name.startswith("~/") else Path(name)
    try:
        if (text := regular.read(path, SETTINGS_FILE.count).decode()).strip():
            return text
        why = "it is empty"  # and would be as if there were none
    except FileNotFoundError:
        why = "there is no such file"
    except UnicodeDecodeError:
        why = "it is not UTF-8 text"
    except regular.NotRead as reason:
        why = str(reason)
    raise Refused("bad_template", f"the template {path}, which the settings name, cannot be read: {why}")


def pool_settings(settings: Settings, *refs: str) -> PoolSettings:
    """``refs`` name the model that a pool which has to be started loads at once, the first as the pool takes it; one
    with flags of its own is loaded when asked for.
    """
    loads = refs and not settings.models.of(*refs).flags()
    return PoolSettings(
        socket=settings.pool.socket,
        load=refs[:1] if loads else (),
        flags=settings.pool.flags,
        command=settings.pool.command,
        start_timeout_s=in_force(AUTOSTART, settings)[0],
        max_connections=int(in_force(CONNECTIONS, settings)[0]),
        release=__version__,
    )
