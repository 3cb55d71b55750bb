"""Programs made up by Hypothesis, run against RabbitMQ and against this project's server, must see the same.

Each has three connections, one with confirms, one with transactions and one with neither, which die now and then.
`tools/differences.py` runs them by the thousand, with the HTTP API, and shortens what differs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from interop_differential_support import forget_idle
from interop_programs_support import Ports, Program, compare, programs, settings_for
from rabbitmq_support import Peer, rules

from multiqueue.broker import Broker


@pytest.fixture(scope="module")
def ports(rabbitmq_peer: Peer) -> Iterator[tuple[Ports, Ports]]:
    with Broker(compat=rules()) as broker, broker.listen() as server:
        yield (rabbitmq_peer.port, 0), (server.port, 0)
        forget_idle()


@pytest.mark.slow(selected=True)
@settings_for(20)
@given(program=programs(30, is_classic=True))
def test_programs_see_the_same_on_both(ports: tuple[Ports, Ports], program: Program) -> None:
    """Replies, errors with their codes and causes, what is returned, refused, delivered, and what is left."""
    compare(ports, program)


@pytest.mark.slow
@settings_for(300)
@given(program=programs(40, is_classic=True))
def test_many_programs_see_the_same_on_both(ports: tuple[Ports, Ports], program: Program) -> None:
    """The same, for minutes."""
    compare(ports, program)
