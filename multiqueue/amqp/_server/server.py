"""The server: its listening sockets, I/O threads, and the connections that come in.

State       `_lock` guards the connections, the alarms and the counters. It is a leaf: no queue, socket or callback
            is called with it held.
Threads     docs/design/amqp.md. I/O thread 0 also accepts, and looks at the alarms.
Membership  A connection is registered before its first byte is read and forgotten after its channels have ended. One
            that is accepted while the server closes is cut at once. It takes one of its user's places when it logs
            in, and gives it back when it is forgotten.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from ..._kinds import check_kind
from ..._locks import Condition, Lock
from ...broker import Broker, Compat, NotAllowed, VirtualHost
from .._session.figures import ChannelFigures, ConnectionFigures, ServerPast, host_figures
from .._wire.errors import ConnectionFault, ServerError
from .accepting import accept, amqp_connections_limit, connect, let_in
from .access import Access, User, UsersFile, guest, is_loopback
from .connection import ServerConnection
from .handshake import server_properties
from .io_thread import IoThread
from .settings import MEBIBYTE, ServerSettings, listening_socket, low_resources
from .strangers import Logins, Newcomer, Newcomers, QuietLog

_log = logging.getLogger("multiqueue.amqp")
_COMMIT_THREADS = 8  # threads at the most; the commits that are under way at the same time are one sync of the disk
_OF_ADMINISTRATORS = 8  # places more than its share, for each administrator's user that comes from this machine
_LOOK_AGAIN = 0.001  # seconds; between two looks a loop reads


class _Listener(NamedTuple):
    """A socket that clients connect to, and what they speak there: TLS, or None for frames as they are."""

    socket: socket.socket
    tls: ssl.SSLContext | None


class Server:
    """A broker's door to AMQP 0-9-1 clients; made by `serve` or `Broker.listen`. Any thread may call."""

    def __init__(
        self,
        broker: Broker,
        settings: ServerSettings,
        access: Access,
        *,
        listeners: list[_Listener],
        data: Path | None,
        measure: Callable[[], set[str]] | None,
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.access = access
        self.compat: Compat = broker.compat
        self.max_connections: int = amqp_connections_limit(settings.max_connections)
        is_small = self.compat.says("a message may have 16 MiB at most, unless the settings say otherwise")
        self.max_message_bytes: int = settings.max_message_bytes or (16 if is_small else 128) * MEBIBYTE
        self._most_of_user = settings.max_connections_per_user or max(1, self.max_connections // 2)
        self.properties: dict[str, object] = server_properties(str(sys.modules["multiqueue"].__version__))
        self.alarms: frozenset[str] = frozenset()
        self._measure = measure or (lambda: low_resources(settings, data))
        self._lock = Lock()
        self._has_ended = Condition(self._lock)  # notified when a connection has let go, or is forgotten
        self._connections: dict[ServerConnection, str | None] = {}  # with the user whose place it has
        self._of_users: Counter[str] = Counter()  # how often each user is among those values
        # Counters, guarded by the lock; of channels those that are closed.
        self._connections_created = 0
        self._channels_created = 0
        self._channels_closed = 0
        self._with_confirms: Counter[str] = Counter()
        self._confirmed: Counter[str] = Counter()
        self._returned: Counter[str] = Counter()
        self.is_closed: bool = False  # True once `close` was called
        at, port = listeners[0].socket.getsockname()[:2]
        self.host: str = at
        self.port: int = port
        with_tls = [listener.socket.getsockname()[1] for listener in listeners if listener.tls is not None]
        self.tls_port: int | None = with_tls[0] if with_tls else None
        self._started = time.monotonic()
        self._turn = 0
        self._listeners = listeners
        self._accepting: list[asyncio.Task[None]] = []
        self.strangers: QuietLog = QuietLog(_log)
        self.newcomers: Newcomers = Newcomers(max(8, self.max_connections // 4))
        self.logins: Logins = Logins(self.access)
        self._commits = ThreadPoolExecutor(_COMMIT_THREADS, thread_name_prefix="multiqueue-amqp-commits")
        self._long = ThreadPoolExecutor(2, thread_name_prefix="multiqueue-amqp-long")
        self._threads = [IoThread(f"multiqueue-amqp-{number}") for number in range(settings.io_threads)]

    # -- what a user sees

    def start(self) -> None:
        """Begin to serve. Raises as `Broker.add_server`."""
        for thread in self._threads:
            thread.start()
        self.broker.add_server(self)  # before a client comes: it is to be closed with its virtual host
        self._threads[0].post(self._begin)

    @property
    def url(self) -> str:
        """Where a client on this machine connects to, as the user `guest`; without TLS, if a port without it exists."""
        return self._url(self.port, has_tls=self.port == self.tls_port)

    @property
    def tls_url(self) -> str | None:
        """The same with TLS, None where the server has none."""
        return None if self.tls_port is None else self._url(self.tls_port, has_tls=True)

    def _url(self, port: int, *, has_tls: bool) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        shown = f"[{host}]" if ":" in host else host
        return f"{'amqps' if has_tls else 'amqp'}://guest:guest@{shown}:{port}/{quote('/', safe='')}"

    def connections(self) -> list[ServerConnection]:
        """Those that are open now, or opening."""
        with self._lock:
            return list(self._connections)

    def catch_up(self, timeout: float = 5.0) -> list[ServerConnection]:
        """Wait until what clients have sent up to now is read and done; the connections where it is not in time.

        For tests: a publish without confirms may stand in a socket when the call that made it has returned. A
        connection that the server holds back itself, at a full queue or an alarm, is not waited for. Not to be called
        on an I/O thread.
        """
        connections = [] if self.is_closed else self.connections()
        reading = {asyncio.run_coroutine_threadsafe(_read_all(each), each.io.loop): each for each in connections}
        _, behind = wait(reading, timeout)
        for future in behind:
            future.cancel()
        return [reading[future] for future in behind]

    def connection_figures(self, known: Mapping[str, ConnectionFigures] | None = None) -> list[ConnectionFigures]:
        """Figures of every connection whose virtual host is open; each is taken at a different moment.

        Of those that have the channels and consumers of `known`, by names, that is returned as it is.
        """
        return [each.figures((known or {}).get(each.name)) for each in self.connections() if each.is_open]

    def past(self) -> ServerPast:
        """Counts of connections and channels that came and went. Those that are open are created, too."""
        with self._lock:
            connections = list(self._connections)
            created, opened, closed = self._connections_created, self._channels_created, self._channels_closed
            with_confirms, confirmed = dict(self._with_confirms), dict(self._confirmed)
            returned = dict(self._returned)
        return ServerPast(
            connections_created=created,
            connections_closed=created - len(connections),
            channels_created=opened,
            channels_closed=closed,
            with_confirms=with_confirms,
            confirmed=confirmed,
            returned=returned,
        )

    def close_connection(self, connection: ServerConnection, why: str) -> None:
        """Close a client's connection, as an operator does: the client gets `why`. Any thread; does not wait."""
        connection.io.post(connection.close_by_operator, why)

    def forget_virtual_host(self, name: str, timeout: float = 2.0) -> None:
        """The broker deletes a virtual host: close its connections, and take all permissions in it from users.

        Returns when the connections have nothing of it any more; whether their clients answer does not matter. One
        that has, `timeout` seconds later, is cut.

        Raises:
            OSError: the users cannot be kept; nothing was done.
        """
        self.access.forget_virtual_host(name)
        self.leave_virtual_host(name, f"vhost '{name}' is deleted", timeout)
        with self._lock:  # another one may have the name
            for counter in (self._with_confirms, self._confirmed, self._returned):
                counter.pop(name, None)

    def leave_virtual_host(self, name: str, why: str, timeout: float = 2.0) -> None:
        """Close the connections to a virtual host; their clients get `why`. Waits as `forget_virtual_host` does."""
        going = [each for each in self.connections() if each.is_open and each.client.host.name == name]
        self._end(going, lambda each: each.close_by_operator(why), timeout, is_answered=False)

    @property
    def is_healthy(self) -> bool:
        """Whether every virtual host can be used. Clients learn it when they connect, before the login."""
        return all(host.failure is None for host in self.broker.virtual_hosts())

    def status(self, user: User | None = None) -> dict[str, Any]:
        """Figures of the server, fit for JSON. Each connection and queue is read at a different moment.

        Those of the virtual hosts that a user has rights in, of all for the tags `administrator` and `monitoring`.
        """
        connections, hosts = self.connections(), self.broker.virtual_hosts()
        if user is not None and not user.tags & {"administrator", "monitoring"}:
            hosts = [host for host in hosts if user.permissions_in(host.name) is not None]
            connections = [each for each in connections if each.is_open and each.user.name == user.name]
        return {
            "product": self.properties["product"],
            "version": self.properties["version"],
            "uptime_seconds": round(time.monotonic() - self._started, 1),
            "alarms": sorted(self.alarms),
            "connections": len(connections),
            "channels": sum(len(each.sessions) for each in connections),
            "virtual_hosts": {host.name: host_figures(host) for host in hosts},
        }

    def status_json(self, user: User) -> bytes:
        """`status`, as JSON."""
        return json.dumps(self.status(user), indent=1).encode()

    def close(self, timeout: float = 2.0) -> None:
        """Tell every client, and stop. Closing twice does nothing. Do not call it on an I/O thread.

        Clients have `timeout` seconds to answer, then they are cut.
        """
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        self._threads[0].post(self._stop_accepting)
        self.logins.close()  # no client logs in any more
        self._end(self.connections(), ServerConnection.shut_down, timeout)
        self._commits.shutdown()
        self._long.shutdown(cancel_futures=True)
        for thread in reversed(self._threads):
            thread.stop(timeout)
        for listener in self._listeners:
            listener.socket.close()
        self.strangers.flush(everything=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- what connections ask for

    def admit(self, connection: ServerConnection) -> bool:
        """Register a connection; False when there is no place for it."""
        with self._lock:
            if self.is_closed or len(self._connections) >= self.max_connections:
                return False
            self._connections[connection] = None
            self._connections_created += 1
            return True

    def take_place(self, connection: ServerConnection, user: User, peer: str) -> int | None:
        """Give a connection that logs in from this address one of its user's places; if all are taken, their number."""
        most = self._most_of_user
        if "administrator" in user.tags and is_loopback(peer):
            most += _OF_ADMINISTRATORS
        if (own := user.most("max-connections")) is not None:
            most = min(most, own)
        with self._lock:
            if self._of_users[user.name] >= most:
                return most
            if connection in self._connections:
                self._connections[connection] = user.name
                self._of_users[user.name] += 1
            return None

    def forget(self, connection: ServerConnection) -> None:
        """A connection has ended."""
        with self._lock:
            user = self._connections.pop(connection, None)
            if user is not None:
                self._of_users[user] -= 1
                if not self._of_users[user]:
                    del self._of_users[user]
            self._has_ended.notify_all()

    def let_go(self) -> None:
        """A connection has let go of all its sessions."""
        with self._lock:
            self._has_ended.notify_all()

    def check_channels(self, user: User) -> None:
        """Return when the user may open one more channel. Raises ConnectionFault."""
        most = user.most("max-channels")
        if most is not None and sum(len(each.sessions) for each in self._of(user)) >= most:
            text = f"number of channels opened for user '{user.name}' has reached the maximum allowed user limit of"
            raise ConnectionFault(530, f"{text} {most}")

    def check_connections(self, user: User, host: VirtualHost) -> None:
        """Return when one more connection may open a virtual host. Raises ConnectionFault."""
        most = host.limits.most("max-connections")
        if most is not None and sum(each.is_in(host) for each in self.connections()) >= most:
            refused = f"access to vhost '{host.name}' refused for user '{user.name}'"
            raise ConnectionFault(530, f"{refused}: connection limit ({most}) is reached")

    def _of(self, user: User) -> list[ServerConnection]:
        with self._lock:
            return [each for each, name in self._connections.items() if name == user.name]

    def channel_opened(self) -> None:
        """A channel has begun."""
        with self._lock:
            self._channels_created += 1

    def channel_closed(self, virtual_host: str, figures: ChannelFigures) -> None:
        """A channel has ended, with these figures."""
        with self._lock:
            self._channels_closed += 1
            self._with_confirms[virtual_host] += figures.with_confirms
            self._confirmed[virtual_host] += figures.confirmed
            self._returned[virtual_host] += figures.returned

    def virtual_host(self, name: str) -> VirtualHost:
        """The virtual host a client asks for. Raises NotAllowed: it does not exist."""
        try:
            return self.broker.virtual_host(name)
        except NotAllowed:
            raise NotAllowed(f"vhost {name} not found") from None

    def offload(self, work: Callable[[], object]) -> None:
        """Run what takes its time on a thread that may."""
        self._commits.submit(work)

    def offload_long(self, work: Callable[[], object]) -> None:
        """Run what may take any time, on a thread that no other work waits for, one of a connection at a time."""
        if not self.is_closed:
            self._long.submit(work)

    # -- accepting; on the first I/O thread

    def _begin(self) -> None:
        loop = self._threads[0].loop
        self._accepting = [
            loop.create_task(accept(each.socket, self.newcomers, self.strangers, partial(self._spread, each.tls)))
            for each in self._listeners
        ]
        self._look_at_alarms()

    def _stop_accepting(self) -> None:
        for listener in self._listeners:
            try:  # one that is just about to be accepted would meet a cancelled future
                self._threads[0].loop.remove_reader(listener.socket)
            except NotImplementedError:  # on Windows
                pass
        for task in self._accepting:
            task.cancel()

    def _spread(self, tls: ssl.SSLContext | None, client: socket.socket, address: str) -> None:
        self._turn = (self._turn + 1) % len(self._threads)
        io = self._threads[self._turn]
        io.post(self._hand_over, client, address, tls, io)

    def _hand_over(self, client: socket.socket, address: str, tls: ssl.SSLContext | None, io: IoThread) -> None:
        newcomer = Newcomer(address, lambda: io.post(task.cancel))
        make = partial(ServerConnection, self, io, newcomer)
        patience = self.settings.handshake_timeout
        task = io.loop.create_task(connect(make, client, newcomer, self.newcomers, tls, patience, self.strangers))
        io.keep(task)
        let_in(newcomer, self.newcomers, self.strangers)

    def _look_at_alarms(self) -> None:
        if self.is_closed:
            return
        self.strangers.flush()
        alarms = self.alarms
        try:
            alarms = frozenset(self._measure())
        except BaseException:  # noqa: BLE001  # the user's, and asked again
            _log.exception("what the process is low on cannot be measured")
        if alarms != self.alarms:
            self.alarms = alarms
            _log.warning("alarms: %s", ", ".join(sorted(alarms)) or "none")
            for connection in self.connections():
                connection.io.post(connection.alarm_changed)
        self._threads[0].loop.call_later(self.settings.alarm_interval, self._look_at_alarms)

    def _end(
        self,
        connections: list[ServerConnection],
        step: Callable[[ServerConnection], None],
        timeout: float,
        *,
        is_answered: bool = True,
    ) -> None:
        """Do a step that ends connections; those that are there after `timeout` seconds are cut. With `is_answered`
        False they need only have let go."""

        def are_over() -> bool:
            there = self._connections
            return not any(each in there and (is_answered or not each.has_let_go) for each in connections)

        for each_step in (step, ServerConnection.abort):
            for connection in connections:
                connection.io.post(each_step, connection)
            with self._has_ended:
                if self._has_ended.wait_for(are_over, timeout):
                    return


async def _read_all(connection: ServerConnection) -> None:
    """Return once nothing is left to be read from the connection's socket, or done."""
    while connection.is_behind:
        await asyncio.sleep(_LOOK_AGAIN)


def serve(
    broker: Broker,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    users: Iterable[User] | None = None,
    tls: ssl.SSLContext | None = None,
    tls_port: int | None = None,
    settings: ServerSettings | None = None,
    data: str | os.PathLike[str] | None = None,
    measure: Callable[[], set[str]] | None = None,
) -> Server:
    """Let AMQP 0-9-1 clients reach a broker; port 0 is a free one. Returns when they can.

    With `tls` every connection is TLS, on `port`. With `tls_port` too, `port` stays without TLS, and `tls_port` has it.

    Without `users` there is `guest`, from loopback only. `data` is the directory whose file system the disk limit is
    about, and where users are kept that are made or changed over HTTP; `users` cannot be changed so. `measure` tells
    what the process is low on (`{"memory", "disk"}`), by default what `settings` say.

    Raises:
        ServerError: the address cannot be had, or the file of users cannot be read.
        ValueError: `tls_port` without `tls`.
    """
    check_kind("broker", broker, Broker, "a multiqueue.broker.Broker")
    check_kind("settings", settings, (ServerSettings, type(None)), "ServerSettings")
    check_kind("tls", tls, (ssl.SSLContext, type(None)), "what server_tls(certificate, key) makes")
    if tls_port is not None and tls is None:
        raise ValueError(f"tls_port={tls_port} needs tls=, what server_tls(certificate, key) makes")
    directory = None if data is None else Path(data)
    access = _access(users, directory)
    listeners = _listeners(host, port, tls, tls_port)
    server = Server(broker, settings or ServerSettings(), access, listeners=listeners, data=directory, measure=measure)
    server.start()
    return server


def _listeners(host: str, port: int, tls: ssl.SSLContext | None, tls_port: int | None) -> list[_Listener]:
    first = _Listener(listening_socket(host, port), tls if tls_port is None else None)
    if tls_port is None:
        return [first]
    try:
        return [first, _Listener(listening_socket(host, tls_port, "--tls-port"), tls)]
    except ServerError:
        first.socket.close()
        raise


def _access(users: Iterable[User] | None, directory: Path | None) -> Access:
    """The users that may come in: `users`, and those that were made while a server ran on the directory before."""
    file = None if directory is None else UsersFile(directory)
    kept = None if file is None else file.load()
    if kept is None:
        kept = [guest()] if users is None else []
    return Access(kept, fixed=users or (), keep=None if file is None else file.save)
