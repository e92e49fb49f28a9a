"""Actors tell, edges ask: two actors that ask each other would block for ever (DESIGN section 3), read from the source."""

import ast
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

ACTORS = {"Actor", "ProcessActor", "Supervisor"}


def asks(sources: dict[str, str]) -> Iterator[str]:
    """Where a method of an actor's class asks: ``Ref.ask`` takes a message and a deadline."""
    classes = {
        (path, node.name): node
        for path, source in sources.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    }
    actors, before = set(ACTORS), 0
    while len(actors) > before:
        before = len(actors)
        actors |= {name for (_, name), node in classes.items() if bases(node) & actors}
    for (path, name), node in classes.items():
        if name in actors:
            yield from (f"{path}: {name}: {ast.unparse(at)}" for at in ast.walk(node) if is_ask(at))


def bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).rpartition(".")[2] for base in node.bases}


def is_ask(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "ask":
        return False
    return len(node.args) == 2 or any(word.arg == "deadline_s" for word in node.keywords)


@pytest.mark.rule("actors.edges-ask")
def test_no_actor_asks() -> None:
    floors = ("actors", "pool", "hooks", "aerix")
    files = {path for floor in floors for path in (ROOT / floor).rglob("*.py")}
    assert list(asks({str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files})) == []


@pytest.mark.rule("actors.edges-ask")
@pytest.mark.parametrize("call", ["ref.ask(Ping(), 5)", "self._ref.ask(Ping(), deadline_s=5)"])
def test_an_actor_that_asks_is_seen_also_below_another_class(call: str) -> None:
    base = "class Base(actors.Supervisor):\n    pass\n"
    asking = f"class Asking(Base):\n    def _ping(self):\n        return {call}\n"
    assert list(asks({"a.py": base, "b.py": asking})) == [f"b.py: Asking: {call}"]
    assert list(asks({"b.py": asking})) == []
