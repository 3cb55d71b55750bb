"""Samples: taken while somebody looks, and at no other time."""

from __future__ import annotations

from typing import Any

import pytest
from monitor_parts_support import History, Track, _samples, take_sample

from multiqueue.broker import Broker, Message
from multiqueue.monitor import Sampler
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


def test_a_busy_machine_makes_samples_no_rarer(
    sampler: Sampler, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample that waited long for its turn has cost little, and the next one comes as soon as ever. (monitor 3)"""

    def waiting(broker: Broker | None, server: Any, at: float, data: Any) -> _samples.Sample:
        clock.advance(3.0)
        return take_sample(broker, server, at, data)

    monkeypatch.setattr(_samples, "take_sample", waiting)
    sampler.look()
    assert sampler._interval == _samples.INTERVAL
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


def test_what_was_is_told_at_the_times_that_are_asked_for() -> None:
    """A level lasts until the next one; before the first there is nothing."""
    track = Track()
    for at, ready in ((10.0, 1), (11.0, 1), (13.0, 4)):
        track.add(at, (0, ready), most=60)
    found = track.samples(1, 14.0, age=60, step=1)
    assert [(each["timestamp"], each["sample"]) for each in found] == [
        (14000, 4),
        (13000, 4),
        (12000, 1),
        (11000, 1),
        (10000, 1),
    ]
    assert len(track.samples(1, 1e6, age=10**8, step=1)) == 601  # both ends of 600 steps


def test_a_track_has_so_many_rows_and_rests_for_nothing() -> None:
    """The oldest rows go first, and figures that stay as they are add none."""
    track = Track()
    for at in range(200):
        track.add(float(at), (at // 2, 0), most=60)
    assert len(track) == 60
    assert track.samples(0, 199.0, age=1, step=1)[0]["sample"] == 99


def test_histories_forget_what_is_gone_and_share_their_rows() -> None:
    """With 100,000 queues each has 60 rows at most, not 600."""
    history = History(["ack"])
    for at in range(100):
        history.note(float(at), [("stays", (at,))], 100_000)
    history.note(100.0, [("stays", (0,)), ("goes", (1,))], 2)
    history.note(101.0, [("stays", (0,))], 1)
    stays = history.get("stays")
    assert stays is not None
    assert len(stays) <= 61
    assert history.get("goes") is None


def test_samples_come_as_rabbitmq_writes_them(sampler: Sampler, broker: Broker, clock: FakeClock) -> None:
    """With an age and a step the details have samples, the newest first, their mean and their rate."""
    broker.declare_queue("orders")
    sampler.look()
    for _ in range(3):
        broker.publish(Message(b"", routing_key="orders"))
    clock.advance(1.0)
    sampler.refresh()
    query = {"lengths_age": "1", "lengths_incr": "1", "msg_rates_age": "1", "msg_rates_incr": "1"}
    view: dict[str, Any] = {"messages_details": {"rate": 3.0}, "message_stats": {"publish_details": {"rate": 3.0}}}
    sampler.add_samples(view, query, "queue", ("/", "orders"))
    assert view["messages_details"]["samples"][0]["sample"] == 3
    assert view["message_stats"]["publish_details"]["samples"][0]["sample"] == 3
    assert set(view["messages_details"]) == {"rate", "samples", "avg", "avg_rate"}
    for wrong in (
        {"lengths_age": "60"},
        {"lengths_age": "x", "lengths_incr": "1"},
        {"lengths_age": "1", "lengths_incr": "0"},
    ):
        plain = {"messages_details": {"rate": 3.0}}
        sampler.add_samples(plain, wrong, "queue", ("/", "orders"))
        assert plain == {"messages_details": {"rate": 3.0}}
    sampler.close()
