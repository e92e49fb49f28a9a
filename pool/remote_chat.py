"""A context as a request for a chat completion. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aerix.pool.protocol import Sampling, Segment

Message = dict[str, str]
_JOIN = "\n\n"


@dataclass(frozen=True, slots=True)
class Way:
    """What a request may hold for the server to take it."""

    fold: bool
    """Whether system texts begin the user's message, since its template takes no system message."""
    schema: bool
    extras: bool
    """Whether it takes what OpenAI's own API does not have: ``min_p``."""


def request(
    model: str,
    way: Way,
    segments: Sequence[Segment],
    tokens: int,
    sampling: Sampling,
    schema: str | None = None,
) -> dict[str, Any]:
    """The body of a request for one turn of at most so many tokens."""
    body: dict[str, Any] = {
        "model": model,
        "messages": messages(segments, fold=way.fold),
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if way.extras:
        body["min_p"] = sampling.min_p
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if schema is not None and way.schema:
        form = {"name": "turn", "strict": True, "schema": json.loads(schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body


def messages(segments: Sequence[Segment], *, fold: bool) -> list[Message]:
    """The chat: neighbours of one role are one message, since many templates demand that roles alternate."""
    chat: list[Message] = []
    for segment in segments:
        role = "user" if fold and segment.role == "system" else segment.role
        if chat and chat[-1]["role"] == role:
            chat[-1]["content"] += _JOIN + segment.text
        else:
            chat.append({"role": role, "content": segment.text})
    return chat
