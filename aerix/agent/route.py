"""Routing: what shape a request has, classified on a throwaway context by a model that may say only one of four words."""

from collections.abc import Callable
from dataclasses import asdict

from aerix.actors import Refused
from aerix.bounds import ROUTE_CHARS, ROUTE_TOKENS
from aerix.pool.client import PoolContext
from aerix.pool.context import Event
from aerix.pool.protocol import Constraint, Sampling, Segment, Usage
from aerix.prompts import load
from aerix.session.events import Route

ROUTES = ("answer", "edit", "investigate", "plan")
DEFAULT_ROUTE = "edit"


def classify(
    context: PoolContext, prompt: str, *, asked: Callable[[], None], heard: Callable[[Event], None]
) -> tuple[Route, Usage | None]:
    """The route, and what finding it cost. The context holds only the routing text and the request, and is dropped.

    A request that does not fit beside the routing text is not classified: it takes the default. ``asked`` is called once the prompt is with the pool, ``heard`` for what it says while it works.
    """
    context.create([
        Segment("system", "system", load("routing"), pinned=True),
        Segment("prompt", "user", prompt[: ROUTE_CHARS.count]),
    ])  # fmt: skip
    asked()
    try:
        done = context.generate(
            ROUTE_TOKENS.count, Sampling(temperature=0.0), Constraint(texts=list(ROUTES)), heard
        )
    except Refused as refused:
        if refused.code != "context_overflow":
            raise
        return Route(route=DEFAULT_ROUTE, default=True), None
    finally:
        context.drop()
    event = Route(
        route=DEFAULT_ROUTE if done.choice is None else ROUTES[done.choice],
        default=done.choice is None,
        scores=dict(zip(ROUTES, done.scores, strict=True)) if done.scores else None,
        usage=asdict(done.usage),
    )
    return event, done.usage
