"""``aerix -p``: requests without a screen. Reads top to bottom: settings, prompts, the live session, outcome, exit code."""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from aerix import folders
from aerix.actors import DeadlineExceeded, Refused, StartFailed, log, start
from aerix.actors.dump import dump_on_signal
from aerix.bounds import CANCEL
from aerix.exits import FAILED, NO_POOL, STORAGE, USAGE
from aerix.live import STOP_S, Live, Options, User, main_model, model_overrides, session_asked
from aerix.output import Output, complain, fill_standard_descriptors
from aerix.pool.client import POOL_UNREACHABLE
from aerix.prompting import INPUT, Prompts
from aerix.sandboxing import NO_SANDBOX
from aerix.session.events import SessionEnd
from aerix.session.show import STORAGE_LOST
from aerix.settings import Settings, SettingsError, load_settings
from aerix.settings_permissions import added_folders
from aerix.settings_permissions import overrides as permission_overrides
from aerix.signals import Signals, install
from aerix.stdin import BadPrompt, checked, prompt_of
from aerix.turn.schema import JsonSchema

_STOP_SHARE = 0.3  # of a cancel's time: what has not stopped by then dies with the process


def run_headless(args: argparse.Namespace) -> int:
    """Run one request and return the exit code; every problem is a sentence on standard error."""
    fill_standard_descriptors()
    dump_on_signal()
    try:
        cwd = enter(args.cd)
        settings = load_settings(
            cwd,
            overrides=overrides(args),
            settings_file=args.settings and Path(args.settings),
            env=os.environ,
            mode="auto",
        )
        added = added_folders(args.add_dir)
        prompts = _prompts_of(args)
    except (SettingsError, BadPrompt) as error:
        complain(str(error))
        return USAGE
    for note in settings.notes:
        complain(note)
    try:
        return _run(args, settings, prompts, cwd, added)
    except (StartFailed, DeadlineExceeded) as error:
        complain(str(error))
        return FAILED
    except Refused as refused:
        complain(f"{refused.message} [{refused.code}]")
        return code_of(refused)


def _prompts_of(args: argparse.Namespace) -> str | None:
    """The one prompt; with ``--input-format stream-json`` the first of several, if the command line has one."""
    if args.input_format == "text":
        return prompt_of(args.prompt)
    return None if args.prompt == "-" else checked(args.prompt.strip())


def _run(
    args: argparse.Namespace, settings: Settings, prompt: str | None, cwd: Path, added: tuple[Path, ...]
) -> int:
    session = session_asked(cwd, args.resume, continued=args.continued)
    final = _final_of(args)
    model = main_model(settings)
    signals = install()
    log.configure(folders.state() / "aerix.log")
    options = Options(args.max_turns, args.route, diff=not args.no_diff, final=final, added=added)
    live = Live(settings, model, cwd, options, User(lambda: Output(args.output_format)), session)
    for line in live.in_force:
        complain(line)
    stop_s = STOP_S
    try:
        start(Signals(signals, live.request, INPUT), "signals")
        prompts = Prompts(live.root, prompt, streamed=args.input_format == "stream-json")
        live.user = replace(live.user, steering=prompts.steering)
        end: SessionEnd | None = None
        while (text := prompts.next()) is not None:
            end = live.run(text)
            if end.outcome == "cancelled":
                stop_s = CANCEL.value * _STOP_SHARE
                break
        return prompts.exit(end)
    finally:
        live.close(stop_s)


# --- what the command line says


def enter(folder: str | None) -> Path:
    """Go to the folder of ``--cd``; the working directory. Raises BadPrompt."""
    if folder is not None:
        try:
            os.chdir(folder)
        except OSError as error:
            raise BadPrompt(f"--cd {folder}: {error.strerror}; name a folder that is there") from None
    return Path.cwd()


def _final_of(args: argparse.Namespace) -> JsonSchema | None:
    if args.final_schema is None:
        return None
    from aerix.final_schema import read_final_schema

    return read_final_schema(Path(args.final_schema))


def overrides(args: argparse.Namespace) -> list[str]:
    """The flags that are settings, behind those of ``-c``: a flag of its own wins."""
    flags = {
        "context.max_new_tokens": args.max_new_tokens,
        "generation.seed": args.seed,
    }
    given = (f"{key}={value}" for key, value in flags.items() if value is not None)
    permissions = permission_overrides(args.mode, args.allow, args.deny)
    return [*args.overrides, *model_overrides(args.model), *given, *permissions]


def code_of(refused: Refused) -> int:
    """The exit code of what went wrong before the request began, or so that it could not end."""
    if refused.code in STORAGE_LOST:
        return STORAGE
    if refused.code in ("bad_template", "bad_final_schema", "no_session", NO_SANDBOX):
        return USAGE
    return NO_POOL if refused.code in POOL_UNREACHABLE else FAILED
