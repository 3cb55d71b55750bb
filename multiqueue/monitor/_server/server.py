"""The HTTP server: uvicorn on a separate thread, in front of one broker.

Promise     `serve_http` returns when requests are answered; `close` returns when its threads have ended: at once, or
            after `_GRACE` where answers are under way.
Threads     `multiqueue-http` runs the event loop, `multiqueue-monitor-sampler` samples each second, and a few
            of the event loop's pool run handlers.
Bounds      `_door/patience` has those of connections, `app` of requests and handlers, `_api/events` of streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn

from ..._kinds import check_kind, checked_list
from ..._locks import Lock
from ...amqp import (
    Access,
    Server,
    ServerError,
    User,
    accept,
    connect,
    guest,
    http_connections_limit,
    let_in,
    listening_socket,
)
from ...broker import Broker
from .._api.asking import Table
from .._api.events import Events
from .._api.lanes import LaneReading
from .._api.openapi import description
from .._api.reading import Reading, whoami, windows
from .._api.views import NODE, View
from .._api.writing import Writing
from .._base.errors import MonitorError
from .._door.access import Authenticator
from .._door.origin import Hosts
from .._door.patience import PatientProtocol, Visitors
from .._figures.lanes import Lanes
from .._figures.sampler import Sampler
from .._metrics.broker import BrokerCollector, Metrics
from .._metrics.program import Figures
from .app import Application

_PATIENCE: Final = 10.0  # seconds in which the server starts, or ends
_GRACE: Final = 1.0  # seconds in which answers under way end, once the server closes
_LOOK: Final = 0.002  # seconds between two looks whether they have
_TICK: Final = 1.0  # seconds that the date in an answer may be old


class _Uvicorn(uvicorn.Server):
    """uvicorn that `stop` wakes: its own loop looks at a flag each 0.1 s, and its end sleeps as long again."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket, visitors: Visitors) -> None:
        super().__init__(config)
        self._listener = listener
        self.visitors = visitors
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self._opening: set[asyncio.Task[None]] = set()  # what accepts, and what handshakes

    def stop(self) -> None:
        """End; any thread, and before the start too."""
        self.should_exit = True
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._stopped.set)
            except RuntimeError:  # its loop has ended
                pass

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        newcomers, strangers = self.visitors.newcomers, self.visitors.strangers
        self._keep(accept(self._listener, newcomers, strangers, self._hand_over))
        self.started = True

    def _hand_over(self, client: socket.socket, address: str) -> None:
        visitors, loop = self.visitors, asyncio.get_running_loop()
        newcomer = visitors.newcomer(address)
        make = partial(PatientProtocol, self.config, self.server_state, loop, visitors, newcomer)
        task = self._keep(
            connect(make, client, newcomer, visitors.newcomers, self.config.ssl, _PATIENCE, visitors.strangers)
        )
        newcomer.cut = partial(loop.call_soon, task.cancel)  # when it has begun: it closes the socket
        let_in(newcomer, visitors.newcomers, visitors.strangers)

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return task

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # it sets the date that answers bear
            self.visitors.strangers.flush()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), _TICK)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for opening in list(self._opening):
            opening.cancel()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        deadline = time.monotonic() + _GRACE
        while (state.connections or state.tasks) and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK)
        for task in list(state.tasks):
            task.cancel()
        self.visitors.strangers.flush(everything=True)


Tls = tuple[str, str | None]  # paths of a certificate chain and its key


class _Door:
    """Where a server listens, what it speaks there, and the names and proxies that it believes."""

    def __init__(self, host: str, port: int, tls: Tls | None, hosts: Iterable[str], proxies: Iterable[str]) -> None:
        self.tls = tls
        check_kind("host", host, str, "a name or an address, such as '127.0.0.1'")
        check_kind("tls", tls, (tuple, type(None)), "a tuple: the path of a certificate chain, and of its key")
        self.hosts: Hosts = Hosts(host, checked_list("hosts", hosts, str, "a name"))
        self.proxies: list[str] = checked_list("proxies", proxies, str, "an address or a network")
        try:
            self.listener: socket.socket = listening_socket(host, port, "--http")
        except ServerError as error:
            raise MonitorError(str(error)) from error


class HttpServer:
    """A broker's windows over HTTP; made by `serve_http` or `Broker.listen_http`. Any thread may call."""

    def __init__(self, application: Application, access: Access, sampler: Sampler, door: _Door) -> None:
        self.application = application
        self._access = access
        host, port = door.listener.getsockname()[:2]
        self.host: str = host
        self.port: int = port
        self.is_tls: bool = door.tls is not None
        self._sampler = sampler
        self._listener = door.listener
        options: dict[str, Any] = {} if door.tls is None else {"ssl_certfile": door.tls[0], "ssl_keyfile": door.tls[1]}
        config = uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=bool(door.proxies),
            forwarded_allow_ips=door.proxies,
            **options,
        )
        self._server = _Uvicorn(config, door.listener, Visitors(http_connections_limit(), door.proxies))
        self._started = threading.Event()
        self._failed: BaseException | None = None
        self._closing = Lock()
        self._thread = threading.Thread(target=self._run, name="multiqueue-http", daemon=True)

    @property
    def url(self) -> str:
        """Where it answers, without a trailing slash."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.is_tls else 'http'}://{shown}:{self.port}"

    def start(self) -> None:
        """Begin to answer; returns when it does.

        Raises:
            MonitorError: it cannot, and says why.
        """
        self._sampler.start()
        self._thread.start()
        is_told = self._started.wait(_PATIENCE)
        if self._failed is not None or not is_told:
            self.close()
            why = self._failed or f"it did not start within {_PATIENCE:g} s"
            raise MonitorError(f"cannot serve HTTP: {why}") from self._failed

    def forget_virtual_host(self, name: str) -> None:
        """The broker deletes a virtual host: take all permissions in it from users.

        Raises:
            OSError: the users cannot be kept; nothing was done.
        """
        self._access.forget_virtual_host(name)

    def leave_virtual_host(self, name: str, why: str) -> None:
        """No connection of this server is in a virtual host."""

    def close(self, timeout: float = _PATIENCE) -> None:
        """Answer nothing further. A second call does nothing."""
        with self._closing:
            self.application.end_streams()
            self._server.stop()
            self._thread.join(timeout)
            self._listener.close()
            self._sampler.close()
            self.application.close()

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except (Exception, SystemExit) as error:  # noqa: BLE001  # told by `start`
            self._failed = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        serving = asyncio.ensure_future(self._server.serve())
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.005)
        if self._server.started:
            self._started.set()
        await serving  # raises where it could not start; `_run` tells


def serve_http(
    broker: Broker,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    amqp: Server | None = None,
    users: Iterable[User] | None = None,
    tls: Tls | None = None,
    data: str | os.PathLike[str] | None = None,
    lanes: Lanes | None = None,
    hosts: Iterable[str] = (),
    proxies: Iterable[str] = (),
) -> HttpServer:
    """Let tools look at a broker over HTTP; port 0 is a free one. Returns when requests are answered.

    With `amqp`, a server of the same broker, its connections are shown and its users ask; otherwise `users` do, by
    default `guest`, from loopback only. `tls` is the path of a certificate chain, and of its key. `data` is the
    directory whose file system is looked at. With `lanes`, their executors are shown too.

    A request's `Host` is an address, `localhost`, this machine's name, or one of `hosts`. What `X-Forwarded-For` says
    is believed where one of `proxies`, addresses or networks, sends it.

    Raises:
        MonitorError: the address cannot be had, or the certificate cannot be used.
    """
    check_kind("broker", broker, Broker, "a multiqueue.broker.Broker")
    check_kind("amqp", amqp, (Server, type(None)), "what `Broker.listen` returns")
    access = Access([guest()] if users is None else users) if amqp is None else amqp.access
    directory = None if data is None else Path(data)
    sampler = Sampler(broker, amqp, data=directory)
    door = _Door(host, port, tls, hosts, proxies)
    bound, at = door.listener.getsockname()[:2]

    def listeners() -> list[View]:
        found = [("https" if tls else "http", bound, at, tls is not None)]
        if amqp is not None:
            found.insert(0, ("amqp", amqp.host, amqp.port, amqp.port == amqp.tls_port))
        names = "protocol", "ip_address", "port", "tls"
        return [{"node": NODE, **dict(zip(names, each, strict=True))} for each in found]

    reading = Reading(broker, amqp, access, sampler, version=_version(), data=directory, listeners=listeners)
    writing = Writing(broker, amqp, access, sampler, version=_version())
    about = sampler, amqp, _version(), broker.compat.release
    collectors = [BrokerCollector(*about, per_object=per_object) for per_object in (False, True)]
    server = _serve(door, access, sampler, lanes, reading, writing, collectors, broker)
    broker.add_server(server)
    return server


def serve_lanes(
    lanes: Lanes,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    users: Iterable[User] | None = None,
    tls: Tls | None = None,
    hosts: Iterable[str] = (),
    proxies: Iterable[str] = (),
) -> HttpServer:
    """As `serve_http`, of a program without a broker: the page shows its lanes, `/metrics` has their figures."""
    check_kind("lanes", lanes, Lanes, "a multiqueue.monitor.Lanes")
    access = Access([guest()] if users is None else users)
    return _serve(_Door(host, port, tls, hosts, proxies), access, Sampler(None), lanes, None, None, [])


def _serve(
    door: _Door,
    access: Access,
    sampler: Sampler,
    lanes: Lanes | None,
    reading: Reading | None,
    writing: Writing | None,
    collectors: list[BrokerCollector],
    broker: Broker | None = None,
) -> HttpServer:
    table, looks = Table(), Table()
    pages = ["overview", "queues", "exchanges", "connections", "channels"] if reading is not None else []
    if lanes is not None:
        pages.append("lanes")
    parts = [part for part in (reading, LaneReading(lanes) if lanes is not None else None) if part is not None]
    for each in (table, looks):
        each.add("GET", "/api/windows", windows(pages, broker))
        each.add("GET", "/api/whoami", whoami)
        for part in parts:
            part.add_to(each)
    if writing is not None:
        writing.add_to(table)
        writing.add_lists_to(looks)
    table.add("GET", "/api/openapi.json", lambda ask: description(table, _version()))
    own = [Figures(lanes)] if lanes is not None else []
    metrics = Metrics(sampler, [*collectors[:1], *own], [*collectors[1:], *own])
    application = Application(table, Authenticator(access), metrics, Events(looks, access, sampler), door.hosts)
    server = HttpServer(application, access, sampler, door)
    server.start()
    return server


def _version() -> str:
    return str(sys.modules["multiqueue"].__version__)
