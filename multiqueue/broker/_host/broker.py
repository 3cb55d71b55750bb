"""The broker: virtual hosts, and the threads that they share.

Promise     `Broker()` works at once; `close` returns when no callback runs any more and its threads are joined.
State       `_hosts_lock` guards the virtual hosts, the names that are being opened or deleted, and the servers, and is
            a leaf. A name is in at most one of `_hosts`, `_opening` and `_deleting`, so a store is opened once, and not
            while it is removed. `_closed` is set once, before `close` looks at hosts and servers: one that is added
            later is closed by the thread that adds it.
Waiting     A thread that adds a virtual host which another thread opens waits for that on its event, which is set
            however the opening ends. Opening and deleting run the user's code (kinds' factories, callbacks that run,
            waiters for room), so no lock is held over them, and only its caller waits for a deletion.
Membership  Closing goes from the outside in: first servers, then each host accepts nothing, ends its subscriptions and
            its queues, then the threads. A callback may close the broker: it waits for no callback and joins no
            thread of the scheduler's.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from multiqueue._carried import short_string
from multiqueue.core import notebook_table
from multiqueue.store import Durability, StoreError

from ..._kinds import check_kind, check_seconds
from ..._locks import Lock
from .._base.alerts import Alert
from .._base.errors import BrokerClosed, NotAllowed
from .._base.message import plain_name
from .._delivery.housekeeping import Housekeeping
from .._delivery.subscription import Scheduler, runs_callback
from .._durable.data_directory import DataDirectory
from .._routing.compat import Compat
from .host_metadata import GlobalParameters
from .reopening import OnStoreFailure, Reopening
from .verbs import Verbs
from .virtual_host import CONSUMER_TIMEOUT, MEMORY_LIMIT, VirtualHost, VirtualHostStatistics

_PATIENCE: Final = 2.0  # seconds for callbacks and clients where a store failed


@runtime_checkable
class Front(Protocol):
    """A server that listens for a broker."""

    def close(self, timeout: float) -> None: ...

    def forget_virtual_host(self, name: str) -> None: ...

    def leave_virtual_host(self, name: str, why: str) -> None: ...


class Broker(Verbs):
    """A broker in this process, started in one line and closed by `with` or `close`.

        with Broker() as broker:
            broker.declare_queue("orders")
            broker.consume("orders", lambda received: print(received.body), auto_accept=True)
            broker.publish(Message(b"one tea", routing_key="orders"))

    Its verbs are those of its virtual host `/`; `virtual_host(name)` has the figures, limits and lists of each.
    `threads` run callbacks. Times to live, delays and expiries are kept to some milliseconds; `housekeeping_interval`
    seconds lie between two looks at a queue that names no time: queues for which there is no memory, a deleted queue
    that is cleared piece by piece, and another `clock` than the machine's. `on_alert` is called when a queue passes a
    threshold of its declaration; by default the log has it.

    With `data`, a directory, every virtual host has a store there: durable exchanges and queues, their bindings, and
    persistent messages on durable queues are there again when the broker is opened next. `durability` says which
    failures they survive: "sync" everything up to a power loss, "relaxed" a crash of the process, "memory" nothing.
    `memory_limit` bytes is what the messages of one virtual host may take in memory.

    `on_store_failure` says what happens when the disk fails under a virtual host. "stay": each call to it raises
    StoreFailed, until the broker is closed and opened again. "reopen": its subscriptions and connections end, and it is
    opened again from the disk as soon as that works. "stop": the broker closes itself. The other virtual hosts go on.

    `compat` says whose rules hold for declarations and calls: RabbitMQ's "4.3" or "3.10", or "lenient", which
    takes all that this broker can do. `deprecated_features` permits, or forbids, what RabbitMQ 4.3 will drop:
    `{"global_qos": True}`, as its `deprecated_features.permit.global_qos` does.
    By 4.3's rules a message of a quorum queue that is not settled within `consumer_timeout` seconds goes back.

    Raises:
        StoreLocked: another process has the directory open.
        StoreDamaged: something in it cannot be read.
        ValueError: no such durability, compat or deprecated feature, or nothing that can be done on a failure.
    """

    def __init__(
        self,
        *,
        threads: int = 2,
        housekeeping_interval: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        on_alert: Callable[[Alert], None] | None = None,
        data: str | Path | None = None,
        durability: str = Durability.SYNC,
        memory_limit: int = MEMORY_LIMIT,
        on_store_failure: str = OnStoreFailure.STAY,
        compat: str = "4.3",
        deprecated_features: Mapping[str, bool] | None = None,
        consumer_timeout: float = CONSUMER_TIMEOUT,
    ) -> None:
        self._reopening = Reopening(
            OnStoreFailure(on_store_failure), self._close_down, self._reopen, partial(self.close, _PATIENCE)
        )
        rules = Compat(compat, deprecated_features)
        survives = Durability(durability) is not Durability.MEMORY
        self._data = DataDirectory(data, durability) if survives and data is not None else None
        self._opening: dict[str, threading.Event] = {}  # guarded by _hosts_lock; set when it is open, or cannot be
        self._deleting: set[str] = set()  # guarded by _hosts_lock
        self._servers: list[Front] = []  # guarded by _hosts_lock
        self._housekeeping_thread = Housekeeping(housekeeping_interval, clock=clock)
        self._scheduler_threads = Scheduler(threads)
        self._make_host = partial(
            VirtualHost,
            clock=clock,
            wall_clock=wall_clock,
            on_alert=on_alert,
            scheduler=self._scheduler_threads,
            housekeeping=self._housekeeping_thread,
            memory_limit=memory_limit,
            on_store_failure=self._reopening.note,
            compat=rules,
            consumer_timeout=consumer_timeout,
        )
        self._hosts_lock = Lock()
        self._hosts: dict[str, VirtualHost] = {}
        self._closed = False
        try:
            self._default = self._open("/")
            super().__init__(self._default.parts)
            for name in self._data.virtual_hosts() if self._data is not None else ():
                self.add_virtual_host(name)
            self._housekeeping_thread.start()
        except BaseException:
            self._close_hosts(0.0)
            self._end_threads(None)  # none of them runs a callback yet
            raise

    def _open(self, name: str, *, again: bool = False) -> VirtualHost:
        """A new virtual host, in whose store what it had is; `again`: that store was there before."""
        store = None if self._data is None else self._data.open(name, again=again)
        try:
            host = self._make_host(name, store=store)
        except BaseException:
            if store is not None:
                store.close()  # a virtual host does so itself, when there is one
            raise
        with self._hosts_lock:
            self._hosts[name] = host
        if host.failure is not None:
            self._reopening.note(host)  # once more: under this name it was not found before
        return host

    def add_virtual_host(self, name: str) -> VirtualHost:
        """The virtual host of this name, created if it does not exist; it shares this broker's threads.

        Raises:
            BrokerClosed: this broker was closed.
            ValueError: the name is empty, has more than 255 bytes, or is no Unicode text.
            NotAllowed: one of this name is being deleted, and callbacks of it may still run.
            StoreLocked, StoreDamaged, ValueError: its store cannot be opened; only with a data directory.
        """
        self.check_open()
        name = plain_name("name", name)
        if not short_string(name):
            raise ValueError("the name of a virtual host is empty; choose another name")
        host, opened = None, threading.Event()
        while host is None:
            self.check_open()
            with self._hosts_lock:
                if name in self._deleting:
                    raise NotAllowed(f"vhost '{name}' is being deleted; add it again when that is over")
                host = self._hosts.get(name)
                other = opened if host is not None else self._opening.setdefault(name, opened)
            if other is not opened:
                other.wait()
            elif host is None:
                try:
                    host = self._open(name)
                finally:
                    with self._hosts_lock:
                        del self._opening[name]
                    opened.set()
        if not self._keep(host):
            self.check_open()
        return host

    def _keep(self, host: VirtualHost) -> bool:
        """Whether the broker is open; else a virtual host that was opened meanwhile is closed too."""
        if self.is_closed:
            host.close()
        return not self.is_closed

    def _close_down(self, host: VirtualHost) -> None:
        """End a virtual host whose store failed; its name is still there, and says why it is down."""
        with self._hosts_lock:
            if self._hosts.get(host.name) is not host:
                return  # not yet there, or opened again already
            servers = list(self._servers)
        for server in servers:
            server.leave_virtual_host(host.name, f"vhost '{host.name}' is down: its store failed")
        with suppress(StoreError):
            host.close(_PATIENCE)

    def _reopen(self, host: VirtualHost) -> bool:
        """Open what was closed down; False when it was deleted, or the broker closed. Raises as `add_virtual_host`."""
        done = threading.Event()
        with self._hosts_lock:
            if self.is_closed or self._hosts.get(host.name) is not host:
                return False
            self._opening[host.name] = done  # nobody deletes it meanwhile
        try:
            opened = self._open(host.name, again=True)
        finally:
            with self._hosts_lock:
                del self._opening[host.name]
            done.set()
        if not self._keep(opened):
            return False
        if host is self._default:
            self._default = opened
            super().__init__(opened.parts)
        return True

    @property
    def parameters(self) -> GlobalParameters:
        """The global parameters of RabbitMQ's HTTP API."""
        return self._default.parameters

    def virtual_host(self, name: str = "/") -> VirtualHost:
        """The virtual host of this name.

        Raises:
            NotAllowed: no virtual host has this name.
        """
        name = plain_name("name", name)
        with self._hosts_lock:
            host = self._hosts.get(name)
        if host is None:
            raise NotAllowed(f"vhost '{name}' not found")
        return host

    def delete_virtual_host(self, name: str, timeout: float | None = None) -> None:
        """Delete a virtual host with its queues, exchanges and messages, on the disk too.

        Servers close its connections, and users have no permissions there any more. Callbacks that run are waited for,
        `timeout` seconds at most. After a crash on the way the virtual host exists whole, or not at all.

        Raises:
            NotAllowed: no virtual host has this name, or it is `/`, which lives as long as its broker.
            OSError: the users cannot be kept, and nothing was done; or the directory cannot be removed, and the next
                start opens it again.
            RuntimeError: called by something that follows a commit, on its store's own thread. Nothing was done.
        """
        check_seconds("timeout", timeout)
        self.check_open()
        reopened: threading.Event | None = threading.Event()
        while reopened is not None:
            host = self.virtual_host(name)
            name = host.name
            if host is self._default:
                raise NotAllowed(f"vhost '{name}' cannot be deleted: it lives as long as its broker")
            host.check_closable()
            with self._hosts_lock:
                reopened = self._opening.get(name)
                if reopened is None:
                    if self._hosts.get(name) is not host:
                        raise NotAllowed(f"vhost '{name}' not found")  # another thread deletes it
                    servers = list(self._servers)
                    del self._hosts[name]  # from here on no connection opens it
                    self._deleting.add(name)
            if reopened is not None:
                reopened.wait()
        is_kept = True
        try:
            for server in servers:
                server.forget_virtual_host(name)
            is_kept = False
            try:
                host.close(timeout)
            finally:
                if self._data is not None:
                    self._data.remove(name)
        finally:
            with self._hosts_lock:
                self._deleting.remove(name)
                if is_kept:
                    self._hosts[name] = host
            if is_kept and self.is_closed:  # and `close` has not seen it
                host.close(0.0)

    def virtual_hosts(self) -> list[VirtualHost]:
        """All virtual hosts, `/` first."""
        with self._hosts_lock:
            return list(self._hosts.values())

    def statistics(self) -> dict[str, VirtualHostStatistics]:
        """Figures of every virtual host, by name; each is taken at a different moment."""
        return {host.name: host.statistics() for host in self.virtual_hosts()}

    def check_open(self) -> None:
        """Return when the broker can be used.

        Raises:
            BrokerClosed: it was closed.
            StoreFailed: the store of `/` failed; close the broker and open it again.
        """
        if self._closed:
            raise BrokerClosed("the broker is closed")
        self._host_state.check()

    def __repr__(self) -> str:
        hosts = [host.name for host in self.virtual_hosts()]
        return f"<{type(self).__name__} vhosts={hosts}{' closed' if self.is_closed else ''}>"

    def _repr_html_(self) -> str:
        """For notebooks: its queues."""
        rows = (
            (host, name, its.available + its.held, its.unacked, its.consumers)
            for host, figures in self.statistics().items()
            for name, its in figures.queues.items()
        )
        return notebook_table("broker", ("virtual host", "queue", "ready", "unacked", "consumers"), rows)

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    def listen(self, host: str = "127.0.0.1", port: int = 0, **options: Any) -> Any:
        """Serve AMQP 0-9-1 clients; returns a `multiqueue.amqp.Server` with `port`, `url` and `close`.

            with Broker() as broker, broker.listen() as server:
                pika.BlockingConnection(pika.URLParameters(server.url))

        Port 0 is a free one. `options` are those of `multiqueue.amqp.serve`. Closing the broker closes it too.

        Raises:
            ImportError: `blocking-multiqueue[amqp]` is not installed.
            ServerError: the address cannot be had.
        """
        self.check_open()
        # By name: this room may not know the one above it.
        return importlib.import_module("multiqueue.amqp").serve(self, host, port, **options)

    def add_server(self, server: Front) -> None:
        """Close the server with the broker, and tell it of virtual hosts that are deleted. For those who write servers.

        Raises:
            BrokerClosed: the broker was closed meanwhile, and the server is.
            TypeError: it has not all of a server's methods.
        """
        check_kind("a server", server, Front, "an object with close, forget_virtual_host and leave_virtual_host")
        with self._hosts_lock:
            self._servers.append(server)
        if self.is_closed:
            server.close(0.0)
            self.check_open()

    def listen_http(self, host: str = "127.0.0.1", port: int = 0, **options: Any) -> Any:
        """Serve RabbitMQ's HTTP API and a page: a `multiqueue.monitor.HttpServer` with `port`, `url` and `close`.

            with Broker() as broker, broker.listen() as server, broker.listen_http(amqp=server) as http:
                urllib.request.urlopen(f"{http.url}/metrics")

        Port 0 is a free one. `options` are those of `multiqueue.monitor.serve_http`; with `amqp=server` the server's
        connections are shown, and its users ask. Closing the broker closes it too.

        Raises:
            ImportError: `blocking-multiqueue[monitor]` is not installed.
            MonitorError: the address cannot be had.
        """
        return importlib.import_module("multiqueue.monitor").serve_http(self, host, port, **options)

    def close(self, timeout: float | None = None) -> None:
        """Close every server and virtual host, and end the threads. Closing twice does nothing.

        Blocked threads get an error, and messages that no store has are gone. Callbacks that run are waited for,
        `timeout` seconds at most per virtual host; a callback that closes the broker waits for none, and the threads
        end after it. A program that ends without closing closes virtual hosts that have a store, and waits for no
        callback.

        Raises:
            StoreFailed: a disk failed at the very end. All virtual hosts are closed; all committed messages survive.
            RuntimeError: called by something that follows a commit, on a store's own thread. Nothing was done.
        """
        check_seconds("timeout", timeout)
        for host in self.virtual_hosts():
            host.check_closable()
        self._closed = True
        self._reopening.close()
        try:
            with self._hosts_lock:
                servers, self._servers = self._servers, []
            for server in servers:
                server.close(2.0 if timeout is None else timeout)
            self._close_hosts(timeout)
        finally:
            self._end_threads(timeout)

    def _close_hosts(self, timeout: float | None) -> None:
        """Close each, also when closing the one before has failed."""
        with ExitStack() as ends:
            for host in self.virtual_hosts():
                ends.callback(host.close, timeout)

    def _end_threads(self, timeout: float | None) -> None:
        patience = 0.0 if runs_callback() else timeout
        self._scheduler_threads.close(patience)
        self._housekeeping_thread.close(patience)

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
