"""An OpenAI-compatible server on loopback that answers as a test says, well or badly, and remembers what it was asked."""

import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler"], None]
PATIENCE = 30.0
WINDOW = 8192


# --- answers ------------------------------------------------------------------------------------------------------


def chunk(text: str | None = None, finish: str | None = None, **delta: Any) -> bytes:
    """One event of a stream."""
    content = {} if text is None else {"content": text}
    return event({"choices": [{"index": 0, "delta": content | delta, "finish_reason": finish}]})


def event(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def usage(prompt: int, completion: int, cached: int = 0) -> bytes:
    counted = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event({"choices": [], "usage": counted | {"prompt_tokens_details": {"cached_tokens": cached}}})


DONE = b"data: [DONE]\n\n"


def says(*texts: str, finish: str = "stop", spent: bytes = b"") -> Answer:
    """A stream as it should be."""
    return streams(chunk(role="assistant"), *map(chunk, texts), chunk(finish=finish), spent, DONE)


class Hold:
    """Holds an answer up, until it is let go or the client closes its connection."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self._connection: socket.socket | None = None
        self._gone = False

    def wait(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.settimeout(PATIENCE)
        if not self._gone:
            connection.recv(1)
        if not self._gone:
            self.closed.set()

    def let_go(self) -> None:
        self._gone = True
        if self._connection is not None:
            self._connection.shutdown(socket.SHUT_RD)


def streams(*pieces: bytes, kind: str = "text/event-stream", hold: Hold | None = None) -> Answer:
    """These bytes and the end of the connection; before the end it is held."""

    def answer(handler: "Handler") -> None:
        handler.head(200, kind)
        for piece in pieces:
            handler.wfile.write(piece)
            handler.wfile.flush()
        if hold is not None:
            hold.wait(handler.connection)

    return answer


def status(code: int, body: object = "", kind: str = "application/json", **headers: str) -> Answer:
    """An error, with JSON or a page as its words."""

    def answer(handler: "Handler") -> None:
        handler.head(code, kind, **{name.replace("_", "-"): value for name, value in headers.items()})
        handler.wfile.write(body.encode() if isinstance(body, str) else json.dumps(body).encode())

    return answer


def slams(handler: "Handler") -> None:
    """The connection ends before a word."""


def breaks_off(*pieces: bytes) -> Answer:
    """Promise more than comes."""

    def answer(handler: "Handler") -> None:
        handler.head(200, "text/event-stream", **{"Content-Length": "100000"})
        handler.wfile.write(b"".join(pieces))

    return answer


def is_silent(hold: Hold, *then: bytes) -> Answer:
    """Not a byte for as long as it is held, then these."""

    def answer(handler: "Handler") -> None:
        hold.wait(handler.connection)
        if not hold.closed.is_set():
            streams(*then)(handler)

    return answer


# --- the server ---------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.0: a connection for each request."""

    server: "Fake"

    def do_GET(self) -> None:
        found = self.server.pages.get(self.path)
        self.server.seen.append(("GET", self.path, dict(self.headers), None))
        if found is None:
            status(404, {"error": {"message": "File Not Found"}})(self)
        else:
            (found if callable(found) else status(200, found))(self)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(("POST", self.path, dict(self.headers), body))
        if self.path == "/tokenize" and self.server.counts:
            status(200, {"tokens": body["content"].split()})(self)
        elif self.path == "/v1/chat/completions":
            self.server.answer(body)(self)
        else:
            status(404, {"error": {"message": "File Not Found"}})(self)

    def head(self, code: int, kind: str, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Fake(ThreadingHTTPServer):
    """Answers a chat with the next of ``answers``; the short turn by which it is tried out, with one of ``trials``."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, object] = {
            "/v1/models": {"object": "list", "data": [{"id": "m", "max_model_len": WINDOW}, {"id": "other"}]}
        }
        self.counts = False
        self.schema = True
        self.answers: deque[Answer] = deque()
        self.trials: deque[Answer] = deque()
        self.seen: list[tuple[str, str, dict[str, str], Any]] = []

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def ref(self) -> str:
        return f"{self.base}#m"

    def answer(self, body: dict[str, Any]) -> Answer:
        if "village" in body["messages"][-1]["content"]:
            if self.trials:
                return self.trials.popleft()
            held = self.schema and "response_format" in body
            return says('{"kind": "flag", "value": true}' if held else "Hello, people!", spent=usage(40, 9))
        return self.answers.popleft() if self.answers else status(500, {"error": "nothing is left to say"})

    def chats(self) -> list[dict[str, Any]]:
        """The bodies of the requests for turns, without those that try the server out."""
        bodies = [body for _, path, _, body in self.seen if path.endswith("/chat/completions")]
        return [body for body in bodies if "village" not in body["messages"][-1]["content"]]

    def tried(self) -> list[dict[str, Any]]:
        bodies = [body for _, path, _, body in self.seen if path.endswith("/chat/completions")]
        return [body for body in bodies if "village" in body["messages"][-1]["content"]]

    def handle_error(self, *_: object) -> None:
        """A client that has closed its connection is no error."""


@contextmanager
def fake() -> Iterator[Fake]:
    """A server that is closed in the end."""
    server = Fake()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
