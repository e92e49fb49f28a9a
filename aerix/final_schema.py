"""``--final-schema``: the file with the schema of the final, and what is wrong with a final that is no value of it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from aerix import regular
from aerix.actors import Refused
from aerix.bounds import FINAL_SCHEMA, FINAL_SCHEMA_CHECK
from aerix.turn.schema import JsonSchema, turn_schema

_SHOWN = 200  # characters of what is wrong with a final


def read_final_schema(path: Path) -> JsonSchema:
    """The schema in a file, once it is known that a model can be held to it. Raises Refused ``bad_final_schema``."""
    schema = _read(path)
    from jsonschema import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as wrong:
        _refuse(path, f"is no JSON schema: at {wrong.json_path}, {wrong.message[:_SHOWN]}")
    if why := _not_held(schema):
        _refuse(path, f"cannot be used: {why}")
    return schema


def checker(schema: JsonSchema) -> Callable[[object], str | None]:
    """A function that says what is wrong with a value, as the end of a sentence, or None. It contacts nobody."""

    def wrong(value: Any) -> str | None:
        from jsonschema.exceptions import best_match
        from jsonschema.validators import Draft202012Validator, validator_for
        from referencing import Registry

        kind = validator_for(schema, default=Draft202012Validator)
        registry: Registry[Any] = Registry()  # the default one fetches what a schema refers to
        found = best_match(kind(schema, registry=registry).iter_errors(value))
        if found is None:
            return None
        at = "" if found.json_path == "$" else f" at {found.json_path}"
        return f"is no value of its schema{at}: {found.message[:_SHOWN]}."

    return wrong


def _read(path: Path) -> JsonSchema:
    try:
        found = json.loads(regular.read(path, FINAL_SCHEMA.count))
    except FileNotFoundError:
        _refuse(path, "is not there")
    except regular.NotRead as why:
        _refuse(path, f"cannot be read: {why}")
    except (ValueError, RecursionError) as wrong:
        _refuse(path, f"is no JSON: {wrong}")
    if not isinstance(found, dict):
        _refuse(path, "is no JSON schema: it must be an object")
    return found


def _not_held(schema: JsonSchema) -> str:
    """Why no model can be held to it, as the pool's worker would say it; empty where one can."""
    asked = json.dumps(turn_schema([], schema)).encode()
    command = [sys.executable, "-P", "-m", "aerix.pool.schema_check"]
    try:
        done = subprocess.run(
            command, input=asked, capture_output=True, timeout=FINAL_SCHEMA_CHECK.value, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it takes longer than {FINAL_SCHEMA_CHECK.value:g} s to compile"
    if done.returncode == 0:
        return ""
    return done.stdout.decode("utf-8", "replace").strip() or "it ended the program that compiles it"


def _refuse(path: Path, why: str) -> NoReturn:
    raise Refused("bad_final_schema", f"--final-schema {path} {why}")
