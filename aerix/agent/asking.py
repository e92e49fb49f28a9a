"""What an agent asks the user, and the answers: may this call run; shall this plan be carried out.

Whoever speaks for the user is an actor that answers these (``RequestPlaces.asker``). Where there is none, nobody is
there to ask: a permission is then refused, and a plan is carried out.
"""

from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["once", "session", "always", "no"]


@dataclass(frozen=True, slots=True)
class AskPermission:
    """May the agent run this call? Answered by ``Permission``, when the user has decided."""

    agent: str
    tool: str
    input: dict[str, Any]
    rule: str
    """The rule that would allow it, and calls like it: what ``session`` and ``always`` add."""
    why: str = ""
    """Why it is asked, where that is not only that calls of this tool are."""


@dataclass(frozen=True, slots=True)
class Permission:
    """The user's answer; ``text`` is what to tell the model about a ``no``."""

    verdict: Verdict
    text: str = ""


@dataclass(frozen=True, slots=True)
class AskPlan:
    """Shall this plan be carried out? Answered by ``PlanAnswer``."""

    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """``text``: the plan as the user changed it, or as it was; ``accepted`` false: the user wants none of it."""

    accepted: bool
    text: str
