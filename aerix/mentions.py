"""``@path`` in a prompt: the files that it names are brought in, as a block each at its end.

The mention stays where it is. A file must lie in the working directory and be no secret: what is not brought in is told
to the user, and the prompt is sent without it.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from aerix import regular
from aerix.bounds import MENTION_BYTES, MENTIONS

_MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|([^\s"]+))')
_AFTER = ".,;:!?)]}'"  # what may follow a path in a sentence


class NotBrought(Exception):
    """A file is not brought in; the text says why, as the end of a sentence about it."""


def bring_in(prompt: str, cwd: Path, is_secret: Callable[[Path], bool]) -> tuple[str, list[str]]:
    """The prompt with its files, and notes for the user."""
    blocks, notes = [], []
    for number, name in enumerate(_named(prompt, cwd)):
        try:
            if number >= MENTIONS.count:
                raise NotBrought(f"a prompt brings in at most {MENTIONS.count} files")
            text = _read(cwd / name, cwd, is_secret)
            blocks.append(f"# File {name}\n{text}")
        except NotBrought as why:
            notes.append(f"@{name} is not brought in: {why}")
    return "\n\n".join([prompt, *blocks]), notes


def _named(prompt: str, cwd: Path) -> Iterator[str]:
    """The names of files that there are, each once; what names none is a word like any other."""
    seen = set()
    for found in _MENTION.finditer(prompt):
        for name in (found[1] or found[2], (found[1] or found[2]).rstrip(_AFTER)):
            if name and name not in seen and _is_there(cwd / name):
                seen.add(name)
                yield name
                break


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _read(path: Path, cwd: Path, is_secret: Callable[[Path], bool]) -> str:
    real = path.resolve()
    if not real.is_relative_to(cwd.resolve()):
        raise NotBrought("it lies outside the working directory; the agent can read it, if you say so")
    if is_secret(real) or is_secret(path):
        raise NotBrought("it is a secret")
    if real.is_dir():
        raise NotBrought("it is a folder; the agent can look at it")
    try:
        data = regular.read(real, MENTION_BYTES.count)
        return data.decode("utf-8")
    except (FileNotFoundError, regular.NotRead) as why:
        raise NotBrought(str(why) if isinstance(why, regular.NotRead) else "it is gone") from None
    except UnicodeDecodeError:
        raise NotBrought("it is no UTF-8 text") from None
