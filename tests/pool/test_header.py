"""Reading a GGUF file's header: what it tells, and what a hostile one costs."""

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerix.actors import Refused
from aerix.pool.header import Header, read_header
from tests.pool.ggufs import LLAMA, gguf

WHOLE = gguf()


def write(folder: Path, data: bytes) -> Path:
    path = folder / "m.gguf"
    path.write_bytes(data)
    return path


def refused(folder: Path, data: bytes) -> Refused:
    with pytest.raises(Refused) as refusal:
        read_header(write(folder, data))
    return refusal.value


@pytest.mark.rule("models.precheck")
def test_the_header_tells_what_a_model_is(tmp_path: Path) -> None:
    header = read_header(write(tmp_path, WHOLE))
    assert header == Header(
        architecture="llama",
        name="A test",
        quantization="Q4_K_M",
        trained=32768,
        layers=32,
        embedding=4096,
        feed_forward=11008,
        heads=32,
        kv_heads=(8,),
        key_length=128,
        value_length=128,
        vocabulary=3,
        sliding_window=0,
        recurrent=0,
        template=True,
        splits=0,
    )
    assert header.head_numbers == 32 * 8 * 256


@pytest.mark.rule("models.precheck")
def test_the_real_models_header(model_file: Path) -> None:
    header = read_header(model_file)
    assert (header.architecture, header.trained, header.layers) == ("llama", 8192, 30)
    assert (header.vocabulary, header.kv_heads, header.template) == (49152, (3,), True)


def test_heads_may_differ_by_layer_and_layers_may_be_recurrent(tmp_path: Path) -> None:
    values = LLAMA | {
        "llama.attention.head_count_kv": [8, 0, 2],
        "llama.attention.key_length": 64,
        "llama.attention.value_length": 32,
        "llama.attention.sliding_window": 512,
        "llama.ssm.inner_size": 100,
        "llama.ssm.state_size": 16,
        "llama.ssm.conv_kernel": 4,
        "llama.ssm.group_count": 1,
        "split.count": 3,
    }
    header = read_header(write(tmp_path, gguf(values)))
    assert header.head_numbers == (8 + 0 + 2) * (64 + 32)
    assert header.recurrent == 100 * 16 + 3 * (100 + 2 * 16)
    assert (header.sliding_window, header.splits) == (512, 3)


def test_a_header_that_says_nothing_is_one_of_zeros(tmp_path: Path) -> None:
    header = read_header(write(tmp_path, gguf({"general.architecture": "odd", "odd.context_length": "text"})))
    assert (header.architecture, header.trained, header.head_numbers, header.template) == ("odd", 0, 0, False)


@pytest.mark.rule("models.precheck")
@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        (b"<html>not found</html>", "model_not_gguf", "this one with '<htm'"),
        (b"", "model_not_gguf", "is not a model"),
        (b"GGUF", "model_not_gguf", "version 0"),
        (b"GGUF" + struct.pack("<I", 99), "model_not_gguf", "version 99"),
        (
            WHOLE[:100],
            "model_broken_file",
            "ends at byte 100, inside its header: it was cut off; fetch it again",
        ),
        (WHOLE[:-64], "model_broken_file", "before its tensors do: it was cut off"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1),
            "model_broken_file",
            "1,152,921,504,606,846,976 tensors",
        ),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**40), "model_broken_file", "a name in it is"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"k", 77) + bytes(9), "model_broken_file", "(77)"),
        (
            b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**50) + bytes(99),
            "model_broken_file",
            "'k' is a list of 1,125,899,906,842,624 texts",
        ),
        (
            b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 9, 1) + bytes(99),
            "model_broken_file",
            "(9)",
        ),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, data: bytes, code: str, said: str) -> None:
    refusal = refused(tmp_path, data)
    assert (refusal.code, said in refusal.message) == (code, True), refusal.message


@pytest.mark.bound("models.header-entries")
def test_a_list_of_too_many_texts_is_refused_before_it_is_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_MODELS_HEADER_ENTRIES", "50")
    many = gguf(LLAMA | {"tokenizer.ggml.tokens": ["t"] * 51})
    assert "a list of 51 texts" in refused(tmp_path, many).message


@pytest.mark.bound("models.header-bytes")
def test_a_header_may_only_be_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_MODELS_HEADER_BYTES", "1000")
    long = gguf(LLAMA | {"general.description": "x" * 5000})
    assert "longer than 1,000 bytes" in refused(tmp_path, long).message


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="none cannot be read: No such file or directory"):
        read_header(tmp_path / "none")


@pytest.mark.rule("models.precheck")
def test_a_header_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    for length in range(len(WHOLE) - 64):
        assert refused(tmp_path, WHOLE[:length]).code in ("model_not_gguf", "model_broken_file")


@pytest.mark.rule("models.precheck")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=12))
def test_a_corrupted_header_is_read_or_refused(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for at, byte in changes:
        data[at] = byte
    try:
        header = read_header(write(tmp_path, bytes(data)))
    except Refused as refusal:
        assert refusal.code in ("model_not_gguf", "model_broken_file")
    else:
        assert min(header.trained, header.layers, header.head_numbers) >= 0
