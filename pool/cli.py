"""``aerix pool …`` and ``aerix models …``.

``add_parsers`` hangs them into the program's parser; nothing heavy is imported before a command runs.
"""

import argparse

from aerix.pool.cli_models import add_models
from aerix.pool.cli_pool import add_pool


def add_parsers(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``pool`` and ``models``. A parsed namespace has ``run``, a function of it that returns the exit code.

    ``namespace.pool_settings``, where the caller sets it, says which pool; ``--socket`` wins.
    """
    add_pool(subparsers)
    add_models(subparsers)
