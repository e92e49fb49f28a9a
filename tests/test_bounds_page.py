"""docs/bounds.md has every row of the table of limits. ``python tests/test_bounds_page.py --write`` writes them."""

import sys
from pathlib import Path

import pytest

from aerix.actors.bounds import Bound
from aerix.bounds import every_row

PAGE = Path(__file__).resolve().parent.parent / "docs/bounds.md"
BEGIN, END = "<!-- limits -->\n", "<!-- end -->"


def line(row: Bound) -> str:
    built = "" if row.built else " (*not built yet*)"
    value = f"{row.default:,.12g} {row.unit}"
    return f"| `{row.name}`{built} | {value} | {row.owner} | {row.policy} | {row.outcome} | {row.setting} |\n"


def table() -> str:
    head = "| limit | value | who keeps it | what then | how that end is called | set by |\n|---|---|---|---|---|---|\n"
    return head + "".join(map(line, every_row()))


def parts() -> tuple[str, str, str]:
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    now, after = rest.split(END, 1)
    return before, now, after


@pytest.mark.rule("bounds.docs-generated")
def test_the_page_has_every_limit_as_it_is() -> None:
    assert parts()[1] == table(), "python tests/test_bounds_page.py --write"


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    start, _, end = parts()
    PAGE.write_text(f"{start}{BEGIN}{table()}{END}{end}", "utf-8")
