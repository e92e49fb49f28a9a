"""``aerix`` and ``python -m aerix``. Imports nothing at module level: every child process imports this module too."""


def main() -> int:
    """Run the command line; returns the exit code."""
    import os
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the command runs: a KeyboardInterrupt in the middle of an import can end Python in its own ways.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from aerix.cli import run

    return run()


if __name__ == "__main__":
    import sys

    sys.exit(main())
