"""The checks of ``aerix doctor`` that ask the pool: whether it answers, what its model is, and how fast that is."""

import json
import secrets

from aerix.actors import Actor, start
from aerix.agent.system import SHORT_BELOW, system_segment
from aerix.bounds import DOCTOR_POOL
from aerix.doctor import Finding, Looked
from aerix.extensions.instructions import fit, read_instructions
from aerix.pool.client import Connect, PoolContext, PoolLink, Starting, load_member
from aerix.pool.models import DEFAULT_MODEL
from aerix.pool.protocol import VERSION, Constraint, Done, MemberInfo, Sampling, Segment
from aerix.prompts import load
from aerix.settings_pool import load_flags, pool_settings
from aerix.tools import SHORT_TOOLS, TOOLS
from aerix.turn.prompt import tools_section

_TOKENS = 48
"""Of the generation that is measured."""
_FEW = 8
"""Tokens below which a rate says nothing."""
_SOME = 0.5
"""Of a prompt: what a second generation should at least find computed; and of a window: what a prompt should leave."""
_OK = {
    "type": "object",
    "properties": {"ok": {"const": True}},
    "required": ["ok"],
    "additionalProperties": False,
}
_LONG = {"type": "string", "minLength": 160, "maxLength": 400}
_ASKED = "Count from 1 to 40: 1, 2, 3"


def pool(actor: Actor, looked: Looked) -> Finding:
    """Whether a pool answers, or can be started; one is started only where there is a model to load."""
    settings, model = looked.settings, looked.model
    assert settings is not None
    names = () if model is None else (model.name, settings.models.main or DEFAULT_MODEL)
    asked = pool_settings(settings, *names)
    if model is None:
        from dataclasses import replace

        asked = replace(asked, autostart=False)
    looked.link = start(PoolLink(asked), "pool-link")
    started: list[Starting] = []
    call = actor.request(looked.link, Connect())
    actor.wait(call, deadline_s=DOCTOR_POOL.value, on_piece=lambda _, piece: started.append(piece))
    if call.error is not None:
        looked.refusal = call.error.code
        if model is None and call.error.code == "no_pool":
            return Finding("ok", f"none runs on {asked.socket}; a request starts one")
        return Finding("bad", f"{call.error.message} [{call.error.code}]")
    looked.welcome = welcome = call.result()
    how = f"was started (its output is in {started[0].log})" if started else "was running"
    return Finding("ok", f"{asked.socket}, process {welcome.pid}, release {welcome.pool}, {how}")


def protocol(_actor: Actor, looked: Looked) -> Finding:
    """Whether the pool speaks as this program does."""
    if looked.welcome is not None:
        return Finding("ok", f"version {looked.welcome.version}, as here")
    if looked.refusal == "protocol_version":
        return Finding(
            "bad", f"the pool does not speak version {VERSION}", "`aerix pool stop` ends that pool"
        )
    return Finding("warn", "not looked at: no pool answers")


def member(actor: Actor, looked: Looked) -> Finding:
    """Whether the model loads."""
    settings, model = looked.settings, looked.model
    assert settings is not None
    assert looked.link is not None
    if model is None:
        return Finding("warn", "not looked at: without a model there is nothing to see")
    flags = load_flags(settings, model.name, settings.models.main or DEFAULT_MODEL)
    looked.member = found = load_member(actor, looked.link, model.name, flags, deadline_s=DOCTOR_POOL.value)
    threads = "" if model.kind == "remote" else f", {found.threads or 'all'} threads"
    told = f"{found.name} is ready{threads}"
    if found.settings:
        return Finding("warn", f"{told}; it runs with plainer settings: {found.settings}")
    if found.restarts:
        return Finding(
            "warn", f"{told}; it was started again {found.restarts} times, last: {found.restarted}"
        )
    return Finding("ok", told)


def window(_actor: Actor, looked: Looked) -> Finding:
    """The window that is served, and where it comes from."""
    found, settings = _member(looked), looked.settings
    assert settings is not None
    assert looked.model is not None
    own = settings.models.of(looked.model.name, settings.models.main or DEFAULT_MODEL)
    if own.window is not None:
        source = "as it is set for this model"
    elif looked.model.kind == "remote":
        source = "as its server says"
    elif looked.model.kind == "scripted":
        source = "as the script says"
    else:
        source = "the largest of 8k, 16k and 32k that it was trained for and that fits"
    told = f"{found.window:,} tokens, {source}"
    figures = {"window": found.window, "cells": found.cells}
    if found.window < SHORT_BELOW:
        return Finding(
            "ok", f"{told}; prompt and tools are told in few words below {SHORT_BELOW:,}", figures=figures
        )
    return Finding("ok", told, figures=figures)


def prompt(actor: Actor, looked: Looked) -> Finding:
    """What each part of a prompt takes of the window."""
    found = _member(looked)
    short = found.window < SHORT_BELOW
    head = load("system-short" if short else "system").strip()
    tools = tools_section(SHORT_TOOLS if short else tuple(TOOLS.values()))
    texts = (head, f"{head}\n\n{tools}", system_segment(found.window, held=found.json))
    instructions = fit(read_instructions(looked.cwd), found.window)
    counts = [_count(actor, looked, [Segment("system", "system", text)]) for text in texts]
    whole = [Segment("system", "system", texts[-1]), Segment("instructions", "user", instructions)]
    total = _count(actor, looked, whole) if instructions else counts[2]
    parts = {
        "system": counts[0],
        "tools": counts[1] - counts[0],
        "turns": counts[2] - counts[1],
        "instructions": total - counts[2],
    }
    about = "≈" if found.estimated else ""
    told = ", ".join(f"{name} {about}{count:,}" for name, count in parts.items())
    share = total / found.window
    told = f"{told} tokens: {share:.0%} of the window before the first word"
    if share > _SOME:
        return Finding("warn", told, "shorten the instruction files, or set a larger window", parts)
    return Finding("ok", told, figures=parts)


def self_test(actor: Actor, looked: Looked) -> Finding:
    """Whether turns are held to their schema: what the worker found when it loaded, and one answer now."""
    found = _member(looked)
    if not found.json:
        return Finding("warn", f"turns are not constrained: {found.note or 'it takes no JSON schema'}")
    if _is_scripted(looked):
        return Finding("ok", "turns are constrained")
    context = _asked(actor, looked, "Is all well?")
    done = _measured(context, 16, Constraint(schema=json.dumps(_OK)))
    context.drop()
    if json.loads(done.text or "null") != {"ok": True}:
        return Finding("bad", f"it was held to a schema and answered {done.text[:80]!r}")
    return Finding("ok", "turns are constrained")


def rates(actor: Actor, looked: Looked) -> Finding:
    """How fast it reads and writes: measured by one generation on a prompt that nobody has asked before."""
    if _is_scripted(looked):
        return Finding("ok", "not measured: a script has none")
    context = _asked(actor, looked, _ASKED, tools_section(SHORT_TOOLS))
    long = Constraint(schema=json.dumps(_LONG)) if _member(looked).json else None
    usage = _measured(context, _TOKENS, long).usage
    context.drop()
    read = usage.prompt_tokens - usage.recomputed_from
    reading = read / usage.fill_ms * 1000 if usage.fill_ms else 0.0
    writing = usage.completion_tokens / usage.decode_ms * 1000 if usage.decode_ms else 0.0
    figures = {"prefill": round(reading, 1), "decode": round(writing, 1)}
    if usage.completion_tokens < _FEW or not reading:
        return Finding(
            "warn",
            f"not measured: it read {read} tokens and wrote {usage.completion_tokens}",
            figures=figures,
        )
    told = f"reads {reading:,.0f} tokens a second, writes {writing:,.0f}"
    return Finding("ok", told, figures=figures)


def reuse(actor: Actor, looked: Looked) -> Finding:
    """Whether a second generation goes on where the first one ended."""
    if _is_scripted(looked):
        return Finding("ok", "not measured: a script computes nothing")
    context = _asked(actor, looked, _ASKED)
    first = _measured(context, 4)
    said = Segment("t1", "assistant", first.text, tokens=first.tokens, vocab=first.vocab)
    context.append(said, Segment("again", "user", "Go on."))
    usage = _measured(context, 4).usage
    context.drop()
    found = usage.recomputed_from / usage.prompt_tokens
    told = f"the second turn found {usage.recomputed_from:,} of {usage.prompt_tokens:,} tokens computed ({found:.0%})"
    figures = {"found": usage.recomputed_from, "prompt": usage.prompt_tokens}
    if found >= _SOME:
        return Finding("ok", told, figures=figures)
    if looked.model is not None and looked.model.kind == "remote":
        return Finding("warn", told, "its server keeps no prompts, or does not tell", figures)
    return Finding("bad", told, "`aerix pool status` shows what its memory holds", figures)


# --- asking


def _member(looked: Looked) -> MemberInfo:
    assert looked.member is not None
    return looked.member


def _is_scripted(looked: Looked) -> bool:
    return looked.model is not None and looked.model.kind == "scripted"


def _context(actor: Actor, looked: Looked) -> PoolContext:
    assert looked.link is not None
    return PoolContext(actor, looked.link, _member(looked).name)


def _count(actor: Actor, looked: Looked, segments: list[Segment]) -> int:
    """The tokens of a context that holds these."""
    context = _context(actor, looked)
    context.create(segments)
    context.drop()
    return context.tokens


def _asked(actor: Actor, looked: Looked, text: str, system: str = "You answer in few words.") -> PoolContext:
    """A context with a prompt that begins as none before it, so that nothing of it is computed yet."""
    context = _context(actor, looked)
    head = Segment("system", "system", f"{secrets.token_hex(8)}\n{system}")
    context.create([head, Segment("prompt", "user", text)])
    return context


def _measured(context: PoolContext, tokens: int, constraint: Constraint | None = None) -> Done:
    return context.generate(tokens, Sampling(temperature=0.0), constraint)
