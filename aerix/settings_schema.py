"""Every setting: its type, its default, what it is for, whether its feature is built, and what tightens it.

This table is the source of the published JSON Schema, of ``docs/configuration.md`` (a test compares them) and of the
checks. It imports nothing heavy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Schema = dict[str, object]
KeyPath = tuple[str, ...]
REF = "REF"
"""Stands for a model reference in the name of a setting: ``models."REF".window``."""


@dataclass(frozen=True, slots=True)
class Key:
    """A setting. ``default`` None means: not set.

    ``missing`` says what is not built yet; such a key is refused wherever it is set. ``tighten`` says what the
    settings of a folder that is not trusted may do with it: nothing (``never``), or set it below the user's own value
    (``lower``; of choices, those that are listed first are the lowest; false is below true), or add to it (``adds``). It is
    absent where the feature is not built and what tightens is still to be decided with it.
    """

    path: KeyPath
    schema: Schema
    default: object
    text: str
    tighten: Literal["never", "lower", "adds"] | None = "never"
    missing: str = ""

    @property
    def appends(self) -> bool:
        """Whether a layer adds to what the earlier ones say: permission rules do."""
        return self.path[0] == "permissions" and self.schema["type"] == "array"


def _text(**more: object) -> Schema:
    return {"type": "string", "minLength": 1, **more}


def _count(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def _one_of(*choices: str) -> Schema:
    return {"type": "string", "enum": list(choices)}


_TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
TOOL_NAMES = "read write edit bash glob grep repo_map plan context agent skill".split()  # noqa: SIM905  # one line
_TOOLS: Schema = {"type": "array", "items": {"type": "string", "enum": TOOL_NAMES}}
_MANY = 1_000_000
_CAP = _count(256, 16 * 1024 * 1024)
_KV_TYPES = ("f32", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_SEED = _count(0, 2**32 - 1)
_TEMPERATURE, _TOP_P, _MIN_P = _number(0, 2), _number(0.01, 1), _number(0, 1)

_PROFILES = "profiles and tuning are not built yet"


def _key(
    name: str,
    schema: Schema,
    default: object,
    text: str,
    tighten: Literal["never", "lower", "adds"] | None = "never",
    missing: str = "",
) -> Key:
    return Key(tuple(name.split(".")), schema, default, text, tighten, missing)


KEYS: tuple[Key, ...] = (
    _key("models.main", _text(), None, "The model of every agent. Not set: one that is found, else the embedded one."),
    _key("models.decision", _text(), None, "The model that routes. Not set: the main one."),
    _key("models.REF.window", _count(256, 16_777_216), None, "Tokens of this model's window. Not set: the largest of 8k, 16k, 32k that it was trained for and that fits."),
    _key("models.REF.threads", _count(1, 4096), None, "Threads that this model computes with, at most."),
    _key("models.REF.cells", _count(256, 16_777_216), None, "Tokens for all of this model's contexts together. Not set: the window, and a quarter of it and 1k for each further generation of a batch, where they fit."),
    _key("models.REF.gpu_layers", _count(0, 10_000), None, "Layers of this model on the GPU. Not set: as many as fit."),
    _key("models.REF.kv_type", _one_of(*_KV_TYPES), None, "The type of the numbers in this model's KV cache. Not set: f16."),
    _key("models.REF.batch", _count(32, 65_536), None, "Tokens of one batch."),
    _key("models.REF.template", _text(), None, "A chat template in place of the model's own: a file (`/…`, `~/…`), or the name of one that Aerix brings."),
    _key("models.REF.thinking", _count(0, _MANY), None, "Tokens for thinking before a turn, for a model that thinks first; 0 switches it off."),
    _key("models.REF.key_env", _text(), None, "The variable that holds a server's key."),
    _key("models.REF.temperature", _TEMPERATURE, None, "As generation.temperature, for this model."),
    _key("models.REF.top_p", _TOP_P, None, "As generation.top_p, for this model."),
    _key("models.REF.min_p", _MIN_P, None, "As generation.min_p, for this model."),
    _key("models.REF.seed", _SEED, None, "As generation.seed, for this model."),
    _key("pool.command", _TEXTS, (), "The program, with its arguments, that has `pool` as a command. Empty: this one."),
    _key("pool.socket", _text(pattern="^(/|~/)"), None,
         "The pool's socket. Not set: `$XDG_RUNTIME_DIR/aerix/pool.sock`, else under `$XDG_STATE_HOME`."),
    _key("pool.flags", _TEXTS, (), "More flags for a pool that Aerix starts."),
    _key("pool.max_connections", _count(1, 64), 4, "Generations at once.", "lower"),
    _key("pool.start_timeout_secs", _number(1, 86_400), 900,
         "Seconds for a pool to start and a model to load, its download included."),
    _key("delegation.max_turns", _count(1, 10_000), 40, "Turns of one agent.", "lower"),
    _key("delegation.depth", _count(0, 10), 3, "How deep agents may delegate; 0: not at all.", "lower"),
    _key("delegation.parallel", _count(1, 64), 4, "Pieces of one turn at once; the others wait in order.", "lower"),
    _key("delegation.retries", _count(0, 10), 2, "Tries after a piece's verification failed.", "lower"),
    _key("delegation.planner", _one_of("auto", "always", "never"), "auto",
         "Whether the root agent of an `edit` or a `plan` only plans and delegates; auto: where the window is 16k or more."),
    _key("delegation.planner_tools", _TOOLS, ("repo_map", "agent", "plan", "context"), "The tools of a planner."),
    _key("context.soft_ratio", _number(0.1, 0.95), 0.70, "The share of the window over which a context is compacted."),
    _key("context.target_ratio", _number(0.05, 0.9), 0.50, "The share of the window to compact down to."),
    _key("context.max_new_tokens", _count(1, _MANY), 4096, "Tokens of one turn; never over a quarter of the window.",
         "lower"),
    _key("context.skills_chars", _count(0, _MANY), 4000, "Characters of the list of skills.", "lower",
         "skills are not built yet"),
    _key("context.tool_caps.read", _CAP, 16_384, "Bytes of a result of read.", "lower"),
    _key("context.tool_caps.bash", _CAP, 16_384, "Bytes of a result of bash.", "lower"),
    _key("context.tool_caps.grep", _CAP, 8192, "Bytes of a result of grep.", "lower"),
    _key("context.tool_caps.glob", _CAP, 8192, "Bytes of a result of glob.", "lower"),
    _key("context.tool_caps.repo_map", _CAP, 8192, "Bytes of a result of repo_map.", "lower"),
    _key("context.tool_caps.agent", _CAP, 8192, "Bytes of a result of agent.", "lower"),
    _key("context.tool_caps.skill", _CAP, 32_768, "Bytes of a result of skill.", "lower", "skills are not built yet"),
    _key("generation.temperature", _TEMPERATURE, 0.2, "How freely a token is drawn; 0 takes the likeliest."),
    _key("generation.top_p", _TOP_P, 0.95, "Only the likeliest tokens that sum up to this share are drawn from."),
    _key("generation.min_p", _MIN_P, 0.05, "Only tokens of at least this share of the likeliest are drawn from."),
    _key("generation.seed", _SEED, None, "The seed of the draws. Not set: another each time."),
    _key("permissions.mode", _one_of("ask", "auto-edit", "auto"), None,
         "Which calls are asked about (docs/permissions.md). Not set: ask; `-p`: auto.", "lower"),
    _key("permissions.allow", _TEXTS, (), "Rules for calls that run without a question."),
    _key("permissions.ask", _TEXTS, (), "Rules for calls that are asked about.", "adds"),
    _key("permissions.deny", _TEXTS, (), "Rules for calls that are refused.", "adds"),
    _key("tools.sandbox", _one_of("on", "auto", "off"), "auto",
         "Whether commands run in a sandbox (docs/permissions.md); auto: where bubblewrap is installed and works.", "lower"),
    _key("tools.network", {"type": "boolean"}, True, "Whether commands in the sandbox may use the network.", "lower"),
    _key("tune.member", _text(), "main", "The model that reflects on sessions.", missing=_PROFILES),
    _key("tune.sessions", _count(1, 10_000), 20, "Sessions that tuning reads.", missing=_PROFILES),
)  # fmt: skip

_BY_PATH = {key.path: key for key in KEYS}
_TABLES = {key.path[:n] for key in KEYS for n in range(1, len(key.path))}


def find(path: KeyPath) -> Key | None:
    """The setting at a path, a model's own included."""
    return _BY_PATH.get(_general(path))


def is_table(path: KeyPath) -> bool:
    """Whether settings stand below this path."""
    return _general(path) in _TABLES


def _general(path: KeyPath) -> KeyPath:
    """A path with REF in place of a model reference; ``models.main`` and ``models.decision`` are no references."""
    if len(path) < 2 or path[0] != "models" or path[:2] in _BY_PATH:
        return path
    return ("models", REF, *path[2:])


def tables() -> list[KeyPath]:
    """Every table that has a name of its own."""
    return sorted(path for path in _TABLES if REF not in path)


def schema() -> Schema:
    """The published JSON Schema (``aerix settings schema``)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of Aerix",
        **_table_schema(()),
    }


def _table_schema(at: KeyPath) -> Schema:
    inside = dict.fromkeys(key.path[len(at)] for key in KEYS if key.path[: len(at)] == at)
    properties: dict[str, object] = {name: _schema_at((*at, name)) for name in inside}
    others = properties.pop(REF, False)
    return {"type": "object", "properties": properties, "additionalProperties": others}


def _schema_at(path: KeyPath) -> Schema:
    key = _BY_PATH.get(path)
    if key is None:
        return _table_schema(path)
    more: Schema = {"description": f"{key.text} ({_upper(key.missing)}.)" if key.missing else key.text}
    if key.default is not None:
        more["default"] = list(key.default) if isinstance(key.default, tuple) else key.default
    return {**key.schema, **more}


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def allowed(schema: Mapping[str, object]) -> str:
    """What a value may be, as the end of "must be …"."""
    choices = schema.get("enum")
    if isinstance(choices, list):
        return "one of " + ", ".join(toml(c) for c in choices)
    if "pattern" in schema:
        return "a path that begins with / or ~/"
    if isinstance(inside := schema.get("items"), dict) and isinstance(inside.get("enum"), list):
        return "a list of " + ", ".join(inside["enum"])
    names = {"string": "a text that is not empty", "boolean": "true or false", "array": "a list of texts"}
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return f"{'an integer' if kind == 'integer' else 'a number'} from {schema['minimum']} to {schema['maximum']}"
    return names.get(str(kind), "a table")


def dotted(path: KeyPath) -> str:
    """A path as TOML writes it: ``models."hf:org/repo".window``."""
    return ".".join(part if part.replace("_", "").replace("-", "").isalnum() and part.isascii() else toml(part)
                    for part in path)  # fmt: skip


def toml(value: object) -> str:
    """A value as TOML writes it, near enough for a message."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return "{…}" if isinstance(value, dict) else str(value)
