"""Where settings come from, one layer after the other, and at which line of a file a setting stands."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aerix import folders, regular
from aerix.bounds import SETTINGS_FILE
from aerix.extensions import trust
from aerix.settings_schema import KEYS, KeyPath, dotted

PREFIX = "AERIX_"
BOUNDS = "AERIX_BOUND_"  # the loop bounds' own variables (aerix.actors.bounds)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with the settings: a stable code, and a sentence that says where, what, and what is allowed."""

    code: str
    message: str


class SettingsError(Exception):
    """The settings cannot be used. ``problems`` are all that were found; ``code`` is the first one's."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(problem.message for problem in problems))
        self.problems = problems

    @property
    def code(self) -> str:
        """The first problem's code."""
        return self.problems[0].code

    @property
    def message(self) -> str:
        """A sentence a line."""
        return str(self)


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings of one source. ``text`` is the TOML they stand in, ``trusted`` says whether the user vouches for it;
    ``why_not`` is why not.
    """

    source: str
    text: str
    data: Mapping[str, object]
    trusted: bool = True
    in_file: bool = True
    why_not: str = "this folder is not trusted"

    def where(self, path: KeyPath) -> str:
        """Where a setting stands, for a message: the source, and in a file the line where it can be found."""
        line = _line_of(self.text, path) if self.in_file else None
        return f"{self.source}, line {line}" if line else self.source


def project_folder(cwd: Path) -> Path:
    """The project of a working directory: the nearest folder above it that holds ``.git``, else itself."""
    return next((folder for folder in (cwd, *cwd.parents) if (folder / ".git").exists()), cwd)


def read_layers(
    cwd: Path, overrides: Sequence[str], settings_file: Path | None, env: Mapping[str, str]
) -> Iterator[Layer]:
    """Every layer in which something is set, the later ones over the earlier. Raises SettingsError."""
    project = project_folder(cwd)
    found = [
        _file(folders.config(env) / "settings.toml"),
        _file(folders.config(env) / "permissions.toml"),
        *(_vouched(layer, project, env) for layer in project_files(project)),
        _file(settings_file, must_exist=True) if settings_file else None,
    ]
    yield from (layer for layer in found if layer)
    for name in sorted(env):
        if name.startswith(PREFIX) and "__" in name and env[name] and not name.startswith(BOUNDS):
            path = tuple(name.removeprefix(PREFIX).lower().split("__"))
            yield _single(name, path, env[name])
    for override in overrides:
        yield _override(override)


def misspelt(env: Mapping[str, str]) -> list[str]:
    """A note for each variable that looks like a setting, but has one underscore where two are needed."""
    known = {"_".join(key.path).upper(): "__".join(key.path).upper() for key in KEYS}
    return [
        f"{name} is not a setting, and is not used; {PREFIX}{known[name.removeprefix(PREFIX)]} is."
        for name in sorted(env)
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) in known
    ]


def _file(path: Path, *, trusted: bool = True, must_exist: bool = False) -> Layer | None:
    try:
        raw = regular.read(path, SETTINGS_FILE.count)
    except FileNotFoundError:
        if not must_exist:
            return None
        raise SettingsError(Problem("unreadable", f"{path} cannot be read: there is no such file.")) from None
    except regular.NotRead as why:
        raise SettingsError(Problem("unreadable", f"{path} cannot be read: {why}.")) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingsError(Problem("bad_toml", f"{path} cannot be read: it is not UTF-8 text.")) from None
    data, wrong = _loads(text)
    if wrong:
        raise SettingsError(Problem("bad_toml", f"{path} is not TOML: {wrong}."))
    return Layer(str(path), text, data, trusted) if data else None


def project_files(project: Path) -> list[Layer]:
    """The settings files of a project, somebody else's until more is known of them. Raises SettingsError."""
    found = (_file(project / ".aerix" / name, trusted=False) for name in trust.SETTINGS)
    return [layer for layer in found if layer]


def _vouched(layer: Layer, project: Path, env: Mapping[str, str]) -> Layer:
    """A project's settings, trusted where the user trusts its folder, and they are what was trusted."""
    try:
        state = trust.state(trust.read(env), project, Path(layer.source).name, layer.text)
    except trust.StoreError:
        return replace(
            layer, why_not="the list of trusted folders is damaged (`aerix trust --list` says how)"
        )
    changed = "it has changed since this folder was trusted" if state == "changed" else layer.why_not
    return replace(layer, trusted=state == "trusted", why_not=changed)


def _override(text: str) -> Layer:
    """``key=value``. A model reference in the key may hold a ``=`` of its own: the first that leaves a key counts."""
    at = text.find("=")
    while at >= 0:
        path = _key_path(text[:at])
        if path:
            return _single(f"-c {text}", path, text[at + 1 :])
        at = text.find("=", at + 1)
    message = f"-c {text}: this is not key=value, such as -c generation.seed=1."
    raise SettingsError(Problem("bad_override", message))


def _single(source: str, path: KeyPath, text: str) -> Layer:
    """A layer of one setting, whose text is a TOML value; a bare word is a string."""
    value = text.strip()
    found, wrong = _loads(f"v = {value}")
    if not wrong and list(found) == ["v"]:
        data: object = found["v"]
    elif value[:1] in ('"', "'", "[", "{"):
        why = wrong or "it has more than one line"
        raise SettingsError(Problem("bad_override", f"{source}: {value} is not a TOML value: {why}."))
    else:
        data = value
    for part in reversed(path):
        data = {part: data}
    assert isinstance(data, dict)
    return Layer(source, f"{dotted(path)} = {value}", data, in_file=False)


def _key_path(text: str) -> KeyPath | None:
    """The path that a TOML key writes, or None where the text is no key."""
    found, wrong = _loads(f"{text} = 0")
    path = _only_path(found)
    return path if path and not wrong and "\n" not in text else None


def _only_path(found: object) -> KeyPath:
    """The path to the only leaf of a table; a list of one table, which ``[[x]]`` writes, counts as the table."""
    path: list[str] = []
    while isinstance(found, dict) and len(found) == 1:
        (name, found), *_ = found.items()
        found = found[0] if isinstance(found, list) and len(found) == 1 else found
        path.append(name)
    return tuple(path)


def _loads(text: str) -> tuple[dict[str, object], str]:
    """The data of a TOML text, and what is wrong with it."""
    import tomllib

    try:
        return tomllib.loads(text), ""
    except tomllib.TOMLDecodeError as wrong:
        return {}, str(wrong)
    except RecursionError:
        return {}, "it is nested too deep"


def _line_of(text: str, path: KeyPath) -> int | None:
    """The number of the line that sets a path or opens its table; found by its look, so not always."""
    return next((line for here, line in _lines(text) if here[: len(path)] == path), None)


@functools.lru_cache(maxsize=8)
def _lines(text: str) -> tuple[tuple[KeyPath, int], ...]:
    """The path of each line that looks like a key or a table's head."""
    table: KeyPath = ()
    found: list[tuple[KeyPath, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("["):
            table = _only_path(_loads(line)[0])
            found.append((table, number))
        elif "=" in line and (key := _key_path(line.partition("=")[0].strip())):
            found.append(((*table, *key), number))
    return tuple(found)
