"""What fits into a machine's memory, and what the refusal says."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerix.actors import Refused
from aerix.pool.fit import KV_BYTES, Plan, is_known, memory_limit, plan, size
from aerix.pool.header import Header
from aerix.pool.workerargs import WorkerArgs

GB = 10**9
SEVEN = Header(
    architecture="llama", name="seven", quantization="Q4_K_M", trained=131_072, layers=32, embedding=4096,
    feed_forward=14_336, heads=32, kv_heads=(8,), key_length=128, value_length=128, vocabulary=128_256,
    sliding_window=0, recurrent=0, template=True, splits=0,
)  # fmt: skip
WEIGHTS = 4_900_000_000
ROW = 32 * 8 * 256 * 2


def fit(room: int, gpu: int = 0, header: Header = SEVEN, **args: object) -> Plan:
    return plan("seven", header, WEIGHTS, WorkerArgs("seven.gguf", **args), room, gpu)  # type: ignore[arg-type]


@pytest.mark.rule("models.default-window")
@pytest.mark.parametrize(
    ("room", "trained", "window", "cells"),
    [
        (64 * GB, 131_072, 32_768, 60_416),
        (10 * GB, 131_072, 32_768, 36_096),  # fewer cells, before a smaller window
        (9 * GB, 131_072, 16_384, 28_416),
        (7 * GB, 131_072, 8192, 13_312),
        (64 * GB, 16_384, 16_384, 31_744),
        (64 * GB, 2048, 2048, 6656),
    ],
)
def test_the_window_is_the_largest_that_is_trained_and_fits(
    room: int, trained: int, window: int, cells: int
) -> None:
    found = fit(room, header=replace(SEVEN, trained=trained))
    assert (found.window, found.cells) == (window, cells)
    assert found.host <= room


@pytest.mark.rule("models.per-model-settings")
def test_a_window_and_cells_that_are_set_are_taken_as_they_are() -> None:
    assert (fit(64 * GB, window=4096).window, fit(64 * GB, window=4096).cells) == (4096, 10_240)
    assert fit(64 * GB, window=4096, max_batch=1).cells == 4096
    found = fit(64 * GB, window=8192, cells=9000)
    assert (found.window, found.cells) == (8192, 9000)
    assert fit(64 * GB, cells=3000).window == 3000
    with pytest.raises(Refused):
        fit(10 * GB, cells=60_000)


@pytest.mark.rule("models.fit")
def test_a_cell_takes_what_its_type_says() -> None:
    plain = fit(64 * GB, window=8192, cells=8192)
    assert plain.rows == 8192 * ROW
    for kind, bytes_each in KV_BYTES.items():
        found = fit(64 * GB, window=8192, cells=8192, kv_type=kind)
        assert found.rows == 8192 * int(ROW / 2 * bytes_each)
    assert fit(64 * GB, memory=2 * GB).rows <= 2 * GB
    with pytest.raises(Refused, match=r"64\.0 GB may be used \(1\.0 GB for its cells\)"):
        fit(64 * GB, memory=1 * GB)


@pytest.mark.rule("models.fit")
def test_what_does_not_fit_is_refused_with_the_numbers_and_what_helps() -> None:
    with pytest.raises(Refused) as refusal:
        fit(6 * GB)
    assert refusal.value.code == "no_memory"
    for part in ("seven does not fit", "4.9 GB of weights", "8,192", "6.0 GB may be used", "A window of "):
        assert part in refusal.value.message
    fits = int(refusal.value.message.partition("A window of ")[2].partition(" fits")[0].replace(",", ""))
    assert fit(6 * GB, window=fits, cells=fits).host <= 6 * GB
    with pytest.raises(Refused, match=r"Take a smaller model or quantization of it, or free memory\."):
        fit(4 * GB)


def test_a_header_that_says_too_little_has_no_plan() -> None:
    assert is_known(SEVEN)
    for blank in ("trained", "layers", "embedding", "key_length"):
        assert is_known(replace(SEVEN, **{blank: 0, "value_length": 0})) is False  # type: ignore[arg-type]


NUMBER = st.integers(0, 2**64 - 1)


@pytest.mark.rule("models.fit")
@settings(max_examples=100, deadline=None)
@given(
    st.builds(
        replace, st.just(SEVEN), trained=NUMBER, layers=NUMBER, embedding=NUMBER, feed_forward=NUMBER, heads=NUMBER,
        kv_heads=st.lists(NUMBER, min_size=1, max_size=5).map(tuple), key_length=NUMBER, value_length=NUMBER,
        vocabulary=NUMBER, recurrent=NUMBER, sliding_window=NUMBER,
    ),
    st.integers(1, 2**50), st.sampled_from([0, 10**9]), st.sampled_from(list(KV_BYTES)), st.sampled_from([0, 1, 10**6]),
)  # fmt: skip
def test_whatever_a_header_says_there_is_a_plan_that_fits_or_a_refusal(
    header: Header, room: int, gpu: int, kind: str, memory: int
) -> None:
    if not is_known(header):
        return
    try:
        found = fit(room, gpu, header, kv_type=kind, memory=memory)
    except Refused as refusal:
        assert refusal.code == "no_memory"
    else:
        assert 0 < found.window <= found.cells
        assert found.host <= room


def test_recurrent_layers_and_sliding_windows_take_their_part() -> None:
    assert fit(64 * GB, header=replace(SEVEN, recurrent=1000)).rows > fit(64 * GB).rows
    assert fit(64 * GB, header=replace(SEVEN, sliding_window=512)).compute > fit(64 * GB).compute


# --- a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("models.gpu")
def test_a_gpu_takes_as_many_layers_as_it_has_room_for() -> None:
    everything = fit(64 * GB, gpu=80 * GB)
    assert (everything.gpu_layers, everything.window) == (33, 32_768)
    assert everything.host < 1 * GB
    some = fit(64 * GB, gpu=8 * GB)
    assert 0 < some.gpu_layers < 33
    assert some.on_gpu < 0.9 * 8 * GB
    assert some.host + some.on_gpu == some.total
    assert fit(64 * GB, gpu=100_000_000).gpu_layers == 0


@pytest.mark.rule("models.gpu")
def test_what_lies_on_the_gpu_is_not_counted_twice() -> None:
    with pytest.raises(Refused):
        fit(4 * GB)
    assert fit(4 * GB, gpu=80 * GB).window == 32_768
    with pytest.raises(Refused, match="of it on the GPU"):
        fit(1 * GB, gpu=3 * GB)


@pytest.mark.rule("models.gpu")
def test_layers_that_are_set_are_taken_and_none_means_none() -> None:
    assert fit(64 * GB, gpu=80 * GB, gpu_layers=10).gpu_layers == 10
    assert fit(64 * GB, gpu=80 * GB, gpu_layers=10_000).gpu_layers == 33
    none = fit(64 * GB, gpu=80 * GB, gpu_layers=0)
    assert (none.gpu_layers, none.on_gpu) == (0, 0)


# --- the limit -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("models.fit")
def test_the_limit_is_the_smaller_of_the_groups_and_three_quarters(tmp_path: Path) -> None:
    own = memory_limit(tmp_path)
    assert own == memory_limit(tmp_path / "nothing")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/user.slice/a\n")
    inner = tmp_path / "sys/fs/cgroup/user.slice/a"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) == own
    (inner.parent / "memory.max").write_text("2000000\n")
    assert memory_limit(tmp_path) == 2_000_000
    (inner / "memory.max").write_text("1000000\n")
    assert memory_limit(tmp_path) == 1_000_000


@pytest.mark.rule("models.fit")
def test_the_older_control_groups_limit_too(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu:/\n4:memory:/docker/x\n")
    (tmp_path / "sys/fs/cgroup/memory").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("3000000\n")
    assert memory_limit(tmp_path) == 3_000_000


def test_sizes_are_said_as_people_say_them() -> None:
    assert (size(98_362_432), size(4_900_000_000)) == ("98 MB", "4.9 GB")
