"""Ended: how a loop is left from anywhere in it, with a named outcome."""

from aerix.actors import Outcome


class Ended(Exception):
    """The agent ends with this outcome; caught once, where the loop begins."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome
