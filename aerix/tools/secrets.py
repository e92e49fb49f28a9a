"""What is kept secret from an agent until a rule allows it: files that hold keys and passwords, by place and by name."""

import os
import re
from functools import lru_cache
from pathlib import Path

SECRETS = (
    "~/.ssh/**", "~/.aws/**", "~/.azure/**", "~/.gnupg/**", "~/.kube/**", "~/.docker/config.json", "~/.password-store/**",
    "~/.config/gcloud/**", "~/.config/gh/**", "~/.config/hub", "~/.config/git/credentials", "~/.git-credentials",
    "~/.netrc", "~/.npmrc", "~/.pypirc", "~/.pgpass", "~/.my.cnf", "~/.vault-token", "~/.cargo/credentials",
    "~/.cargo/credentials.toml", "~/.gem/credentials", "~/.terraform.d/credentials.tfrc.json", "~/.local/share/keyrings/**",
    "~/.mozilla/**", "~/.config/google-chrome/**", "~/.config/chromium/**",
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d/**",
    "/etc/ssh/*_key",
    "**/.env", "**/.env.*", "**/.envrc", "**/.netrc", "**/.git-credentials",
    "**/id_rsa", "**/id_dsa", "**/id_ecdsa", "**/id_ed25519",
    "**/*.key", "**/*.p12", "**/*.pfx", "**/*.jks", "**/*.kdbx", "**/*.ppk", "**/*key.pem",
)  # fmt: skip
"""Patterns: ``~`` is the home folder, ``*`` is within a name, ``X/**`` is a folder with all in it, ``**/NAME`` is anywhere."""
NO_SECRETS = ("**/.env.example", "**/.env.sample", "**/.env.template", "**/.env.dist")
"""What matches one of these by its name is none."""


def is_secret(path: str | os.PathLike[str], home: Path) -> bool:
    """Whether an absolute path, whose links the caller has resolved, is a secret's, or that of a folder of secrets."""
    plain = os.path.normpath(path)
    return is_secret_name(os.path.basename(plain)) or bool(_places(str(home)).fullmatch(plain))  # noqa: PTH119 - many


def is_secret_name(name: str) -> bool:
    """Whether a file of this name is a secret wherever it is."""
    return bool(_NAMES.fullmatch(name)) and not _NO_NAMES.fullmatch(name)


def secret_places(home: Path) -> list[str]:
    """The patterns of places, for the ``glob`` module: a folder stands for all in it."""
    import glob

    named = (pattern.removesuffix("/**") for pattern in SECRETS if not pattern.startswith("**/"))
    return [glob.escape(str(home)) + one[1:] if one[0] == "~" else one for one in named]


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(_regex, patterns)), re.DOTALL)


def _regex(pattern: str) -> str:
    folder = pattern.endswith("/**")
    return re.escape(pattern.removesuffix("/**")).replace(r"\*", "[^/]*") + ("(?:/.*)?" if folder else "")


_NAMES, _NO_NAMES = (
    _any_of(tuple(pattern[3:] for pattern in group if pattern.startswith("**/")))
    for group in (SECRETS, NO_SECRETS)
)


@lru_cache(maxsize=4)
def _places(home: str) -> re.Pattern[str]:
    places = [pattern for pattern in SECRETS if not pattern.startswith("**/")]
    homes = {home, os.path.realpath(home)}
    return _any_of(tuple(one + place[1:] if place[0] == "~" else place for place in places for one in homes))
