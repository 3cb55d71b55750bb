"""Brokers for the tests of the gatehouse: ours, and RabbitMQ where a suite holds for both."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from multiqueue.broker import Broker

settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _no_socket_stays_open() -> Iterator[None]:
    """What a test that failed has left open would fail the next one."""
    from amqp_raw_support import opened

    yield
    while opened:
        opened.pop().close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker in this process."""
    with Broker(housekeeping_interval=0.02) as started:
        yield started


@pytest.fixture
def url(broker: Broker) -> str:
    """Where a server for that broker listens."""
    return str(broker.listen().url)


@pytest.fixture(params=["multiqueue", pytest.param("rabbitmq", marks=pytest.mark.slow(selected=True))])
def any_url(request: pytest.FixtureRequest) -> str:
    """Where our server listens, or RabbitMQ: what is asserted holds for both."""
    return str(
        request.getfixturevalue("url")
        if request.param == "multiqueue"
        else request.getfixturevalue("rabbitmq_peer").url
    )


@pytest.fixture
def name() -> Callable[[str], str]:
    """Makes names that no other test has, for brokers that outlive a test."""
    number = next(_numbers)
    return lambda word: f"{word}-{os.getpid()}-{number}"
