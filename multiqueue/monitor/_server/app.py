"""The ASGI application: it authenticates, finds the handler, runs it on a thread, and writes the answer.

Promise     Every answer is JSON, text of a known kind or empty; no error of ours shows its traceback to a client.
            A browser on another site can neither read an answer (no CORS header is ever sent) nor cause a change: a
            request that says it comes from elsewhere, or is for a name that is none of the server's, is refused before
            it is looked at, and a GET changes nothing.
Who runs    The event loop parses and answers; handlers run on the pool's threads, so none may hold the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ...amqp import is_loopback
from .._api.asking import LARGEST_BODY, LARGEST_DEFINITIONS, Answer, Ask, MethodNotAllowed, Table
from .._api.events import Events, looks_of
from .._base.errors import Refused, not_found
from .._base.held import Held, Hold
from .._base.pieces import as_json, json_pieces
from .._door.access import Authenticator, Caller
from .._door.origin import Hosts, is_from_elsewhere, names_this_machine
from .._metrics.broker import CONTENT_TYPE, Metrics
from .page import page_files

_log = logging.getLogger("multiqueue.monitor")
_REALM: Final = 'Basic realm="multiqueue"'
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"  # no text becomes markup
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_THREADS: Final = 8  # handlers that run at once
_THREADS_OF_ONE: Final = 3  # of one user
_BODY_TIME: Final = 60.0  # seconds in which a request's body comes


class Application:
    """The windows of one broker, to be served by any ASGI server."""

    def __init__(
        self, table: Table, authenticator: Authenticator, metrics: Metrics, events: Events, hosts: Hosts
    ) -> None:
        self._hosts = hosts
        self._table = table
        self._authenticator = authenticator
        self._metrics = metrics
        self._events = events
        self._held = Held()
        self._files = page_files()
        self._threads: anyio.CapacityLimiter | None = None  # belongs to the event loop, so made there
        # By user, as long as somebody waits there.
        self._shares: WeakValueDictionary[str, anyio.CapacityLimiter] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        with ExitStack() as until_sent:
            try:
                response = await self._answer(request, until_sent)
            except ClientDisconnect:
                return
            except Refused as refused:
                response = _refusal(refused)
            except Exception as error:  # noqa: BLE001  # the client gets a status, the log the cause
                _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
                response = _refusal(Refused(500, "internal_server_error", "see the broker's log"))
            await response(scope, receive, send)

    def end_streams(self) -> None:
        """Let every stream of events come to its end. Any thread may call."""
        self._events.close()

    def close(self) -> None:
        """Hash no further passwords."""
        self._authenticator.close()

    async def _answer(self, request: Request, until_sent: ExitStack) -> Response:
        self._hosts.check(request.headers.get("host"))
        path = _raw_path(request.scope)
        if path == "/metrics" or path.startswith("/metrics/"):
            return await self._exposition(request, path)
        if not path.startswith("/api/"):
            return self._file(request.method, path)
        if request.method == "OPTIONS":
            return Response(status_code=200, headers=dict(_HEADERS))
        if request.method not in ("GET", "HEAD") and is_from_elsewhere(request.headers):
            raise Refused(403, "forbidden", "a request from another site's page is refused")
        caller = await self._caller(request)
        if path == "/api/events":
            return self._stream(request, caller)
        route, parts = self._table.find(request.method, path)
        user = caller.user.name
        hold = until_sent.enter_context(self._held.of(user))
        is_large = caller.is_administrator and path.startswith("/api/definitions")
        body = await _body(request, LARGEST_DEFINITIONS if is_large else LARGEST_BODY, hold)
        why = request.headers.get("x-reason", "")
        ask = Ask(caller, parts, dict(request.query_params), body, route.body, why, hold=hold)
        found = await self._on_thread(user, route.handler, ask)
        answer = found if isinstance(found, Answer) else Answer(200, found)
        if answer.content is None:
            return Response(status_code=answer.status, headers={**_HEADERS, **answer.headers})
        headers = {**answer.headers, "content-type": "application/json"}
        return await self._written(request, user, answer.status, json_pieces(answer.content), headers)

    async def _written(
        self, request: Request, user: str, status: int, pieces: Iterator[bytes], headers: Mapping[str, str]
    ) -> Response:
        """The answer. One of more than a piece is a stream: each piece is made when the one before is sent."""
        first, second = await self._on_thread(user, lambda: (next(pieces, b""), next(pieces, None)))
        if second is None:
            return Response(first, status_code=status, headers={**_HEADERS, **headers})

        async def stream() -> AsyncIterator[bytes]:
            yield first
            piece: bytes | None = second
            try:
                while piece is not None:
                    yield piece
                    piece = await self._on_thread(user, next, pieces, None)
            except Exception as error:  # the client sees an answer that breaks off
                _log.error("%s %s failed while it ran", request.method, request.url.path, exc_info=error)
                raise

        return StreamingResponse(stream(), status_code=status, headers={**_HEADERS, **headers})

    async def _caller(self, request: Request) -> Caller:
        """The user that asks. Its connection is that user's from now on."""
        visitor = request.scope.get("state", {}).get("visitor")
        was_refused = (lambda: None) if visitor is None else visitor.was_refused
        login = request.headers.get("authorization")
        caller = await self._authenticator.caller(login, _address(request), was_refused)
        if visitor is not None:
            visitor.welcome(caller.user.name)
        return caller

    def _file(self, method: str, path: str) -> Response:
        """A file of the dashboard. It needs no password: all that it shows, it asks of the API."""
        found = self._files.get(path)
        if found is None:
            raise not_found()
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed("GET, HEAD")
        kind, content = found
        return Response(content, headers={**_HEADERS, "content-type": kind})

    def _stream(self, request: Request, caller: Caller) -> Response:
        if request.method != "GET":
            raise MethodNotAllowed("GET")
        looks = looks_of(request.query_params.getlist("look"))
        stream = self._events.open(caller, looks, partial(self._on_thread, caller.user.name))
        return StreamingResponse(stream, headers={**_HEADERS, "content-type": "text/event-stream"})

    async def _exposition(self, request: Request, path: str) -> Response:
        """Metrics. From this machine they need no password, as at RabbitMQ's port for them; from elsewhere they do."""
        user = ""  # nobody's
        if not (is_loopback(_address(request)) and names_this_machine(request.headers.get("host", ""))):
            caller = await self._caller(request)
            caller.check_monitor()
            user = caller.user.name
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("GET, HEAD")
        families = request.query_params.getlist("family")
        pieces = await self._on_thread(user, self._metrics.exposition, path, families)
        if pieces is None:
            raise not_found()
        return await self._written(request, user, 200, pieces, {"content-type": CONTENT_TYPE})

    async def _on_thread(self, user: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run it on a thread of the pool: a user has some at most, so that others find one."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_THREADS)
        mine = self._shares.get(user)
        if mine is None:
            mine = self._shares[user] = anyio.CapacityLimiter(_THREADS_OF_ONE)
        async with mine:
            return await anyio.to_thread.run_sync(function, *args, limiter=self._threads)


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _raw_path(scope: Scope) -> str:
    raw = scope.get("raw_path")
    return str(scope["path"]) if raw is None else raw.decode("ascii", "replace").partition("?")[0]


async def _body(request: Request, most: int, hold: Hold) -> bytes:
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise Refused(413, "bad_request", f"a body of {length[:20]} bytes; the most is {most}")
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_TIME):
            async for piece in request.stream():
                size += len(piece)
                if size > most:
                    raise Refused(413, "bad_request", f"a body of more than {most} bytes")
                hold(len(piece))
                pieces.append(piece)
    except TimeoutError:
        raise Refused(408, "request_timeout", f"the body did not come within {_BODY_TIME:g} s") from None
    return b"".join(pieces)


def _refusal(refused: Refused) -> Response:
    headers = dict(_HEADERS)
    if refused.status == 401 and refused.error in ("", "not_authorized"):
        headers["www-authenticate"] = _REALM
    if isinstance(refused, MethodNotAllowed):
        headers["allow"] = refused.allowed
    if not refused.error:
        return Response(status_code=refused.status, headers=headers)
    headers["content-type"] = "application/json"
    return Response(as_json({"error": refused.error, "reason": refused.reason}), refused.status, headers)
