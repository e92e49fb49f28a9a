"""Json through llguidance, with a vocabulary of bytes; what is refused."""

from typing import Any

import pytest

from aerix.actors import Refused
from aerix.pool.bytevocab import ByteVocabulary
from aerix.pool.constraint import Json, check
from aerix.pool.protocol import Constraint

GUIDE = ByteVocabulary().guide()
END = 257


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TURN = {
    "oneOf": [
        closed(thought={"type": "string"}, final={"type": "string"}),
        closed(thought={"type": "string"}, calls={"type": "array"}),
    ]
}


def follow(schema: dict[str, Any], text: str = "") -> Json:
    json = Json(schema, GUIDE)
    assert json.take(list(text.encode())) == len(text.encode())
    return json


def allowed(json: Json) -> bytes:
    return bytes(t for t in range(256) if json.allowed()[t])


@pytest.mark.rule("constraint.json-only")
def test_only_what_the_schema_allows_may_come_next() -> None:
    assert allowed(follow(closed(ok={"type": "boolean"}), '{"ok":')) == b"ft"
    assert follow(closed(ok={"type": "boolean"})).take(list(b'{"no"')) == 2


@pytest.mark.rule("constraint.json-only")
@pytest.mark.parametrize("before", ["", "{", '{"a"', '{"a":', '{"a":[', '{"a":[1', '{"a":[1,', '{"a":[1]'])
def test_no_white_space_may_come_outside_strings(before: str) -> None:
    json = follow(closed(a={"type": "array", "items": {"type": "integer"}}), before)
    assert not set(allowed(json)) & set(b" \t\n\r")


def test_white_space_may_come_inside_strings() -> None:
    assert b" "[0] in allowed(follow(closed(a={"type": "string"}), '{"a":"'))


@pytest.mark.rule("constraint.forced-in-batches")
def test_a_forced_stretch_is_taken_as_a_whole() -> None:
    json = follow(TURN)
    assert bytes(json.forced()) == b'{"thought":"'
    assert json.forced() == []


@pytest.mark.rule("constraint.forced-same-text")
@pytest.mark.parametrize("cut", range(13))
def test_a_value_that_was_cut_anywhere_goes_on_to_the_same_text(cut: int) -> None:
    start = '{"thought":"'[:cut]
    assert start + bytes(follow(TURN, start).forced()).decode() == '{"thought":"'


def test_a_value_is_complete_where_nothing_can_follow() -> None:
    json = follow(TURN, '{"thought":"","final":"x"')
    assert not json.complete
    assert bytes(json.forced()) == b"}"
    assert json.complete


def test_a_number_may_go_on_or_end_the_turn() -> None:
    json = follow({"type": "integer"}, "12")
    assert not json.complete
    assert json.allowed()[END]
    assert b"3"[0] in allowed(json)


def test_a_few_allowed_texts_are_told_for_messages() -> None:
    assert {b"f", b"t"} == set(follow(closed(ok={"type": "boolean"}), '{"ok":').some_allowed())


@pytest.mark.rule("constraint.unsupported-named")
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"not": {"type": "string"}}, 'keywords that are not supported: "not"'),
        ({"type": "array", "uniqueItems": True}, '"uniqueItems"'),
        ({"if": {}, "then": {}}, '"if", "then"'),
        ({"type": "strin"}, "Invalid type: strin"),
        ({"type": "string", "format": "moon"}, "Unknown format: moon"),
        ({"$ref": "#/definitions/x"}, "does not exist"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        (
            {
                "oneOf": [
                    {"type": "object", "properties": {"a": {}}},
                    {"type": "object", "properties": {"b": {}}},
                ]
            },
            "Set `additionalProperties` to false",
        ),
        ({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}, '"uniqueItems"'),
    ],
)
def test_a_schema_that_cannot_be_held_is_refused_with_the_reason(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match="The schema cannot be held: ") as refusal:
        Json(schema, GUIDE)
    assert refusal.value.code == "bad_constraint"
    assert why in refusal.value.message
    assert refusal.value.message.endswith(".")


@pytest.mark.parametrize(
    ("constraint", "why"),
    [
        (Constraint(), "exactly one of them"),
        (Constraint(schema={}, texts=["a"]), "exactly one of them"),
        (Constraint(texts=[]), "none of them empty"),
        (Constraint(texts=["a", ""]), "none of them empty"),
        (Constraint(texts=["a", "a"]), "must be different"),
        (Constraint(texts=[str(n) for n in range(65)]), "65 texts to choose from are more than 64"),
    ],
)
def test_what_is_no_constraint_is_refused(constraint: Constraint, why: str) -> None:
    with pytest.raises(Refused, match=why) as refusal:
        check(constraint, json_able=True)
    assert refusal.value.code == "bad_constraint"


def test_a_schema_is_refused_where_the_member_cannot_hold_it() -> None:
    check(Constraint(texts=["a"]), json_able=False)
    with pytest.raises(Refused, match="ask without a constraint") as refusal:
        check(Constraint(schema={}), json_able=False)
    assert refusal.value.code == "no_json"


def test_a_schema_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_WORKER_SCHEMA", "10")
    with pytest.raises(Refused, match=r"bytes are more than 10\."):
        Json(TURN, GUIDE)
