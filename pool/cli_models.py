"""``aerix models …``: what is here, what a model needs and whether it fits, fetching one, removing one."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerix.pool.cli_output import UNREACHABLE, complain, out

if TYPE_CHECKING:
    from aerix.pool.models import HubRef, ResolvedModel

_REFS = """\
REF names a model:
  smollm2-135m-instruct           a name of the catalogue
  hf:ORG/REPO/FILE.gguf           a file on the hub (HF_ENDPOINT, HF_TOKEN are respected)
  hf:ORG/REPO:Q4_K_M              the file whose name holds this; hf:ORG/REPO, where there is only one
  ollama:NAME[:TAG]               a model in Ollama's own store, read in place
  /path/to/model.gguf             a file; of one cut into several, any of them
"""


def add_models(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``models`` and its commands."""
    models = subparsers.add_parser("models", help="list, show, fetch and remove model files", **_text())
    commands = models.add_subparsers(required=True, metavar="list | show | pull | rm")
    listed = commands.add_parser("list", help="the catalogue, and the models at hand")
    listed.set_defaults(run=run_list)
    for name, run, text in (
        (
            "show",
            run_show,
            "what a model is, where its file is, and whether it fits into this machine's memory",
        ),
        ("pull", run_pull, "fetch a model; a pull that broke off goes on where it stopped"),
        ("rm", run_rm, "remove a fetched model's files; refused while the pool has it loaded"),
    ):
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", **_text())
        command.add_argument("ref", metavar="REF", help="the model, see below")
        command.set_defaults(run=run)
    command.set_defaults(pool_settings=None, socket=None)  # rm asks the pool


def _text() -> dict[str, Any]:
    return {"epilog": _REFS, "formatter_class": argparse.RawDescriptionHelpFormatter}


# --- list and show ------------------------------------------------------------------------------------------------


def run_list(_: argparse.Namespace) -> int:
    """``aerix models list``: the catalogue, then the other models in the models folder."""
    from aerix.pool.models import CATALOGUE, kept_files, megabytes, name_of, parts

    for entry in CATALOGUE.values():
        where = str(entry.path) if entry.path.is_file() else f"not fetched: aerix models pull {entry.name}"
        out(f"{entry.name}  {megabytes(entry.size)}  {entry.licence}  {where}")
    known = {entry.path for entry in CATALOGUE.values()}
    for path in (path for path in kept_files() if path not in known):
        size = sum(part.stat().st_size for part in parts(path) if part.is_file())
        missing = "" if all(part.is_file() for part in parts(path)) else "  not whole: fetch it again"
        out(f"{name_of(path)}  {megabytes(size)}{missing}")
    return 0


def run_show(args: argparse.Namespace) -> int:
    """``aerix models show REF``: the file, its header, and the fit with the default settings."""
    from aerix.actors import Refused
    from aerix.pool.models import resolve

    try:
        model = resolve(args.ref)
        out("\n".join([model.name, *(f"  {name + ':':13} {text}" for name, text in _facts(model))]))
    except Refused as refusal:
        return complain(refusal.message, UNREACHABLE)
    return 0


def _facts(model: "ResolvedModel") -> list[tuple[str, str]]:
    from aerix.pool.fit import size
    from aerix.pool.models import parts

    licence = [("licence", model.licence)] if model.licence else []
    if model.kind == "remote":
        return [("server", "what it serves is asked when it is loaded")]
    if not model.present:
        about = f", {size(model.size)}" if model.size else ""
        return [("file", f"not fetched{about}: aerix models pull {model.name}"), *licence]
    count = len(parts(model.path))
    pieces = f" in {count} files" if count > 1 else ""
    return [("file", f"{model.path} ({size(model.size)}{pieces})"), *licence, *_header_facts(model)]


def _header_facts(model: "ResolvedModel") -> list[tuple[str, str]]:
    from aerix.pool.header import read_header

    if model.kind == "scripted":
        return [("kind", "a script of turns")]
    header = read_header(model.path)
    heads = f"{header.layers} layers, {header.vocabulary:,} vocabulary entries"
    sliding = f", a part of its layers sees {header.sliding_window:,}" if header.sliding_window else ""
    template = (
        "in the file"
        if header.template
        else "none in the file: one of Aerix's own is used where it fits, or that of the setting `template`"
    )
    return [
        ("name", header.name or "not told"),
        ("architecture", ", ".join(filter(None, (header.architecture, header.quantization, heads)))),
        ("trained", f"for a window of {header.trained:,} tokens{sliding}"),
        ("template", template),
        ("fit", _fit(model)),
    ]


def _fit(model: "ResolvedModel") -> str:
    from aerix.actors import Refused
    from aerix.pool.fit import is_known, memory_limit, plan, size
    from aerix.pool.gpu import free_on_gpus
    from aerix.pool.header import read_header
    from aerix.pool.workerargs import WorkerArgs

    header, limit = read_header(model.path), memory_limit()
    if not is_known(header):
        return "the file does not tell what it takes: it is only ever loaded alone"
    try:
        found = plan("it", header, model.size, WorkerArgs(str(model.path)), limit, free_on_gpus())
    except Refused as refusal:
        return refusal.message
    layers = f", {found.gpu_layers} layers on the GPU" if found.gpu_layers else ""
    return (
        f"a window of {found.window:,} tokens and {found.cells:,} cells take {size(found.total)} of the {size(limit)} that "
        f"may be used ({size(found.weights)} of weights, {size(found.rows)} of cells, {size(found.compute)} to compute in){layers}"
    )


# --- pull and rm --------------------------------------------------------------------------------------------------


def run_pull(args: argparse.Namespace) -> int:
    """``aerix models pull REF``."""
    from aerix.actors import Refused
    from aerix.pool.cli_output import Ticker
    from aerix.pool.models import ensure_model

    try:
        with Ticker() as ticker:
            model = ensure_model(args.ref, ticker)
    except Refused as refusal:
        return complain(refusal.message, UNREACHABLE)
    if model.kind == "remote":
        return complain(f"{model.name} is on a server: there is nothing to fetch", UNREACHABLE)
    out(f"{model.name} is at {model.path}")
    return 0


def run_rm(args: argparse.Namespace) -> int:
    """``aerix models rm REF``: remove what was fetched, and what a pull that broke off has left."""
    from aerix.actors import Refused
    from aerix.pool.cli_output import FAILED
    from aerix.pool.models import megabytes, name_of

    try:
        files = _ours(args.ref)
        _check_unloaded(args, {name_of(files[0]), str(files[0])})
        freed = sum(_remove(path) for path in files)
    except Refused as refusal:
        return complain(refusal.message, FAILED if refusal.code == "model_in_use" else UNREACHABLE)
    except OSError as error:
        return complain(f"{error.filename} cannot be removed: {error.strerror}", FAILED)
    out(f"removed {name_of(files[0])}: {megabytes(freed)} are free again")
    return 0


def _ours(ref: str) -> list[Path]:
    """The files that stand in the models folder for a reference. Raises Refused."""
    from aerix.actors import Refused
    from aerix.pool.models import (
        CATALOGUE,
        CatalogueRef,
        FileRef,
        HubRef,
        OllamaRef,
        models_dir,
        parse_reference,
        parts,
    )

    files: list[Path] = []
    match parse_reference(ref):  # paths as they are: a damaged file, too, can be removed
        case OllamaRef(typed=typed):
            raise Refused("model_not_ours", f"{ref} is Ollama's: `ollama rm {typed}` removes it")
        case HubRef() as hub:
            files = _of_the_hub(hub)
        case CatalogueRef(name):
            files = [CATALOGUE[name].path]
        case FileRef(path):
            files = parts(path)
    here = [path for path in files if path.is_file()]
    if not here:
        raise Refused("model_missing", f"nothing of {ref} is in {models_dir()}")
    if not all(path.parent.resolve().is_relative_to(models_dir().resolve()) for path in here):
        raise Refused("model_not_ours", f"{here[0]} is not in {models_dir()}, so it is not Aerix's to remove")
    return here


def _of_the_hub(ref: "HubRef") -> list[Path]:
    from aerix.pool.hub import folder_of, kept
    from aerix.pool.models import parts

    _, first = kept(ref)
    if first is not None:
        return parts(first)
    cut_off = folder_of(ref.repo).rglob("*.part")
    return sorted(path for path in cut_off if (ref.file or ref.quant).lower() in path.name.lower())


def _check_unloaded(args: argparse.Namespace, names: set[str]) -> None:
    """Raises Refused ``model_in_use`` where the pool that runs has the model under one of these names."""
    from aerix.actors import Refused
    from aerix.pool.bounds import CONTROL
    from aerix.pool.cli_ask import ask_pool, pool_settings
    from aerix.pool.protocol import MemberList

    settings = pool_settings(args, autostart=False)
    try:
        members = ask_pool(settings, MemberList(0), CONTROL.value + 1).members
    except Refused as refusal:
        if refusal.code == "no_pool":
            return
        raise
    for member in members:
        if any(member.name == name or member.name.startswith(f"{name} ") for name in names):
            raise Refused(
                "model_in_use",
                f"the pool has {member.name} loaded: run `aerix pool unload '{member.name}'` first",
            )


def _remove(path: Path) -> int:
    """Remove a file, and the folders that it leaves empty; the bytes that it took."""
    from contextlib import suppress

    from aerix.pool.models import models_dir

    size = path.lstat().st_size
    path.unlink()
    with suppress(OSError):  # one that is not empty stays
        for folder in path.parents:
            if folder == models_dir():
                break
            if [one.name for one in folder.iterdir()] == [".pull.lock"]:
                (folder / ".pull.lock").unlink()
            folder.rmdir()
    return size
