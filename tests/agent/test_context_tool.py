"""The ``context`` tool, through the real pool: what it says, what it refuses, and what the log keeps of it."""

from typing import Any

import pytest

from tests.runs import Desk, Line, Ran, Step, call, calls, final, of, play, replay, results, turns

WINDOW = 4096
NOISE = call("bash", command="yes | head -c 300")


def op(name: str, *ids: str, **more: Any) -> Step:
    return call("context", op=name, **({"ids": list(ids)} if ids else {}), **more)


def after(*made: Step) -> list[Step]:
    """Two results, then these calls, one a turn."""
    return [calls(NOISE), calls(NOISE), *map(calls, made), final()]


PLAYS: dict[str, list[Step]] = {
    "status": after(op("pin", "c1"), op("status")),
    "drop": after(op("drop", "c1", "t1")),
    "keeps when dropped": after(
        op("note", text="mind the gap"), *(op("drop", name) for name in ("system", "instructions", "scratchpad", "prompt"))
    ),
    "summarize": after(op("summarize", "t1", "c1", "t2", text="Two floods were looked at.")),
    "keeps when summarized": after(*(op("summarize", name, text="all") for name in ("system", "instructions", "prompt"))),
    "pin": after(op("pin", "c1"), op("unpin", "c2"), op("unpin", "prompt")),
    "unpin": after(op("pin", "c1"), op("unpin", "c1")),
    "note": after(op("note", text="first"), op("note", text="second")),
    "wrong": after(op("drop"), op("drop", "c9", "c1"), op("summarize", "c1"), op("note"), op("note", text="x" * 400), op("note", text="y" * 400)),
    "reread": [
        calls(call("read", path="README.md")),
        calls(call("read", path="README.md")),
        calls(op("drop", "c1", "c2")),
        calls(call("read", path="README.md")),
        final(),
    ],
    "survives": [
        calls(op("note", text="the answer is 42")),
        calls(op("summarize", "t1", text="A note was made.")),
        *(calls(call("bash", command=f"yes {n} | head -c 2000")) for n in range(12)),
        final(),
    ],
    "pinned": [
        calls(NOISE),
        calls(op("pin", "c1")),
        *(calls(call("bash", command=f"yes {n} | head -c 2000")) for n in range(8)),
        final(),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS, window=WINDOW)


def said(ran: Ran) -> list[str]:
    """What the tool answered."""
    return [line["text"].partition("\n")[2] for line in results(ran.log) if line["tool"] == "context"]


def ops(ran: Ran) -> list[Line]:
    return of(ran.log, "context.op")


def ids(ran: Ran) -> list[str]:
    return [segment.id for segment, _ in replay(ran.log)]


@pytest.mark.rule("context.op-status")
def test_status_lists_segments_with_ids_labels_counts_and_pins(desk: Desk) -> None:
    ran = desk("play status")
    head, *lines = said(ran)[1].splitlines()
    held = {segment.id: (segment, tokens) for segment, tokens in replay(ran.log)}
    assert lines == [
        f"{name} {label} {held[name][1]}{' pinned' * held[name][0].pinned}"
        for name, label in [("system", "system"), ("prompt", "prompt"), ("t1", "turn"), ("c1", "result"), ("t2", "turn"),
                            ("c2", "result"), ("t3", "turn"), ("c3", "result"), ("t4", "turn")]
    ]  # fmt: skip
    opening = turns(ran.log)[0]["usage"]["prompt_tokens"] - held["system"][1] - held["prompt"][1]
    used = opening + sum(int(line.split()[2]) for line in lines)
    assert head == f"{used} of 4096 tokens are used; from 2867 on old ones give way."
    assert [line for line in lines if line.endswith(" pinned")] == [lines[0], lines[1], lines[3]]


@pytest.mark.rule("context.op-drop")
def test_drop_takes_segments_out(desk: Desk) -> None:
    ran = desk("play drop")
    assert ids(ran) == ["system", "prompt", "t2", "c2", "t3", "c3", "t4"]
    assert said(ran)[0].startswith("Done: ")
    assert ops(ran)[0]["removed"] == ["t1", "c1"]


@pytest.mark.rule("context.users-words")
@pytest.mark.rule("context.op-drop")
@pytest.mark.rule("context.op-summarize")
@pytest.mark.parametrize("name", ["keeps when dropped", "keeps when summarized"])
def test_the_system_the_instructions_the_scratchpad_and_the_users_words_stay(desk: Desk, name: str) -> None:
    (desk.cwd / "CLAUDE.md").write_text("Be kind.\n")
    ran = desk(f"play {name}")
    refused = [line for line in ops(ran) if line["op"] != "note"]
    assert [text for text in said(ran) if text.startswith("error: ")] == [
        f"error: {line['ids'][0]} cannot be taken out." for line in refused
    ]
    assert all(line["error"] and not line["put"] and not line["removed"] for line in refused)
    assert {"system", "instructions", "prompt"} <= set(ids(ran))


@pytest.mark.rule("context.op-summarize")
def test_summarize_puts_one_pinned_segment_in_the_place_of_others(desk: Desk) -> None:
    ran = desk("play summarize")
    held = {segment.id: segment for segment, _ in replay(ran.log)}
    assert list(held)[:4] == ["system", "prompt", "t1", "c2"]
    summary = held["t1"]
    assert (summary.role, summary.text, summary.pinned) == (
        "user",
        "[summary]\nTwo floods were looked at.",
        True,
    )
    assert summary.tokens is None


@pytest.mark.rule("context.users-words")
@pytest.mark.rule("context.op-pin")
def test_pin_and_unpin_set_the_flag_and_cost_no_row(desk: Desk) -> None:
    pinned, unpinned = desk("play pin"), desk("play unpin")
    flags = [{segment.id: segment.pinned for segment, _ in replay(ran.log)} for ran in (pinned, unpinned)]
    assert (flags[0]["c1"], flags[0]["c2"], flags[0]["prompt"], flags[1]["c1"]) == (True, False, True, False)
    assert said(pinned)[2] == "error: prompt must stay pinned."
    for before, after in zip(turns(pinned.log), turns(pinned.log)[1:], strict=False):
        rows = before["usage"]["prompt_tokens"] + before["usage"]["completion_tokens"]
        assert rows - 8 < after["usage"]["recomputed_from"] < rows


@pytest.mark.rule("context.op-pin")
def test_what_is_pinned_is_not_compacted(desk: Desk) -> None:
    ran = desk("play pinned")
    held = {segment.id: segment for segment, _ in replay(ran.log)}
    assert of(ran.log, "compaction")
    assert held["c1"].text.startswith("[bash c1]\ny\n")


@pytest.mark.rule("context.op-note")
def test_notes_are_pinned_segments_at_the_contexts_end(desk: Desk) -> None:
    ran = desk("play note")
    notes = [segment for segment, _ in replay(ran.log) if segment.id.startswith("scratchpad")]
    assert [(one.id, one.text, one.pinned) for one in notes] == [
        ("scratchpad", "[note] first", True),
        ("scratchpad.2", "[note] second", True),
    ]
    assert said(ran) == ["The note is kept."] * 2


@pytest.mark.rule("context.op-note")
@pytest.mark.rule("context.never-compacted")
def test_notes_and_summaries_survive_compaction(desk: Desk) -> None:
    ran = desk("play survives")
    assert ran.end.outcome == "done"
    assert len(of(ran.log, "compaction")) > 1
    texts = ran.texts()
    assert "[note] the answer is 42" in texts
    assert "[summary]\nA note was made." in texts


@pytest.mark.rule("context.own-words")
@pytest.mark.rule("context.op-event")
def test_every_operation_is_an_event_those_that_are_refused_too(desk: Desk) -> None:
    ran = desk("play wrong")
    assert [(line["op"], line["ids"]) for line in ops(ran)] == [
        ("drop", []), ("drop", ["c9", "c1"]), ("summarize", ["c1"]), ("note", []), ("note", []), ("note", []),
    ]  # fmt: skip
    errors = [line["error"] for line in ops(ran) if "error" in line]
    assert errors[:4] == [
        "drop needs ids; status lists them.",
        "there is no segment c9; status lists them.",
        "summarize needs text.",
        "note needs text.",
    ]
    assert errors[4] == f"notes and summaries may take {WINDOW // 8} tokens; say it shorter."
    assert [text for text in said(ran) if text != "The note is kept."] == [
        f"error: {error}" for error in errors
    ]
    assert [line["error"] for line in results(ran.log)[2:]] == [True] * 4 + [False, True]


@pytest.mark.bound("context.own-words")
@pytest.mark.rule("bounds.settable")
def test_notes_can_have_less_room(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_CONTEXT_OWN_WORDS", str(WINDOW + 1))
    assert said(desk("play note")) == ["error: notes and summaries may take 0 tokens; say it shorter."] * 2


@pytest.mark.rule("agent.repeat-not-run")
def test_a_result_that_was_dropped_may_be_asked_for_again(desk: Desk) -> None:
    assert "# Scratch" in results(desk("play reread").log)[-1]["text"]
