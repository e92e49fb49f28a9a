"""Whether a model can be held to a schema: ``python -m aerix.pool.schema_check`` reads it and says why not.

A process of its own, because only the pool's children load the compiler of schemas; without a model it compiles for the
vocabulary of the bytes.
"""

import sys

from aerix.actors import Refused


def main() -> int:
    """Read a schema from standard input; what is wrong goes to standard output, with the exit code 1."""
    from llguidance import LLTokenizer

    from aerix.pool.constraint import Json

    try:
        Json(sys.stdin.read(), LLTokenizer("byte"))
    except Refused as refused:
        print(refused.message)  # noqa: T201 # whoever started it reads this
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
