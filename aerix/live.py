"""A live session: its actors, and one request after another in it. Headless runs and the interactive ones stand on it."""

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aerix import __version__, folders
from aerix.actors import Actor, ChildSpec, Ref, StartChild, StopChild, Supervisor, start, whereis
from aerix.actors.bounds import START
from aerix.agent.delegation import Rules
from aerix.agent.request import Request, RequestPlaces, RequestSpec, Run
from aerix.agent.room import Ratios
from aerix.bounds import CANCEL, DEPTH, PIECE_RETRIES, PIECES, TURNS, in_force
from aerix.output import complain
from aerix.permissions import Permissions
from aerix.pool.client import PoolLink, load_member
from aerix.pool.models import DEFAULT_MODEL, announcement, ensure_model
from aerix.pool.protocol import MemberInfo
from aerix.sandboxing import sandbox_in_force
from aerix.session.events import SessionEnd, SessionStart, title
from aerix.session.log import SessionLog, unreadable, unwritable
from aerix.session.project import project_key
from aerix.session.resumed import Resumed
from aerix.settings import Settings
from aerix.settings_pool import load_flags, pool_settings, sampling
from aerix.turn.schema import JsonSchema

WEEK_S = 7 * 86_400.0  # each step of a request has its own limit; the whole has none
STOP_S = 3.0  # what has not stopped by then dies with the process
_SCREEN_S = 0.1  # what it wrote was waited for; a reader that takes nothing may hold it for ever
_SUPERVISOR = "request"
_CONSENT = "consent"


@dataclass(frozen=True, slots=True)
class Options:
    """What the user wants of every request of the session, beside the settings."""

    max_turns: int | None = None
    route: str | None = None
    diff: bool = True
    final: JsonSchema | None = None
    """What each answer must be a value of; None: it is a text."""
    added: tuple[Path, ...] = ()
    """More folders to write in (``--add-dir``)."""


@dataclass(frozen=True, slots=True)
class User:
    """The actors that speak for the user; without one of them nobody is there to say that."""

    screen: Callable[[], Actor]
    """Makes the one that shows events (``session.show``)."""
    steering: Ref | None = None
    """Hears what the user says while an agent works (``aerix.steering``)."""
    asker: Ref | None = None
    """Answers what an agent asks the user (``aerix.agent.asking``)."""


class Live:
    """Belongs to one thread, which blocks while a request runs. ``close`` it, whatever happens.

    Raises Refused (``no_sandbox``, ``session_storage``, ``session_locked``) where it cannot begin.
    """

    def __init__(
        self,
        settings: Settings,
        model: str,
        cwd: Path,
        options: Options,
        user: User,
        session: str | None = None,
    ) -> None:
        """``model`` is what ``main_model`` gave; ``session`` the id of the one to go on with (``session.index``)."""
        self._settings, self._cwd, self._options = settings, cwd, options
        self.user = user
        self.model = model
        self.session = session or str(uuid.uuid4())
        commands = sandbox_in_force(settings, cwd, options.added)
        self._sandbox = commands.sandbox
        self.in_force = (f"{commands.sentence}; mode: {settings.permissions.mode}",)
        """Lines to show at start: what the agent may do."""
        self._project = project_key(cwd)
        home = _home(self._project)
        self._folder = home / self.session
        self._log = home / f"{self.session}.jsonl"
        self._resumes, self._begun = session is not None, False
        self.root = start(self._tree(), "aerix")
        """The supervisor of it all; what else belongs to the session is started under it."""

    def run(self, prompt: str, *, compact: bool = False) -> SessionEnd:
        """Work on a prompt to its end, whatever that is. Nothing of the one before is left running. ``compact``: the
        context is made shorter first.

        Raises Refused ``session_storage`` where the log of what came before cannot be read.
        """
        spec = replace(self._spec(prompt), compact=compact)
        if self._begun:
            self.root.ask(StopChild(_SUPERVISOR), 10.0)
            self.root.ask(StartChild(_request_supervisor()), START.value)
        self._resumes, self._begun = False, True
        end: SessionEnd = self._start(spec).ask(Run(), WEEK_S)
        self._list()
        return end

    @property
    def request(self) -> str:
        """The name of the actor to cancel: the request that runs, if one does."""
        return f"request:{self.session}"

    def load(self, actor: Actor) -> MemberInfo:
        """Load the model, or find it loaded; blocks ``actor``, which may be cancelled. Raises Refused."""
        return load_member(
            actor, _living("pool-link"), self.model, load_flags(self._settings, *self._names())
        )

    def close(self, stop_s: float = STOP_S) -> None:
        """End its actors, last started first."""
        self.root.stop()
        if self.root.join(stop_s) is None:
            complain(f"not everything ended within {stop_s:g} s: what is left ends with this process")

    # --- the actors

    def _tree(self) -> Supervisor:
        """The long-lived part: each later one holds something of an earlier one."""
        log = self._log
        pool = pool_settings(self._settings, *self._names())
        return Supervisor(
            [
                ChildSpec("session-log", lambda: SessionLog(log)),
                ChildSpec("output", self.user.screen, grace_s=_SCREEN_S),
                ChildSpec("pool-link", lambda: PoolLink(pool)),
                _request_supervisor(),
            ],
            strategy="rest_for_one",
        )

    def _start(self, spec: RequestSpec) -> Ref:
        supervisor = _living(_SUPERVISOR)
        places = RequestPlaces(
            _living("session-log"),
            _living("output"),
            _living("pool-link"),
            supervisor,
            self.user.steering,
            self.user.asker,
            consent=self._consent(spec.permissions),
        )
        child = ChildSpec(
            self.request, lambda: Request(spec, places), restart="temporary", grace_s=CANCEL.value
        )
        request: Ref = supervisor.ask(StartChild(child), START.value)
        return request

    def _consent(self, permissions: Permissions) -> Ref | None:
        """The actor that asks the user about calls; it lives as long as the session, and knows what was granted in it."""
        asker, living = self.user.asker, whereis(_CONSENT)
        if asker is None or living is not None:
            return living

        def build() -> Actor:
            from aerix.agent.consent import Consent

            return Consent(asker, permissions, self._cwd)

        started: Ref = self.root.ask(StartChild(ChildSpec(_CONSENT, build, restart="temporary")), START.value)
        return started

    # --- a request

    def _permissions(self, granted: tuple[str, ...]) -> Permissions:
        folders = tuple(map(str, self._options.added))
        return replace(self._settings.permissions, folders=folders, granted=granted)

    def _names(self) -> tuple[str, str]:
        """The model's names: as the pool takes it, and as the user wrote it."""
        return self.model, self._settings.models.main or DEFAULT_MODEL

    def _spec(self, prompt: str) -> RequestSpec:
        settings, options, resumed = self._settings, self._options, self._resumed()
        return RequestSpec(
            start=self._begin(prompt),
            prompt=prompt,
            cwd=self._cwd,
            folder=self._folder,
            flags=load_flags(settings, *self._names()),
            caps=asdict(settings.context.tool_caps),
            max_turns=options.max_turns or int(in_force(TURNS, settings)[0]),
            max_new_tokens=settings.context.max_new_tokens,
            sampling=sampling(settings, *self._names()),
            diff=options.diff,
            route=options.route,
            final=options.final,
            resumed=resumed,
            **_decision(settings, self.model),
            delegation=_rules(settings),
            permissions=self._permissions(resumed.granted),
            sandbox=self._sandbox,
            samplings={ref: sampling(settings, ref) for ref in settings.models.by_ref},
            ratios=Ratios(settings.context.soft_ratio, settings.context.target_ratio),
        )

    def _resumed(self) -> Resumed:
        """What was before in this session: in another run of Aerix, or in this one."""
        if not (self._resumes or self._begun):
            return Resumed()
        from aerix.session.resume import resume_from

        try:
            return resume_from(self._log)
        except OSError as error:
            raise unreadable(self._log, error) from None

    def _list(self) -> None:
        """Have the index tell what became of the session."""
        from aerix.session.index import Place, note

        note(Place(self._log.parent, self.session))

    def _begin(self, prompt: str) -> SessionStart:
        return SessionStart(
            session=self.session,
            version=__version__,
            cwd=str(self._cwd),
            project=self._project,
            model=self.model,
            title=title(prompt),
            resumed=self._resumes,
            notes=[*self._settings.notes, *self.in_force],
        )


def model_overrides(model: str | None) -> list[str]:
    """The setting that names another main model, as ``-c`` takes it."""
    return [] if model is None else [f"models.main={json.dumps(model, ensure_ascii=False)}"]


def session_asked(cwd: Path, resume: str | None, *, continued: bool) -> str | None:
    """The id of the session to go on with: the one that ``resume`` names, or the project's latest; None for a new one.

    Raises Refused ``no_session``.
    """
    if resume is None and not continued:
        return None
    from aerix.session.index import find, latest

    project = project_key(cwd)
    return latest(project) if resume is None else find(resume, project).id


def main_model(settings: Settings) -> str:
    """The model to use, its file fetched if it is not there yet: that may take minutes, and Ctrl-C must end it."""
    model = ensure_model(settings.models.main or DEFAULT_MODEL, complain)
    if settings.models.main is None:
        complain(announcement(model))
    return model.name


def _decision(settings: Settings, main: str) -> dict[str, Any]:
    """The model that routes, where it is another one than the main one: its file fetched, its flags."""
    ref = settings.models.decision
    if ref is None or (model := ensure_model(ref, complain)).name == main:
        return {}
    return {"decision": model.name, "decision_flags": load_flags(settings, model.name, ref)}


def _rules(settings: Settings) -> Rules:
    """What is allowed of delegation; the turns are those of each agent but the root."""
    turns, depth, parallel, retries = (
        int(in_force(row, settings)[0]) for row in (TURNS, DEPTH, PIECES, PIECE_RETRIES)
    )
    chosen = settings.delegation
    return Rules(turns, depth, parallel, retries, chosen.planner, chosen.planner_tools)


def _home(project: str) -> Path:
    """The folder of the project's sessions. Raises Refused ``session_storage``."""
    folder = folders.data() / "sessions" / project
    try:
        return folders.private(folder)
    except OSError as error:
        raise unwritable(folder, error) from None


def _request_supervisor() -> ChildSpec:
    """What a request's agents and runners live under; a new one for each request."""
    return ChildSpec(_SUPERVISOR, Supervisor, restart="temporary", grace_s=None)


def _living(name: str) -> Ref:
    ref = whereis(name)
    assert ref is not None, f"{name} is a child of the root, which is up"
    return ref
