"""The index of a project's sessions: what a list of them shows, kept beside them in ``index.json``.

It saves reading the logs, and is never trusted over them: an entry whose log has another size or time is made anew
from it, as is an index that is missing or damaged. It is replaced atomically; where two do that at once, what one of
them lacks is read again by the next.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from aerix import folders, regular
from aerix.actors import Refused
from aerix.bounds import SESSION_INDEX
from aerix.session import events
from aerix.session.read import Reading

VERSION = 1
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class NoSession(Refused):
    """The session that was asked for is not there, or belongs elsewhere (``no_session``)."""

    def __init__(self, message: str) -> None:
        super().__init__("no_session", message)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session is kept."""

    home: Path
    """The folder of its project's sessions."""
    id: str

    @property
    def log(self) -> Path:
        """Its events."""
        return self.home / f"{self.id}.jsonl"

    @property
    def folder(self) -> Path:
        """Its spool files and trees."""
        return self.home / self.id


@dataclass(frozen=True, slots=True)
class Entry:
    """What the index says of a session."""

    id: str
    started: str
    """When it began; empty where its log says nothing."""
    last: str
    """When the last thing happened in it."""
    title: str
    """The first line of its first prompt."""
    requests: int
    turns: int
    """Turns of its root agents."""
    outcome: str
    """How its last request ended; empty where it did not: it runs, or was interrupted."""
    model: str
    cwd: str
    size: int
    """Bytes of the log that this is about, and its time of change."""
    mtime_ns: int

    @property
    def begun(self) -> bool:
        """Whether there is a context to go on with."""
        return self.turns > 0


def home(project: str) -> Path:
    """The folder of a project's sessions."""
    return sessions() / project


def sessions() -> Path:
    """The folder of all projects' sessions."""
    return folders.data() / "sessions"


def latest(project: str) -> str:
    """The id of the project's latest session: of those in which something was done, if there is one.

    Raises NoSession.
    """
    found = [one for one in entries(home(project)) if one.started]
    if not found:
        raise NoSession('there is no session of this project yet; begin one: aerix -p "PROMPT"')
    return max(found, key=lambda one: (one.begun, one.last, one.mtime_ns)).id


def find(prefix: str, project: str | None = None) -> Place:
    """The session whose id begins so; with ``project``, of that one only. Raises NoSession."""
    found = [place for place in _places("*") if place.id.startswith(prefix.lower())] if prefix else []
    here = [place for place in found if place.home.name == project] if project else found
    if len(here) == 1:
        return here[0]
    if here:
        several = ", ".join(sorted(place.id for place in here)[:3])
        raise NoSession(f"{len(here)} sessions have ids that begin with {prefix}: {several}; give more of it")
    if found:
        one = found[0]
        raise NoSession(
            f"the session {one.id} belongs to another project, in {read(one).cwd or one.home}; go on with it there"
        )
    raise NoSession(f"no session has an id that begins with {prefix!r}; aerix sessions list --all shows them")


def entries(folder: Path) -> list[Entry]:
    """What the index says of a project's sessions, the latest first; repaired where it does not fit the logs."""
    known = _load(folder / "index.json")
    found = {place.id: _fresh(place, known.get(place.id)) for place in _places(folder.name, folder.parent)}
    living = {name: entry for name, entry in found.items() if entry is not None}
    if living != known:
        with suppress(OSError):  # a cache: whoever could write it next will
            _save(folder, living)
    return sorted(living.values(), key=lambda one: (one.last, one.mtime_ns), reverse=True)


def note(place: Place) -> None:
    """Have the index tell of a session as its log is now. What cannot be written is left to whoever lists them."""
    known = _load(place.home / "index.json")
    entry = _fresh(place, known.get(place.id))
    if entry is not None and entry != known.get(place.id):
        with suppress(OSError):
            _save(place.home, known | {place.id: entry})


def read(place: Place) -> Entry:
    """What the log says. Raises OSError where it cannot be read."""
    status = place.log.stat()
    return _summary(place.id, status, Reading(place.log))


# --- the logs


def _places(project: str, base: Path | None = None) -> Iterator[Place]:
    """The sessions of a project, or of all (``*``). A projection beside a log is none."""
    for path in (base or sessions()).glob(f"{project}/*.jsonl"):
        if _ID.fullmatch(path.name.removesuffix(".jsonl")):
            yield Place(path.parent, path.name.removesuffix(".jsonl"))


def _fresh(place: Place, known: Entry | None) -> Entry | None:
    """The entry, where it fits the log; else a new one. None where the log is not to be read."""
    try:
        status = place.log.stat()
        if known is not None and (known.size, known.mtime_ns) == (status.st_size, status.st_mtime_ns):
            return known
        return _summary(place.id, status, Reading(place.log))
    except OSError:
        return None


def _summary(session: str, status: os.stat_result, lines: Iterable[Mapping[str, Any]]) -> Entry:
    """What is worth listing of a log; ``status`` is from before it was read, so that what comes later is read again."""
    values: dict[str, Any] = dict.fromkeys(("started", "last", "title", "outcome", "model", "cwd"), "")
    values |= {"requests": 0, "turns": 0}
    for line in lines:
        values["last"] = line["ts"]
        match line:
            case {"type": events.SessionStart.type, "model": str(model), "cwd": str(cwd)}:
                values |= {"model": model, "cwd": cwd, "outcome": ""}
                values["requests"] += 1
                values["started"] = values["started"] or line["ts"]
                values["title"] = values["title"] or str(line.get("title", ""))
            case {"type": events.Message.type, "agent": events.ROOT, "role": "assistant"}:
                values["turns"] += 1
            case {"type": events.SessionEnd.type, "outcome": str(outcome)}:
                values["outcome"] = outcome
    return Entry(id=session, size=status.st_size, mtime_ns=status.st_mtime_ns, **values)


# --- the file


def _load(path: Path) -> dict[str, Entry]:
    """The entries that are what they should be; none of a file that is missing, damaged or of another version."""
    try:
        match json.loads(regular.read(path, SESSION_INDEX.count)):
            case {"version": 1, "sessions": dict(found)}:
                read = (_entry(value) for value in found.values())
                return {entry.id: entry for entry in read if entry is not None}
    except (OSError, regular.NotRead, ValueError, RecursionError):
        pass
    return {}


def _entry(value: object) -> Entry | None:
    kinds = {field.name: int if field.type in (int, "int") else str for field in fields(Entry)}
    if not isinstance(value, dict) or value.keys() != kinds.keys():
        return None
    return Entry(**value) if all(type(value[name]) is kind for name, kind in kinds.items()) else None


def _save(folder: Path, found: Mapping[str, Entry]) -> None:
    text = json.dumps(
        {"version": VERSION, "sessions": {name: asdict(entry) for name, entry in sorted(found.items())}},
        indent=1,
    )
    scratch = folder / "index.json.new"  # one name, so that no kill leaves several behind
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(scratch, flags, 0o600), "wb") as file:
            file.write(text.encode("utf-8", "replace"))
        scratch.replace(folder / "index.json")
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
