"""What a ``Generate`` may ask, wherever its model is: refused before anything is compiled, queued or sent."""

import json
from functools import lru_cache

from aerix.actors import Refused
from aerix.pool.bounds import SCHEMA, TEXTS
from aerix.pool.protocol import Constraint, Sampling

_MOST = (1 << 64) - 1
_HOTTEST = 1000
_BAD = "bad_constraint"


def check_sampling(sampling: Sampling) -> None:
    """Refuse what nothing can be drawn by. Not a number is in no range."""
    for name, value, fits, allowed in (
        ("temperature", sampling.temperature, 0 <= sampling.temperature <= _HOTTEST, f"0 to {_HOTTEST:,}"),
        ("top_p", sampling.top_p, 0 < sampling.top_p <= 1, "above 0, at most 1"),
        ("min_p", sampling.min_p, 0 <= sampling.min_p <= 1, "0 to 1"),
        ("seed", sampling.seed or 0, 0 <= (sampling.seed or 0) <= _MOST, f"0 to {_MOST}"),
    ):
        if not fits:
            raise Refused("bad_request", f"The sampling's {name} is {value}; it must be {allowed}.")


def check_constraint(constraint: Constraint, *, json_able: bool) -> None:
    """Refuse what is no constraint at all."""
    if (constraint.schema is None) == (constraint.texts is None):
        raise Refused(_BAD, "A constraint is either a schema or a list of texts, exactly one of them.")
    if constraint.schema is not None and not json_able:
        raise Refused("no_json", "This member cannot be held to a JSON schema; ask without a constraint.")
    if constraint.schema is not None:
        _check_schema(constraint.schema, SCHEMA.count)
    if constraint.texts is not None:
        _check_texts(constraint.texts)


@lru_cache(4)
def _check_schema(schema: str, most: int) -> None:
    """Of an agent's turns it is always the same one."""
    size = len(schema.encode())
    if size > most:
        raise Refused(_BAD, f"The schema's {size:,} bytes are more than {most:,}.")
    try:
        json.loads(schema, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(_BAD, f"The schema is no JSON: {error}.") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _check_texts(texts: list[str]) -> None:
    if not texts or not all(texts) or len(set(texts)) != len(texts):
        raise Refused(_BAD, "The texts to choose from must be different and none of them empty.")
    if len(texts) > TEXTS.count:
        raise Refused(_BAD, f"{len(texts)} texts to choose from are more than {TEXTS.count}.")
