"""The last request of a session as its log tells it, and the few lines of it that are shown."""

import json
from typing import Any

import pytest

from aerix.lines_last import Last, exchange, last_request
from aerix.session.events import Event, Segment, SessionStart, line
from tests.conftest import Limit
from tests.lines.test_view import end


def began(title: str) -> SessionStart:
    return SessionStart(session="s", version="0", cwd="/", project="p", model="m", title=title)


def said(name: str, text: str, agent: str = "a1") -> Segment:
    return Segment(agent=agent, id=name, role="user", label="prompt", tokens=1, text=text)


def last(*told: Event) -> Last:
    lines: list[dict[str, Any]] = [json.loads(line(event)) for event in told]
    return last_request(lines)


@pytest.mark.rule("lines.last-exchange")
def test_the_last_request_is_told_from_the_log() -> None:
    first = (began("one"), said("prompt", "one"), end(text="first", diff="+a", untracked=["big"]))
    assert last(*first) == Last("one", "first", "done", "", "+a", ("big",))
    second = (
        began("two"),
        said("prompt2", "two\nlines"),
        said("u1", "steered"),
        said("prompt", "a piece", "a1.c1"),
    )
    assert last(*first, *second) == Last("two\nlines")
    assert last(*first, *second, end(outcome="budget", reason="spent")) == Last(
        "two\nlines", "", "budget", "spent"
    )
    assert last(*first, began("three")) == Last("three")
    assert last() == Last()


@pytest.mark.rule("lines.last-exchange")
@pytest.mark.rule("lines.no-control")
@pytest.mark.bound("lines.last")
def test_a_few_lines_of_the_prompt_and_the_answer_are_shown(limit: Limit) -> None:
    limit("lines.last", 2)
    assert exchange(Last("one\n\ntwo\nthree", "a\x1b[2J\nb\nc\n\nd\n", "done")) == [
        "> one",
        "  two",
        "  … 1 more line",
        "a␛[2J",
        "b",
        "… 2 more lines",
    ]
    assert exchange(Last("x" * 500, "", "failed", "no\x07 pool\nat all")) == [
        f"> {'x' * 159}…",
        "failed: no␇ pool at all",
    ]
    assert exchange(Last("one")) == ["> one", "it did not end"]
    assert exchange(Last(" \n")) == []
