"""The marks that tests bear, read from their text: which rules they show, which limits they drive to their end."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def read_marks(mark: str) -> dict[str, set[str]]:
    """What the tests name with a mark, each with the files in which it stands."""
    marks: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in marks_in(path.read_text("utf-8"), mark):
            marks.setdefault(name, set()).add(str(path.relative_to(TESTS.parent)))
    return marks


def marks_in(source: str, mark: str) -> Iterator[str]:
    """The names in a mark's arguments, wherever it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _is_mark(node.func, mark):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


def _is_mark(called: ast.expr, mark: str) -> bool:
    """Whether it is ``pytest.mark.MARK`` or ``mark.MARK``."""
    if not isinstance(called, ast.Attribute) or called.attr != mark:
        return False
    return ast.unparse(called.value) in ("pytest.mark", "mark")
