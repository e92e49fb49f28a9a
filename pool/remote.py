"""A model on an OpenAI-compatible server: where its reference leads, and its key. Nothing is asked of a server here.

The rest of such a member stands in ``remote_worker`` (its process), ``remote_load`` (what the server can do),
``remote_turn`` (a turn asked of it), ``remote_chat``, ``remote_http`` and ``remote_stream`` (how it is spoken to),
``remote_contexts`` and ``remote_counts`` (its contexts and their size).
"""

import ipaddress
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from aerix.actors import Refused


@dataclass(frozen=True, slots=True)
class Address:
    """A model on a server: ``base`` is where its OpenAI-compatible API begins, usually with ``/v1`` at its end."""

    base: str
    model: str

    @property
    def root(self) -> str:
        """Where the server's own paths begin."""
        return self.base.removesuffix("/v1")

    @property
    def reference(self) -> str:
        """The reference as the pool takes it."""
        return f"{self.base}#{self.model}"

    @property
    def loopback(self) -> bool:
        """Whether the server runs on this machine, so that no proxy stands between."""
        host = urlsplit(self.base).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def address(ref: str) -> Address:
    """What a reference ``http://host:port/v1#model`` leads to. Raises Refused ``model_unknown``; quotes no password."""
    base, _, model = ref.partition("#")
    try:
        parts = urlsplit(base)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise _wrong(f"its address cannot be read: {error}") from None
    if "@" in parts.netloc:
        raise _wrong(
            "an address holds no name or password: put a key into a variable, and name that in key_env"
        )
    if not host or parts.query or any(char <= " " for char in ref):
        raise _wrong(f"{base.partition('?')[0]!r:.200} is no address of a server")
    if not model:
        raise _wrong(f"{base!r:.200} names no model: add # and its name there")
    path = parts.path.rstrip("/")
    return Address(f"{parts.scheme.lower()}://{parts.netloc.lower()}{path}", model)


def key(variable: str) -> str:
    """The key in the environment variable that ``key_env`` names; empty where none is named. Raises Refused."""
    if not variable:
        return ""
    value = os.environ.get(variable, "").strip()
    if not value:
        raise Refused(
            "key_missing",
            f"key_env names {variable!r:.64}, a variable that is not set where the pool runs: set it, run"
            " `aerix pool stop`, then run again",
        )
    if not value.isascii() or not value.isprintable():
        raise Refused(
            "key_missing", f"the variable {variable!r:.64}, which key_env names, holds what cannot be a key"
        )
    return value


def _wrong(why: str) -> Refused:
    return Refused("model_unknown", f"a model on a server is http://HOST:PORT/v1#MODEL (https too); {why}")
