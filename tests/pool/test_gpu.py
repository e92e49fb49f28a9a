"""Looking for GPUs without loading llama.cpp."""

import sys
from pathlib import Path

import pytest

from aerix.pool import gpu


@pytest.mark.rule("models.gpu")
def test_a_build_for_no_gpu_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.sys, "executable", "/nowhere")
    before = "llama_cpp" in sys.modules  # another test may have it
    assert gpu.free_on_gpus() == 0
    assert gpu._libraries().is_dir()
    assert ("llama_cpp" in sys.modules) is before


@pytest.mark.bound("models.gpu-look")
@pytest.mark.rule("models.gpu")
def test_a_build_for_a_gpu_is_asked_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libggml-cuda.so").touch()
    monkeypatch.setattr(gpu, "_libraries", lambda: tmp_path)
    assert gpu.free_on_gpus() == 0  # the real library, which finds none here
    for said, found in (
        ("print('noise'); print(12)", 12),
        ("raise SystemExit('no driver')", 0),
        ("print('none')", 0),
    ):
        monkeypatch.setattr(gpu, "_LOOK", said)
        assert gpu.free_on_gpus() == found
    monkeypatch.setattr(gpu, "_LOOK", "import threading; threading.Event().wait()")
    monkeypatch.setenv("AERIX_BOUND_MODELS_GPU_LOOK", "0.2")
    assert gpu.free_on_gpus() == 0
