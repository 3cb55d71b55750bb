"""The two brokers that every test of this directory runs against: RabbitMQ, and this project's server.

RabbitMQ takes seconds to start and is started once; the server is started once per module. Names are new in each test.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from rabbitmq_support import Peer, rules

from multiqueue.broker import Broker

if TYPE_CHECKING:
    from interop_wire_support import Wire, WireChannel

BROKERS = ("rabbitmq", "multiqueue")


@pytest.fixture(scope="module", params=BROKERS)
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    """A broker that runs: RabbitMQ, then the server."""
    if request.param == "rabbitmq":
        yield request.getfixturevalue("rabbitmq_peer")
        return
    with Broker(compat=rules()) as broker, broker.listen() as server:
        yield Peer(server.url, server.port, os.getpid())


@pytest.fixture
def is_rabbitmq(peer: Peer) -> bool:
    """A difference between the two is written where it is met, with its reason."""
    return bool(peer.pid != os.getpid())


_numbers = itertools.count(1)


@pytest.fixture
def name() -> Callable[[str], str]:
    """A function that makes a name that no test used before."""
    return lambda stem: f"{stem}-{next(_numbers)}"


@pytest.fixture
def connect(peer: Peer) -> Iterator[Callable[..., Wire]]:
    """A function that opens another connection; all are cut at the end of the test."""
    from interop_wire_support import Wire  # needs pamqp, which a desk may lack

    wires: list[Wire] = []

    def another(**settings: object) -> Wire:
        wires.append(Wire(peer.port))
        return wires[-1].open(**settings)  # type: ignore[arg-type]

    yield another
    for each in wires:
        each.socket.close()


@pytest.fixture
def wire(connect: Callable[..., Wire]) -> Wire:
    return connect()


@pytest.fixture
def channel(wire: Wire) -> WireChannel:
    return wire.channel()
