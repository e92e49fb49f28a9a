"""Instruction files: ``CLAUDE.md`` and ``AGENTS.md``, from the broadest to the nearest, each text once.

In this order: the managed file, the user's own ``~/.claude/CLAUDE.md``, then for each folder from the root of the file
system down to the working directory ``CLAUDE.md``, ``.claude/CLAUDE.md``, ``CLAUDE.local.md``. Where no folder on that
path has one of these, ``AGENTS.md`` and ``.claude/AGENTS.md`` are read instead. ``@path`` imports a file.

No file makes anything here raise: what is not read is a note, one line to show at start.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from aerix import folders, regular
from aerix.bounds import (
    IMPORT_HOPS,
    IMPORTS,
    INSTRUCTION_FILE,
    INSTRUCTION_FILES,
    INSTRUCTION_TOTAL,
    START_NOTES,
)
from aerix.extensions.markdown import imports, is_import, without_comments
from aerix.tools.secrets import is_secret

MANAGED = Path("/etc/claude-code/CLAUDE.md")
BYTES_PER_TOKEN = 3
SHARE = 4
"""The instructions take at most one part of this many of the window."""
_CLAUDE = ("CLAUDE.md", ".claude/CLAUDE.md", "CLAUDE.local.md")
_AGENTS = ("AGENTS.md", ".claude/AGENTS.md")


@dataclass(frozen=True, slots=True)
class Part:
    """One file's instructions; ``name`` is its path as a tool of the agent takes it."""

    path: Path
    name: str
    text: str

    @property
    def whole(self) -> str:
        """The text as the context gets it, headed by the file's name."""
        return f"Instructions from {self.name}:\n\n{self.text}"


@dataclass(frozen=True, slots=True)
class Instructions:
    """What was found. ``notes`` are lines to show at start: what was not read, and why."""

    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that were read, in order."""
        return tuple(part.path for part in self.parts)

    @property
    def text(self) -> str:
        """All of it, as the context gets it; empty where nothing was found."""
        return "\n\n".join(part.whole for part in self.parts)


def read_instructions(cwd: Path, *, home: Path | None = None, managed: Path = MANAGED) -> Instructions:
    """The instructions for an agent that works in ``cwd``, an absolute path."""
    reader = _Reader(cwd, folders.home() if home is None else home)
    reader.read(managed)
    users = reader.home / ".claude/CLAUDE.md"
    reader.read(users)
    path = [*reversed(cwd.parents), cwd]
    named = [(folder / name, folder) for folder in path for name in _CLAUDE]
    if not any(file != users and _exists(file) for file, _ in named):
        named = [(folder / name, folder) for folder in path for name in _AGENTS]
    for file, folder in named:
        reader.read(file, folder)
    return Instructions(tuple(reader.parts), _few(reader.notes))


def _few(notes: list[str]) -> tuple[str, ...]:
    most = START_NOTES.count
    more = [f"{len(notes) - most} more instruction files are not read."] if len(notes) > most else []
    return (*notes[:most], *more)


def fit(found: Instructions, window_tokens: int) -> str:
    """The text of the instructions, cut at a line to a quarter of a window, with a pointer line for the rest.

    A token is taken for 3 bytes, since only the pool can count.
    """
    text, room = found.text, window_tokens // SHARE * BYTES_PER_TOKEN
    if len(text.encode()) <= room:
        return text
    longest = sorted(found.parts, key=lambda part: -len(part.name.encode()))
    kept, left = _head(text, room - len(_pointer(len(text.encode()), tuple(longest)).encode()))
    unread = _parts_after(found.parts, len(kept))
    return kept + _pointer(left, unread)


def _head(text: str, room: int) -> tuple[str, int]:
    """The whole lines that fit into ``room`` bytes, and the bytes of the others."""
    raw = text.encode()
    end = raw.rfind(b"\n", 0, max(room, 0)) + 1
    return raw[:end].decode(), len(raw) - end


def _parts_after(parts: tuple[Part, ...], chars: int) -> tuple[Part, ...]:
    """The parts that do not end within the first ``chars`` characters of the text."""
    end = 0
    for number, part in enumerate(parts):
        end += len(part.whole) + 2
        if end > chars:
            return parts[number:]
    return ()


def _pointer(left: int, parts: tuple[Part, ...]) -> str:
    names = ", ".join(f'read(path="{part.name}")' for part in parts[:3])
    more = f" and {len(parts) - 3} more files" if len(parts) > 3 else ""
    return f"[truncated: {left} more bytes of instructions; read them with {names}{more}]"


@dataclass(slots=True)
class _Reader:
    """What was read so far, so that no file is read twice."""

    cwd: Path
    home: Path
    parts: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)
    imports: int = 0
    total: int = 0

    def read(self, file: Path, folder: Path | None = None, hop: int = 0) -> bool:
        """Read a file and what it imports, and say whether it was there.

        ``folder`` is that of a project's file: neither the file nor its imports may lead out of it and the working
        directory, which nobody has approved, nor to where secrets are kept. The user's and the managed file may import anything.
        """
        identity = _identity(file)
        if identity is None:
            return False
        if identity in self.seen:
            return True
        if folder is not None and (why := self._not_approved(file, folder)):
            return self._note(file, why)
        if len(self.seen) >= INSTRUCTION_FILES.count or self.total >= INSTRUCTION_TOTAL.count:
            self._note(file, "there are too many instructions before it")
            return True
        self.seen.add(identity)
        text = self._text(file)
        if text:
            self._add(file, text, folder, hop)
        return True

    def _not_approved(self, file: Path, folder: Path) -> str:
        """Why what a project names is not read."""
        if not (_within(file, folder) or _within(file, self.cwd)):
            return "it leads out of the working directory"
        real = os.path.realpath(file)
        gits = ".git" in Path(os.path.relpath(real, os.path.realpath(folder))).parts
        return "secrets are kept there" if gits or is_secret(real, self.home) else ""

    def _add(self, file: Path, text: str, folder: Path | None, hop: int) -> None:
        at = len(self.parts)
        found = [name for name in dict.fromkeys(imports(text)) if self._import(file, name, folder, hop)]
        if not any(is_import(text, name) for name in found):
            self.parts.insert(at, Part(file, self._name(file), text))

    def _import(self, file: Path, name: str, folder: Path | None, hop: int) -> bool:
        target = self.home / name[2:] if name.startswith("~/") else file.parent / name
        self.imports += 1
        if self.imports > IMPORTS.count or os.path.isdir(target):  # noqa: PTH112 - Path.is_dir raises where it may not look
            return False
        if hop < IMPORT_HOPS.count:
            found = self.read(target, folder, hop + 1)
        else:
            found = _identity(target) is not None and self._note(
                target, f"it is more than {hop} imports away"
            )
        if not found and name.endswith(".md"):
            self._note(target, f"{self._name(file)} imports it, but it is not there")
        return found

    def _text(self, file: Path) -> str:
        try:
            raw = regular.read(file, INSTRUCTION_FILE.count)
        except FileNotFoundError:
            return ""
        except regular.NotRead as why:
            self._note(file, str(why))
            return ""
        self.total += len(raw)
        if b"\0" in raw:
            self._note(file, "it is not text")
            return ""
        return without_comments(raw.decode("utf-8-sig", "replace")).strip()

    def _note(self, file: Path, why: str) -> bool:
        self.notes.append(f"{self._name(file)} is not read: {why}.")
        return True

    def _name(self, file: Path) -> str:
        """A file's path as a tool takes it, in one line: relative inside the working directory."""
        plain = Path(os.path.normpath(file))
        name = plain.relative_to(self.cwd) if plain.is_relative_to(self.cwd) else plain
        return os.fsencode(name).decode("utf-8", "replace").replace("\n", " ")


def _exists(file: Path) -> bool:
    return _identity(file) is not None


def _identity(file: Path) -> tuple[int, int] | None:
    """What tells a file from others, whatever its name: the same for a symbolic link and its target."""
    try:
        status = file.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _within(file: Path, folder: Path) -> bool:
    return Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder))
