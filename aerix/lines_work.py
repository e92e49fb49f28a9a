"""What is done with a session in its own thread: requests, one after the other, and what commands do between them."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from os import environ
from pathlib import Path

from aerix import __version__, folders
from aerix.actors import Actor, ChildSpec, Ref, Refused, Supervisor, start, whereis
from aerix.bounds import LINES_SESSIONS
from aerix.lines_actors import Post, Shell
from aerix.lines_last import Last, exchange, last_request
from aerix.lines_view import DIM, Line, change_lines
from aerix.live import STOP_S, Live, Options, User, main_model
from aerix.pool.protocol import MemberInfo
from aerix.session import events, index
from aerix.session.events import ROOT, SessionEnd
from aerix.session.project import project_key, repository_root
from aerix.session.read import Reading
from aerix.session.replay import Held, replay
from aerix.session.transcript import local_time
from aerix.settings import Settings
from aerix.shown import one_line
from aerix.tools.runner import ToolRunner

_SHELL, _RUNNER = "user-shell", "user-runner"


class LiveWork:
    """Belongs to the worker's thread from ``load`` on; the front may use what is marked so."""

    def __init__(
        self,
        settings: Settings,
        cwd: Path,
        options: Options,
        user: User,
        *,
        reload: Callable[[str], Settings],
    ) -> None:
        """``reload`` reads the settings anew, with another main model."""
        self._settings, self._cwd, self._options, self._user = settings, cwd, options, user
        self._reload = reload
        self._project = project_key(cwd)
        self._live: Live | None = None
        self._commands: Ref | None = None
        self._compact = False
        """Whether the next request begins with that."""
        self._begun = False

    def open(self, model: str, session: str | None = None) -> None:
        """Begin a session, or go on with one. Raises Refused, as ``Live``."""
        self._live = Live(self._settings, model, self._cwd, self._options, self._user, session)
        self._begun = session is not None

    def close(self, stop_s: float = STOP_S) -> None:
        """End all that belongs to it."""
        if self._live is not None:
            self._live.close(stop_s)
        if self._commands is not None:
            self._commands.stop()
            self._commands.join(stop_s)

    @property
    def live(self) -> Live:
        """The session that is open."""
        assert self._live is not None, "open one first"
        return self._live

    # --- for the front

    @property
    def request(self) -> str:
        """The name of the actor to cancel."""
        return self.live.request

    def about(self) -> list[str]:
        """What a user wants to see at the start."""
        cwd, home = str(self._cwd), str(folders.home())
        where = "~" + cwd.removeprefix(home) if f"{cwd}/".startswith(f"{home}/") else cwd
        resumed = f" (resumed): {self._title(self.live.session)}" if self._begun else ""
        return [
            f"aerix {__version__} · {self.live.model}",
            f"in {where} · session {self.live.session}{resumed}",
            *self.live.in_force,
            *self._settings.notes,
            *(self._exchange() if self._begun else ()),
            "/help names the commands and keys",
        ]

    def shell(self, post: Post) -> Ref:
        """Whoever runs the user's own commands: started with the first, and for the front."""
        spool = index.Place(index.home(self._project), self.live.session).folder / "spool" / "user"
        caps, root = asdict(self._settings.context.tool_caps), repository_root(self._cwd) or self._cwd
        specs = [
            ChildSpec(_RUNNER, lambda: ToolRunner(root, self._cwd, spool, caps), restart="permanent"),
            ChildSpec(_SHELL, lambda: Shell(post, _RUNNER, caps["bash"]), restart="permanent"),
        ]
        self._commands = start(Supervisor(specs), "user-commands")
        shell = whereis(_SHELL)
        assert shell is not None, "its supervisor has just started it"
        return shell

    # --- requests

    def load(self, actor: Actor) -> MemberInfo:
        """Load the model, so that the first request finds it. Blocks ``actor``; raises Refused."""
        return self.live.load(actor)

    def prompt(self, text: str) -> SessionEnd:
        """Run a request to its end. Raises Refused."""
        self._begun, compact, self._compact = True, self._compact, False
        return self.live.run(text, compact=compact)

    # --- commands

    def use_model(self, ref: str) -> Sequence[str]:
        """Have the next request run on another model; without one, say which one it is."""
        if not ref:
            return [f"the model is {self.live.model}"]
        settings = self._reload(ref)
        model = main_model(settings)
        self._settings = settings
        self._open_again(model, self.live.session if self._begun else None)
        return [f"the next request runs on {model}"]

    def resume(self, session: str) -> Sequence[str]:
        """Go on with another session of this project."""
        if session:
            found = index.find(session, self._project).id
        else:
            others = (one for one in self._listed() if one.begun and one.id != self.live.session)
            latest = next(others, None)
            if latest is None:
                raise index.NoSession("there is no other session of this project")
            found = latest.id
        if found == self.live.session:
            return ["that is this session"]
        self._open_again(self.live.model, found)
        return [f"session {found}: {self._title(found)}", *self._exchange()]

    def new(self) -> Sequence[str]:
        """Begin another session: nothing of this one is in its context."""
        self._open_again(self.live.model, None)
        return [f"session {self.live.session}: nothing was asked yet"]

    def sessions(self) -> Sequence[str]:
        """The sessions of this project, the latest first."""
        found = self._listed()
        lines = [
            f"{one.id[:8]}  {local_time(one.last) if one.last else '':16}  {one.outcome or 'open':9}  {one_line(one.title)}"
            for one in found[: LINES_SESSIONS.count]
        ]
        more = len(found) - len(lines)
        return [*lines, *([f"and {more} more: aerix sessions list"] if more else [])] or ["there is none yet"]

    def undo(self) -> Sequence[str]:
        """Put the files back to how they were before the last request that may have changed some; again: one more."""
        from aerix.git import GitError
        from aerix.session.history import NoTarget
        from aerix.session.undo import Lost
        from aerix.session.undoing import Undoing
        from aerix.undo_cli import outcome, report

        log = whereis("session-log")
        if not self._begun or log is None:
            return ["nothing was done in this session yet"]
        try:
            undoing = Undoing(self._place(), self._cwd, log)
            offer = undoing.offer()
            told = report(offer, self.live.session)
            done = undoing.do(offer)
            return [*told, *outcome(offer, done)] if offer.plan.steps else told
        except (NoTarget, Lost, GitError) as why:
            return [str(why)]

    def diff(self) -> list[Line]:
        """What the last request changed, as its end told it."""
        if not self._begun:
            return [[(DIM, "nothing was asked in this session yet")]]
        last = last_request(Reading(self._place().log))
        return list(change_lines(last.diff, last.untracked)) or [[(DIM, self._no_diff(last))]]

    def compact(self) -> Sequence[str]:
        """Have the next request begin by compacting the context."""
        if not self._begun:
            return ["the context is empty: nothing was asked yet"]
        self._compact = True
        return ["the next request begins by compacting the context"]

    def context(self) -> Sequence[str]:
        """The root's context, from the log: what it consists of, and what share of the window each part takes."""
        if not self._begun:
            return ["the context is empty: nothing was asked yet"]
        window = 0
        lines = []
        for line in Reading(self._place().log):
            lines.append(line)
            if line["type"] == events.AgentSpawn.type and line["agent"] == ROOT:
                window = line.get("window", 0)
        root = replay(lines).get(ROOT)
        return context_lines(list(root.held.values()) if root else [], window)

    # --- inside

    def _open_again(self, model: str, session: str | None) -> None:
        before, begun = self.live, self._begun
        before.close()
        try:
            self.open(model, session)
        except Refused:  # the one before is still there to go on with
            self.open(before.model, before.session if begun else None)
            raise

    def _place(self) -> index.Place:
        return index.Place(index.home(self._project), self.live.session)

    def _no_diff(self, last: Last) -> str:
        if repository_root(self._cwd) is None:
            return "there is no diff: this is no git repository"
        if not self._options.diff:
            return "there is no diff: --no-diff takes none"
        return "the last request " + ("changed no files" if last.ended else "did not end, and told no diff")

    def _exchange(self) -> list[str]:
        """The last prompt and what was answered, so that one knows where one was."""
        try:
            return exchange(last_request(Reading(self._place().log)))
        except OSError:  # the next request tells
            return []

    def _listed(self) -> list[index.Entry]:
        return index.entries(index.home(self._project))

    def _title(self, session: str) -> str:
        return next((one_line(one.title) for one in self._listed() if one.id == session), "")


def in_shell(command: str) -> str:
    """The command as bash is given it: the user's own shell runs it."""
    shell = environ.get("SHELL", "")
    if not shell.startswith("/") or Path(shell).name == "bash":
        return command
    return f"exec {shlex.quote(shell)} -c {shlex.quote(command)}"


def context_lines(held: Sequence[Held], window: int) -> list[str]:
    """Segments with their tokens, what they have in common as one line, and the share of the window."""
    rows: dict[str, list[int]] = {}
    for one in held:
        rows.setdefault(f"{one.label} {one.tool}" if one.tool else one.label, []).append(one.tokens)
    total = sum(one.tokens for one in held)
    width = max(map(len, rows), default=0)
    lines = [
        f"{name:{width}}  {sum(counts):>8,}  {_share(sum(counts), window):>5}  {len(counts)} part{'s' * (len(counts) != 1)}"
        for name, counts in rows.items()
    ]
    return [
        *lines,
        f"{'together':{width}}  {total:>8,}  {_share(total, window):>5}  of a window of {window:,}",
    ]


def _share(tokens: int, window: int) -> str:
    return f"{100 * tokens / window:.0f} %" if window else "?"
