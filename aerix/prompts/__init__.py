"""The prompt files that ship with Aerix, by name."""

from pathlib import Path


def load(name: str) -> str:
    """The text of ``name``.md, without blank ends. A name that is not there is a mistake of the caller."""
    return (Path(__file__).parent / f"{name}.md").read_text(encoding="utf-8").strip()
