"""``aerix -p``: requests without a screen. Reads top to bottom: settings, prompts, model, actors, outcome, exit code."""

import argparse
import json
import os
import uuid
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from aerix import __version__, folders
from aerix.actors import (
    ChildSpec,
    DeadlineExceeded,
    Ref,
    Refused,
    StartChild,
    StartFailed,
    Supervisor,
    log,
    start,
    whereis,
)
from aerix.actors.bounds import START
from aerix.actors.dump import dump_on_signal
from aerix.agent.delegation import Rules
from aerix.agent.request import Request, RequestPlaces, RequestSpec, Run
from aerix.agent.room import Ratios
from aerix.bounds import CANCEL, DEPTH, PIECE_RETRIES, PIECES, TURNS, in_force
from aerix.exits import FAILED, NO_POOL, STORAGE, USAGE
from aerix.output import Output, complain, fill_standard_descriptors
from aerix.pool.client import POOL_UNREACHABLE, PoolLink
from aerix.pool.models import DEFAULT_MODEL, announcement, ensure_model
from aerix.prompting import INPUT, Prompts, request_supervisor
from aerix.session.events import SessionEnd, SessionStart
from aerix.session.log import SessionLog, unwritable
from aerix.session.project import project_key
from aerix.session.show import STORAGE_LOST
from aerix.settings import Settings, SettingsError, load_settings
from aerix.settings_pool import load_flags, pool_settings, sampling
from aerix.signals import Signals, install
from aerix.stdin import BadPrompt, checked, prompt_of

_WEEK_S = 7 * 86_400.0  # each step of a request has its own limit; the whole has none
_STOP_S = 3.0  # what has not stopped by then dies with the process
_OUTPUT_S = 0.1  # what it wrote was waited for; a reader that takes nothing may hold it for ever
_STOP_SHARE = 0.3  # the same after a cancel, of the cancel's time


def run_headless(args: argparse.Namespace) -> int:
    """Run one request and return the exit code; every problem is a sentence on standard error."""
    fill_standard_descriptors()
    dump_on_signal()
    try:
        cwd = _enter(args.cd)
        settings = load_settings(
            cwd, overrides=_overrides(args), settings_file=_path(args.settings), env=os.environ
        )
        prompts = _prompts_of(args)
    except (SettingsError, BadPrompt) as error:
        complain(str(error))
        return USAGE
    for note in settings.notes:
        complain(note)
    try:
        return _run(args, settings, prompts, cwd)
    except (StartFailed, DeadlineExceeded) as error:
        complain(str(error))
        return FAILED
    except Refused as refused:
        complain(f"{refused.message} [{refused.code}]")
        return _code_of(refused)


def _prompts_of(args: argparse.Namespace) -> str | None:
    """The one prompt; with ``--input-format stream-json`` the first of several, if the command line has one."""
    if args.input_format == "text":
        return prompt_of(args.prompt)
    return None if args.prompt == "-" else checked(args.prompt.strip())


def _run(args: argparse.Namespace, settings: Settings, prompt: str | None, cwd: Path) -> int:
    model = _model(settings)
    signals = install()
    log.configure(folders.state() / "aerix.log")
    session, project = str(uuid.uuid4()), project_key(cwd)
    home = _home(project)
    begin = partial(
        SessionStart,
        session=session,
        version=__version__,
        cwd=str(cwd),
        project=project,
        model=model,
        notes=list(settings.notes),
    )
    root = start(_tree(args, settings, model, home / f"{session}.jsonl"), "aerix")
    stop_s = _STOP_S
    try:
        start(Signals(signals, _name(session), INPUT), "signals")
        prompts = Prompts(root, prompt, streamed=args.input_format == "stream-json")
        end: SessionEnd | None = None
        while (text := prompts.next(end)) is not None:
            spec = _request(args, settings, text, begin(), home / session)
            request = _start_request(replace(spec, earlier=prompts.earlier), prompts.steering)
            end = request.ask(Run(), _WEEK_S)
            if end.outcome == "cancelled":
                stop_s = CANCEL.value * _STOP_SHARE
                break
        return prompts.exit(end)
    finally:
        root.stop()
        if root.join(stop_s) is None:
            complain(f"not everything ended within {stop_s:g} s: what is left ends with this process")


def _home(project: str) -> Path:
    """The folder of the project's sessions. Raises Refused ``session_storage``."""
    folder = folders.data() / "sessions" / project
    try:
        return folders.private(folder)
    except OSError as error:
        raise unwritable(folder, error) from None


# --- what the command line and the settings say


def _enter(folder: str | None) -> Path:
    if folder is not None:
        try:
            os.chdir(folder)
        except OSError as error:
            raise BadPrompt(f"--cd {folder}: {error.strerror}; name a folder that is there") from None
    return Path.cwd()


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


def _overrides(args: argparse.Namespace) -> list[str]:
    """The flags that are settings, behind those of ``-c``: a flag of its own wins."""
    flags = {
        "models.main": None if args.model is None else json.dumps(args.model, ensure_ascii=False),
        "context.max_new_tokens": args.max_new_tokens,
        "generation.seed": args.seed,
    }
    return [*args.overrides, *(f"{key}={value}" for key, value in flags.items() if value is not None)]


def _model(settings: Settings) -> str:
    """The model to use, its file fetched if it is not there yet."""
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


def _names(settings: Settings, model: str) -> tuple[str, str]:
    """The model's names: as the pool takes it, and as the user wrote it."""
    return model, settings.models.main or DEFAULT_MODEL


def _request(
    args: argparse.Namespace, settings: Settings, prompt: str, start: SessionStart, folder: Path
) -> RequestSpec:
    names = _names(settings, start.model)
    return RequestSpec(
        start=start,
        prompt=prompt,
        cwd=Path(start.cwd),
        folder=folder,
        flags=load_flags(settings, *names),
        caps=asdict(settings.context.tool_caps),
        max_turns=args.max_turns or int(in_force(TURNS, settings)[0]),
        max_new_tokens=settings.context.max_new_tokens,
        sampling=sampling(settings, *names),
        diff=not args.no_diff,
        route=args.route,
        **_decision(settings, start.model),
        delegation=_rules(settings),
        samplings={ref: sampling(settings, ref) for ref in settings.models.by_ref},
        ratios=Ratios(settings.context.soft_ratio, settings.context.target_ratio),
    )


def _rules(settings: Settings) -> Rules:
    """What is allowed of delegation; the turns are those of each agent but the root."""
    turns, depth, parallel, retries = (
        int(in_force(row, settings)[0]) for row in (TURNS, DEPTH, PIECES, PIECE_RETRIES)
    )
    chosen = settings.delegation
    return Rules(turns, depth, parallel, retries, chosen.planner, chosen.planner_tools)


# --- the actors


def _tree(args: argparse.Namespace, settings: Settings, model: str, log: Path) -> Supervisor:
    """The long-lived part: each later one holds something of an earlier one."""
    pool = pool_settings(settings, *_names(settings, model))
    return Supervisor(
        [
            ChildSpec("session-log", lambda: SessionLog(log)),
            ChildSpec("output", lambda: Output(args.output_format), grace_s=_OUTPUT_S),
            ChildSpec("pool-link", lambda: PoolLink(pool)),
            request_supervisor(),
        ],
        strategy="rest_for_one",
    )


def _name(session: str) -> str:
    return f"request:{session}"


def _start_request(spec: RequestSpec, steering: Ref | None) -> Ref:
    supervisor = _living("request")
    places = RequestPlaces(
        _living("session-log"), _living("output"), _living("pool-link"), supervisor, steering
    )
    name = _name(spec.start.session)
    child = ChildSpec(name, lambda: Request(spec, places), restart="temporary", grace_s=CANCEL.value)
    request: Ref = supervisor.ask(StartChild(child), START.value)
    return request


def _living(name: str) -> Ref:
    ref = whereis(name)
    assert ref is not None, f"{name} is a child of the root, which is up"
    return ref


def _code_of(refused: Refused) -> int:
    """The exit code of what went wrong before the request began, or so that it could not end."""
    if refused.code in STORAGE_LOST:
        return STORAGE
    if refused.code == "bad_template":
        return USAGE
    return NO_POOL if refused.code in POOL_UNREACHABLE else FAILED
