"""Protocol version 3: every message goes over the wire and back, and is documented."""

import dataclasses
import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from aerix.actors.dump import ActorRecord, OpenCall
from aerix.actors.wire import WireError, pack, pack_json, unpack
from aerix.pool import protocol as p
from aerix.pool.client import POOL_UNREACHABLE

PAGE = (Path(__file__).parents[2] / "docs/protocol.md").read_text("utf-8")


def example(hint: Any) -> Any:
    """A value of a field's type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return sample(typing.cast("type", hint))
    if origin is typing.Literal:
        return args[0]
    if origin in (typing.Union, types.UnionType):
        return example(args[0])
    if origin is list:
        return [example(args[0])] * 2
    if origin is dict:
        return {"type": "object", "properties": {"a": [1, 2.5, None, True]}}
    return {int: 7, float: 0.5, str: "tëxt", bool: True, bytes: b"\xf0\x9f"}[hint]


def sample(cls: type) -> Any:
    hints = typing.get_type_hints(cls)
    return cls(**{field.name: example(hints[field.name]) for field in dataclasses.fields(cls)})


@pytest.mark.parametrize("cls", (*p.REQUESTS, *p.ANSWERS))
def test_every_message_goes_over_the_wire_and_comes_back_equal(cls: type) -> None:
    message = sample(cls)
    assert p.CODEC.decode(unpack(pack(p.CODEC.encode(message))[4:])) == message
    assert p.CODEC.encode(message)["type"] == cls.__name__


@pytest.mark.parametrize("cls", p.REQUESTS)
@pytest.mark.rule("protocol.json-frames")
def test_every_request_can_be_sent_as_json(cls: type) -> None:
    message = sample(cls)
    assert p.CODEC.decode(unpack(pack_json(p.CODEC.encode(message))[4:])) == message


@pytest.mark.parametrize("cls", (*p.REQUESTS, *p.ANSWERS))
def test_a_message_that_lacks_a_field_is_refused_by_its_name(cls: type) -> None:
    for field in dataclasses.fields(cls):
        plain = p.CODEC.encode(sample(cls))
        del plain[field.name]
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            with pytest.raises(WireError, match=field.name):
                p.CODEC.decode(plain)
        else:
            p.CODEC.decode(plain)


def test_fields_of_a_newer_peer_are_ignored() -> None:
    assert p.CODEC.decode({"type": "Ok", "id": 1, "news": "many"}) == p.Ok(1)


@pytest.mark.rule("protocol.documented")
@pytest.mark.parametrize(
    "cls",
    (
        *p.REQUESTS,
        *p.ANSWERS,
        p.Segment,
        p.Sampling,
        p.Constraint,
        p.Usage,
        p.MemberInfo,
        p.Totals,
        ActorRecord,
        OpenCall,
    ),
)
def test_every_message_and_every_field_is_documented(cls: type) -> None:
    section = re.search(rf"^### `{cls.__name__}`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section, f"docs/protocol.md does not tell of {cls.__name__}"
    for field in dataclasses.fields(cls):
        assert f"`{field.name}`" in section.group(1), (
            f"docs/protocol.md does not tell of {cls.__name__}.{field.name}"
        )


@pytest.mark.rule("protocol.errors")
def test_every_error_code_is_documented() -> None:
    folder = Path(p.__file__).parent
    sources = "".join(path.read_text("utf-8") for path in folder.glob("*.py"))
    codes = set(re.findall(r"Refused\(\s*\"([a-z_]+)\"", sources))
    codes |= set(re.findall(r"_(?:reject|fail)\(\s*\"([a-z_]+)\"", sources))
    codes |= p.LOST | POOL_UNREACHABLE
    missing = {code for code in codes if f"`{code}`" not in PAGE}
    assert not missing
