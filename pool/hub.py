"""Fetching models from the hub (huggingface.co, or the server that ``HF_ENDPOINT`` names).

The hub's list of a repository's files says how long each is and what its hash is; what comes is held to both, wherever
the hub redirects to. A download that breaks off goes on where it stopped. ``HF_TOKEN`` goes to the hub and nowhere else.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from aerix.actors import Refused
from aerix.pool.bounds import HUB_LIST, HUB_PAGES, HUB_PAUSE, HUB_REDIRECTS, HUB_TRIES, PULL_SILENCE
from aerix.pool.fetching import Meter, Progress, alone, pause
from aerix.pool.models import HubRef, megabytes, models_dir, parts

if TYPE_CHECKING:
    import httpx

_HUB = "https://huggingface.co"
_CONNECT_S = 30.0
_CHUNK = 1 << 20
_NO_MODELS = ("mmproj", "imatrix")
_SAFE = re.compile(r"[\w. +()\[\]-]+", re.ASCII)
_REDIRECTS = (301, 302, 303, 307, 308)
_WORDS = 200
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository, as the hub lists it."""

    path: str
    size: int
    sha256: str
    """Empty for a small file, which the hub keeps in git: ``git`` is its hash there."""
    git: str


class _Lost(Exception):
    """The connection, or the server, failed in a way that may be over in a moment."""


# --- what is here already -----------------------------------------------------------------------------------------


def folder_of(repo: str) -> Path:
    """Where a repository's files are kept."""
    return models_dir() / "hf" / repo


def kept(ref: HubRef) -> tuple[str, Path | None]:
    """The complete name of what is here, and its first file; None where it has to be fetched.

    Raises Refused ``model_ambiguous``.
    """
    folder = folder_of(ref.repo)
    here = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.gguf")) if path.is_file()]
    whole = [name for name in here if set(_group(name)) <= set(here)]
    found = choose(ref, whole)
    if not found:
        return str(ref), None
    return str(HubRef(ref.repo, found)), folder / found


def choose(ref: HubRef, names: Sequence[str]) -> str:
    """The file that a reference means, the first of several that it is cut into; empty where there is none.

    Raises Refused ``model_ambiguous``, with the list.
    """
    models = [name for name in names if _is_model(name)]
    if ref.file:
        first = _group(ref.file)[0]
        return first if first in names else ""
    if ref.quant:
        mark = re.compile(rf"(?<![A-Za-z0-9]){re.escape(ref.quant)}(?![A-Za-z0-9_])", re.IGNORECASE)
        holding = [name for name in models if ref.quant.lower() in name.lower()]
        models = [name for name in models if mark.search(name)] or holding
    if len(models) > 1:
        listed = ", ".join(models[:20]) + (f" and {len(models) - 20} more" if len(models) > 20 else "")
        raise Refused(
            "model_ambiguous", f"{ref} may be any of {listed}: name one, as hf:{ref.repo}/{models[0]}"
        )
    return models[0] if models else ""


def _is_model(name: str) -> bool:
    """Whether it is the file to load: no other kind, and no later part."""
    other = any(word in name.lower() for word in _NO_MODELS)
    return name.endswith(".gguf") and _group(name)[0] == name and not other


def _group(name: str) -> list[str]:
    return [str(path) for path in parts(Path(name))]


# --- fetching -----------------------------------------------------------------------------------------------------


def fetch(ref: HubRef, progress: Progress) -> HubRef:
    """Fetch what ``ref`` names, all its parts; the reference with its file named.

    Raises Refused: ``model_pull_failed`` (with what to do), ``model_hash``, ``model_ambiguous``, ``model_unknown``.
    """
    import httpx

    folder = folder_of(ref.repo)
    timeout = httpx.Timeout(PULL_SILENCE.value, connect=_CONNECT_S)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (
            alone(folder, str(ref), progress, lambda why: _failed(ref, why)),
            httpx.Client(
                timeout=timeout, headers={"User-Agent": "aerix", "Accept-Encoding": "identity"}
            ) as client,
        ):
            return _Pull(ref, client, progress).run(folder)
    except OSError as error:
        raise _failed(ref, f"{error.filename or folder}: {error.strerror}; what has come is kept") from error


def endpoint() -> str:
    """The hub's address, without a slash at its end. Raises Refused ``model_pull_failed``."""
    base = (os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")
    parts_of_it = urlsplit(base)
    if parts_of_it.scheme not in ("http", "https") or not parts_of_it.netloc:
        raise Refused(
            "model_pull_failed", f"HF_ENDPOINT is {base!r:.200}, which is no address such as {_HUB}"
        )
    return base


class _Pull:
    """One pull. Makes requests of the hub, and of whom it redirects to."""

    def __init__(self, ref: HubRef, client: "httpx.Client", progress: Progress) -> None:
        self._ref, self._client, self._progress = ref, client, progress
        self._hub = endpoint()
        self._token = os.environ.get("HF_TOKEN", "").strip()
        self._reached = False
        """Whether the hub has answered at all."""

    def run(self, folder: Path) -> HubRef:
        """All files of the model, one after the other."""
        listed = {file.path: file for file in self._persistently(self._list, lambda: 0)}
        first = choose(self._ref, list(listed))
        if not first:
            there = ", ".join(name for name in listed if name.endswith(".gguf")) or "no GGUF file"
            raise self._failed(f"the repository has {there[:1000]}")
        files = [listed[name] for name in _group(first) if name in listed]
        if len(files) < len(_group(first)):
            raise self._failed(
                f"the repository has only {len(files)} of the {len(_group(first))} parts of {first}"
            )
        ref = replace(self._ref, file=first, quant="")
        meter = Meter(str(ref), sum(file.size for file in files), self._progress)
        self._check_room(folder, files)
        for file in files:
            self._one(file, folder / file.path, meter)
            meter.done(file.size)
        self._progress(f"fetched {ref} ({megabytes(sum(file.size for file in files))}): {folder / first}")
        return ref

    # --- one file

    def _one(self, file: HubFile, target: Path, meter: Meter) -> None:
        if target.is_file():
            return
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = target.with_name(target.name + ".part")
        part.touch(0o600)
        self._persistently(lambda: self._come(file, part, meter), lambda: part.stat().st_size)
        self._check_hash(file, part)
        part.replace(target)

    def _come(self, file: HubFile, part: Path, meter: Meter) -> None:
        """Fetch what is missing. Raises _Lost; what has come stays."""
        at = part.stat().st_size
        if at == file.size:
            return
        at = at if at < file.size else 0
        url = f"{self._hub}/{self._ref.repo}/resolve/main/{quote(file.path)}"
        with self._get(url, {"Range": f"bytes={at}-"} if at else {}) as response, part.open("r+b") as out:
            at = self._begins(response, at, file)
            out.truncate(at)
            out.seek(at)
            for chunk in response.iter_raw():
                if at == 0 and not chunk.startswith(b"GGUF"[: len(chunk)]):
                    raise Refused(
                        "model_not_gguf",
                        f"what the hub sends for {file.path} is no GGUF file: it begins with {chunk[:16]!r}",
                    )
                at += len(chunk)
                if at > file.size:
                    raise self._wrong(
                        file, part, f"it is longer than the {file.size:,} bytes that the hub lists"
                    )
                out.write(chunk)
                meter.at(at)
            out.flush()
            os.fsync(out.fileno())
        if at < file.size:
            raise _Lost(f"the connection ended after {at:,} of {file.size:,} bytes")

    def _begins(self, response: "httpx.Response", at: int, file: HubFile) -> int:
        """Where in the file the answer begins. Raises Refused where it is of another length."""
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("content-range", ""))
        if response.status_code == 206 and found is not None and int(found[1]) == at:
            told = at if found[2] == "*" else int(found[2])
            if found[2] != "*" and told != file.size:
                raise self._failed(f"{file.path} has {told:,} bytes now, and {file.size:,} in the hub's list")
            return at
        length = response.headers.get("content-length", "")
        if response.status_code == 200 and length.isdigit() and int(length) != file.size:
            raise self._failed(
                f"{file.path} has {int(length):,} bytes now, and {file.size:,} in the hub's list"
            )
        return 0

    def _check_hash(self, file: HubFile, part: Path) -> None:
        digest = (
            hashlib.sha256()
            if file.sha256
            else hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
        )
        if file.size > 1e9:
            self._progress(f"checking the hash of {file.path}")
        with part.open("rb") as whole:
            while chunk := whole.read(_CHUNK):
                digest.update(chunk)
        if digest.hexdigest() != (file.sha256 or file.git):
            raise self._wrong(file, part, f"its hash is {digest.hexdigest()}, not {file.sha256 or file.git}")

    def _wrong(self, file: HubFile, part: Path, why: str) -> Refused:
        part.unlink()
        return Refused(
            "model_hash",
            f"{file.path} of hf:{self._ref.repo} is not what the hub lists: {why}; it was not kept",
        )

    def _check_room(self, folder: Path, files: Sequence[HubFile]) -> None:
        import shutil

        needed = sum(file.size - min(file.size, _here(folder / file.path)) for file in files)
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise self._failed(
                f"it needs {megabytes(needed)}, and the disk of {folder} has {megabytes(free)} free"
            )

    # --- the list

    def _list(self) -> list[HubFile]:
        """The repository's files. Raises _Lost."""
        url: str | None = f"{self._hub}/api/models/{self._ref.repo}/tree/main?recursive=1"
        found: list[HubFile] = []
        for _ in range(HUB_PAGES.count):
            if url is None:
                break
            with self._get(url, {}) as response:
                found += map(self._listed, self._json_list(response))
                url = self._next_page(response, url)
        return [file for file in found if file.path]

    def _json_list(self, response: "httpx.Response") -> list[object]:
        raw = b""
        for chunk in response.iter_raw():
            raw += chunk
            if len(raw) > HUB_LIST.count:
                raise self._failed(f"its list of files is longer than {HUB_LIST.count:,} bytes")
        try:
            plain = json.loads(raw)
        except (ValueError, RecursionError):
            plain = None
        if not isinstance(plain, list):
            raise self._failed(f"{self._hub} answered with something that is no list of files")
        return plain

    def _next_page(self, response: "httpx.Response", url: str) -> str | None:
        """Only on the hub itself: a list is asked for with the token."""
        following = response.links.get("next", {}).get("url")
        whole = urljoin(url, following) if following else ""
        return whole if whole.startswith(f"{self._hub}/") else None

    def _listed(self, entry: object) -> HubFile:
        """An entry of the list; one that is no file, or whose name is not harmless, has no path."""
        plain = entry if isinstance(entry, dict) else {}
        lfs = plain["lfs"] if isinstance(plain.get("lfs"), dict) else {}
        path, size, digest = plain.get("path"), lfs.get("size", plain.get("size")), str(lfs.get("oid", ""))
        harmless = isinstance(path, str) and all(
            _SAFE.fullmatch(part) and not part.startswith(".") for part in path.split("/")
        )
        if not harmless or type(size) is not int or size < 0 or plain.get("type") != "file":
            return HubFile("", 0, "", "")
        return HubFile(str(path), size, digest.removeprefix("sha256:"), str(plain.get("oid", "")))

    # --- requests

    def _persistently(self, act: Callable[[], _T], reached: Callable[[], int]) -> _T:
        """Do it again while it is lost, unless it gets no further."""
        lost, best = 0, reached()
        while True:
            try:
                return act()
            except _Lost as why:
                lost, best = (1, reached()) if reached() > best else (lost + 1, best)
                if lost >= HUB_TRIES.count or not self._reached:
                    raise self._failed(
                        f"{why}; what has come is kept, and a new try goes on there" if best else str(why)
                    ) from None
                self._progress(f"{why}; trying again")
                pause(HUB_PAUSE.value * 2 ** (lost - 1))

    @contextlib.contextmanager
    def _get(self, url: str, headers: dict[str, str]) -> "Iterator[httpx.Response]":
        """An answer that is one, after redirects. Raises _Lost, Refused."""
        import httpx

        try:
            for _ in range(HUB_REDIRECTS.count + 1):
                with self._client.stream("GET", url, headers=headers | self._token_for(url)) as response:
                    self._reached = True
                    if response.status_code not in _REDIRECTS:
                        self._check_status(response)
                        yield response
                        return
                    url = self._redirected(url, response.headers.get("location", ""))
        except httpx.TimeoutException:
            raise _Lost(f"nothing came from {urlsplit(url).netloc} for {PULL_SILENCE.value:g} s") from None
        except httpx.ConnectError as error:
            raise _Lost(f"{urlsplit(url).netloc} cannot be reached: {error}") from None
        except httpx.TransportError as error:
            raise _Lost(f"the connection to {urlsplit(url).netloc} broke: {error}") from None
        except httpx.InvalidURL as error:
            raise self._failed(f"{url[:_WORDS]!r} is no address: {error}") from None
        raise self._failed(f"the hub redirects more than {HUB_REDIRECTS.count} times")

    def _token_for(self, url: str) -> dict[str, str]:
        """The token, for the hub's own scheme, host and port only."""
        mine = self._token and urlsplit(url)[:2] == urlsplit(self._hub)[:2]
        return {"Authorization": f"Bearer {self._token}"} if mine else {}

    def _redirected(self, url: str, location: str) -> str:
        try:
            target = urljoin(url, location)
            safe = urlsplit(target).scheme in ("https", urlsplit(self._hub).scheme)
        except ValueError:
            target, safe = location, False
        if not location or not safe:
            raise self._failed(f"the hub redirects to {target[:_WORDS]!r}, which is not as safe as itself")
        return target

    def _check_status(self, response: "httpx.Response") -> None:
        code = response.status_code
        if code in (200, 206):
            return
        where = response.url.host
        if code >= 500 or code == 408:
            raise _Lost(f"{where} answered {code}")
        raise self._failed(f"{where} answered {code}{self._words(response)}: {self._meaning(code, response)}")

    def _meaning(self, code: int, response: "httpx.Response") -> str:
        page = f"{self._hub}/{self._ref.repo}"
        match code:
            case 401 if self._token:
                return (
                    "the token in HF_TOKEN is not taken for this repository, or there is no such repository"
                )
            case 401:
                return "there is no such repository, or it needs a token: set HF_TOKEN"
            case 403:
                return f"its owner lets in whom he knows: look at {page}, and set HF_TOKEN to a token that may read it"
            case 404:
                return f"there is no such repository or file; look at {page}"
            case 416:
                return "what has come is not what the hub has now; `aerix models rm` removes it"
            case 429:
                wait = response.headers.get("retry-after", "")
                return (
                    f"it wants to be asked again in {wait} s"
                    if wait.isdigit()
                    else "it wants to be asked again later"
                )
        return f"look at {page}"

    def _words(self, response: "httpx.Response") -> str:
        """What the server says itself, in one short line."""
        raw = next(response.iter_raw(4096), b"")
        try:
            said = str(json.loads(raw)["error"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return ""
        return f" ({' '.join(said.split())[:_WORDS]})" if said.isprintable() else ""

    def _failed(self, why: str) -> Refused:
        return _failed(self._ref, why)


def _here(target: Path) -> int:
    """Bytes of a file that have come: of all of it, or of its part."""
    found = [path for path in (target, target.with_name(f"{target.name}.part")) if path.is_file()]
    return max((path.stat().st_size for path in found), default=0)


def _failed(ref: HubRef, why: str) -> Refused:
    return Refused("model_pull_failed", f"{ref} could not be fetched: {why}")
