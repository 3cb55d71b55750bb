"""What the client's suites talk to: a broker in this process, our server over TCP, RabbitMQ over TCP."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from client_contract_support import PEERS
from rabbitmq_support import Peer

from multiqueue.broker import Broker

if TYPE_CHECKING:
    from multiqueue.client import Channel, Connection

_numbers = itertools.count(1)


@pytest.fixture
def rabbitmq_url(rabbitmq_peer: Peer) -> str:
    """Where RabbitMQ listens."""
    return rabbitmq_peer.url


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker in this process."""
    with Broker(housekeeping_interval=0.02, deprecated_features={"global_qos": True}) as started:
        yield started


@pytest.fixture
def server_url(broker: Broker) -> str:
    """Where our server listens for that broker."""
    return str(broker.listen().url)


@pytest.fixture(params=PEERS)
def peer(request: pytest.FixtureRequest) -> Any:
    """What `connect` takes: each test that uses it holds over a wire and in process alike (client 12)."""
    fixture = {"in_process": "broker", "server": "server_url", "rabbitmq": "rabbitmq_url"}[request.param]
    return request.getfixturevalue(fixture)


@pytest.fixture
def opened(peer: Any) -> Iterator[Callable[..., Connection]]:
    """Makes connections to the peer, which are checked and closed after the test."""
    from multiqueue.client import connect  # needs pamqp, which a desk may lack

    with ExitStack() as stack:

        def open_one(**options: Any) -> Connection:
            connection = connect(peer, **options)
            stack.callback(connection.close)
            stack.callback(connection.check_invariants)
            return connection

        yield open_one


@pytest.fixture
def connection(opened: Callable[..., Connection]) -> Connection:
    return opened(threads=4)


@pytest.fixture
def channel(connection: Connection) -> Channel:
    return connection.channel()


@pytest.fixture
def queue(channel: Channel) -> Iterator[str]:
    """A queue that no other test has."""
    name = f"client-{os.getpid()}-{next(_numbers)}"
    channel.queue_declare(name)
    yield name
    if channel.connection.is_open:
        with channel.connection.channel() as last:
            last.queue_delete(name)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every thread of the client's ends with its connection."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and "multiqueue-" in thread.name]
    left = [thread for thread in left if any(part in thread.name for part in ("reader", "writer", "worker", "direct"))]
    for thread in left:
        thread.join(10)
    assert not [thread.name for thread in left if thread.is_alive()]
