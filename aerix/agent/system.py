"""The system segment: the same text for every agent on one model, so that its rows are computed once."""

from aerix.bounds import CALLS
from aerix.prompts import load
from aerix.tools import SHORT_TOOLS, TOOLS
from aerix.turn.prompt import system_text

SHORT_BELOW = 16_384
"""Tokens of a window below which the prompt and the tools are told in few words."""


def system_segment(window: int, *, held: bool = True) -> str:
    """Its text: the prompt, all tools, and how to take turns. ``held``: the model is held to their shape."""
    name, tools = ("system-short", SHORT_TOOLS) if window < SHORT_BELOW else ("system", tuple(TOOLS.values()))
    return system_text(load(name), tools, held=held, max_calls=CALLS.count)
