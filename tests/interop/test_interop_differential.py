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
from tools.differences import program_of


@pytest.fixture(scope="module")
def ports(rabbitmq_peer: Peer) -> Iterator[tuple[Ports, Ports]]:
    with Broker(compat=rules()) as broker, broker.listen() as server:
        yield (rabbitmq_peer.port, 0), (server.port, 0)
        forget_idle()


def test_the_long_run_makes_programs_of_each_sort() -> None:
    """A seed makes one program, of all its steps: with classic queues, with quorum queues, or of administration."""
    made = [program_of(seed, 30) for seed in range(40)]
    assert made[:3] == [program_of(seed, 30) for seed in range(3)]
    sorts = ["http" if program[0][1][0] == "http" else "'quorum'" in repr(program[0]) for program in made]
    assert {sort: sorts.count(sort) > 1 for sort in ("http", True, False)} == {"http": True, True: True, False: True}
    assert sum(len(program) >= 33 for program in made) > 30  # some lose steps that are meant to differ


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
