"""How whoever runs an agent starts it, waits for its end and passes a cancel on; for a request and for a piece."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from aerix.actors import (
    Actor,
    Call,
    Cancelled,
    ChildSpec,
    DeadlineExceeded,
    FindChild,
    Ref,
    Refused,
    StartChild,
)
from aerix.actors.bounds import GRACE
from aerix.session.show import STORAGE_LOST

if TYPE_CHECKING:
    from aerix.agent.agent import Result

_T = TypeVar("_T")

FOREVER_S = 7 * 86_400.0
"""Seconds for the whole of an agent or a piece: each step of it has a limit of its own."""


def run_agent(actor: Actor, supervisor: Ref, child: ChildSpec, patience: Callable[[], float]) -> "Result":
    """Start an agent and let it run to its end; blocks ``actor`` in ``wait``.

    A cancel of ``actor`` is passed on: it lets the agent say how far it came, and ``patience`` tells how many seconds it
    has for that. Raises Cancelled where it does not, or not in time; Refused where it cannot be told how it ended.
    """
    from aerix.agent.agent import Begin

    agent = start_child(actor, supervisor, child)
    asked = actor.request(agent, Begin())
    try:
        actor.wait(asked, deadline_s=FOREVER_S)
    except Cancelled as cancelled:
        agent.cancel(cancelled.reason)
        _wait_for_last_word(actor, asked, cancelled.reason, patience())
    result: Result = asked.result()
    return result


def _wait_for_last_word(actor: Actor, asked: Call, reason: str, patience_s: float) -> None:
    try:
        actor.wait(asked, deadline_s=patience_s)
    except DeadlineExceeded:
        raise Cancelled(reason) from None
    if asked.error is not None and asked.error.code not in STORAGE_LOST:
        raise Cancelled(reason)


def start_child(actor: Actor, supervisor: Ref, child: ChildSpec) -> Ref:
    """Start a child of ``supervisor`` and wait until it is up. Raises Refused."""
    started = actor.request(supervisor, StartChild(child))
    actor.wait(started, deadline_s=child.start_timeout_s)
    ref: Ref = started.result()
    return ref


def living_child(actor: Actor, supervisor: Ref, child: ChildSpec) -> Ref:
    """The child of that name, started where there is none yet. Raises Refused with why it does not start."""
    for message in (FindChild(child.name), StartChild(child), FindChild(child.name)):
        call = actor.request(supervisor, message)
        actor.wait(call, deadline_s=child.start_timeout_s)
        if call.error is None or call.error.code not in ("no_child", "name_taken"):
            break  # else another one starts it right now
    ref: Ref = call.result()
    return ref


def ask_living(find: Callable[[], Ref], ask: Callable[[Ref], _T]) -> _T:
    """What ``ask`` gives for the actor that ``find`` finds.

    One that had ended before it heard of the question is replaced, once; what was begun is not asked twice.
    """
    living = find()
    try:
        return ask(living)
    except Refused as refused:
        if refused.code != "gone":
            raise
    living.join(GRACE.value)
    return ask(find())
