"""Every event of real runs is as the JSON Schema of the events says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from aerix.pool.client import PoolSettings
from aerix.session.events import Note, Token, line
from tests import event_schema
from tests.runs import (  # noqa: F401 - a fixture
    Aerix,
    Desk,
    Line,
    call,
    calls,
    daemon,
    final,
    script,
    session_log,
)

PASS = {"turn": {"thought": "It holds.", "final": {"verdict": "pass", "reason": "seen"}}}
GROUPS: list[tuple[str, list[dict[str, Any]]]] = [
    ("Another agent did", [PASS]),
    ("play all", [
        calls(call("plan", op="write", text="first this"), call("bash", command="echo out", background=True)),
        calls(call("read", path="none.txt"), call("write", path="a.txt", content="a\n"), call("context", op="status")),
        calls(call("context", op="note", text="a.txt is there"), call("context", op="drop", ids=["system"])),
        calls(call("agent", brief="Do the work alone.")),
        final(),
    ]),
    ("play flood", [
        *(calls(call("bash", command=f"yes {n} | head -c 6000"), thought=f"Round {n}.") for n in range(4)),
        {"text": '```json\n{"tool": "plan", "arguments": {"op": "read"}}\n```'},
        {**final("x" * 200), "fault": "cut"},
        final(),
    ]),
    ("work alone", [final("did it")]),
]  # fmt: skip
SEEN = {
    "session.start", "route", "agent.spawn", "spend", "segment", "message", "plan", "job", "context.op", "piece", "verdict",
    "agent.end", "session.end", "token", "note",
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("model")
    return {
        "wide": script(folder, GROUPS, window=16384),
        "narrow": script(folder, GROUPS, window=4096, json=False),
    }


@pytest.fixture
def aerix(daemon: PoolSettings, models: dict[str, str], git_repo: Path) -> Iterator[Aerix]:  # noqa: F811
    runs = Aerix(git_repo, daemon, models["wide"])
    yield runs
    runs.close()


def assert_as_said(lines: list[Line]) -> set[str]:
    """Each is; the types there are."""
    assert [wrong for one in lines if (wrong := event_schema.wrong(one))] == []
    return {one["type"] for one in lines}


@pytest.mark.rule("headless.event-schema")
def test_the_events_of_a_run_with_jobs_a_plan_and_a_piece(aerix: Aerix) -> None:
    done = aerix("-p", "play all", "--output-format", "stream-json")
    assert done.code == 0
    assert assert_as_said(done.lines) >= SEEN
    assert assert_as_said(session_log()) >= SEEN - {"token", "note"}
    Draft202012Validator(event_schema.schema()).validate(done.lines[-1])


@pytest.mark.rule("headless.event-schema")
def test_the_events_of_a_run_with_compactions_a_cut_turn_and_a_repaired_one(
    daemon: PoolSettings,  # noqa: F811
    models: dict[str, str],
    git_repo: Path,
    tmp_path: Path,
) -> None:
    ran = Desk(daemon, git_repo, tmp_path, models["narrow"])("play flood")
    assert ran.end.outcome == "done"
    assert assert_as_said(ran.log) >= {"compaction", "turn.repaired"}
    assert any(one["type"] == "message" and not one["kept"] for one in ran.log)
    assert_as_said([json.loads(line(one)) for one in ran.shown if isinstance(one, Note | Token)])


def test_what_is_no_event_is_seen() -> None:
    good = json.loads(line(Note(text="x")))
    assert event_schema.wrong(good) is None
    assert event_schema.wrong({**good, "type": "fly"}) == "there is no event of the type fly"
    assert event_schema.wrong({**good, "more": 1}) is not None
    assert event_schema.wrong({**good, "text": 1}) == "note: 1 is not of type 'string'"
