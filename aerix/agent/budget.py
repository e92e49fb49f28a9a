"""Budget: an agent's hand in its request's ledger. What it takes is logged before anything comes of it."""

from aerix.actors import Exhausted, Ledger, Left
from aerix.actors.bounds import Bound
from aerix.agent.ended import Ended
from aerix.agent.journal import Journal
from aerix.session.events import Spend


class Budget:
    """Belongs to one agent's actor; the ledger behind it is the request's."""

    def __init__(self, ledger: Ledger, journal: Journal, agent: str) -> None:
        self._ledger = ledger
        self._journal = journal
        self._agent = agent

    def limit(self, bound: Bound) -> int:
        """How many units there are in all."""
        return self._ledger.limit(bound)

    def spent(self, bound: Bound) -> int:
        """How many are spent."""
        return self._ledger.spent(self._agent, bound)

    def spend(self, bound: Bound) -> Left | Exhausted:
        """Take one unit. Blocks the agent until it is logged; raises what ``Journal.write`` raises."""
        taken = self._ledger.spend(self._agent, bound)
        if isinstance(taken, Left):
            self._journal.write(_event(taken))
        return taken

    def take(self, bound: Bound) -> int:
        """Take one unit and say how many are left; it is logged with what is written next. Raises Ended with the bound's
        outcome where there is none.
        """
        taken = self._ledger.spend(self._agent, bound)
        if isinstance(taken, Exhausted):
            raise Ended(taken.outcome)
        self._journal.keep(_event(taken))
        return taken.count


def _event(taken: Left) -> Spend:
    record = taken.record
    return Spend(agent=record.agent, bound=record.bound, per=record.per or None)
