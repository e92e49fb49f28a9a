"""Events as lines of JSON."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from aerix.session.events import AgentEnd, Event, Message, Note, Plan, Route, SessionEnd, line, title
from tests.conftest import Limit


def as_json(event: Event) -> dict[str, object]:
    text = line(event)
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1
    found: dict[str, object] = json.loads(text)
    return found


@pytest.mark.rule("session.one-event-a-line")
def test_every_event_has_its_time_its_type_and_its_agent_first() -> None:
    found = as_json(Plan(agent="a1.c3", text="one\ntwo\r\n\u2028three"))
    assert list(found) == ["ts", "type", "agent", "text"]
    assert (found["type"], found["agent"]) == ("plan", "a1.c3")
    ts = datetime.fromisoformat(str(found["ts"]))
    assert ts.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - ts) < timedelta(minutes=1)


def test_the_time_is_the_same_wherever_the_event_is_written() -> None:
    event = Note(text="x")
    assert line(event) == line(event)


@pytest.mark.bound("session.title")
def test_a_prompt_is_listed_with_the_start_of_its_first_line(limit: Limit) -> None:
    assert title("  Mend it \r\n\nAnd test it.") == "Mend it"
    limit("session.title", 5)
    assert (title("Mend it"), title("Mends"), title("")) == ("Mend…", "Mends", "")


@pytest.mark.rule("session.one-event-a-line")
def test_what_an_event_does_not_have_is_left_out() -> None:
    assert "scores" not in as_json(Route(route="edit"))
    assert {"tokens", "tool", "spool"}.isdisjoint(as_json(Message(id="t1", role="assistant", text="")))
    assert as_json(Message(id="t1", role="assistant", text="", tokens=[]))["tokens"] == []


@pytest.mark.rule("session.whole-lines")
@pytest.mark.parametrize("text", ["\ud800 half a pair", "grüße 世界 🎈", "\x00\x1b[2J", "x" * 100_000])
def test_any_text_is_a_line(text: str) -> None:
    found = as_json(Plan(text=text))["text"]
    assert found == text.encode("utf-8", "replace").decode()


@pytest.mark.rule("headless.json")
def test_the_end_of_a_session_says_what_the_json_format_prints() -> None:
    end = SessionEnd(
        session="s", outcome="done", reason="", text="", diff="", untracked=[], usage={}, turns=1, exit=0
    )
    fields = ["session", "outcome", "reason", "text", "diff", "untracked", "usage", "turns", "exit"]
    assert list(as_json(end))[3:] == fields
    assert as_json(AgentEnd(outcome="done", reason="", turns=1))["type"] == "agent.end"
