"""How a loop is left from anywhere in it, with a named outcome."""

from aerix.actors import Outcome


class Ended(Exception):
    """The agent ends with this outcome; caught once, where the loop begins."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def crash(what: str, error: Exception) -> Outcome:
    """The outcome of a fault in Aerix itself; its traceback goes to the program's log. Called where it is caught."""
    import traceback

    from aerix.actors.log import log

    log("crashed", level="error", what=what, error=traceback.format_exc())
    return Outcome("failed", f"{what} crashed, which is a fault of Aerix: {type(error).__name__}: {error}")
