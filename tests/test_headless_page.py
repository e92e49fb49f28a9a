"""docs/headless.md and docs/events.schema.json are as the code is. ``python tests/test_headless_page.py --write`` writes
what is made from it: the flags, the exit codes, the events.
"""

import ast
import json
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from aerix import cli, exits
from aerix.session.events import Event, Reading
from tests import event_schema

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, SCHEMA = DOCS / "headless.md", DOCS / "events.schema.json"
WRITE = "python tests/test_headless_page.py --write"
END = "<!-- end -->\n"
DESIGNED = (
    "-p", "--output-format", "--input-format", "--max-turns", "--max-new-tokens", "--resume", "--continue", "--model", "--route",
    "--cd", "--add-dir", "--mode", "--allow", "--deny", "--no-diff", "--final-schema", "--seed", "--in-place", "--settings", "-c",
)  # fmt: skip


def flags() -> str:
    """The group of ``aerix --help`` that is about one request."""
    (group,) = [one for one in cli._parser(full=False)._action_groups if "without a screen" in str(one.title)]
    rows = []
    for action in group._group_actions:
        value = "" if action.nargs == 0 else f" {action.metavar or '|'.join(map(str, action.choices or ()))}"
        names = ", ".join(f"`{name}{value}`" for name in action.option_strings)
        rows.append(f"| {cell(names)} | {cell(action.help or '')} |\n")
    return "| flag | meaning |\n|---|---|\n" + "".join(rows)


def cell(text: str) -> str:
    return text.replace("|", r"\|")


def codes() -> str:
    tree = ast.parse(Path(exits.__file__).read_text("utf-8"))
    told = {}
    for one, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant) and isinstance(text, ast.Expr):
            told[one.value.value] = event_schema.sentences(ast.literal_eval(text.value))
    return "| code | meaning |\n|---|---|\n" + "".join(
        f"| {code} | {text} |\n" for code, text in told.items()
    )


MADE = {
    "<!-- flags -->\n": flags,
    "<!-- exit codes -->\n": codes,
    "<!-- events -->\n": event_schema.reference,
}


def page() -> str:
    """The page with what is made from the code."""
    text = PAGE.read_text("utf-8")
    for begin, make in MADE.items():
        before, rest = text.split(begin)
        _, after = rest.split(END, 1)
        text = f"{before}{begin}{make()}{END}{after}"
    return text


def schema() -> str:
    return json.dumps(event_schema.schema(), indent=1, ensure_ascii=False) + "\n"


@pytest.mark.rule("headless.event-schema")
def test_the_page_has_every_flag_exit_code_and_event_as_they_are() -> None:
    assert PAGE.read_text("utf-8") == page(), WRITE


@pytest.mark.rule("headless.event-schema")
def test_the_schema_file_is_that_of_the_events() -> None:
    assert SCHEMA.read_text("utf-8") == schema(), WRITE
    Draft202012Validator.check_schema(json.loads(SCHEMA.read_text("utf-8")))


@pytest.mark.rule("headless.event-schema")
def test_every_class_of_an_event_with_a_type_is_in_it() -> None:
    def below(kind: type[Event]) -> set[type[Event]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    typed = {kind.type for kind in below(Event) if "type" in kind.__dict__}
    assert typed - {Reading.type} == {kind.type for kind in event_schema.kinds()}
    assert len(event_schema.schema()["$defs"]) == len(event_schema.kinds())


@pytest.mark.rule("headless.flags")
def test_every_flag_of_the_design_is_there_and_on_the_page() -> None:
    known = {flag for action in cli._parser(full=False)._actions for flag in action.option_strings}
    assert set(DESIGNED) - known == set()
    assert [flag for flag in DESIGNED if f"`{flag}" not in PAGE.read_text("utf-8")] == []


@pytest.mark.rule("headless.exit-codes")
def test_the_help_names_every_exit_code() -> None:
    told = cli._parser(full=False).epilog or ""
    for code in sorted(
        {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    ):
        assert f" {code} " in told, f"aerix --help does not name the exit code {code}"


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    PAGE.write_text(page(), "utf-8")
    SCHEMA.write_text(schema(), "utf-8")
