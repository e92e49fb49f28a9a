"""What an agent's generations cost together."""

from dataclasses import asdict, astuple, dataclass

from aerix.pool.protocol import Usage as PoolUsage


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over generations: ``computed_tokens`` of ``prompt_tokens`` had to be computed, the rest was resident."""

    generations: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, one: PoolUsage) -> "Usage":
        """With one more generation."""
        return Usage(
            self.generations + 1,
            self.prompt_tokens + one.prompt_tokens,
            self.computed_tokens + one.prompt_tokens - one.recomputed_from,
            self.completion_tokens + one.completion_tokens,
        )

    def sum(self, other: "Usage") -> "Usage":
        """Together with another's."""
        return Usage(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def plain(self) -> dict[str, int]:
        """As the log keeps it."""
        return asdict(self)
