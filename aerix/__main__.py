"""``aerix`` and ``python -m aerix``. Imports nothing at module level: every child process imports this module too."""


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from aerix.cli import run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    import sys

    sys.exit(main())
