"""Every rule that is built has a test that bears its id, every id in a test is a rule, and docs/rules.md is up to date.

``python tests/test_rules.py --write`` writes docs/rules.md from tests/rules.toml.
"""

import sys
import tomllib
from dataclasses import dataclass

import pytest

from tests.marks import TESTS, marks_in, read_marks

PAGE = TESTS.parent / "docs/rules.md"
ISSUES = range(2, 8)


@dataclass(frozen=True)
class Rule:
    """A sentence that Aerix keeps, the issue it belongs to, and whether it is built."""

    id: str
    says: str
    issue: int
    built: bool


def read_rules() -> list[Rule]:
    table = tomllib.loads((TESTS / "rules.toml").read_text("utf-8"))
    return [
        Rule(f"{area}.{name}", **fields)
        for area, rules in table["rules"].items()
        for name, fields in rules.items()
    ]


def read_areas() -> dict[str, str]:
    areas: dict[str, str] = tomllib.loads((TESTS / "rules.toml").read_text("utf-8"))["areas"]
    return areas


def page(rules: list[Rule], areas: dict[str, str], marks: dict[str, set[str]]) -> str:
    """docs/rules.md."""
    built = sum(rule.built for rule in rules)
    text = (
        "# The rules\n\n"
        f"What Aerix promises, sentence by sentence: {len(rules)} rules, of which {built} are built and shown by a test.\n"
        "The others are still to be built. Written from `tests/rules.toml` by `python tests/test_rules.py --write`.\n"
    )
    for area, title in areas.items():
        text += f"\n## {title}\n\n| | rule | shown by |\n|---|---|---|\n"
        for rule in rules:
            if rule.id.split(".")[0] == area:
                where = (
                    ", ".join(f"`{path}`" for path in sorted(marks.get(rule.id, ())))
                    if rule.built
                    else "not built"
                )
                text += f"| `{rule.id}` | {rule.says.replace('|', '&#124;')} | {where} |\n"
    return text


RULES = read_rules()


@pytest.mark.rule("setup.rules-listed")
def test_every_mark_names_a_rule():
    known = {rule.id for rule in RULES}
    assert {rule_id: files for rule_id, files in read_marks("rule").items() if rule_id not in known} == {}


@pytest.mark.rule("setup.rules-listed")
def test_every_built_rule_has_a_test():
    marks = read_marks("rule")
    assert [rule.id for rule in RULES if rule.built and rule.id not in marks] == []


def test_a_rule_with_a_test_is_said_to_be_built():
    marks = read_marks("rule")
    assert [rule.id for rule in RULES if not rule.built and rule.id in marks] == []


def test_every_rule_is_a_sentence_of_an_area_and_an_issue():
    areas = read_areas()
    assert [rule.id for rule in RULES if rule.id.split(".")[0] not in areas] == []
    assert [rule.id for rule in RULES if not rule.says.endswith(".") or rule.issue not in ISSUES] == []


def test_no_sentence_stands_twice():
    said = [rule.says for rule in RULES]
    assert sorted({sentence for sentence in said if said.count(sentence) > 1}) == []


def test_the_page_is_up_to_date():
    assert PAGE.read_text("utf-8") == page(RULES, read_areas(), read_marks("rule")), (
        "python tests/test_rules.py --write"
    )


@pytest.mark.parametrize(
    "source",
    [
        '@pytest.mark.rule("turn.calls-kept")\ndef test_it(): ...',
        'pytestmark = pytest.mark.rule("turn.calls-kept")',
        'X = [pytest.param(1, marks=pytest.mark.rule("turn.calls-kept"))]',
    ],
)
def test_marks_are_found_wherever_they_stand(source):
    assert list(marks_in(source, "rule")) == ["turn.calls-kept"]


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(RULES, read_areas(), read_marks("rule")), "utf-8")
