"""A broker for each test that asks for one: the fixture `multiqueue_broker`, there as soon as multiqueue is installed.

    def test_an_order_is_booked(multiqueue_broker):
        book_orders(url=multiqueue_broker.url)

Nothing of multiqueue is loaded before a test asks. The broker runs in the test's own process, listens on a free port of
the loopback interface, and is gone with its messages after the test: no test sees another's queues. Each process of
pytest-xdist has a separate broker. In pytest's configuration

    multiqueue_broker = session         one broker for all tests of a process, emptied after each of them
    multiqueue_definitions = FILE.json  what each test finds there: a file that RabbitMQ or this broker has exported
"""

from __future__ import annotations

import os
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from multiqueue.amqp import Server
    from multiqueue.broker import Broker
    from multiqueue.client import Connection

LOOK_AGAIN = 0.002  # seconds between two looks at a queue
GRACE = 0.1  # seconds in which a client answers that its connection is closed; one that no thread reads never does


class BrokerForTests:
    """The value of the fixture. `url`, `host` and `port` are for clients, `broker` for looking from the inside."""

    def __init__(self, broker: Broker, server: Server, stack: ExitStack) -> None:
        self.broker = broker
        self.server = server
        self.host = "127.0.0.1"
        self.port: int = server.port
        self.url: str = server.url
        self._stack = stack
        self._http: Any = None
        self._connections: list[Connection] = []

    def connect(self, **options: Any) -> Connection:
        """A connection of `multiqueue.client` over TCP, closed after the test; `options` are those of `connect`."""
        from multiqueue.client import connect

        connection = self._stack.enter_context(connect(self.url, **options))
        self._connections.append(connection)
        return connection

    @property
    def http_url(self) -> str:
        """Where RabbitMQ's management API, and the page, of this broker are; opened at the first question.

        Raises:
            ImportError: `blocking-multiqueue[monitor]` is not installed.
        """
        if self._http is None:
            self._http = self._stack.enter_context(self.broker.listen_http(amqp=self.server))
        return str(self._http.url)

    def load(self, definitions: str | os.PathLike[str]) -> None:
        """Make what a definitions.json names: queues, exchanges, bindings, users. Needs `http_url`.

        Raises:
            ValueError: the broker does not take it; the message says why.
            OSError: there is no such file.
        """
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        content = Path(definitions).read_bytes()
        login = {"authorization": f"Basic {b64encode(b'guest:guest').decode()}", "content-type": "application/json"}
        try:
            urlopen(Request(f"{self.http_url}/api/definitions", content, login, method="POST")).close()
        except HTTPError as error:
            with error:
                raise ValueError(f"cannot load {str(definitions)!r}: {error.read().decode()}") from None

    def empty(self, timeout: float = 5.0) -> None:
        """Close all connections, and remove what a test made: virtual hosts, queues, exchanges, users.

        A connection that does not answer is cut. A callback that still runs in a virtual host that is removed is waited
        for until `timeout` seconds have passed.

        Raises:
            TimeoutError: a connection did not end within `timeout` seconds.
        """
        began = time.monotonic()
        for connection in self.server.connections():
            self.server.close_connection(connection, "the test is over")
        while connections := self.server.connections():
            waited = time.monotonic() - began
            if waited >= timeout:
                raise TimeoutError(f"{connections[0].name} is open {timeout:g} s after it was told to close")
            if waited >= GRACE:
                for connection in connections:
                    connection.io.post(connection.abort)
            time.sleep(LOOK_AGAIN)
        from multiqueue.amqp import guest
        from multiqueue.broker import NotFound

        default, *others = self.broker.virtual_hosts()
        for host in others:
            self.broker.delete_virtual_host(host.name, timeout=max(0.0, began + timeout - time.monotonic()))
        for queue in default.queues():
            with suppress(NotFound):  # it went with its connection, or with its last binding
                default.delete_queue(queue.name)
        for exchange in default.exchanges():
            if exchange.name and not exchange.name.startswith("amq."):
                with suppress(NotFound):
                    default.delete_exchange(exchange.name)
        for user in self.server.access.users():
            self.server.access.remove(user.name)
        self.server.access.put(guest())

    def wait_for(self, queue: str, count: int = 1, timeout: float = 5.0) -> None:
        """Return once `count` messages, or more, are ready in a queue, which need not be there yet.

        What consumers hold is not ready. For programs that publish in the background, or later.

        Raises:
            TimeoutError: it is not so after `timeout` seconds; the message says what there is.
        """
        deadline = time.monotonic() + timeout
        while not self._has(queue, count):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{self._found(queue)} after {timeout:g} s; {count} ready messages were expected")
            time.sleep(LOOK_AGAIN)

    def bodies(self, queue: str, count: int | None = None, timeout: float = 5.0) -> list[object]:
        """Take everything off a queue, and return the bodies in order: what a program under test has published.

        With `count`, waits until so many are ready, as `wait_for` does; further messages come too. In any
        case the broker first reads what stands in its clients' sockets: a publish whose call has returned has arrived,
        confirmed or not, unless the client hands it to its thread or event loop; then name the `count`.

        Raises:
            TimeoutError: there are fewer than `count` after `timeout` seconds, and none is taken; or a client has sent
                a part of a message and not the rest.
            NotFound: there is no such queue, and `count` was not given.
        """
        deadline = time.monotonic() + timeout
        if count is not None:
            self.wait_for(queue, count, timeout)
        self._catch_up(max(0.0, deadline - time.monotonic()), timeout)
        found: list[object] = []
        while (received := self.broker.get(queue, auto_accept=True)) is not None:
            found.append(received.body)
        return found

    def _catch_up(self, seconds: float, timeout: float) -> None:
        from multiqueue.client import ClientError

        for connection in self._connections:
            try:
                connection.channel().close()  # its answer comes after all that was sent before
            except ClientError:
                pass  # closed, as a test may do
        behind = self.server.catch_up(seconds)
        if behind:
            names = ", ".join(connection.name for connection in behind)
            raise TimeoutError(f"after {timeout:g} s the broker still lacks the rest of a frame sent on {names}")

    def _has(self, queue: str, count: int) -> bool:
        figures = self.broker.virtual_host().statistics().queues.get(queue)
        return figures is not None and figures.available >= count

    def _found(self, queue: str) -> str:
        """What there is instead, for an error."""
        queues = self.broker.virtual_host().statistics().queues
        figures = queues.get(queue)
        if figures is None:
            others = f"only {', '.join(map(repr, sorted(queues)))}" if queues else "nor any other"
            return f"there is no queue {queue!r}, {others},"
        return f"queue {queue!r} has {figures.available} ready messages, and consumers hold {figures.unacked},"

    def __repr__(self) -> str:
        return f"<broker for tests at {self.url}>"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The keys of pytest's configuration."""
    parser.addini(
        "multiqueue_broker", "`test`: a broker for each test; `session`: one, emptied after each", default="test"
    )
    parser.addini(
        "multiqueue_definitions", "a definitions.json whose queues, exchanges ... each test finds", default=""
    )


@contextmanager
def _broker() -> Iterator[tuple[Broker, Server]]:
    from multiqueue.broker import Broker

    with Broker() as broker:
        yield broker, broker.listen()


@pytest.fixture(scope="session")
def _multiqueue_broker_of_session() -> Iterator[tuple[Broker, Server]]:
    with _broker() as started:
        yield started


@pytest.fixture
def multiqueue_broker(request: pytest.FixtureRequest) -> Iterator[BrokerForTests]:
    """A broker that AMQP 0-9-1 clients reach at `.url`, empty, for this test alone."""
    config, scope = request.config, request.config.getini("multiqueue_broker")
    if scope not in ("test", "session"):
        raise pytest.UsageError(f"multiqueue_broker is {scope!r} in pytest's configuration; it is `test` or `session`")
    with ExitStack() as stack:
        if scope == "session":
            started = request.getfixturevalue("_multiqueue_broker_of_session")
        else:
            started = stack.enter_context(_broker())
        broker, server = started
        found = BrokerForTests(broker, server, stack)
        if scope == "session":
            stack.callback(found.empty)
        definitions = config.getini("multiqueue_definitions")
        if definitions:
            try:
                found.load(config.rootpath / definitions)
            except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
                where = f"{str(config.rootpath / definitions)!r}, which cannot be read: {error.strerror}"
                raise pytest.UsageError(f"multiqueue_definitions in pytest's configuration names {where}") from error
        yield found
