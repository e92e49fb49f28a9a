"""What a server can do, found out when its model is loaded: whether the model is there, its window, what it takes.

What a chat may hold is found by one short turn: first with everything, then with less, until the server takes it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from aerix.actors import Refused
from aerix.pool.protocol import Sampling, Segment
from aerix.pool.remote_chat import Way, request
from aerix.pool.remote_counts import Counts
from aerix.pool.remote_http import Server
from aerix.pool.remote_stream import Spent, Text, number, quoted

_TRIED = (
    Segment("s", "system", "You are a friendly assistant."),
    Segment("u", "user", "Say hello to the people of the village."),
)


def _one(kind: str, value: dict[str, object]) -> dict[str, object]:
    properties = {"kind": {"const": kind}, "value": value}
    return {
        "type": "object", "properties": properties, "required": ["kind", "value"], "additionalProperties": False,
    }  # fmt: skip


_SCHEMA = {"oneOf": [_one("word", {"type": "string", "maxLength": 8}), _one("flag", {"type": "boolean"})]}
"""What a turn's schema needs: a choice, constants, no other keys."""
_ANSWER = 48
_WINDOWS = (
    "loaded_context_length",
    "n_ctx",
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
)
"""What servers call the window they serve, the surest first."""
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server and its model are."""

    window: int
    way: Way
    json: bool
    """Whether it holds an answer to a schema."""
    thinking: int
    """Tokens that the model may think with before a turn; 0: it does not think first."""
    counts: Counts


async def look(server: Server, window: int, thinking: int) -> Facts:
    """Find out. Raises Refused: what the server said, ``server_no_model``, ``server_no_window``.

    ``window`` is the one that was set, 0 where none is; ``thinking`` what a model that thinks first is granted.
    """
    listing = await server.ask(f"{server.address.base}/models")
    entry = _entry(server, listing)
    way, words, thinks, prompt = await _try(server, thinking)
    counts = Counts(server)
    await counts.try_server([segment.text for segment in _TRIED], prompt)
    served = window or await _window(server, entry)
    # Prose does not begin like an object: who writes so was held to the schema.
    held = way.schema and words.lstrip().startswith("{")
    return Facts(served, way, held, thinking if thinks else 0, counts)


# --- the model and its window


def _entry(server: Server, listing: object) -> dict[str, Any]:
    """What the server lists of the model; nothing where it lists none at all. Raises Refused where it lists others."""
    model = server.address.model
    data = listing.get("data") if isinstance(listing, dict) else None
    entries = [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
    for one in entries:
        aliases = one.get("aliases")
        if one.get("id") == model or (isinstance(aliases, list) and model in aliases):
            return one
    if not entries:
        return {}
    names = [quoted(str(one.get("id"))) for one in entries]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    raise Refused(
        "server_no_model",
        f"the server at {server.address.base} has no model {model!r:.200}; it has {', '.join(names[:_NAMED])}{more}",
    )


async def _window(server: Server, entry: dict[str, Any]) -> int:
    address = server.address
    props = await server.ask(f"{address.root}/props")
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    found = number(settings, "n_ctx") or _told(entry) or await _running(server)
    if found:
        return found
    raise Refused(
        "server_no_window",
        f"the server at {address.base} does not say how large the window is that it serves {address.model!r:.200} with:"
        " set it (`window`, or --window N)",
    )


def _told(entry: dict[str, Any]) -> int:
    places = (entry, entry.get("meta"))
    return next((found for name in _WINDOWS for place in places if (found := number(place, name))), 0)


async def _running(server: Server) -> int:
    """Ollama tells it of the models that it has loaded."""
    answer = await server.ask(f"{server.address.root}/api/ps")
    models = answer.get("models") if isinstance(answer, dict) else None
    for one in models if isinstance(models, list) else []:
        if isinstance(one, dict) and server.address.model in (one.get("name"), one.get("model")):
            return number(one, "context_length")
    return 0


# --- what it takes


def _ways() -> Iterator[Way]:
    for fold, schema, extras in product((False, True), (True, False), (True, False)):
        yield Way(fold, schema, extras)


async def _try(server: Server, thinking: int) -> tuple[Way, str, bool, int]:
    """The first way that the server takes; what it answered, whether it thought first, and the prompt's tokens."""
    first: Refused | None = None
    for way in _ways():
        try:
            words, thinks, prompt = await _turn(server, way, _ANSWER)
            if thinks and not words:
                words, _, prompt = await _turn(server, way, _ANSWER + thinking)
            return way, words, thinks, prompt
        except Refused as refusal:
            first = first or refusal
            if refusal.code not in ("server_refused", "server_failed"):
                break
    raise first or AssertionError("there is a way to try")


async def _turn(server: Server, way: Way, tokens: int) -> tuple[str, bool, int]:
    words, thinks, prompt = "", False, 0
    body = request(server.address.model, way, _TRIED, tokens, Sampling(temperature=0), json.dumps(_SCHEMA))
    async for one in server.chat(body, patient=False):
        match one:
            case Text(text, thinking):
                words += "" if thinking else text
                thinks = thinks or thinking
            case Spent():
                prompt = one.prompt
    return words, thinks, prompt
