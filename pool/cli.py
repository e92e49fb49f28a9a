"""``aerix pool …`` and ``aerix models …``.

``add_parsers`` hangs them into the program's parser; nothing heavy is imported before a command runs.
"""

import argparse

from aerix.pool.cli_output import UNREACHABLE as _UNREACHABLE
from aerix.pool.cli_output import complain as _complain
from aerix.pool.cli_output import note as _note
from aerix.pool.cli_output import out as _out
from aerix.pool.cli_pool import add_pool


def add_parsers(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``pool`` and ``models``. A parsed namespace has ``run``, a function of it that returns the exit code.

    ``namespace.pool_settings``, where the caller sets it, says which pool; ``--socket`` wins.
    """
    add_pool(subparsers)
    _add_models(subparsers)


def _add_models(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    models = subparsers.add_parser("models", help="list the catalogue of models, or fetch one of it")
    commands = models.add_subparsers(required=True, metavar="list | pull")
    commands.add_parser("list", help="the catalogue, and the models at hand").set_defaults(
        run=run_models_list
    )
    pull = commands.add_parser("pull", help="fetch a model of the catalogue")
    pull.add_argument("name")
    pull.set_defaults(run=run_models_pull)


# --- aerix models -------------------------------------------------------------------------------------------------


def run_models_list(_: argparse.Namespace) -> int:
    """``aerix models list``: the catalogue, and other files in the models folder."""
    from aerix.pool.models import CATALOGUE, megabytes, models_dir

    for entry in CATALOGUE.values():
        where = str(entry.path) if entry.path.is_file() else f"not fetched: aerix models pull {entry.name}"
        _out(f"{entry.name}  {megabytes(entry.size)}  {entry.licence}  {where}")
    known = {entry.path for entry in CATALOGUE.values()}
    for path in sorted(set(models_dir().glob("*.gguf")) - known):
        _out(f"{path}  {megabytes(path.stat().st_size)}")
    return 0


def run_models_pull(args: argparse.Namespace) -> int:
    """``aerix models pull NAME``."""
    from aerix.actors import Refused
    from aerix.pool.models import CATALOGUE, ensure_model

    if args.name not in CATALOGUE:
        return _complain(
            f"{args.name!r} is not in the catalogue, which has: {', '.join(CATALOGUE)}", _UNREACHABLE
        )
    try:
        model = ensure_model(args.name, _note)
    except Refused as refusal:
        return _complain(refusal.message, _UNREACHABLE)
    _out(f"{model.name} is at {model.path}")
    return 0
