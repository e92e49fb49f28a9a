"""How a server is spoken to: one client, its key, its errors as sentences, what is tried again and for how long.

The server is asked directly where it runs on this machine, else through the proxies that the environment names. A
redirect is not followed. The key goes into one header and nowhere else: what a server says of it is blacked out.
"""

import asyncio
import json
import os
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Self

import httpx

from aerix.actors import Refused
from aerix.pool.bounds import (
    REMOTE_ASK,
    REMOTE_BODY,
    REMOTE_CONNECT,
    REMOTE_DELAY,
    REMOTE_SILENCE,
    REMOTE_TRIES,
    REMOTE_WAIT,
)
from aerix.pool.remote import Address
from aerix.pool.remote_stream import Events, Finished, Garbled, Said, Told, quoted, said, told

_BUSY = frozenset({429, 503})
"""What a server says that is about to serve: it loads its model, or has too much to do."""
_AGAIN = _BUSY | {408, 425, 500, 502, 504, 529}
_KEPT_OPEN_S = 1
"""How long a connection may be idle to be used again: servers close theirs after 5 s, and one that just does is lost."""
_OVERFLOW = ("exceed_context_size", "context_length_exceeded")


class Trouble(Exception):
    """An attempt failed. It may be made ``again``, after ``wait_s`` where the server said so."""

    def __init__(self, why: Refused, again: bool = False, wait_s: float | None = None) -> None:
        super().__init__(why.message)
        self.why, self.again, self.wait_s = why, again, wait_s


class Server:
    """One model on one server. An asynchronous context; belongs to one event loop."""

    def __init__(self, address: Address, key: str) -> None:
        self.address = address
        self._key = key
        self._client = httpx.AsyncClient(
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx.Timeout(REMOTE_SILENCE.value, connect=REMOTE_CONNECT.value, pool=None),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEPT_OPEN_S),
            verify=ssl.create_default_context(),
            trust_env=not address.loopback,
            follow_redirects=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def ask(self, url: str, body: object = None) -> Any:
        """The JSON that the server answers at a path of its own; None where it has no such thing, or says it late.

        Asked once more where the connection is lost: an idle one may be, at any time.
        """
        method = "GET" if body is None else "POST"
        try:
            async with asyncio.timeout(REMOTE_ASK.value):
                try:
                    data = await self._whole(method, url, body)
                except (httpx.NetworkError, httpx.RemoteProtocolError):
                    data = await self._whole(method, url, body)
                return json.loads(data)
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            TimeoutError,
            Trouble,
            Garbled,
            ValueError,
            RecursionError,
        ):
            return None

    async def chat(self, body: dict[str, Any], *, patient: bool = True) -> AsyncGenerator[Said, None]:
        """Ask for a turn; what it says as it comes, up to what was spent.

        Tried again with growing delays as long as nothing has come; without patience only where the server is busy.
        Raises Refused: ``server_cut`` where it broke off halfway, else one of the codes in docs/protocol.md.
        """
        delay, tries = REMOTE_DELAY.value, 1
        while True:
            begun = False
            try:
                async with aclosing(self._attempt(body, patient=patient)) as answer:
                    async for one in answer:
                        begun = True
                        yield one
                    return
            except Trouble as trouble:
                if begun:
                    raise Refused("server_cut", f"the answer broke off: {trouble.why.message}") from None
                if not trouble.again:
                    raise trouble.why from None
                if tries >= REMOTE_TRIES.count:
                    raise Refused(trouble.why.code, f"{trouble.why.message} (tried {tries} times)") from None
                wait = delay if trouble.wait_s is None else trouble.wait_s
            await asyncio.sleep(min(wait, REMOTE_WAIT.value))
            delay, tries = delay * 2, tries + 1

    # --- one attempt

    async def _attempt(self, body: dict[str, Any], *, patient: bool) -> AsyncGenerator[Said, None]:
        """Raises Trouble. Once the answer is whole, nothing that goes wrong matters."""
        finished = False
        try:
            request = self._client.build_request("POST", f"{self.address.base}/chat/completions", json=body)
            response = await self._client.send(request, stream=True)
            try:
                await self._check(response, _AGAIN if patient else _BUSY)
                async with aclosing(_answer(response)) as answer:
                    async for one in answer:
                        finished = finished or isinstance(one, Finished)
                        yield one
            finally:
                await response.aclose()
            if not finished:
                why = self._refused("server_garbled", "its answer ended before it was whole")
                raise Trouble(why, again=patient)
        except (httpx.HTTPError, httpx.InvalidURL, Garbled, Told) as error:
            if not finished:
                raise self._trouble(error, patient=patient) from None

    async def _whole(self, method: str, url: str, body: object = None) -> bytes:
        request = self._client.build_request(method, url, json=body)
        response = await self._client.send(request, stream=True)
        try:
            await self._check(response, _BUSY)
            return await _body(response)
        finally:
            await response.aclose()

    async def _check(self, response: httpx.Response, again: frozenset[int]) -> None:
        """Raises Trouble where the server did not say yes."""
        status = response.status_code
        if status == 200:
            return
        if response.has_redirect_location:
            there = quoted(response.headers["Location"])
            raise Trouble(
                self._refused("server_refused", f"it sends elsewhere, to {there}: name that address")
            )
        words = await self._words(response)
        said = f"{status} {quoted(response.reason_phrase)}".strip()
        sentence = f"it answered {said}: {words}" if str(words) else f"it answered {said}"
        if status in (401, 403) and not self._key:
            sentence += "; name the variable that holds its key (key_env)"
        overflow = any(name in words.code for name in _OVERFLOW)
        code = "context_overflow" if overflow else "server_failed" if status >= 500 else "server_refused"
        raise Trouble(self._refused(code, sentence), status in again and not overflow, _retry_after(response))

    async def _words(self, response: httpx.Response) -> Told:
        try:
            data = await _body(response)
        except (httpx.HTTPError, Garbled):
            return Told("")
        try:
            return told(json.loads(data))
        except (ValueError, RecursionError):
            return Told(quoted(data))

    def _trouble(self, error: Exception, *, patient: bool) -> Trouble:
        match error:
            case httpx.ConnectTimeout():
                why = f"nobody answers in {REMOTE_CONNECT.value:g} s"
                return Trouble(self._refused("server_unreachable", why), again=patient)
            case httpx.ConnectError():
                again = patient and not isinstance(_cause(error), ssl.SSLError)
                return Trouble(
                    self._refused("server_unreachable", f"nobody answers ({_reason(error)})"), again
                )
            case httpx.TimeoutException():
                return Trouble(
                    self._refused("server_silent", f"it sent nothing for {REMOTE_SILENCE.value:g} s")
                )
            case Garbled():
                return Trouble(self._refused("server_garbled", f"it sent {error}"), again=patient)
            case Told():
                return Trouble(self._refused("server_failed", f"it says: {error}"), again=patient)
        return Trouble(
            self._refused("server_failed", f"the connection broke ({_reason(error)})"), again=patient
        )

    def _refused(self, code: str, sentence: str) -> Refused:
        if self._key:
            sentence = sentence.replace(self._key, "…")
        return Refused(code, f"the server at {self.address.base}: {sentence}")


async def _answer(response: httpx.Response) -> AsyncGenerator[Said, None]:
    """Raises Garbled, Told, and what httpx does."""
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        events = Events()
        async for data in response.aiter_raw():
            for one in events.feed(data):
                yield one
            if events.done:
                return
    elif kind == "application/json":  # a server that does not stream
        for one in said(await _body(response)):
            yield one
    else:
        raise Garbled(f"{kind or 'something'} in place of an answer: {quoted(await _body(response))}")


async def _body(response: httpx.Response) -> bytes:
    body = b""
    async for data in response.aiter_raw():
        body += data
        if len(body) > REMOTE_BODY.count:
            raise Garbled(f"more than {REMOTE_BODY.count} bytes")
    return body


def _retry_after(response: httpx.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None


def _cause(error: BaseException) -> BaseException:
    """What lies at the bottom of an error of httpx."""
    while below := error.__cause__ or error.__context__:
        error = below
    return error


def _reason(error: Exception) -> str:
    cause = _cause(error)
    number = cause.errno if isinstance(cause, OSError) else None
    words = os.strerror(number) if number and number > 0 else str(error)
    return quoted(words) or type(error).__name__
