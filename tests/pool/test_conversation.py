"""The conversation in docs/protocol.md, held with a real daemon. ``python tests/pool/test_conversation.py`` records it anew.

The page has the model's script and what the client says; what the pool answers is written down with fixed values in
place of those that differ from run to run.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pool.daemons import Daemons, Wire

Open = Callable[..., Wire]
PAGE = Path(__file__).parents[2] / "docs/protocol.md"
MODEL = "scripted:/home/me/model.jsonl"
SENDS, ANSWERS = {"→": "←", "⇒": "⇐"}, {"←": "→", "⇐": "⇒"}
FIXED = {
    "limit": 4294967296,
    "pid": 4711,
    "pool": "0.1.0",
    "uptime_secs": 2.5,
    "socket": "/run/user/1000/aerix/pool.sock",
}
LAST = ("Token", "Progress")  # answers after which more come


def blocks() -> tuple[str, str]:
    """The script and the conversation."""
    section = PAGE.read_text("utf-8").partition("## A conversation\n")[2]
    script, talk = re.findall(r"^```\w*\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[:2]
    return script, talk


class Names:
    """What differs from run to run: the name in the page for each thing of this run, and back."""

    def __init__(self, member: str) -> None:
        self._here = {MODEL: member}

    def here(self, plain: Any) -> Any:
        """What the page says, with this run's names."""
        return walk(plain, lambda _, value: self._here.get(value, value) if isinstance(value, str) else value)

    def on_page(self, plain: Any) -> Any:
        """What came, with the page's names."""
        return walk(plain, self._stand_in)

    def _stand_in(self, key: str, value: Any) -> Any:
        if key in FIXED:
            return FIXED[key]
        if key.endswith("_ms"):
            return 1.5
        if not isinstance(value, str):
            return value
        if key in ("context", "owner") and value not in self._here.values():
            count = sum(name.startswith(key) for name in self._here) + 1
            self._here[f"{key}-{count}"] = value
        for name, here in self._here.items():
            value = value.replace(here, name)
        return value


def walk(plain: Any, change: Callable[[str, Any], Any], key: str = "") -> Any:
    if isinstance(plain, dict):
        return {name: walk(value, change, name) for name, value in plain.items()}
    if isinstance(plain, list):
        return [walk(value, change, key) for value in plain]
    return change(key, plain)


def converse(talk: str, names: Names, connect: Callable[[], Wire]) -> Iterator[str]:
    """Say what the page says; the lines of the page as they came out."""
    conns: dict[str, Wire] = {}
    for line in talk.splitlines():
        mark, _, text = line.partition(" ")
        if mark not in SENDS:
            if mark not in ANSWERS:
                yield line
            continue
        if mark not in conns:
            conns[mark] = connect()
        conns[mark].sock.sendall(conns[mark]._pack(names.here(json.loads(text))))
        yield line
        asked = json.loads(text)["type"]
        while (answer := conns[mark].get()) is not None:
            said = json.dumps(names.on_page(answer), separators=(",", ":"), ensure_ascii=False)
            yield f"{SENDS[mark]} {said}"
            counted = (asked, answer["type"]) == ("Generate", "ContextState")
            if not (counted or answer["type"] in LAST) or (mark, asked) == ("⇒", "Generate"):
                break  # the other connection's generation hangs after its first token, until it is cancelled


def held(pool: Daemons, wire: Open, folder: Path) -> tuple[str, str]:
    """The conversation of the page, and as it came out."""
    script, talk = blocks()
    path = folder / "model.jsonl"
    path.write_text(script)
    daemon = pool()
    names = Names(f"scripted:{path}")
    lines = converse(talk, names, lambda: wire(daemon.socket, as_json=True))
    return talk, "".join(f"{line}\n" for line in lines)


@pytest.mark.rule("protocol.conversation")
def test_the_conversation_of_the_page_can_be_held(pool: Daemons, wire: Open, tmp_path: Path) -> None:
    page, came = held(pool, wire, tmp_path)
    assert came == page, "python tests/pool/test_conversation.py"


@pytest.mark.rule("protocol.conversation")
def test_it_shows_every_request() -> None:
    from aerix.pool.protocol import REQUESTS

    said = {json.loads(line[2:])["type"] for line in blocks()[1].splitlines() if line[:1] in SENDS}
    assert said == {cls.__name__ for cls in REQUESTS}


def record() -> None:
    """Write the answers into the page."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        daemons, opened = Daemons(folder / "pool.sock"), list[Wire]()

        def wire(path: Path, *, as_json: bool) -> Wire:
            opened.append(Wire(path, as_json=as_json))
            return opened[-1]

        try:
            page, came = held(daemons, wire, folder)
        finally:
            for one in opened:
                one.close()
            daemons.close()
    PAGE.write_text(PAGE.read_text("utf-8").replace(page, came), "utf-8")


if __name__ == "__main__":
    sys.exit(record())
