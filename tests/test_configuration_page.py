"""docs/configuration.md has every setting as it is. ``python tests/test_configuration_page.py --write`` writes them."""

import sys
from pathlib import Path

from aerix.settings_schema import KEYS, REF, Key, allowed, dotted, toml

PAGE = Path(__file__).resolve().parent.parent / "docs/configuration.md"
BEGIN, END = "<!-- settings -->\n", "<!-- end -->"


def row(key: Key) -> str:
    name = dotted(key.path).replace(REF, f'"{REF}"')
    default = "" if key.default is None else f"`{toml(key.default)}`"
    project = {"lower": "lower", "never": "no", "adds": "adds", None: ""}[key.tighten]
    text = f"*not built*: {key.text}" if key.missing else key.text
    return f"| `{name}` | {default} | {allowed(key.schema)} | {project} | {text} |\n"


def table() -> str:
    head = "| setting | default | allowed | from a project | what it is |\n|---|---|---|---|---|\n"
    return head + "".join(map(row, KEYS))


def parts() -> tuple[str, str, str]:
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    now, after = rest.split(END, 1)
    return before, now, after


def test_the_page_has_every_setting_as_it_is():
    assert parts()[1] == table(), "python tests/test_configuration_page.py --write"


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    start, _, end = parts()
    PAGE.write_text(f"{start}{BEGIN}{table()}{END}{end}", "utf-8")
