"""The journal: logged first, then shown; slow, stuck and lost readers; a log that is lost."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aerix.actors import Actor, Cancelled, Refused, on, start
from aerix.agent.journal import Journal
from aerix.session.events import Event, Note, Plan, Reading, Token
from aerix.session.log import SessionLog
from aerix.session.show import Show
from tests.pool.daemons import PATIENCE, Do, Runner
from tests.runs import json_lines


class Reader(Actor):
    """A reader that waits at a gate, or refuses, before it reads."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.refusal: Refused | None = None
        self.crashes = False
        self.batches: list[tuple[Event, ...]] = []

    @on(Show)
    def _show(self, message: Show) -> None:
        self.gate.wait(PATIENCE)
        if self.crashes:
            raise ZeroDivisionError
        if self.refusal is not None:
            raise self.refusal
        self.batches.append(message.events)

    @property
    def texts(self) -> list[str]:
        return [
            event.text for batch in self.batches for event in batch if isinstance(event, Plan | Note | Token)
        ]


class Table:
    """A journal in an actor, its log and its reader."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "session.jsonl"
        self.reader = Reader()
        self.log = start(SessionLog(self.path), "log")
        self.screen = start(self.reader, "reader")
        self.runner = start(Runner(), "writer")

    def do(self, *works: Callable[[Journal], object]) -> object:
        """Run in the journal's actor, one after the other; what the last one returns."""

        def run(actor: Actor) -> object:
            if not hasattr(self, "journal"):
                self.journal = Journal(actor, self.log, self.screen, "a1")
            return [work(self.journal) for work in works][-1]

        return self.runner.ask(Do(run), PATIENCE)

    def refusal(self, *works: Callable[[Journal], object]) -> str:
        with pytest.raises(Refused) as raised:
            self.do(*works)
        return raised.value.code

    def logged(self) -> list[str]:
        return [line["text"] for line in json_lines(self.path.read_bytes())]

    def close(self) -> None:
        self.reader.gate.set()
        for ref in (self.runner, self.screen, self.log):
            ref.stop()
            assert ref.join(PATIENCE)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    found = Table(tmp_path)
    yield found
    found.close()


def plan(text: str) -> Plan:
    return Plan(text=text)


@pytest.mark.rule("session.written-before-done")
@pytest.mark.rule("headless.stream-json")
def test_events_tokens_and_notes_are_shown_in_the_order_in_which_they_were_told(table: Table) -> None:
    def tell(journal: Journal) -> None:
        journal.stream(b"gr\xc3")
        journal.note("a note")
        journal.stream(b"\xbcn")
        journal.write(plan("one"), plan("two"))
        journal.stream(b"\xc3")
        journal.write(plan("three"))

    table.do(tell)
    assert "".join(table.reader.texts) == "gra noteünonetwo\N{REPLACEMENT CHARACTER}three"
    assert table.logged() == ["one", "two", "three"]


def test_of_what_is_read_while_the_reader_is_busy_the_last_is_shown_and_tokens_are_counted(
    table: Table,
) -> None:
    table.reader.gate.clear()

    def tell(journal: Journal) -> None:
        journal.note("busy")
        for done in range(5):
            journal.reading(done, 9, anew=done == 1)
        journal.stream(b"\xc3", 1)
        journal.stream(b"\xbc", 2)
        table.reader.gate.set()
        journal.flush()

    table.do(tell)
    shown = [event for batch in table.reader.batches for event in batch]
    reading = [one for one in shown if isinstance(one, Reading)]
    tokens = [one for one in shown if isinstance(one, Token)]
    assert [(one.done, one.total, one.anew) for one in reading] == [(4, 9, True)]
    assert [(one.text, one.tokens) for one in tokens] == [("ü", 3)]


def test_what_comes_while_the_reader_is_busy_is_shown_together(table: Table) -> None:
    table.reader.gate.clear()

    def tell(journal: Journal) -> None:
        for letter in b"abcdef":
            journal.stream(bytes([letter]))
        table.reader.gate.set()
        journal.flush()

    table.do(tell)
    assert table.reader.texts == ["a", "bcdef"]


@pytest.mark.rule("headless.closed-stdout")
def test_a_lost_reader_is_told_with_its_code_and_costs_no_line_of_the_log(table: Table) -> None:
    table.reader.refusal = Refused("stdout_closed", "standard output was closed")
    assert table.refusal(lambda journal: journal.write(plan("one"))) == "stdout_closed"
    table.do(
        Journal.mute,
        lambda journal: journal.note("nobody"),
        lambda journal: journal.stream(b"x"),
        lambda journal: journal.write(plan("two")),
    )
    assert table.logged() == ["one", "two"]


@pytest.mark.rule("headless.closed-stdout")
def test_a_reader_that_crashed_or_is_gone_is_lost_too(table: Table) -> None:
    table.reader.crashes = True
    assert table.refusal(lambda journal: journal.write(plan("one"))) == "stdout_failed"
    assert table.screen.join(PATIENCE)
    assert table.refusal(lambda journal: journal.write(plan("two"))) == "stdout_failed"
    assert table.logged() == ["one", "two"]


@pytest.mark.bound("request.journal")
@pytest.mark.rule("bounds.named-outcome")
def test_a_reader_that_never_reads_is_lost_after_its_time(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_REQUEST_JOURNAL", "0.05")
    table.reader.gate.clear()
    assert table.refusal(lambda journal: journal.write(plan("one"))) == "stdout_failed"
    assert table.logged() == ["one"]


@pytest.mark.rule("session.full-disk")
def test_a_lost_log_is_told_and_what_is_not_logged_is_not_shown(table: Table) -> None:
    table.log.stop()
    assert table.log.join(PATIENCE)
    assert table.refusal(lambda journal: journal.write(plan("one"))) == "session_storage"
    table.do(Journal.stop_logging, lambda journal: journal.write(plan("the end")))
    assert table.reader.texts == ["the end"]


@pytest.mark.rule("agent.cancel")
@pytest.mark.rule("session.whole-lines")
def test_a_cancel_in_a_write_loses_and_repeats_nothing(table: Table) -> None:
    table.reader.gate.clear()

    def cancelled(journal: Journal) -> str:
        journal.stream(b"text")
        table.runner.cancel("interrupted")
        try:
            journal.write(plan("one"))
        except Cancelled as cancel:
            table.reader.gate.set()
            journal.write(plan("two"))
            return cancel.reason
        return "not cancelled"

    assert table.do(cancelled) == "interrupted"
    assert table.logged() == ["one", "two"]
    assert table.reader.texts == ["text", "one", "two"]


def test_a_hurried_journal_waits_no_longer_than_it_was_told(table: Table) -> None:
    table.reader.gate.clear()
    code = table.refusal(lambda journal: journal.hurry(0.05), lambda journal: journal.write(plan("one")))
    assert (code, table.logged()) == ("stdout_failed", ["one"])
