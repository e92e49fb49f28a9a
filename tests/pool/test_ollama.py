"""Models in Ollama's own store."""

import json
from pathlib import Path
from typing import Any

import pytest

from aerix.actors import Refused
from aerix.pool.models import resolve
from tests.conftest import Limit
from tests.pool.ggufs import gguf

MODEL = "application/vnd.ollama.image.model"


class Store:
    """A store as Ollama lays it out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs").mkdir(parents=True)

    def add(self, place: str, tag: str, *layers: dict[str, Any], raw: str | None = None) -> Path:
        """Add a manifest; without layers, one that is right. Gives the file that it names."""
        blob = self.folder / "blobs" / f"sha256-{'a' * 64}"
        blob.write_bytes(gguf())
        manifest = self.folder / "manifests" / place / tag
        manifest.parent.mkdir(parents=True, exist_ok=True)
        right = [
            {"mediaType": MODEL, "digest": f"sha256:{'a' * 64}"},
            {"mediaType": "x.template", "digest": "sha256:b"},
        ]
        plain = {"schemaVersion": 2, "layers": list(layers) or right}
        manifest.write_text(json.dumps(plain) if raw is None else raw)
        return blob


@pytest.fixture
def store(own_home: Path) -> Store:
    return Store(own_home / ".ollama/models")


def refused(ref: str) -> str:
    with pytest.raises(Refused) as refusal:
        resolve(ref)
    assert refusal.value.code == "model_missing"
    return refusal.value.message


@pytest.mark.rule("models.ollama")
@pytest.mark.parametrize(
    ("ref", "place", "tag"),
    [
        ("ollama:gemma3", "registry.ollama.ai/library/gemma3", "latest"),
        ("ollama:gemma3:270m", "registry.ollama.ai/library/gemma3", "270m"),
        ("ollama:me/model", "registry.ollama.ai/me/model", "latest"),
        ("ollama:hf.co/org/repo:Q4_K_M", "hf.co/org/repo", "Q4_K_M"),
    ],
)
def test_a_model_is_read_where_ollama_keeps_it(store: Store, ref: str, place: str, tag: str) -> None:
    blob = store.add(place, tag)
    model = resolve(ref)
    assert (model.name, model.kind, model.path, model.present) == (ref, "gguf", blob, True)
    assert model.size == len(gguf())


@pytest.mark.rule("models.ollama")
def test_the_store_may_be_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blob = Store(tmp_path / "store").add("registry.ollama.ai/library/m", "latest")
    with pytest.raises(Refused):
        resolve("ollama:m")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    assert resolve("ollama:m").path == blob


@pytest.mark.rule("models.ollama")
def test_a_model_that_is_missing_names_the_command_that_fetches_it(own_home: Path) -> None:
    message = refused("ollama:me/m:1b")
    assert f"Ollama does not have it in {own_home}/.ollama/models or /usr/share/ollama/" in message
    assert message.endswith("Run `ollama pull me/m:1b`")


@pytest.mark.bound("models.manifest")
@pytest.mark.rule("models.ollama")
def test_a_damaged_store_is_one_sentence(store: Store, limit: Limit) -> None:
    place = "registry.ollama.ai/library/m"
    for raw in (
        "",
        "nothing",
        "[]",
        "{}",
        '{"layers": 3}',
        '{"layers": [3]}',
        "[" * 100_000,
        '{"layers": []}',
    ):
        store.add(place, "latest", raw=raw)
        assert "is damaged: " in refused("ollama:m")
    for digest in ("sha256:short", f"sha256:../../{'a' * 64}", f"sha512:{'a' * 64}"):
        store.add(place, "latest", {"mediaType": MODEL, "digest": digest})
        assert "it names no model file" in refused("ollama:m")
    store.add(place, "latest", {"mediaType": MODEL, "digest": f"sha256:{'c' * 64}"})
    assert "is not there" in refused("ollama:m")
    store.add(place, "latest")
    assert resolve("ollama:m").present
    limit("models.manifest", 20)
    assert "is damaged: " in refused("ollama:m")


def test_an_adapter_is_not_left_out_silently(store: Store) -> None:
    layer = {"digest": f"sha256:{'a' * 64}"}
    layers = [layer | {"mediaType": MODEL}, layer | {"mediaType": MODEL.replace("model", "adapter")}]
    store.add("registry.ollama.ai/library/m", "latest", *layers)
    with pytest.raises(Refused, match="has an adapter, which Aerix does not apply"):
        resolve("ollama:m")
