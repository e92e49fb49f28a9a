"""Models in Ollama's own store, read in place: its manifest names the file, which is a plain GGUF file.

The template and the parameters that stand beside it are written for Ollama and not used: the file has its own.
"""

import json
import os
import re
from pathlib import Path

from aerix.actors import Refused
from aerix.pool.bounds import MANIFEST
from aerix.pool.models import OllamaRef

_MODEL, _ADAPTER = (f"application/vnd.ollama.image.{kind}" for kind in ("model", "adapter"))
_DIGEST = re.compile(r"sha256[:-][0-9a-f]{64}")
_SYSTEM = Path("/usr/share/ollama/.ollama/models")


def find(ref: OllamaRef) -> Path:
    """The file of a model. Raises Refused ``model_missing``, with the command that fetches it."""
    inside = Path("manifests", *ref.place, ref.tag)
    for store in stores():
        manifest = store / inside
        try:
            if manifest.is_file():
                return _blob(ref, store, _read(manifest))
        except OSError as error:
            raise _missing(ref, f"{manifest} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise _missing(ref, f"{manifest} is damaged: {error}") from None
    raise _missing(ref, f"Ollama does not have it in {' or '.join(map(str, stores()))}")


def stores() -> list[Path]:
    """Where Ollama keeps its models: ``$OLLAMA_MODELS``, else the user's own folder and the service's."""
    own = os.environ.get("OLLAMA_MODELS")
    return [Path(own).expanduser()] if own else [Path.home() / ".ollama" / "models", _SYSTEM]


def _read(manifest: Path) -> list[dict[str, object]]:
    """The layers. Raises OSError, and ValueError where it is no manifest."""
    with manifest.open("rb") as file:
        plain = json.loads(file.read(MANIFEST.count))
    layers = plain.get("layers") if isinstance(plain, dict) else None
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise ValueError("it has no list of layers")
    return layers


def _blob(ref: OllamaRef, store: Path, layers: list[dict[str, object]]) -> Path:
    kinds = {layer.get("mediaType"): str(layer.get("digest")) for layer in reversed(layers)}
    if _ADAPTER in kinds:
        raise Refused("model_unknown", f"model ollama:{ref.typed} has an adapter, which Aerix does not apply")
    digest = kinds.get(_MODEL, "")
    if not _DIGEST.fullmatch(digest):
        raise ValueError("it names no model file")
    path = store / "blobs" / digest.replace(":", "-")
    if not path.is_file():
        raise _missing(ref, f"its file {path} is not there")
    return path


def _missing(ref: OllamaRef, why: str) -> Refused:
    return Refused("model_missing", f"model ollama:{ref.typed}: {why}. Run `ollama pull {ref.typed}`")
