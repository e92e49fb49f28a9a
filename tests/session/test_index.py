"""The index of sessions: made from their logs, repaired from them, never trusted over them."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from aerix.session import events, index
from aerix.session.index import Entry, NoSession, entries, find, home, latest
from tests.conftest import Limit

PROJECT = "project-12345678"


def session(title: str = "Hello", *, outcome: str | None = "done", turns: int = 1, **given: Any) -> str:
    """A log as a request leaves it, or a kill; its id."""
    name = given.get("name") or str(uuid.uuid4())
    folder = home(given.get("project", PROJECT))
    folder.mkdir(parents=True, exist_ok=True)
    ts = given.get("ts", "2026-01-01T00:00:00.000+00:00")
    made: list[events.Event] = [
        events.SessionStart(
            ts=ts, session=name, version="0", cwd="/there", project="p", model="m", title=title
        )
    ]
    made += [events.Message(ts=ts, id=f"t{n}", role="assistant", text="") for n in range(turns)]
    if outcome is not None:
        made.append(
            events.SessionEnd(
                ts=ts,
                session=name,
                outcome=outcome,
                reason="",
                text="",
                diff="",
                untracked=[],
                usage={},
                turns=turns,
                exit=0,
            )
        )
    with (folder / f"{name}.jsonl").open("ab") as log:
        log.writelines(map(events.line, made))
    return name


def listed(project: str = PROJECT) -> list[Entry]:
    return entries(home(project))


def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every log that is read from now on."""
    seen: list[Path] = []
    reading = index.Reading
    monkeypatch.setattr(index, "Reading", lambda path: seen.append(path) or reading(path))
    return seen


@pytest.mark.rule("session.index")
def test_it_tells_of_each_session_the_latest_first() -> None:
    old = session("The old one", ts="2026-01-01T00:00:00.000+00:00", outcome="budget", turns=3)
    new = session("The new one", ts="2026-02-01T00:00:00.000+00:00", outcome=None)
    first, second = listed()
    assert (first.id, first.title, first.outcome, first.turns) == (new, "The new one", "", 1)
    assert (second.id, second.title, second.outcome, second.turns) == (old, "The old one", "budget", 3)
    assert (second.model, second.cwd, second.requests) == ("m", "/there", 1)


@pytest.mark.rule("session.index")
def test_a_session_with_several_prompts_has_the_title_of_the_first_and_the_end_of_the_last() -> None:
    name = session("One", turns=2)
    session("Two", turns=3, name=name, outcome="failed", ts="2026-03-01T00:00:00.000+00:00")
    [entry] = listed()
    assert (entry.title, entry.requests, entry.turns, entry.outcome) == ("One", 2, 5, "failed")
    assert entry.started < entry.last


@pytest.mark.rule("session.index")
def test_only_logs_that_changed_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    session("stays")
    changed = session("grows")
    listed()
    seen = reads(monkeypatch)
    listed()
    assert seen == []
    session("more", name=changed)
    assert {entry.title: entry.requests for entry in listed()} == {"stays": 1, "grows": 2}
    assert [path.stem for path in seen] == [changed]


@pytest.mark.rule("session.index")
@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 200_000,
        b'{"version": 1, "sessions": 7}',
        b'{"version": 1, "sessions": {"x": {"id": 7}, "y": null}}',
        b'{"version": 2, "sessions": {}}',
    ],
)
def test_a_damaged_index_is_made_anew(damage: bytes) -> None:
    session("still here")
    whole = listed()
    (home(PROJECT) / "index.json").write_bytes(damage)
    assert listed() == whole
    assert json.loads((home(PROJECT) / "index.json").read_bytes())["sessions"]


@pytest.mark.rule("session.index")
@pytest.mark.bound("session.index")
def test_an_index_over_its_bound_is_made_anew(limit: Limit, monkeypatch: pytest.MonkeyPatch) -> None:
    session("still here")
    whole = listed()
    limit("session.index", 10)
    seen = reads(monkeypatch)
    assert listed() == whole
    assert len(seen) == 1


@pytest.mark.rule("session.index")
def test_what_it_says_of_a_log_that_is_gone_is_forgotten() -> None:
    gone, stays = session("gone"), session("stays")
    listed()
    (home(PROJECT) / f"{gone}.jsonl").unlink()
    assert [entry.id for entry in listed()] == [stays]


@pytest.mark.rule("session.index", "session.private")
def test_it_is_its_owners_and_replaced_whole() -> None:
    session()
    listed()
    path = home(PROJECT) / "index.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir() if each.suffix != ".jsonl"] == ["index.json"]


def test_an_index_that_cannot_be_written_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    session("still here")
    (home(PROJECT) / "index.json").mkdir()  # nothing can replace a folder with a file
    assert [entry.title for entry in listed()] == ["still here"]
    assert not (home(PROJECT) / "index.json.new").exists()


def test_what_lies_beside_the_logs_is_no_session() -> None:
    name = session()
    (home(PROJECT) / f"{name}.claude.jsonl").write_text("{}\n")
    (home(PROJECT) / "notes.jsonl").write_text("{}\n")
    os.mkfifo(home(PROJECT) / f"{uuid.uuid4()}.jsonl")  # is not waited for
    assert [entry.id for entry in listed()] == [name]


@pytest.mark.rule("session.index")
def test_at_a_requests_end_only_its_own_log_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    session("others")
    mine = index.Place(home(PROJECT), session("mine"))
    seen = reads(monkeypatch)
    index.note(mine)
    index.note(mine)
    assert seen == [mine.log]
    assert list(json.loads((home(PROJECT) / "index.json").read_bytes())["sessions"]) == [mine.id]
    assert {entry.title for entry in listed()} == {"others", "mine"}
    index.note(index.Place(home(PROJECT), "gone"))


# --- which one is meant


@pytest.mark.rule("session.continue")
def test_the_latest_is_the_one_in_which_something_was_done_last() -> None:
    session(ts="2026-01-01T00:00:00.000+00:00")
    meant = session(ts="2026-01-02T00:00:00.000+00:00")
    session(ts="2026-01-03T00:00:00.000+00:00", turns=0, outcome="failed")  # there was no pool
    session(ts="2026-01-04T00:00:00.000+00:00", project="other-12345678")
    assert latest(PROJECT) == meant


def test_where_nothing_was_done_the_latest_is_the_last_that_was_begun() -> None:
    session(ts="2026-01-01T00:00:00.000+00:00", turns=0)
    meant = session(ts="2026-01-02T00:00:00.000+00:00", turns=0)
    assert latest(PROJECT) == meant


def test_without_a_session_there_is_no_latest() -> None:
    with pytest.raises(NoSession, match=r"there is no session of this project yet; begin one: aerix -p"):
        latest(PROJECT)


@pytest.mark.rule("session.by-prefix")
def test_a_prefix_that_only_one_id_has_is_enough() -> None:
    one = session(name="aaaa1111-0000-4000-8000-000000000001")
    two = session(name="aaaa2222-0000-4000-8000-000000000002")
    assert [find(text, PROJECT).id for text in ("aaaa1", "AAAA1", one, "aaaa2")] == [one, one, one, two]
    with pytest.raises(
        NoSession, match=r"2 sessions have ids that begin with aaaa: aaaa1111.*; give more of it"
    ):
        find("aaaa", PROJECT)


@pytest.mark.rule("session.by-prefix")
@pytest.mark.parametrize("text", ["", "ffff", "../../etc/passwd", "*", "[a-z]"])
def test_an_id_that_nobody_has_is_said_to_be_none(text: str) -> None:
    session(name="aaaa1111-0000-4000-8000-000000000001")
    with pytest.raises(NoSession, match="no session has an id that begins with"):
        find(text, PROJECT)


@pytest.mark.rule("session.other-project")
def test_a_session_of_another_project_is_refused_with_its_folder() -> None:
    session(project="other-12345678", name="bbbb1111-0000-4000-8000-000000000001")
    with pytest.raises(
        NoSession, match=r"bbbb1111.* belongs to another project, in /there; go on with it there"
    ):
        find("bbbb", PROJECT)
    assert find("bbbb").home == home("other-12345678")
