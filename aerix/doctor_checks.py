"""The checks of ``aerix doctor``, in their order, and those that look at this machine alone; ``doctor_pool`` has the others."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aerix import __version__, doctor_pool, folders
from aerix.actors import Actor, Refused
from aerix.bounds import DOCTOR_GENERATION, DOCTOR_LOOK, DOCTOR_POOL
from aerix.doctor import Check, Finding, Looked
from aerix.pool.remote import Address
from aerix.shown import one_line

if TYPE_CHECKING:
    from aerix.settings import Settings

_PROBE = 64 * 1024  # bytes that are written to see whether a folder takes them
_LOW = 200 * 1000 * 1000  # bytes of a file system that are soon used up
_NARROW = 60  # columns
_BLOCK = 1 << 20


def version(_actor: Actor, _looked: Looked) -> Finding:
    """Which Aerix this is, and what it runs on."""
    from platform import python_version, release

    return Finding("ok", f"{__version__}, on Python {python_version()} and Linux {release()}")


# --- settings and folders


def settings(_actor: Actor, looked: Looked) -> Finding:
    """What is set where; what was not taken."""
    from aerix.settings import SettingsError, load_settings

    try:
        looked.settings = found = load_settings(
            looked.cwd, overrides=looked.overrides, settings_file=looked.settings_file, env=os.environ
        )
    except SettingsError as error:
        return Finding("bad", error.message.replace("\n", " "), "set that right")
    sources = list(found.sources.values())
    told = ", ".join(f"{source} ({sources.count(source)})" for source in dict.fromkeys(sources))
    if found.notes:
        return Finding("warn", f"{told or 'the defaults'}. Not taken: {' '.join(found.notes)}")
    return Finding("ok", told or "nothing is set: the defaults are in force")


def trust(_actor: Actor, looked: Looked) -> Finding:
    """Whether what this folder brings is taken."""
    from aerix.extensions import trust as store
    from aerix.settings import SettingsError
    from aerix.settings_layers import project_files, project_folder

    project = project_folder(looked.cwd)
    name = one_line(str(project))
    try:
        trusted = store.read()
        texts = {Path(layer.source).name: layer.text for layer in project_files(project)}
    except (store.StoreError, SettingsError) as error:
        return Finding("bad", one_line(str(error)))
    states = {file: store.state(trusted, project, file, text) for file, text in texts.items()}
    ask = "`aerix trust` shows what they would do"
    if changed := [file for file, state in states.items() if state == "changed"]:
        return Finding("warn", f"{name} was trusted, and since then {', '.join(changed)} has changed", ask)
    if store.key(project) in trusted:
        return Finding("ok", f"{name} is trusted")
    if states:
        return Finding("warn", f"{name} is not trusted: its settings may only tighten yours", ask)
    return Finding("ok", f"{name} is not trusted, and has no settings of its own")


def storage(_actor: Actor, _looked: Looked) -> Finding:
    """Whether sessions, logs and caches can be written."""
    places = {
        "XDG_DATA_HOME": folders.data(),
        "XDG_STATE_HOME": folders.state(),
        "XDG_CACHE_HOME": folders.cache(),
    }
    for variable, folder in places.items():
        try:
            _write(folders.private(folder))
        except OSError as error:
            return Finding(
                "bad",
                f"{folder} cannot be written: {error.strerror}",
                f"free space there, or set {variable} to another folder",
            )
    low = [folder for folder in places.values() if shutil.disk_usage(folder).free < _LOW]
    if low:
        return Finding("warn", f"{low[0]} has less than {_LOW // 10**6} MB left", "free space there")
    return Finding("ok", f"{', '.join(map(str, places.values()))} can be written")


def _write(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\0" * _PROBE)
        file.flush()
        os.fsync(file.fileno())


def git(_actor: Actor, looked: Looked) -> Finding:
    """Whether there is git, and a snapshot of this folder can be taken."""
    from time import monotonic

    from aerix.git import GitError
    from aerix.git import git as run
    from aerix.session.project import repository_root
    from aerix.session.snapshot import take

    try:
        name = os.fsdecode(run(["--version"], looked.cwd).out).strip().replace("git version", "git")
        root = repository_root(looked.cwd)
        if root is None:
            found = f"{name}; {looked.cwd} is in no repository: requests end without a diff"
            return Finding("warn", found, "`git init` makes it one")
        begun = monotonic()
        with tempfile.TemporaryDirectory() as store:
            take(looked.cwd, Path(store))
        took = monotonic() - begun
    except GitError as error:
        do = "install git: requests end without a diff" if error.code == "git_missing" else ""
        return Finding("bad", error.message, do)
    return Finding(
        "ok",
        f"{name}, repository {root}, a snapshot took {took:.2f} s",
        figures={"snapshot_s": round(took, 3)},
    )


def permissions(_actor: Actor, looked: Looked) -> Finding:
    """Which calls run without a question."""
    assert looked.settings is not None
    said = looked.settings.permissions
    mode = said.mode if looked.settings.chosen("permissions.mode") else "ask, and auto with -p"
    rules = f"{len(said.allow)} rules allow, {len(said.ask)} ask, {len(said.deny)} deny"
    return Finding("ok", f"mode {mode}; {rules}; secrets and what lies outside the working tree need a rule")


def sandbox(_actor: Actor, looked: Looked) -> Finding:
    """What commands may do."""
    from aerix.sandboxing import sandbox_in_force

    assert looked.settings is not None
    in_force = sandbox_in_force(looked.settings, looked.cwd)
    return Finding("warn" if in_force.sandbox is None else "ok", in_force.sentence.removeprefix("sandbox: "))


# --- the model


def model(_actor: Actor, looked: Looked) -> Finding:
    """Which model it is, where its file is, and whether that is what it should be."""
    from aerix.pool.fit import size
    from aerix.pool.models import CATALOGUE, DEFAULT_MODEL, resolve

    assert looked.settings is not None
    found = resolve(looked.settings.models.main or DEFAULT_MODEL)
    if not found.present:
        return Finding("bad", f"{found.name} is not fetched", f"aerix models pull {found.name}")
    if found.kind == "remote":
        looked.model = found
        return Finding("ok", f"{found.name}: what it is, its server says")
    told = f"{found.name}{'' if found.name.endswith(str(found.path)) else f' in {found.path}'}, {size(found.size)}"
    if found.name in CATALOGUE:
        if _sha256(found.path) != CATALOGUE[found.name].sha256:
            again = f"`aerix models rm {found.name}`, then `aerix models pull {found.name}`"
            return Finding("bad", f"{told}; its hash is not the one that it should have", again)
        told += ", its hash is right"
    looked.model = found
    small = ". It is small: it shows the machinery, not the skill of a large model" if found.small else ""
    return Finding("ok", told + small, figures={"bytes": found.size})


def _sha256(path: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def memory(_actor: Actor, looked: Looked) -> Finding:
    """Whether the model fits, with its settings."""
    from aerix.pool.fit import is_known, memory_limit, plan, size
    from aerix.pool.gpu import free_on_gpus
    from aerix.pool.header import read_header
    from aerix.pool.workerargs import WorkerArgs
    from aerix.settings_pool import load_flags

    found = looked.model
    assert looked.settings is not None
    assert found is not None
    limit = memory_limit()
    if found.kind != "gguf":
        return Finding("ok", f"{found.name} takes none here; {size(limit)} may be used")
    header = read_header(found.path)
    if not is_known(header):
        return Finding("warn", "the file does not tell what it takes: it is only ever loaded alone")
    flags = load_flags(looked.settings, found.name, looked.settings.models.main or found.name)
    fits = plan("it", header, found.size, WorkerArgs(str(found.path), **flags), limit, free_on_gpus())
    told = (
        f"{size(fits.total)} of the {size(limit)} that may be used, with a window of {fits.window:,} tokens"
    )
    return Finding("ok", told, figures={"needs": fits.total, "limit": limit, "window": fits.window})


# --- around it


def hosts(_actor: Actor, looked: Looked) -> Finding:
    """Whom Aerix may contact, with these settings."""
    assert looked.settings is not None
    found = list(dict.fromkeys(_hosts(looked.settings)))
    return Finding("ok", "; ".join(found) or "nobody is contacted", figures={"hosts": found})


def _hosts(settings: "Settings") -> Iterator[str]:
    from aerix.pool.models import DEFAULT_MODEL, CatalogueRef, HubRef, parse_reference

    for ref in filter(None, (settings.models.main or DEFAULT_MODEL, settings.models.decision)):
        match parse_reference(ref):
            case HubRef() if not _is_here(ref):
                hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").netloc
                yield f"{hub} and where it redirects to, once, for the file of {ref}"
            case CatalogueRef() if not _is_here(ref):
                yield f"the package index that pip knows, once, for the file of {ref}"
            case Address():
                yield f"{urlsplit(ref).netloc}, the server of {ref}"


def _is_here(ref: str) -> bool:
    from aerix.pool.models import resolve

    with suppress(Refused):
        return resolve(ref).present
    return True  # and what is wrong with it, another check says


def terminal(_actor: Actor, _looked: Looked) -> Finding:
    """What can be shown here."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    if encoding != "utf8":
        return Finding(
            "warn", f"text is written as {encoding or 'nothing'}, not as UTF-8", "set LC_ALL=C.UTF-8"
        )
    if not sys.stdout.isatty():
        return Finding("ok", "UTF-8; standard output is no terminal")
    width, kind = shutil.get_terminal_size().columns, os.environ.get("TERM", "")
    if kind in ("", "dumb"):
        return Finding(
            "warn", f"UTF-8, {width} columns, but TERM is {kind or 'not set'}", "set TERM to what it is"
        )
    found = f"UTF-8, {width} columns, {_colours(kind)}"
    if width < _NARROW:
        return Finding("warn", found, f"{_NARROW} columns or more are easier to read")
    return Finding("ok", found, figures={"columns": width})


def _colours(kind: str) -> str:
    if os.environ.get("NO_COLOR"):
        return "no colours, because NO_COLOR is set"
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        return "true colours"
    return "256 colours" if "256" in kind else "16 colours"


CHECKS = (
    Check("aerix", version, DOCTOR_LOOK),
    Check("settings", settings, DOCTOR_LOOK),
    Check("trust", trust, DOCTOR_LOOK),
    Check("permissions", permissions, DOCTOR_LOOK, "settings"),
    Check("sandbox", sandbox, DOCTOR_LOOK, "settings"),
    Check("git", git, DOCTOR_LOOK),
    Check("folders", storage, DOCTOR_LOOK),
    Check("hosts", hosts, DOCTOR_LOOK, "settings"),
    Check("terminal", terminal, DOCTOR_LOOK),
    Check("model", model, DOCTOR_LOOK, "settings"),
    Check("memory", memory, DOCTOR_LOOK, "model"),
    Check("pool", doctor_pool.pool, DOCTOR_POOL, "settings"),
    Check("protocol", doctor_pool.protocol, DOCTOR_LOOK, "link"),
    Check("member", doctor_pool.member, DOCTOR_POOL, "welcome"),
    Check("window", doctor_pool.window, DOCTOR_LOOK, "member"),
    Check("prompt", doctor_pool.prompt, DOCTOR_LOOK, "member"),
    Check("self-test", doctor_pool.self_test, DOCTOR_GENERATION, "member"),
    Check("rates", doctor_pool.rates, DOCTOR_GENERATION, "member"),
    Check("prefix reuse", doctor_pool.reuse, DOCTOR_GENERATION, "member"),
)
"""In the order in which they are told: what costs most comes last."""
