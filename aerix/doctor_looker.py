"""Looker: the actor that one check of ``aerix doctor`` runs in; one that hangs there ends with the process."""

from dataclasses import dataclass

from aerix.actors import Actor, DeadlineExceeded, Refused, on
from aerix.agent.ended import crash
from aerix.doctor import Finding, Look, Looked


@dataclass(frozen=True, slots=True)
class LookNow:
    """Look; answered by a ``Finding``."""


class Looker(Actor):
    """Runs a check. A fault of its own is a finding too."""

    def __init__(self, look: Look, looked: Looked) -> None:
        self._look = look
        self._looked = looked

    @on(LookNow)
    def look(self, _message: LookNow) -> Finding:
        """Refuses with what the check was refused with."""
        try:
            return self._look(self, self._looked)
        except Refused:
            raise
        except DeadlineExceeded as late:
            return Finding("bad", str(late))
        except Exception as error:  # noqa: BLE001 # the user is told, and the program's log has the traceback
            return Finding("bad", crash("the check", error).reason)
