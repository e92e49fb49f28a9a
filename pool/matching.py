"""``OneOf`` without scores: which of the texts an answer is. Pure."""

from collections.abc import Sequence


def matching(texts: Sequence[str], answer: str) -> int | None:
    """Which of the texts an answer is that was not held to them: letter case, quotes and end marks do not count."""
    said = _bare(answer)
    return next((at for at, text in enumerate(texts) if _bare(text) == said), None)


def _bare(text: str) -> str:
    return text.strip(" \t\r\n\"'`*.!").casefold()
