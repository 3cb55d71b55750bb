"""Samples: taken while somebody looks, and at no other time."""

from __future__ import annotations

import pytest

from multiqueue.broker import Broker, Message
from multiqueue.monitor import Sampler
from multiqueue.monitor._samples import take_sample
from multiqueue.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


@pytest.fixture
def sampler(broker: Broker, clock: FakeClock) -> Sampler:
    """A sampler whose thread never gets its turn, for the clock stands: samples are taken by those who look."""
    sampler = Sampler(broker, clock=clock)
    sampler._thread = None
    return sampler


def test_two_looks_at_one_moment_read_the_broker_once(sampler: Sampler) -> None:
    """A crowd of clients costs one sample. (monitor 3)"""
    first = sampler.look().latest
    assert sampler.look().latest is first
    sampler.close()


def test_a_rate_is_what_came_between_two_samples(sampler: Sampler, broker: Broker, clock: FakeClock) -> None:
    """Three messages in two seconds are 1.5 per second."""
    broker.declare_queue("orders")
    sampler.look()
    for number in range(3):
        broker.publish(Message(b"%d" % number, routing_key="orders"))
    clock.advance(2.0)
    pair = sampler.refresh()
    assert pair.seconds == 2.0
    assert pair.rate(pair.latest.total.published, pair.previous.total.published) == 1.5
    sampler.close()


def test_the_first_sample_has_no_rate(sampler: Sampler, broker: Broker) -> None:
    """What was published before anybody looked is no rate."""
    broker.declare_queue("orders")
    broker.publish(Message(b"", routing_key="orders"))
    pair = sampler.look()
    assert pair.rate(pair.latest.total.published, pair.previous.total.published) == 0.0
    sampler.close()


def test_after_a_long_pause_there_is_no_rate_of_then(sampler: Sampler, broker: Broker, clock: FakeClock) -> None:
    """Messages of last week are not shown as the rate of now."""
    broker.declare_queue("orders")
    sampler.look()
    broker.publish(Message(b"", routing_key="orders"))
    clock.advance(1000.0)
    assert sampler.look().seconds == 0.0
    sampler.close()


def test_a_change_is_seen_by_the_next_look(sampler: Sampler, broker: Broker) -> None:
    """`expire` makes the next look take a sample, and only that one."""
    sampler.look()
    broker.declare_queue("new")
    assert ("/", "new") not in sampler.look().latest.queues
    sampler.expire()
    pair = sampler.look()
    assert ("/", "new") in pair.latest.queues
    assert sampler.look() is pair
    sampler.close()


def test_a_sample_counts_every_message_once(broker: Broker) -> None:
    """Ready, unacked, published, delivered and acked of all virtual hosts add up."""
    other = broker.add_virtual_host("other")
    for host in (broker, other):
        host.declare_queue("orders")
        for _ in range(3):
            host.publish(Message(b"tea", routing_key="orders"))
    received = broker.get("orders")
    assert received is not None
    total = take_sample(broker, None, 0.0).total
    assert (total.ready, total.unacked, total.published, total.delivered, total.acked) == (5, 1, 6, 1, 0)
    received.accept()
    assert take_sample(broker, None, 0.0).total.acked == 1


def test_closing_ends_the_thread_and_twice_is_harmless(broker: Broker) -> None:
    """A sampler that runs in real time ends when told, whether or not somebody looks."""
    sampler = Sampler(broker)
    sampler.look()
    thread = sampler._thread
    assert thread is not None
    sampler.close()
    sampler.close()
    assert not thread.is_alive()
