"""`aerix models …` as a user types it."""

import io
import os
from pathlib import Path

import pytest

from aerix.pool.cli_output import Ticker
from aerix.pool.hub import folder_of
from aerix.pool.models import DEFAULT_MODEL, models_dir
from tests.pool.daemons import Daemons, Scripts
from tests.pool.ggufs import LLAMA, gguf
from tests.pool.hub_server import REPO, Hub, serve
from tests.pool.test_cli import aerix


def place(path: Path, data: bytes = gguf()) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def answered(*words: str, code: int = 0) -> str:
    """What a command prints: its answer, or its one sentence."""
    done = aerix("models", *words)
    assert done.returncode == code, done
    if code:
        assert done.stdout == ""
        assert done.stderr.startswith("aerix: ")
        assert done.stderr.count("\n") == 1
    return done.stderr if code else done.stdout


# --- show and list ------------------------------------------------------------------------------------------------


@pytest.mark.rule("models.rm-show")
@pytest.mark.rule("models.default-window")
def test_show_tells_the_header_the_file_and_the_fit(tmp_path: Path) -> None:
    path = place(tmp_path / "m.gguf")
    shown = answered("show", str(path))
    for part in (
        f"{path}\n",
        f"file:         {path} (0 MB)\n",
        "architecture: llama, Q4_K_M, 32 layers, 3 vocabulary entries\n",
        "trained:      for a window of 32,768 tokens\n",
        "template:     in the file\n",
        "fit:          ",
    ):
        assert part in shown, shown
    assert "a window of" in shown or "does not fit" in shown


@pytest.mark.rule("models.rm-show")
def test_show_tells_what_is_not_here_and_what_is_no_file(tmp_path: Path, script: Scripts) -> None:
    shown = answered("show", DEFAULT_MODEL)
    assert f"not fetched, 98 MB: aerix models pull {DEFAULT_MODEL}" in shown
    assert "licence:      Apache-2.0" in shown
    assert "not fetched: aerix models pull hf:org/repo:Q8_0" in answered("show", "hf:org/repo:Q8_0")
    assert "what it serves is asked when it is loaded" in answered("show", "http://127.0.0.1:1/v1#m")
    assert "a script of turns" in answered("show", script())
    blank = place(tmp_path / "blank.gguf", gguf({"general.architecture": "odd"}))
    assert "it is only ever loaded alone" in answered("show", str(blank))
    huge = place(tmp_path / "huge.gguf", gguf(LLAMA | {"llama.block_count": 4_000_000}))
    assert "it does not fit: it needs" in answered("show", str(huge))


@pytest.mark.rule("cli.one-sentence")
def test_what_cannot_be_shown_is_one_sentence_with_exit_code_4(tmp_path: Path) -> None:
    broken = place(tmp_path / "broken.gguf", gguf()[:90])
    for ref, said in (
        ("nonsense", "it is not known: give a path"),
        (str(broken), "is a damaged GGUF file"),
        ("ollama:m", "Run `ollama pull m`"),
        ("hf:org", "hf:ORG/REPO"),
    ):
        assert said in answered("show", ref, code=4)


@pytest.mark.rule("models.list")
def test_list_shows_the_catalogue_and_what_is_here() -> None:
    place(models_dir() / "own.gguf")
    place(folder_of(REPO) / "m-Q8_0.gguf")
    for n in (1, 2):
        place(folder_of(REPO) / f"big/m-0000{n}-of-00002.gguf")
    place(folder_of(REPO) / "half-00001-of-00002.gguf")
    listed = answered("list").splitlines()
    assert listed[0].startswith(f"{DEFAULT_MODEL}  98 MB  Apache-2.0  not fetched")
    assert listed[1:] == [
        f"hf:{REPO}/big/m-00001-of-00002.gguf  0 MB",
        f"hf:{REPO}/half-00001-of-00002.gguf  0 MB  not whole: fetch it again",
        f"hf:{REPO}/m-Q8_0.gguf  0 MB",
        f"{models_dir()}/own.gguf  0 MB",
    ]


def test_help_names_every_kind_of_reference() -> None:
    for words in (("--help",), ("pull", "--help"), ("rm", "--help"), ("show", "--help")):
        told = answered(*words)
        assert "hf:ORG/REPO:Q4_K_M" in told
        assert "ollama:NAME" in told


# --- pull ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("models.hf")
def test_pull_takes_a_reference_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(Hub({"m.gguf": gguf()})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        done = aerix("models", "pull", f"hf:{REPO}")
        where = folder_of(REPO) / "m.gguf"
        assert (done.returncode, done.stdout) == (0, f"hf:{REPO}/m.gguf is at {where}\n")
        assert "(100 %)" in done.stderr
        assert answered("pull", f"hf:{REPO}") == done.stdout
        hub.statuses = [404]
        assert "could not be fetched: 127.0.0.1 answered 404" in answered("pull", "hf:org/none", code=4)


def test_pull_of_what_is_not_fetched_says_so(tmp_path: Path) -> None:
    assert "there is nothing to fetch" in answered("pull", "http://127.0.0.1:1/v1#m", code=4)
    assert "Run `ollama pull m`" in answered("pull", "ollama:m", code=4)
    path = place(tmp_path / "m.gguf")
    assert answered("pull", str(path)) == f"{path} is at {path}\n"


def test_on_a_terminal_progress_keeps_to_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr(shown, "isatty", lambda: True)
    with Ticker() as ticker:
        ticker("fetching m: 1 of 2 MB (50 %)")
        ticker("the connection broke; trying again")
        ticker("fetching m: 2 of 2 MB (100 %)")
    assert shown.getvalue() == (
        "\r\x1b[Kaerix: [##########..........] fetching m: 1 of 2 MB (50 %)\n"
        "aerix: the connection broke; trying again\n"
        "\r\x1b[Kaerix: [####################] fetching m: 2 of 2 MB (100 %)\n"
    )


# --- rm -----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("models.rm-show")
def test_rm_removes_what_was_fetched_and_says_what_it_frees() -> None:
    parts = [place(folder_of(REPO) / f"big/m-0000{n}-of-00002.gguf", gguf(data=600_000)) for n in (1, 2)]
    other = place(folder_of(REPO) / "m-Q8_0.gguf")
    place(folder_of(REPO) / ".pull.lock", b"")
    told = answered("rm", f"hf:{REPO}/big/m-00002-of-00002.gguf")
    assert told == f"removed hf:{REPO}/big/m-00001-of-00002.gguf: 1 MB are free again\n"
    assert not parts[0].parent.exists()
    assert other.exists()
    assert answered("rm", f"hf:{REPO}") == f"removed hf:{REPO}/m-Q8_0.gguf: 0 MB are free again\n"
    assert [path.name for path in models_dir().iterdir()] == []


@pytest.mark.rule("models.rm-show")
def test_rm_removes_what_a_pull_that_broke_off_has_left_and_damaged_files() -> None:
    place(folder_of(REPO) / "m-Q8_0.gguf.part")
    assert f"removed hf:{REPO}/m-Q8_0.gguf" in answered("rm", f"hf:{REPO}:q8_0")
    place(models_dir() / "broken.gguf", b"")
    assert "removed" in answered("rm", str(models_dir() / "broken.gguf"))
    place(models_dir() / "SmolLM2-135M-Instruct.Q4_1.gguf", b"half")
    assert f"removed {DEFAULT_MODEL}" in answered("rm", DEFAULT_MODEL)
    assert not [path for path in models_dir().rglob("*") if path.is_file()]


@pytest.mark.rule("models.rm-show")
def test_rm_removes_nothing_that_is_not_aerixs(tmp_path: Path) -> None:
    path = place(tmp_path / "m.gguf")
    assert "so it is not Aerix's to remove" in answered("rm", str(path), code=4)
    (models_dir() / "link").parent.mkdir(parents=True)
    (models_dir() / "link").symlink_to(tmp_path)
    assert "so it is not Aerix's to remove" in answered("rm", f"{models_dir()}/link/m.gguf", code=4)
    assert path.exists()
    assert "`ollama rm m:1b` removes it" in answered("rm", "ollama:m:1b", code=4)
    for ref in (DEFAULT_MODEL, "hf:org/none", f"{tmp_path}/none.gguf", "http://127.0.0.1:1/v1#m"):
        assert f"nothing of {ref} is in {models_dir()}" in answered("rm", ref, code=4)


@pytest.mark.rule("models.rm-show")
def test_rm_is_refused_while_the_pool_has_it_loaded(pool: Daemons, own_home: Path, model_file: Path) -> None:
    path = models_dir() / "m.gguf"
    path.parent.mkdir(parents=True)
    os.link(model_file, path) if model_file.stat().st_dev == models_dir().stat().st_dev else path.symlink_to(
        model_file
    )
    pool(str(path), flags=("--window", "256", "--cells", "256"))
    told = answered("rm", str(path), code=1)
    assert f"the pool has {path} loaded: run `aerix pool unload '{path}'` first" in told
    assert aerix("pool", "stop").returncode == 0
    assert "removed" in answered("rm", str(path))
