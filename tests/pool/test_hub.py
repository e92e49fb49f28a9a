"""Fetching from a hub that breaks off, lies, redirects and refuses."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from aerix.actors import Refused
from aerix.pool import hub as hub_module
from aerix.pool.hub import choose, folder_of
from aerix.pool.models import HubRef, ResolvedModel, ensure_model, parse_reference, resolve
from tests.pool.ggufs import gguf
from tests.pool.hub_server import REPO, Hub, serve

MODEL = gguf(data=300_000)
FILE = "model-Q4_K_M.gguf"
REF = f"hf:{REPO}/{FILE}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("AERIX_BOUND_MODELS_HUB_PAUSE", "0.001")
    for name in ("HF_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serve(Hub({FILE: MODEL, "README.md": b"# A model"})) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


def pull(ref: str = REF) -> tuple[ResolvedModel, list[str]]:
    lines: list[str] = []
    return ensure_model(ref, lines.append), lines


def refused(ref: str = REF, code: str = "model_pull_failed") -> str:
    with pytest.raises(Refused) as refusal:
        pull(ref)
    assert refusal.value.code == code
    assert "\n" not in refusal.value.message
    return refusal.value.message


def left() -> set[str]:
    """What stands in the repository's folder, but for the lock."""
    folder = folder_of(REPO)
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return found - {".pull.lock"}


# --- what is fetched ----------------------------------------------------------------------------------------------


@pytest.mark.rule("models.hf")
@pytest.mark.parametrize("ref", [REF, f"hf:{REPO}", f"hf:{REPO}:Q4_K_M", f"hf:{REPO}:q4_k_m"])
def test_a_file_a_quantization_or_the_only_file_is_fetched(hub: Hub, ref: str) -> None:
    assert resolve(ref).present is False
    model, lines = pull(ref)
    assert (model.name, model.present, model.size) == (REF, True, len(MODEL))
    assert model.path.read_bytes() == MODEL
    assert model.path.stat().st_mode & 0o777 == 0o600
    assert left() == {FILE}
    assert lines[-1] == f"fetched {REF} (0 MB): {model.path}"
    assert any(line.startswith(f"fetching {REF}: 0 of 0 MB (") for line in lines)


@pytest.mark.rule("models.hf")
def test_what_is_here_is_used_without_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    pull()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    for ref in (REF, f"hf:{REPO}", f"hf:{REPO}:Q4_K_M"):
        assert pull(ref) == (resolve(REF), [])


@pytest.mark.rule("models.hf")
def test_the_parts_of_a_split_model_are_all_fetched(hub: Hub) -> None:
    names = [f"big/m-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    hub.files = dict.fromkeys(names, MODEL) | {"mmproj-F16.gguf": MODEL}
    model, _ = pull(f"hf:{REPO}")
    assert (model.name, model.size) == (f"hf:{REPO}/{names[0]}", 3 * len(MODEL))
    assert left() == set(names)
    assert pull(f"hf:{REPO}/{names[1]}") == (model, [])
    (folder_of(REPO) / names[1]).unlink()
    assert resolve(f"hf:{REPO}").present is False
    assert pull(f"hf:{REPO}:Q8_0")[0] == model
    del hub.files[names[2]]
    shutil.rmtree(folder_of(REPO))
    assert "the repository has only 2 of the 3 parts" in refused(f"hf:{REPO}")


@pytest.mark.rule("models.hf")
def test_what_is_ambiguous_is_refused_with_the_list(hub: Hub) -> None:
    hub.files = {"m-Q4_K_M.gguf": MODEL, "m-Q8_0.gguf": MODEL}
    message = refused(f"hf:{REPO}", "model_ambiguous")
    assert "m-Q4_K_M.gguf, m-Q8_0.gguf" in message
    assert f"name one, as hf:{REPO}/m-Q4_K_M.gguf" in message
    assert "the repository has m-Q4_K_M.gguf, m-Q8_0.gguf" in refused(f"hf:{REPO}:Q5_0")
    hub.files = {"README.md": b""}
    assert "the repository has no GGUF file" in refused(f"hf:{REPO}")


@pytest.mark.rule("models.hf")
def test_a_quantization_is_a_whole_word_before_it_is_a_part_of_one() -> None:
    names = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-UD-Q4_K.gguf", "m-f16.gguf"]
    for quant, found in (("Q4_K", "m-UD-Q4_K.gguf"), ("q4_k_s", "m-Q4_K_S.gguf"), ("F16", "m-f16.gguf"), ("UD", "m-UD-Q4_K.gguf"), ("Q4_K_", "")):  # fmt: skip
        if found:
            assert choose(HubRef(REPO, quant=quant), names) == found
        else:
            with pytest.raises(Refused, match=r"may be any of m-Q4_K_M\.gguf, m-Q4_K_S\.gguf"):
                choose(HubRef(REPO, quant=quant), names)


@pytest.mark.bound("models.hub-pages")
def test_a_long_list_of_files_is_read_page_by_page(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files = {f"other{n}.txt": b"" for n in range(7)} | {FILE: MODEL}
    hub.page = 3
    assert pull()[0].present
    monkeypatch.setenv("AERIX_BOUND_MODELS_HUB_PAGES", "2")
    shutil.rmtree(folder_of(REPO))
    assert "no GGUF file" in refused()


def test_a_small_file_that_stands_in_git_is_checked_by_its_hash_there(hub: Hub) -> None:
    import hashlib

    oid = hashlib.sha1(b"blob %d\0" % len(MODEL) + MODEL).hexdigest()
    hub.listed[FILE] = {"lfs": None, "oid": oid}
    assert pull()[0].present
    shutil.rmtree(folder_of(REPO))
    hub.listed[FILE] = {"lfs": None, "oid": "1" * 40}
    assert "its hash is" in refused(code="model_hash")


@pytest.mark.parametrize(
    "path", ["../evil.gguf", "/evil.gguf", "a//b.gguf", "a/../../b.gguf", ".hidden.gguf", "a\nb.gguf"]
)
def test_a_name_that_leads_elsewhere_is_not_taken(hub: Hub, path: str) -> None:
    hub.files = {path: MODEL}
    assert "no GGUF file" in refused(f"hf:{REPO}")
    assert left() == set()


@pytest.mark.parametrize(
    "ref",
    ["hf:", "hf:org", "hf:org/", "hf:/repo", "hf:org/repo/", "hf:org/repo:", "hf:../repo", "hf:org/..", "hf:o/r/../../x.gguf", "hf:o/r/readme.md", "hf:o r/x", "hf:o/r?x"],
)  # fmt: skip
def test_a_reference_to_the_hub_that_is_none_is_refused(ref: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse_reference(ref)
    assert refusal.value.code == "model_unknown"


# --- what breaks off ----------------------------------------------------------------------------------------------


@pytest.mark.bound("models.hub-pause")
@pytest.mark.rule("models.hf")
def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub: Hub) -> None:
    hub.breaks = [100_000, 50_000]
    model, lines = pull()
    assert model.path.read_bytes() == MODEL
    assert hub.ranges_asked() == [None, "bytes=100000-", "bytes=150000-"]
    assert sum(line.endswith("; trying again") for line in lines) == 2


@pytest.mark.bound("models.hub-tries")
@pytest.mark.rule("models.hf")
def test_a_later_pull_goes_on_where_an_earlier_one_stopped(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.breaks = [100_000, 1, 1]
    monkeypatch.setenv("AERIX_BOUND_MODELS_HUB_TRIES", "1")
    assert "what has come is kept, and a new try goes on there" in refused()
    assert left() == {f"{FILE}.part"}
    assert resolve(REF).present is False
    hub.breaks = []
    monkeypatch.delenv("AERIX_BOUND_MODELS_HUB_TRIES")
    assert pull()[0].present
    assert hub.ranges_asked()[-1] == "bytes=100000-"
    assert left() == {FILE}


def test_a_server_that_cannot_go_on_begins_anew_and_is_given_up_when_it_gets_no_further(hub: Hub) -> None:
    hub.ranges = False
    hub.breaks = [100_000]
    assert pull()[0].path.read_bytes() == MODEL
    shutil.rmtree(folder_of(REPO))
    hub.breaks = [100_000] * 50
    assert "broke: " in refused()
    assert len(hub.breaks) > 40


def test_a_part_that_is_longer_than_the_file_is_begun_anew(hub: Hub) -> None:
    part = folder_of(REPO) / f"{FILE}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(len(MODEL) + 1))
    assert pull()[0].path.read_bytes() == MODEL


@pytest.mark.rule("models.hf")
def test_a_server_that_is_silent_is_given_up(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.stall = True
    monkeypatch.setenv("AERIX_BOUND_MODELS_PULL_SILENCE", "0.2")
    monkeypatch.setenv("AERIX_BOUND_MODELS_HUB_TRIES", "2")
    assert "nothing came from 127.0.0.1:" in refused()


# --- what lies ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("models.hf")
def test_a_file_of_another_hash_or_length_is_not_kept(hub: Hub) -> None:
    right = hub.entry(FILE)["lfs"]
    for lfs, code, said in (
        (right | {"oid": "0" * 64}, "model_hash", "its hash is"),
        (right | {"size": len(MODEL) - 1}, "model_pull_failed", "bytes now, and"),
        (right | {"size": len(MODEL) + 1}, "model_pull_failed", "bytes now, and"),
    ):
        hub.listed[FILE] = {"lfs": lfs}
        message = refused(code=code)
        assert said in message
        assert FILE not in left()
        shutil.rmtree(folder_of(REPO))


@pytest.mark.rule("models.hf")
def test_an_answer_that_is_longer_or_shorter_than_it_says_is_not_kept(hub: Hub) -> None:
    hub.length_lie = 5
    assert "bytes now, and" in refused()
    hub.files[FILE] += b"more"
    hub.listed[FILE] = {"lfs": {"size": len(MODEL), "oid": "0" * 64}}
    hub.length_lie = -4
    refused(code="model_hash")
    assert FILE not in left()


@pytest.mark.rule("models.hf")
def test_a_file_that_is_no_model_is_given_up_at_its_first_bytes(hub: Hub) -> None:
    hub.files[FILE] = b"<html>" + bytes(100_000)
    assert "is no GGUF file: it begins with b'<html>" in refused(code="model_not_gguf")


@pytest.mark.parametrize("raw", [b"", b"<html>", b"{}", b"[" * 100_000, b'[1, null, {"path": 3}]'])
def test_a_list_that_is_none_is_one_sentence(hub: Hub, raw: bytes) -> None:
    hub.raw_list = raw
    assert refused().startswith(f"{REF} could not be fetched: ")


@pytest.mark.bound("models.hub-list")
def test_a_list_without_end_is_cut(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_MODELS_HUB_LIST", "100")
    assert "its list of files is longer than 100 bytes" in refused()


# --- who is asked, and with what ----------------------------------------------------------------------------------


@pytest.mark.rule("models.hf-token")
def test_the_token_goes_to_the_hub_and_to_no_host_it_redirects_to(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with ExitStack() as stack:
        elsewhere = stack.enter_context(serve(Hub({FILE: MODEL})))
        hub.redirect = elsewhere.url
        elsewhere.breaks = [1000]
        model, lines = pull()
        assert model.path.read_bytes() == MODEL
        assert hub.tokens() == {"Bearer hf_secret"}
        assert elsewhere.tokens() == {None}
        assert elsewhere.ranges_asked() == [None, "bytes=1000-"]
        assert not any("hf_secret" in line for line in lines)


@pytest.mark.rule("models.hf-token")
def test_without_a_token_none_is_sent(hub: Hub) -> None:
    pull()
    assert hub.tokens() == {None}


@pytest.mark.bound("models.hub-redirects")
def test_redirects_without_end_or_to_nowhere_are_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_MODELS_HUB_REDIRECTS", "2")
    hub.redirect = hub.url
    assert "redirects more than 2 times" in refused()
    for target, said in (("ftp://127.0.0.1", "not as safe"), ("http://[", "could not be fetched")):
        hub.redirect = target
        assert said in refused()


@pytest.mark.rule("models.hf")
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "or it needs a token: set HF_TOKEN"),
        (403, "its owner lets in whom he knows"),
        (404, "there is no such repository or file"),
        (429, "it wants to be asked again in 7 s"),
        (418, "look at http"),
    ],
)
def test_a_hub_that_refuses_is_told_in_its_own_words(hub: Hub, status: int, said: str) -> None:
    hub.statuses = [status]
    message = refused()
    assert f"127.0.0.1 answered {status} (the hub's own words): " in message
    assert said in message
    assert len(hub.asked) == 1


def test_a_token_that_is_not_taken_is_told_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    hub.statuses = [401]
    message = refused()
    assert "the token in HF_TOKEN is not taken" in message
    assert "hf_wrong" not in message


def test_words_that_are_none_are_not_shown(hub: Hub) -> None:
    hub.words = "\x1b[2J" + "x" * 9000
    hub.statuses = [404]
    assert "answered 404: there is no" in refused()


@pytest.mark.rule("models.hf")
def test_a_hub_that_fails_is_asked_again_and_at_last_given_up(hub: Hub) -> None:
    hub.statuses = [500, 503, 0, 502]
    assert pull()[0].present
    shutil.rmtree(folder_of(REPO))
    hub.statuses = [500] * 50
    assert "127.0.0.1 answered 500" in refused()
    assert len(hub.statuses) == 45


# --- this machine -------------------------------------------------------------------------------------------------


@pytest.mark.rule("models.hf")
def test_without_a_network_the_sentence_says_so_at_once(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "127.0.0.1:1 cannot be reached: " in refused()
    monkeypatch.setenv("HF_ENDPOINT", "my-mirror")
    assert "HF_ENDPOINT is 'my-mirror', which is no address" in refused()


@pytest.mark.rule("models.hf")
def test_a_full_disk_is_told_before_and_while(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert "it needs 0 MB, and the disk of" in refused()
    monkeypatch.undo()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    fetched = hub_module.os.fsync

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub_module.os, "fsync", full)
    assert "No space left on device; what has come is kept" in refused()
    monkeypatch.setattr(hub_module.os, "fsync", fetched)
    assert pull()[0].present
