"""The settings of one run: read, checked, merged, and each value's source.

``load_settings`` is all a caller needs. ``settings_schema.py`` holds the table of settings, ``settings_layers.py``
where they come from, ``settings_check.py`` what is refused and why.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from aerix import folders
from aerix.permissions import Mode, Permissions
from aerix.settings_check import check, taken
from aerix.settings_layers import Problem, SettingsError, misspelt, read_layers
from aerix.settings_schema import KEYS, REF, KeyPath, dotted, find, schema, toml

__all__ = ["Problem", "Settings", "SettingsError", "load_settings", "schema"]

DEFAULT = "default"
_DRAWING = ("temperature", "top_p", "min_p", "seed")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """``[models."REF"]``: what one model is loaded with; None leaves it to the pool."""

    window: int | None = None
    cells: int | None = None
    gpu_layers: int | None = None
    kv_type: str | None = None
    threads: int | None = None
    batch: int | None = None
    template: str | None = None
    """A file, or the name of a template that Aerix brings."""
    thinking: int | None = None
    key_env: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None

    def flags(self) -> dict[str, object]:
        """The load flags of a ``MemberLoad``: what is set, but how tokens are drawn."""
        return {name: value for name, value in self._set().items() if name not in _DRAWING}

    def drawing(self) -> dict[str, Any]:
        """What is set of how tokens are drawn, by the names of ``Generation``."""
        return {name: value for name, value in self._set().items() if name in _DRAWING}

    def _set(self) -> dict[str, object]:
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


@dataclass(frozen=True, slots=True)
class Models:
    """``[models]``: which model plays which role, and the settings of single models by their reference."""

    main: str | None
    decision: str | None
    by_ref: Mapping[str, ModelSettings]

    def of(self, *refs: str) -> ModelSettings:
        """The settings of a model under the first of its names that has some; all unset where there are none."""
        return next((self.by_ref[ref] for ref in refs if ref in self.by_ref), ModelSettings())


@dataclass(frozen=True, slots=True)
class Pool:
    """``[pool]``. An empty ``command`` is this program's own pool."""

    command: tuple[str, ...]
    socket: Path
    flags: tuple[str, ...]
    max_connections: int
    start_timeout_secs: float


@dataclass(frozen=True, slots=True)
class Delegation:
    """``[delegation]``."""

    max_turns: int
    depth: int
    parallel: int
    retries: int
    planner: Literal["auto", "always", "never"]
    planner_tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolCaps:
    """``[context.tool_caps]``: bytes of a result, by tool."""

    read: int
    bash: int
    grep: int
    glob: int
    repo_map: int
    agent: int


@dataclass(frozen=True, slots=True)
class Context:
    """``[context]``: when it is compacted, tokens of a turn, and the caps of results."""

    soft_ratio: float
    target_ratio: float
    max_new_tokens: int
    tool_caps: ToolCaps


@dataclass(frozen=True, slots=True)
class Generation:
    """``[generation]``: how tokens are drawn."""

    temperature: float
    top_p: float
    min_p: float
    seed: int | None


@dataclass(frozen=True, slots=True)
class Tools:
    """``[tools]``: what commands run in, and whether they may use the network."""

    sandbox: Literal["on", "auto", "off"]
    network: bool


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting that has an effect, checked. ``notes`` are lines to show at start: what was not taken, and why."""

    models: Models
    pool: Pool
    delegation: Delegation
    context: Context
    generation: Generation
    tools: Tools
    permissions: Permissions
    notes: tuple[str, ...]
    values: Mapping[KeyPath, object]
    sources: Mapping[KeyPath, str]

    def generation_of(self, *refs: str) -> Generation:
        """How a model's tokens are drawn: its own settings come first, but after what the command line says of all."""
        said = {
            path[-1]
            for path, source in self.sources.items()
            if path[0] == "generation" and source.startswith("-c ")
        }
        own = self.models.of(*refs).drawing()
        return replace(self.generation, **{name: value for name, value in own.items() if name not in said})

    def source(self, key: str) -> str:
        """Where a setting's value comes from: a file, a variable, ``-c …``, or ``default``."""
        named = {dotted(path): source for path, source in self.sources.items()}
        return named.get(key, DEFAULT)

    def chosen(self, key: str) -> tuple[object, str] | None:
        """A setting's value and where it comes from; None where nobody set it."""
        source = self.source(key)
        return None if source == DEFAULT else (self.values[tuple(key.split("."))], source)

    def lines(self) -> list[str]:
        """``aerix settings show``: each value and its source."""
        paths = dict.fromkeys([*(key.path for key in KEYS if REF not in key.path), *self.values])
        return [self._line(path) for path in paths]

    def _line(self, path: KeyPath) -> str:
        key, value = find(path), self.values.get(path)
        shown = "not set" if value is None else toml(value)
        missing = f" ({key.missing})" if key and key.missing else ""
        return f"{dotted(path)} = {shown}  # {self.sources.get(path, DEFAULT)}{missing}"


def load_settings(
    cwd: Path,
    *,
    overrides: Sequence[str] = (),
    settings_file: Path | None = None,
    env: Mapping[str, str] | None = None,
    mode: Mode = "ask",
) -> Settings:
    """The settings of a run in ``cwd``. ``overrides`` are the ``key=value`` of ``-c``, ``settings_file`` is that of
    ``--settings``, ``env`` the environment, ``mode`` what ``permissions.mode`` is where nobody sets it. Raises
    SettingsError, exit code 3.
    """
    variables = os.environ if env is None else env
    layers = list(read_layers(cwd, overrides, settings_file, variables))
    check(layers, variables)
    values: dict[KeyPath, object] = {key.path: key.default for key in KEYS if REF not in key.path}
    values["permissions", "mode"] = mode
    sources: dict[KeyPath, str] = {}
    notes = misspelt(variables)
    for layer in layers:
        new, refused = taken(layer, values)
        values |= new
        sources |= {path: _source(path, sources, layer.source) for path in new}
        notes += refused
    return _typed(values, sources, tuple(notes), variables)


def _source(path: KeyPath, sources: Mapping[KeyPath, str], source: str) -> str:
    """Where a value comes from: one that was added to comes from several."""
    key, before = find(path), sources.get(path)
    return f"{before}, {source}" if before and key and key.appends else source


def _typed(
    values: dict[KeyPath, object], sources: dict[KeyPath, str], notes: tuple[str, ...], env: Mapping[str, str]
) -> Settings:
    socket = _socket(values["pool", "socket"], env)
    values["pool", "socket"] = str(socket)
    refs = dict.fromkeys(path[1] for path in values if len(path) == 3 and path[0] == "models")
    caps = _section(ToolCaps, values, "context", "tool_caps")
    return Settings(
        models=_section(Models, values, "models", by_ref={ref: _model(values, ref) for ref in refs}),
        pool=_section(Pool, values, "pool", socket=socket),
        delegation=_section(Delegation, values, "delegation"),
        context=_section(Context, values, "context", tool_caps=caps),
        generation=_section(Generation, values, "generation"),
        tools=_section(Tools, values, "tools"),
        permissions=_section(Permissions, values, "permissions", folders=(), granted=()),
        notes=notes,
        values=values,
        sources=sources,
    )


def _model(values: Mapping[KeyPath, object], ref: str) -> ModelSettings:
    defaults: dict[KeyPath, object] = {("models", ref, f.name): None for f in fields(ModelSettings)}
    return _section(ModelSettings, {**defaults, **values}, "models", ref)


def _section(section: type[_T], values: Mapping[KeyPath, object], *at: str, **given: object) -> _T:
    """A section's dataclass: each field has the value of the setting of its name."""
    names = [f.name for f in fields(section)]  # type: ignore[arg-type]
    plain: dict[str, Any] = {name: _plain((*at, name), values) for name in names if name not in given}
    return section(**plain, **given)


def _plain(path: KeyPath, values: Mapping[KeyPath, object]) -> object:
    """A value in the type that its dataclass names: TOML writes a list and ``5.0`` where a tuple and 5 are meant."""
    value, key = values[path], find(path)
    kind = key.schema["type"] if key else None
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, float) and kind == "integer":
        return int(value)
    return float(value) if isinstance(value, int) and kind == "number" else value


def _socket(path: object, env: Mapping[str, str]) -> Path:
    if not isinstance(path, str):
        return folders.runtime(env) / "pool.sock"
    return folders.home(env) / path[2:] if path.startswith("~/") else Path(path)
