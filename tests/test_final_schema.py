"""``--final-schema``: the final is a JSON value of the user's schema, or it is asked for again."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Refused
from aerix.final_schema import checker, read_final_schema
from aerix.pool.client import PoolSettings
from tests.conftest import Limit
from tests.runs import (  # noqa: F401 - a fixture
    Aerix,
    call,
    calls,
    daemon,
    final,
    play,
    results,
    session_log,
    session_logs,
    turns,
)

ANSWER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.org/answer",
    "type": "object",
    "properties": {"files": {"type": "array", "items": {"$ref": "#/$defs/file"}}, "ok": {"type": "boolean"}},
    "required": ["files", "ok"],
    "additionalProperties": False,
    "$defs": {
        "file": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "lines": {"type": "integer", "minimum": 0}},
            "required": ["path"],
            "additionalProperties": False,
        }
    },
}
GOOD = {"files": [{"path": "README.md", "lines": 3}], "ok": True}
PLAYS: dict[str, list[dict[str, Any]]] = {
    "good": [calls(call("read", path="README.md")), {"turn": {"thought": "So.", "final": GOOD}}],
    "wrong": [
        {"turn": {"thought": "So.", "final": {"files": [{"path": "a", "lines": -1}], "ok": True}}},
        final("All is well."),
        {"turn": {"thought": "So.", "final": GOOD}},
    ],
    "never": [final("All is well.")] * 3,
}


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "answer.schema.json"
    path.write_text(json.dumps(ANSWER))
    return str(path)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """A model that is held to schemas, and one that is not."""
    return {held: play(tmp_path_factory.mktemp("model"), PLAYS, json=held) for held in (True, False)}


@pytest.fixture
def aerix(daemon: PoolSettings, models: dict[bool, str], git_repo: Path) -> Iterator[Aerix]:  # noqa: F811
    runs = Aerix(git_repo, daemon, models[True])
    yield runs
    runs.close()


@pytest.mark.rule("headless.final-schema")
@pytest.mark.parametrize("form", ["text", "json", "stream-json"])
def test_the_answer_is_the_json_of_a_value_of_the_schema(aerix: Aerix, schema: str, form: str) -> None:
    done = aerix("-p", "play good", "--final-schema", schema, "--output-format", form, "--route", "answer")
    assert done.code == 0
    text = done.out if form == "text" else json.loads(done.out.splitlines()[-1])["text"]
    assert json.loads(text) == GOOD
    assert results(session_log())[0]["tool"] == "read"


@pytest.mark.rule("headless.final-schema")
def test_the_model_is_told_the_schema_behind_the_prompt(aerix: Aerix, schema: str) -> None:
    aerix("-p", "play good", "--final-schema", schema, "--route", "answer")
    (told,) = [line for line in session_log() if line["type"] == "segment" and line["id"] == "final"]
    assert told["text"].startswith("# Turns\n")
    assert json.loads(told["text"].splitlines()[-1]) == ANSWER


@pytest.mark.rule("headless.final-schema")
def test_a_model_that_is_not_held_to_it_is_asked_again_and_told_what_is_wrong(
    aerix: Aerix, models: dict[bool, str], schema: str
) -> None:
    done = aerix("-p", "play wrong", "--final-schema", schema, "--route", "answer", "--model", models[False])
    assert (done.code, json.loads(done.out)) == (0, GOOD)
    told = [line["text"] for line in session_log() if line["type"] == "segment" and line["label"] == "note"]
    assert (
        "`final` is no value of its schema at $.files[0].lines: -1 is less than the minimum of 0." in told[1]
    )
    assert "`final` is no value of its schema: 'All is well.' is not of type 'object'." in told[2]


@pytest.mark.rule("headless.final-schema")
def test_one_that_never_gives_a_value_of_it_fails(aerix: Aerix, models: dict[bool, str], schema: str) -> None:
    done = aerix("-p", "play never", "--final-schema", schema, "--route", "answer", "--model", models[False])
    assert (done.code, done.out, len(turns(session_log()))) == (1, "", 3)
    assert "`final` is no value of its schema" in done.err


@pytest.mark.rule("headless.final-schema")
@pytest.mark.rule("headless.exit-codes")
def test_a_schema_that_is_none_is_3_and_nothing_begins(aerix: Aerix) -> None:
    done = aerix("-p", "play good", "--final-schema", "none.json")
    assert (done.code, done.out) == (3, "")
    assert done.err == "aerix: --final-schema none.json is not there [bad_final_schema]\n"
    assert not session_logs()


@pytest.mark.bound("headless.final-schema")
@pytest.mark.rule("headless.final-schema")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no JSON: Expecting property name"),
        ("[1]", "is no JSON schema: it must be an object"),
        ('{"type": "strin"}', "is no JSON schema: at $.type, 'strin' is not"),
        ('{"not": {"type": "string"}}', 'cannot be used: The schema cannot be held: it uses keywords that are not'),
        ('{"$ref": "https://example.org/other"}', "cannot be used: The schema cannot be held: Resource"),
        ('{"$ref": "#/$defs/none"}', "Pointer"),
        ('{"type": "string", "minLength": 3, "maxLength": 2}', "is unsatisfiable"),
        ('{"title": "' + "x" * 70_000 + '"}', "cannot be read: it is larger than 65536 bytes"),
    ],
    ids=["no-json", "no-object", "no-schema", "not-taken", "elsewhere", "nowhere", "no-value", "large"],
)  # fmt: skip
def test_what_is_wrong_with_a_schema_is_said(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text(text)
    with pytest.raises(Refused) as refused:
        read_final_schema(path)
    assert why in str(refused.value)


@pytest.mark.rule("headless.final-schema")
def test_a_schema_is_a_file_and_nothing_that_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, why in ((tmp_path, "not a regular file"), (tmp_path / "fifo", "not a regular file")):
        with pytest.raises(Refused, match=why):
            read_final_schema(path)


@pytest.mark.bound("headless.final-schema-check")
def test_a_schema_that_takes_too_long_to_compile_is_refused(schema: str, limit: Limit) -> None:
    limit("headless.final-schema-check", 0.001)
    with pytest.raises(Refused, match=r"it takes longer than 0\.001 s to compile"):
        read_final_schema(Path(schema))


def test_a_value_is_checked_by_the_draft_that_the_schema_names() -> None:
    old = checker(
        {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}
    )
    assert old(4) is None
    assert old(3) == "is no value of its schema: 3 is less than or equal to the minimum of 3."
