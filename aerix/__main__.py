"""``aerix`` and ``python -m aerix``. Imports nothing at module level: every child process imports this module too."""


def main() -> int:
    """Run the command line; returns the exit code."""
    from aerix.cli import run

    return run()


if __name__ == "__main__":
    import sys

    sys.exit(main())
