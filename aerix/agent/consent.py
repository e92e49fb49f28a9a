"""Consent: whether a call of an agent may run. The rules say so, or the user is asked, where there is one.

``Permits`` is an agent's side; ``Consent`` is the session's actor that asks, one question at a time, and keeps what the
user grants. Whoever speaks for the user answers ``asking.AskPermission``.
"""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from aerix.actors import Actor, Ref, Refused, on
from aerix.agent.asking import AskPermission, Permission, Verdict
from aerix.agent.journal import Journal
from aerix.agent.running import FOREVER_S
from aerix.permissions import Permissions
from aerix.session.events import PermissionAsked
from aerix.tools.messages import ToolResult
from aerix.tools.permissions import Judge, Judgement
from aerix.turn.parse import Call


@dataclass(frozen=True, slots=True)
class AskUser:
    """May this call run? Answered by ``Consented``; refused where nobody is there any more."""

    question: AskPermission
    rules: tuple[str, ...]
    """What ``session`` and ``always`` add."""
    lasting: bool
    """Whether they can be added for ever."""


@dataclass(frozen=True, slots=True)
class Consented:
    """The user's answer, and all that was granted in this session so far."""

    verdict: Verdict
    text: str
    granted: tuple[str, ...]
    note: str = ""
    """Something that the user is to be told about it."""


class Consent(Actor):
    """Asks the user, and keeps the answers that hold for the session; those for ever are in the user's settings too.

    While a question is open, others wait in its mailbox; what was granted meanwhile is not asked again.
    """

    def __init__(self, user: Ref, permissions: Permissions, cwd: Path) -> None:
        """``user`` answers ``AskPermission``."""
        self._user = user
        self._permissions = permissions
        self._cwd = cwd

    @on(AskUser)
    def _ask(self, message: AskUser) -> Consented:
        question = message.question
        judged = Judge(self._permissions, self._cwd).judge(question.tool, question.input)
        if judged.verdict == "run" and message.rules:
            return Consented("session", "", self._permissions.granted)
        asked = self.request(self._user, question)
        try:
            self.wait(asked, deadline_s=FOREVER_S)
        except BaseException:
            asked.cancel()
            raise
        answer: Permission = asked.result()
        note = self._keep(answer, message) if answer.verdict in ("session", "always") else ""
        return Consented(answer.verdict, answer.text, self._permissions.granted, note)

    def _keep(self, answer: Permission, message: AskUser) -> str:
        granted = dict.fromkeys([*self._permissions.granted, *message.rules])
        self._permissions = replace(self._permissions, granted=tuple(granted))
        if answer.verdict == "session" or not message.rules:
            return ""
        if not message.lasting:
            return f"it holds for this session: {message.question.why}"
        from aerix.settings_permissions import keep_rules

        return keep_rules(message.rules)


class Permits:
    """What an agent's calls may do. Belongs to the agent and blocks it in ``wait`` while the user is asked."""

    def __init__(
        self, actor: Actor, journal: Journal, agent: str, consent: Ref | None, judge: Judge, cwd: Path
    ) -> None:
        """Without ``consent`` nobody is there to ask."""
        self._actor, self._journal, self._agent = actor, journal, agent
        self._consent, self._judge, self._cwd = consent, judge, cwd
        self.permitted: str | None = None
        """The path that the call that was checked last may work on."""

    @property
    def permissions(self) -> Permissions:
        """As they are now, with what the user has granted."""
        return self._judge.permissions

    def check(self, call: Call, hook: str | None = None) -> ToolResult | None:
        """None where a call may run, else its refusal. ``hook`` is why a hook has it asked about."""
        judged = self._judge.judge(call.tool, call.input)
        if hook is not None and judged.verdict == "run":
            judged = Judgement("ask", f"is asked about by a hook ({hook})", real=judged.real, lasting=False)
        self.permitted = judged.real
        if judged.verdict == "run":
            return None
        shown = self._judge.shown(call.tool, call.input)
        if judged.verdict == "refuse":
            return self._refuse(call, judged, "denied", f"{shown} {judged.why}.")
        if self._consent is None:
            return self._refuse(call, judged, "refused", _nobody(shown, judged))
        return self._ask(self._consent, call, judged, shown)

    def _ask(self, consent: Ref, call: Call, judged: Judgement, shown: str) -> ToolResult | None:
        question = AskPermission(self._agent, call.tool, call.input, ", ".join(judged.rules), judged.why)
        self._journal.flush()  # the user is to see first what led to it
        asked = self._actor.request(consent, AskUser(question, judged.rules, judged.lasting))
        try:
            self._actor.wait(asked, deadline_s=FOREVER_S)
        except BaseException:
            asked.cancel()
            raise
        try:
            answer: Consented = asked.result()
        except Refused:
            return self._refuse(call, judged, "refused", _nobody(shown, judged))
        if answer.note:
            self._journal.note(answer.note)
        if answer.granted != self.permissions.granted:
            self._judge = Judge(replace(self.permissions, granted=answer.granted), self._cwd)
        if answer.verdict == "no":
            said = f": {answer.text}" if answer.text else "."
            return self._refuse(call, judged, "no", f"the user does not allow {shown}{said}")
        self._log(call, judged, answer.verdict)
        return None

    def _refuse(self, call: Call, judged: Judgement, verdict: str, why: str) -> ToolResult:
        self._log(call, judged, verdict)
        return ToolResult(f"refused: {why}", error=True)

    def _log(self, call: Call, judged: Judgement, verdict: str) -> None:
        self._journal.write(
            PermissionAsked(
                agent=self._agent,
                call=call.id,
                tool=call.tool,
                verdict=verdict,
                rules=list(judged.rules),
                why=judged.why or None,
            )
        )


def _nobody(shown: str, judged: Judgement) -> str:
    """Why a call that would be asked about is refused, and what would help."""
    what = f"{shown} {judged.why or 'needs permission'}{',' * bool(judged.why)} and nobody is there to ask"
    if not judged.lasting:
        return f"{what}."
    flags = " ".join(f"--allow {shlex.quote(rule)}" for rule in judged.rules)
    return f"{what}; allow it with {flags} or permissions.allow in settings."
