"""A server on loopback that is like the hub, and misbehaves as it is told."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

REPO = "org/repo"


@dataclass
class Hub:
    """What the server has, how it misbehaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    listed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the list says otherwise of a file: ``size``, ``lfs`` or anything else."""
    statuses: list[int] = field(default_factory=list)
    """What the next requests are answered with, whatever they are for; 0 is as usual."""
    breaks: list[int] = field(default_factory=list)
    """After how many bytes the next answers with a file break off; 0 is not at all."""
    ranges: bool = True
    redirect: str = ""
    """Where files are; this server's own answer is then only that."""
    length_lie: int = 0
    stall: bool = False
    """Send half of a file and then nothing, until the server ends."""
    page: int = 1000
    words: str = "the hub's own words"
    raw_list: bytes | None = None
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def entries(self) -> list[dict[str, Any]]:
        return [{"type": "directory", "path": "folder"}, *map(self.entry, self.files)]

    def entry(self, path: str) -> dict[str, Any]:
        data = self.files[path]
        lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
        told = {"type": "file", "path": path, "size": len(data), "oid": "0" * 40, "lfs": lfs}
        return told | self.listed.get(path, {})

    def tokens(self) -> set[str | None]:
        """The tokens that came, None for none."""
        return {headers.get("authorization") for _, headers in self.asked}

    def ranges_asked(self) -> list[str | None]:
        return [
            headers.get("range") for path, headers in self.asked if "/resolve/" in path or "/cdn/" in path
        ]


_CLOSE = {"Connection": "close"}
"""Said with each answer, since each connection is closed after it: else the client would ask on it once more."""


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """The server, until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            self.close_connection = True
            status = hub.statuses.pop(0) if hub.statuses else 0
            with suppress(BrokenPipeError, ConnectionResetError):
                if status:
                    self.answer(status, json.dumps({"error": hub.words}).encode(), {"Retry-After": "7"})
                elif self.path.startswith("/api/models/"):
                    self.list_files()
                elif hub.redirect:
                    self.answer(
                        302, b"", {"Location": hub.redirect + self.path.replace("/resolve/", "/cdn/")}
                    )
                else:
                    self.send_file(unquote(urlsplit(self.path).path).split("/main/", 1)[-1])

        def list_files(self) -> None:
            begin = int(self.path.partition("cursor=")[2] or 0)
            entries = hub.entries()
            more = {}
            if begin + hub.page < len(entries):
                path = self.path.partition("&cursor=")[0]
                more = {"Link": f'<{hub.url}{path}&cursor={begin + hub.page}>; rel="next"'}
            shown = json.dumps(entries[begin : begin + hub.page]).encode()
            self.answer(200, shown if hub.raw_list is None else hub.raw_list, more)

        def send_file(self, name: str) -> None:
            data = hub.files.get(name)
            if data is None:
                self.answer(404, b'{"error": "Entry not found"}', {})
                return
            begin = int(self.headers.get("Range", "bytes=0-")[6:-1]) if hub.ranges else 0
            part = data[begin:]
            told = {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"} if begin else {}
            self.send_response(206 if begin else 200)
            for key, value in (told | {"Content-Length": str(len(part) + hub.length_lie)} | _CLOSE).items():
                self.send_header(key, value)
            self.end_headers()
            if hub.stall:
                self.wfile.write(part[: len(part) // 2])
                self.wfile.flush()
                hub.ended.wait()
                return
            self.wfile.write(part[: (hub.breaks.pop(0) if hub.breaks else 0) or len(part)])

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in (headers | {"Content-Length": str(len(body))} | _CLOSE).items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Say nothing."""

    return Handler
