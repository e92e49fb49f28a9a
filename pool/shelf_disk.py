"""The shelf on disk: the rows of pinned heads, so that a pool that was started again finds them.

One file a head, in a folder for each kind of rows (``Kind``): a line of the header's hash, the header as a line of JSON,
then the parts as the engine gave them. A file is written beside its place, synced and renamed: it is whole or it is not
there. Whatever is wrong with one costs a line in the log and a prefill. Files are written by an actor of their own.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from aerix.actors import Actor, Ref, launch, on
from aerix.actors.log import log
from aerix.pool.bounds import DISK, DISK_CLOSE, DISK_HEADER, DISK_QUEUE
from aerix.pool.models import parts
from aerix.pool.prefix import common
from aerix.pool.rows import EngineFacts
from aerix.pool.shelf_memory import Part
from aerix.pool.workerargs import WorkerArgs

_FORMAT = 1
_STALE_S = 3600.0
_REMEMBERED = 256
_NUMBERS = count()
_SUFFIX, _PART = ".rows", ".part"


@dataclass(frozen=True, slots=True)
class Kind:
    """What must be the same for rows to be taken: the model file, what computed them, and how they are kept."""

    model: str
    """The digest of the model's file or files."""
    engine: str
    """The library and its version."""
    rows: str
    """The type of the numbers, and whether and in which chunks a sequence can be cut."""

    @property
    def digest(self) -> str:
        """Names the kind's folder."""
        return _hash(json.dumps([_FORMAT, self.model, self.engine, self.rows]).encode())


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a part of a file is, and what its bytes' hash must be."""

    path: Path
    at: int
    size: int
    hash: str


@dataclass(frozen=True, slots=True)
class _Head:
    tokens: list[int]
    parts: list[tuple[int, int, Spot]]
    """First row, row after the last, where."""


def open_heads(args: WorkerArgs, facts: EngineFacts) -> "HeadFiles":
    """The heads of a worker's model."""
    folder = Path(args.prefix_dir) if args.prefix_dir else prefix_dir()
    path = Path(args.model.removeprefix("scripted:"))
    files = parts(path)
    digests = Digests(folder / "models.json")
    rows = f"{args.kv_type}, {f'chunks of {facts.chunk}' if facts.cuttable else 'whole'}"
    return HeadFiles(
        folder,
        lambda: Kind(digests.of(files), facts.engine, rows),
        known=digests.known(files),
        cuttable=facts.cuttable,
    )


def prefix_dir() -> Path:
    """``$XDG_CACHE_HOME/aerix/prefixes``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aerix" / "prefixes"


Rows = Sequence[tuple[int, int, memoryview]]
"""Parts of a head: first row, row after the last, bytes."""


class HeadFiles:
    """The heads that are kept on disk. Everything but the writing is done by the thread that asks."""

    def __init__(self, folder: Path, kind: Callable[[], Kind], *, known: bool, cuttable: bool = True) -> None:
        """``kind`` may take long, the first time for a model's file; ``known`` says that it does not."""
        self._root = folder
        self._make_kind = kind
        self._kind: Kind | None = None
        self._cuttable = cuttable
        self._heads: dict[Path, _Head] = {}
        self._lock = threading.Condition()
        self._waiting: deque[list[int]] = deque()
        """Heads on their way to the disk."""
        self._writer: Ref | None = None
        self._closed = False
        if known:
            self._open()

    @property
    def entries(self) -> int:
        """Heads that are here for this kind."""
        return len(self._heads)

    @property
    def bytes(self) -> int:
        """What they take."""
        with self._lock:
            return sum(spot.size for head in self._heads.values() for *_, spot in head.parts)

    def find(self, tokens: list[int], limit: int) -> list[Part]:
        """Parts of the head that holds the longest beginning of these tokens; see Snapshots.find."""
        with self._lock:
            heads = list(self._heads.values())
        shared = [(min(common(head.tokens, tokens), limit), head) for head in heads]
        if not self._cuttable:
            shared = [(same, head) for same, head in shared if same == len(head.tokens)]
        same, best = max(shared, key=lambda one: one[0], default=(0, None))
        if best is None or not same:
            return []
        return [
            Part(start, end, min(end, same), spot.size, spot, "disk")
            for start, end, spot in best.parts
            if start < same
        ]

    def read(self, spot: Spot) -> memoryview | None:
        """The bytes of a part; None, and the file is passed over from now on, where they are not what they were."""
        try:
            with spot.path.open("rb") as file:
                file.seek(spot.at)
                data = file.read(spot.size)
            if len(data) != spot.size or _hash(data) != spot.hash:
                raise ValueError("its rows are damaged")
            os.utime(spot.path)
        except (OSError, ValueError) as error:
            self.forget(spot, str(error))
            return None
        return memoryview(data)

    def forget(self, spot: Spot, why: str) -> None:
        """Pass a file over, and take it away: it is of no use to anybody."""
        with self._lock:
            known = self._heads.pop(spot.path, None)
        if known is None:
            return
        with contextlib.suppress(OSError):
            spot.path.unlink()
        _pass_over(spot.path, why)

    def lacks(self, tokens: list[int]) -> bool:
        """Whether a head is neither here nor on its way here."""
        with self._lock:
            if self._closed or len(self._waiting) >= DISK_QUEUE.count:
                return False
            known = [
                *(head.tokens for head in self._heads.values()),
                *self._waiting,
            ]
        return not any(one[: len(tokens)] == tokens if self._cuttable else one == tokens for one in known)

    def write(self, tokens: list[int], rows: Rows) -> None:
        """Write a head, later and elsewhere."""
        if self._writer is None:
            self._writer = launch(_Writer(self._write_next), f"head-files:{next(_NUMBERS)}", None)
        with self._lock:
            self._waiting.append(tokens)
        self._writer.tell(_Write(tokens, rows))

    def wait(self, seconds: float) -> bool:
        """Whether, before that time is over, all that was handed in is written or given up."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._waiting, seconds)

    def close(self) -> None:
        """Take nothing more, and wait for what is on its way, for a while."""
        with self._lock:
            self._closed = True
        self.wait(DISK_CLOSE.value)
        if self._writer is not None:
            self._writer.stop()
            self._writer.join(DISK_CLOSE.value)

    # --- the writer's thread --------------------------------------------------------------------------------------

    def _write_next(self, tokens: list[int], rows: Rows) -> None:
        try:
            self._write(tokens, rows)
        except OSError as error:
            log("prefix.not_written", level="warning", folder=str(self._root), why=str(error))
        with self._lock:
            self._waiting.popleft()
            self._lock.notify_all()

    def _write(self, tokens: list[int], rows: Rows) -> None:
        began = time.perf_counter()
        if self._kind is None:
            self._open()
        kind = self._kind
        if kind is None:
            return
        hashes = [_hash(data) for *_, data in rows]
        head = _header(kind, tokens, rows, hashes)
        size = len(head) + sum(len(data) for *_, data in rows)
        path = self._root / kind.digest / (_hash(json.dumps(tokens).encode()) + _SUFFIX)
        if not _make_room(self._root, size):
            log(
                "prefix.not_written",
                level="warning",
                folder=str(self._root),
                why=f"{size:,} bytes are too many",
            )
            return
        _write_whole(path, [head, *(data for *_, data in rows)])
        with self._lock:
            self._heads = {path: one for path, one in self._heads.items() if path.exists()}
            self._heads[path] = _placed(path, len(head), tokens, rows, hashes)
        log("prefix.written", tokens=len(tokens), bytes=size, seconds=round(time.perf_counter() - began, 3))

    # --- opening --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Find what is here. A folder that others may write to is not used."""
        try:
            kind = self._make_kind()
            folder = self._root / kind.digest
            for one in (self._root, folder):
                one.mkdir(parents=True, exist_ok=True, mode=0o700)
                told = one.stat()
                if told.st_uid != os.getuid() or told.st_mode & 0o022:
                    raise OSError(f"{one} belongs to somebody else, or others may write to it")
            heads = {
                path: head for path in sorted(folder.iterdir()) if (head := _found(path, kind)) is not None
            }
        except OSError as error:
            log("prefix.no_disk", level="warning", folder=str(self._root), why=str(error))
            self._closed = True
            return
        with self._lock:
            self._kind, self._heads = kind, heads
        if heads:
            log("prefix.found", heads=len(heads), tokens=max(len(head.tokens) for head in heads.values()))


def _found(path: Path, kind: Kind) -> _Head | None:
    """The head in a file; None, and a line in the log, where it is none of ours."""
    try:
        if path.suffix != _PART:
            return _read_head(path, kind)
        if time.time() - path.stat().st_mtime > _STALE_S:  # of a writer that died
            path.unlink()
    except (OSError, ValueError, KeyError, TypeError) as error:
        _pass_over(path, str(error))
    return None


@dataclass(frozen=True, slots=True)
class _Write:
    tokens: list[int]
    rows: Rows


class _Writer(Actor):
    """Writes one head after the other."""

    def __init__(self, write: Callable[[list[int], Rows], None]) -> None:
        self._write = write

    @on(_Write)
    def _next(self, message: _Write) -> None:
        self._write(message.tokens, message.rows)


def _pass_over(path: Path, why: str) -> None:
    log("prefix.passed_over", level="warning", file=str(path), why=why)


def _hash(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _header(kind: Kind, tokens: list[int], rows: Rows, hashes: list[str]) -> bytes:
    parts = [[start, end, len(data), digest] for (start, end, data), digest in zip(rows, hashes, strict=True)]
    text = json.dumps({"kind": kind.digest, "tokens": tokens, "parts": parts}).encode()
    return _hash(text).encode() + b"\n" + text + b"\n"


def _placed(path: Path, at: int, tokens: list[int], rows: Rows, hashes: list[str]) -> _Head:
    parts = []
    for (start, end, data), digest in zip(rows, hashes, strict=True):
        parts.append((start, end, Spot(path, at, len(data), digest)))
        at += len(data)
    return _Head(tokens, parts)


def _read_head(path: Path, kind: Kind) -> _Head:
    """A file's head. Raises ValueError where it is damaged or of another kind."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise ValueError("it belongs to somebody else")
        wanted, text = file.readline(64).strip(), file.readline(DISK_HEADER.count)
        at, size = file.tell(), file.seek(0, os.SEEK_END)
    if _hash(text[:-1]).encode() != wanted:
        raise ValueError("it is damaged, or no such file")
    header = json.loads(text)
    if header["kind"] != kind.digest:
        raise ValueError("its rows are of another model or release")
    parts = []
    for start, end, length, digest in header["parts"]:
        parts.append((start, end, Spot(path, at, length, digest)))
        at += length
    if at != size:
        raise ValueError("it is cut off")
    return _Head(header["tokens"], parts)


def _make_room(root: Path, need: int) -> bool:
    """Take away what was used least recently, of all kinds, until ``need`` bytes fit."""
    if need > DISK.count:
        return False
    found = []
    for path in root.glob("*/*"):
        with contextlib.suppress(OSError):
            told = path.stat()
            found.append((told.st_mtime, told.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total + need <= DISK.count:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size
    return True


def _write_whole(path: Path, pieces: Sequence[bytes | memoryview]) -> None:
    """All of it, or nothing. Raises OSError."""
    part = path.with_name(f"{path.stem}.{os.getpid()}{_PART}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:  # noqa: PTH123  # a descriptor
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- the digest of a model's file ---------------------------------------------------------------------------------


class Digests:
    """The digests of model files, remembered by path, size and time in a file of their own."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def known(self, files: Sequence[Path]) -> bool:
        """Whether ``of`` answers at once."""
        try:
            return self._name(files) in self._load()
        except OSError:
            return False

    def of(self, files: Sequence[Path]) -> str:
        """The digest of what these files hold, in order. Raises OSError."""
        known, name = self._load(), self._name(files)
        if name not in known:
            digest = hashlib.sha256()
            for path in files:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            known = dict([*known.items(), (name, digest.hexdigest())][-_REMEMBERED:])
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_whole(self._file, [json.dumps(known).encode()])
        return known[name]

    def _name(self, files: Sequence[Path]) -> str:
        told = [(str(path), path.stat()) for path in files]
        return json.dumps([[name, one.st_size, one.st_mtime_ns] for name, one in told])

    def _load(self) -> dict[str, str]:
        try:
            found = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
