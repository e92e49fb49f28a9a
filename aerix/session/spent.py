"""What a request has spent of its bounds, read back from its log.

It stands there in ``spend`` events of its own. It cannot be told from the turns that were logged: one that was being
generated when the process was killed has left no turn behind, and it was paid for.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aerix.actors import Spent
from aerix.session.events import Spend


def spent(lines: Iterable[Mapping[str, Any]]) -> Iterator[Spent]:
    """The records for a ``Ledger``. Pure. ``lines`` are the events of one request: the next prompt has a new ledger.

    Read tolerantly: a line that says no agent or no bound is no record.
    """
    for line in lines:
        match line:
            case {"type": Spend.type, "agent": str(agent), "bound": str(bound)}:
                per = line.get("per")
                yield Spent(agent, bound, per if isinstance(per, str) else "")
