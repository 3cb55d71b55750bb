"""The message at the head of a queue, looked at without taking it."""

from __future__ import annotations

import pytest

from multiqueue.broker import BrokerQueue, Message, MessageGroups, QueueKind, QueueSettings
from multiqueue.testing import FakeClock


@pytest.mark.parametrize("settings", [QueueSettings(), QueueSettings(kind=QueueKind.PRIORITY, max_priority=9)])
def test_the_head_is_what_a_get_would_have(settings: QueueSettings) -> None:
    """Behind what consumers have, before what was given back, in the order of service; and a look changes nothing."""
    queue = BrokerQueue("q", settings=settings)
    assert queue.head() is None
    for number in range(6):
        queue.put(Message(b"%d" % number, priority=number % 3))
    taken = []
    for _ in range(6):
        head, figures = queue.head(), queue.statistics()
        assert queue.head() is head
        assert queue.statistics() == figures
        entry = queue.get("me")
        assert entry is not None
        assert entry.message is head
        taken.append(entry)
    assert queue.head() is None
    queue.release(taken[2], "me")
    assert queue.head() is taken[2].message
    queue.check_invariants()


def test_what_is_past_its_time_is_no_head() -> None:
    """A message that has expired and still stands there is passed over, and dropped as by a get."""
    clock = FakeClock(0.0)
    queue = BrokerQueue("q", clock=clock)
    queue.put(Message(b"old", expiration=1.0))
    queue.put(last := Message(b"young"))
    clock.advance(2.0)
    assert queue.head() is last
    assert queue.statistics().expired == 1


def test_what_expired_behind_the_head_goes_with_a_get() -> None:
    """As at RabbitMQ: it is at the head then, and is gone before the taken message comes back."""
    clock = FakeClock(0.0)
    queue = BrokerQueue("q", clock=clock, settings=QueueSettings(expires_at_head=True))
    queue.put(first := Message(b"first"))
    queue.put(Message(b"old", expiration=1.0))
    queue.put(last := Message(b"last"))
    clock.advance(2.0)
    queue.housekeeping()
    assert queue.statistics().available == 3
    entry = queue.get("me")
    assert entry is not None
    assert queue.statistics().available == 1
    queue.release(entry, "me")
    assert list(queue.browse()) == [first, last]
    queue.check_invariants()


def test_groups_and_deleted_queues_have_none() -> None:
    """With groups each consumer has a head of its own, and finding it walks over what others have."""
    grouped = BrokerQueue("q", settings=QueueSettings(groups=MessageGroups.SHARED, group_key="g"))
    grouped.put(Message(b"x", headers={"g": "a"}))
    assert grouped.head() is None
    queue = BrokerQueue("q")
    queue.put(Message(b"x"))
    queue.delete()
    assert queue.head() is None
