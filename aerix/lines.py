"""``aerix``: an interactive session in plain lines, on a terminal. Reads top to bottom: settings, session, terminal, exit code."""

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from aerix import folders
from aerix.actors import Answer, DeadlineExceeded, Refused, StartFailed, log, start
from aerix.actors.dump import dump_on_signal
from aerix.exits import FAILED, USAGE
from aerix.headless import code_of, enter, overrides
from aerix.lines_actors import User, Worker
from aerix.lines_session import Front, Session
from aerix.lines_view import View
from aerix.lines_work import LiveWork
from aerix.live import Options, main_model, model_overrides, session_asked
from aerix.live import User as Who
from aerix.output import complain, tell_to
from aerix.pool.protocol import MemberInfo
from aerix.session.events import title
from aerix.settings import Settings, SettingsError, load_settings
from aerix.settings_permissions import added_folders
from aerix.stdin import BadPrompt, checked

_FOR_HEADLESS = {"output_format": "text", "input_format": "text", "final_schema": None}


def run_lines(args: argparse.Namespace) -> int:
    """Run a session until the user ends it, and return the exit code; every problem is a sentence on standard error."""
    dump_on_signal()
    try:
        _check(args)
        cwd = enter(args.cd)
        settings = _settings(args, cwd)
        added = added_folders(args.add_dir)
    except (SettingsError, BadPrompt) as error:
        complain(str(error))
        return USAGE
    try:
        session = session_asked(cwd, args.resume, continued=args.continued)
        model = main_model(settings)
        log.configure(folders.state() / "aerix.log")
        options = Options(args.max_turns, args.route, diff=not args.no_diff, added=added)
        work = partial(LiveWork, settings, cwd, options, reload=partial(_settings, args, cwd))
        return _Sitting(cwd, args.first).run(work, model, session)
    except (StartFailed, DeadlineExceeded) as error:
        complain(str(error))
        return FAILED
    except Refused as refused:
        complain(f"{refused.message} [{refused.code}]")
        return code_of(refused)


def _check(args: argparse.Namespace) -> None:
    """Raises BadPrompt where an interactive session is not what was asked for, or not possible."""
    if not (os.isatty(0) and os.isatty(1)):
        raise BadPrompt(_no_terminal(args.first))
    if args.first is not None and not checked(args.first).strip():
        raise BadPrompt("the prompt is empty; aerix alone is a session without one")
    if given := [name for name, plain in _FOR_HEADLESS.items() if getattr(args, name) != plain]:
        raise BadPrompt(f"--{given[0].replace('_', '-')} goes with -p only")


def _no_terminal(first: str | None) -> str:
    if first is None:
        return 'aerix alone is a session on a terminal, and this is none; ask headless: aerix -p "PROMPT"'
    return (
        f"{title(first)!r} is no command, and a session that begins with it needs a terminal, which this is not; "
        'a prompt goes behind -p, as in aerix -p "Fix the test"'
    )


def _settings(args: argparse.Namespace, cwd: Path, model: str | None = None) -> Settings:
    """The settings; with another main model, if one is named."""
    chosen = [*overrides(args), *model_overrides(model)]
    return load_settings(
        cwd, overrides=chosen, settings_file=args.settings and Path(args.settings), env=os.environ
    )


class _Front(Front, Protocol):
    """A front with its loop."""

    @property
    def columns(self) -> int:
        """The width of the terminal."""

    def run(self, session: Session, begin: Callable[[], object]) -> int:
        """Serve the terminal; the exit code. ``begin`` is called when that has begun."""


class _Sitting:
    """The front, the session and its actors, from their beginning to their end."""

    def __init__(self, cwd: Path, first: str | None) -> None:
        """``first`` is the prompt to begin with."""
        if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
            from aerix.lines_dumb import Dumb

            self._front: _Front = Dumb()
        else:
            from aerix.lines_history import LinesHistory
            from aerix.lines_prompt import Prompt

            history = folders.state() / "history"
            if first:
                LinesHistory(history).store_string(first)
            self._front = Prompt(history, cwd)
        self._cwd, self._first = cwd, first or ""
        self._session: Session

    def run(self, make: Callable[[Who], LiveWork], model: str, session: str | None) -> int:
        """The exit code. Raises Refused and StartFailed where it cannot begin."""
        front = self._front
        user, worker = start(User(front.post, self._hear), "user"), start(Worker(front.post), "worker")
        work = make(Who(lambda: User(front.post, self._hear), user, user))
        try:
            work.open(model, session)
            self._session = Session(front, work, worker, View(lambda: front.columns), self._cwd)
            tell_to(lambda text: front.post(lambda: self._session.say(text)))
            try:
                return front.run(self._session, partial(self._begin, work))
            finally:
                tell_to(None)
        finally:
            work.close()
            for ref in (user, worker):
                ref.stop()

    def _hear(self, message: object, answer: Answer) -> None:
        self._session.hear(message, answer)

    def _begin(self, work: LiveWork) -> None:
        """What is shown first; the model is loaded meanwhile, and the first prompt waits for it as a typed one would."""
        self._session.say(*work.about())
        self._session.do("loading the model", work.load, self._loaded)
        self._session.enter(self._first)

    def _loaded(self, member: object) -> None:
        assert isinstance(member, MemberInfo)
        self._session.say(f"✓ ready: a window of {member.window:,} tokens, as the model serves it")
