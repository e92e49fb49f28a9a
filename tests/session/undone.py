"""A session whose calls a test makes, with the snapshots and the log lines of a real one, and its undo."""

import os
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from aerix.actors import start
from aerix.agent.undoable import snapshot_event
from aerix.session.events import Event, Message, SessionStart, line
from aerix.session.index import Place
from aerix.session.log import SessionLog
from aerix.session.snapshot import Snapshots, TakeLastPoint, TakePoint
from aerix.session.undo import Plan
from aerix.session.undoing import Offer, Undoing

ID = "00000000-0000-4000-8000-000000000001"
T = TypeVar("T")
State = dict[bytes, tuple[str, int, bytes]]


def sh(command: str, cwd: Path) -> str:
    done = subprocess.run(["bash", "-ec", command], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout


def state(root: Path) -> State:
    """Every file, link and folder below a folder, but for what is in a ``.git``: its kind, mode and content."""
    found: State = {}
    for where, folders, names in os.walk(os.fsencode(root)):
        folders[:] = [name for name in folders if name != b".git"]
        for name in [*folders, *names]:
            path = where + b"/" + name
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                found[path] = "link", 0, os.readlink(path)  # noqa: PTH115 - names that are no text
            elif stat.S_ISDIR(status.st_mode):
                found[path] = "folder", stat.S_IMODE(status.st_mode), b""
            else:
                found[path] = "file", stat.S_IMODE(status.st_mode), Path(os.fsdecode(path)).read_bytes()
    return found


@dataclass
class Acted:
    """Works in ``cwd``; begins with its first prompt."""

    cwd: Path
    home: Path
    """The folder of its project's sessions."""
    calls: int = 0
    turns: int = 0
    _snapshots: Snapshots | None = field(default=None)

    def __post_init__(self) -> None:
        self.place = Place(self.home, ID)
        self.home.mkdir(parents=True, exist_ok=True)
        self.prompt("the first")

    def prompt(self, title: str) -> None:
        self._snapshots = Snapshots(self.cwd, self.place.folder / "trees")
        self._log(
            SessionStart(session=ID, version="0", cwd=str(self.cwd), project="p", model="m", title=title)
        )
        self.turn()

    def turn(self) -> None:
        self.turns += 1
        self._log(Message(id=f"t{self.turns}", role="assistant", text="{}"))

    def before(self, path: str | None = None) -> None:
        assert self._snapshots is not None
        self.calls += 1
        point = self._snapshots.point(TakePoint(path))
        assert not point.problem, point.problem
        if point.tree or point.kept:
            self._log(snapshot_event(point, "a1", f"c{self.calls}"))

    def bash(self, command: str) -> None:
        self.before()
        sh(command, self.cwd)

    def write(self, path: str, data: bytes) -> None:
        self.before(path)
        file = self.cwd / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def end(self) -> None:
        assert self._snapshots is not None
        if (point := self._snapshots.last(TakeLastPoint())) is not None:
            self._log(snapshot_event(point, "a1"))

    def offer(self, to: str | None = None, *, force: bool = False, back: bool = False) -> Offer:
        return self._undoing(lambda undoing: self._offer(undoing, to, force, back))

    def undo(self, to: str | None = None, *, force: bool = False, back: bool = False) -> Plan:
        return self._undoing(lambda undoing: undoing.do(self._offer(undoing, to, force, back)))

    def _offer(self, undoing: Undoing, to: str | None, force: bool, back: bool) -> Offer:
        return undoing.offer_back(force=force) if back else undoing.offer(to, force=force)

    def _undoing(self, act: Callable[[Undoing], T]) -> T:
        log = start(SessionLog(self.place.log), "session-log")
        try:
            return act(Undoing(self.place, self.cwd, log))
        finally:
            log.stop()
            assert log.join(30)

    def _log(self, event: Event) -> None:
        with self.place.log.open("ab") as file:
            file.write(line(event))
