"""Json through llguidance, with a vocabulary of bytes; what is refused."""

from json import dumps
from resource import RUSAGE_SELF, getrusage
from time import thread_time
from typing import Any

import pytest
from llguidance import LLMatcher

from aerix.actors import Refused
from aerix.pool.asked import check_constraint
from aerix.pool.bytevocab import ByteVocabulary
from aerix.pool.constraint import Json
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
    json = Json(dumps(schema), GUIDE)
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


@pytest.mark.parametrize("before", ["", '{"a":', '{"a":"', '{"a":"x"'])
def test_one_token_is_allowed_as_it_is_among_all(before: str) -> None:
    json = follow(closed(a={"type": "string"}), before)
    assert [json.allows(t) for t in range(GUIDE.vocab_size)] == json.allowed().tolist()


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
        Json(dumps(schema), GUIDE)
    assert refusal.value.code == "bad_constraint"
    assert why in refusal.value.message
    assert refusal.value.message.endswith(".")


@pytest.mark.parametrize(
    ("constraint", "why"),
    [
        (Constraint(), "exactly one of them"),
        (Constraint(schema="{}", texts=["a"]), "exactly one of them"),
        (Constraint(texts=[]), "none of them empty"),
        (Constraint(texts=["a", ""]), "none of them empty"),
        (Constraint(texts=["a", "a"]), "must be different"),
        (Constraint(texts=[str(n) for n in range(65)]), "65 texts to choose from are more than 64"),
        (Constraint(schema='{"const": '), "is no JSON: "),
        (Constraint(schema='{"const": NaN}'), "is no JSON: "),
    ],
)
def test_what_is_no_constraint_is_refused(constraint: Constraint, why: str) -> None:
    with pytest.raises(Refused, match=why) as refusal:
        check_constraint(constraint, json_able=True)
    assert refusal.value.code == "bad_constraint"


def test_a_schema_is_refused_where_the_member_cannot_hold_it() -> None:
    check_constraint(Constraint(texts=["a"]), json_able=False)
    with pytest.raises(Refused, match="ask without a constraint") as refusal:
        check_constraint(Constraint(schema="{}"), json_able=False)
    assert refusal.value.code == "no_json"


@pytest.mark.bound("worker.schema")
def test_a_schema_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_WORKER_SCHEMA", "10")
    with pytest.raises(Refused, match=r"bytes are more than 10\."):
        check_constraint(Constraint(schema=dumps(TURN)), json_able=True)


def chained(depth: int, **ends: Any) -> dict[str, Any]:
    """References, each of which is used twice by the one before: 2 to the power of ``depth`` uses of the last."""
    links = {
        f"d{at}": closed(a={"$ref": f"#/$defs/d{at + 1}"}, b={"$ref": f"#/$defs/d{at + 1}"})
        for at in range(depth)
    }
    return {"$defs": {**links, f"d{depth}": {"type": "null", **ends}}, "$ref": "#/$defs/d0"}


HOSTILE = {
    "counted patterns": closed(a={"type": "string", "pattern": "^(a{1,1000}){1,1000}$"}),
    "a pattern that backtracks": closed(a={"type": "string", "pattern": "^((a+)+)+$"}),
    "a pattern of many states": closed(a={"type": "string", "pattern": "^.*a.{60}$"}),
    "an endless text": closed(a={"type": "string", "minLength": 10**8}),
    "a long list": {"type": "array", "items": {"type": "integer"}, "minItems": 10**8},
    "a number of many states": closed(a={"type": "integer", "multipleOf": 999_983, "minimum": -(10**15)}),
    "many properties": closed(**{f"p{at}": {"type": "string"} for at in range(3000)}),
    "many that may be left out": {
        "type": "object",
        "properties": {f"p{at}": {"type": "string"} for at in range(2000)},
        "additionalProperties": False,
    },
    "many values": {"enum": [f"v{at}" for at in range(30_000)]},
    "doubling references": chained(25),
    "a reference to itself": {"$ref": "#"},
    "a chain of references": {
        "$defs": {
            **{f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(1000)},
            "d1000": {"type": "null"},
        },
        "$ref": "#/$defs/d0",
    },
}


@pytest.mark.rule("constraint.hostile-bounded")
@pytest.mark.parametrize("schema", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_schema_is_refused_or_costs_little(schema: dict[str, Any]) -> None:
    """Processor time of this thread, so that a busy machine does not count; usually it is a tenth of the limit."""
    begun, before = thread_time(), getrusage(RUSAGE_SELF).ru_maxrss
    try:
        json = Json(dumps(schema), GUIDE)
        for _ in range(100):
            json.forced()
            if json.complete:
                break
            letters = [t for t in range(256) if json.allowed()[t]]
            json.take(letters[-1:])
    except Refused as refusal:
        assert refusal.code == "bad_constraint"
    assert thread_time() - begun < 10
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


@pytest.mark.bound("worker.schema-states")
@pytest.mark.bound("worker.schema-fuel")
@pytest.mark.bound("worker.schema-items")
@pytest.mark.rule("constraint.hostile-bounded")
@pytest.mark.parametrize(
    ("bound", "schema"),
    [
        ("SCHEMA_FUEL", closed(a={"type": "string", "pattern": "^((ab?c){2,5}|d+e)+$"})),
        ("SCHEMA_ITEMS", chained(10)),
        ("SCHEMA_STATES", closed(a={"type": "string", "pattern": "^.*a.{20}$"})),
    ],
)
def test_a_schema_that_costs_more_than_its_bound_is_refused(
    bound: str, schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AERIX_BOUND_WORKER_{bound}", "20")
    with pytest.raises(Refused, match="The schema cannot be held: ") as refusal:
        json = follow(schema)
        json.take([*json.forced(), ord("a")])
        json.allowed()
    assert refusal.value.code == "bad_constraint"


@pytest.mark.rule("constraint.compiled-once")
def test_a_schema_that_comes_again_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = closed(once={"type": "boolean"})
    Json(dumps(schema), GUIDE)
    monkeypatch.setattr(LLMatcher, "grammar_from_json_schema", None)
    assert allowed(follow(schema, '{"once":')) == b"ft"


@pytest.mark.rule("constraint.compiled-once")
def test_what_others_said_takes_no_states_from_a_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_WORKER_SCHEMA_STATES", "300")
    schema = closed(a={"type": "string", "pattern": "^(a|b)*a(a|b){12}$"})
    for number in range(20):
        json = follow(schema, '{"a":"')
        for bit in f"{number:07b}" * 10:
            assert json.allowed()[ord("ab"[int(bit)])]
            assert json.take([ord("ab"[int(bit)])]) == 1
