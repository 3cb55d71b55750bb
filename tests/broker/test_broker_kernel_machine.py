"""The broker queue against a list: any sequence of operations, for every kind of queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis_support import examples

from multiqueue.broker import (
    BrokerQueue,
    Credit,
    Entry,
    Message,
    MessageGroups,
    Overflow,
    QueueConsumer,
    QueueKind,
    QueueSettings,
)
from multiqueue.testing import FakeClock

KINDS: dict[str, dict[str, Any]] = {
    "standard": {"kind": QueueKind.STANDARD},
    "priority": {"kind": QueueKind.PRIORITY, "max_priority": 2},
    "sorted": {"kind": QueueKind.SORTED, "sort_key": "key"},
    "last value": {"kind": QueueKind.LAST_VALUE, "lvq_key": "key"},
    # Of one tenant, which is first in, first out. test_broker_fair_machine.py has many.
    "fair": {"kind": QueueKind.FAIR},
    "fair with levels": {"kind": QueueKind.FAIR, "max_priority": 2},
}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ring": {"overflow": Overflow.RING, "max_length": 4},
    "reject": {"overflow": Overflow.REJECT, "max_length": 4},
    "attempts": {"max_delivery_attempts": 2},
    "standard groups": {"groups": MessageGroups.STANDARD, "group_key": "group"},
    "shared groups": {"groups": MessageGroups.SHARED, "group_key": "group"},
}

SPECIFICATIONS = st.fixed_dictionaries(
    {
        "priority": st.integers(0, 3),
        "key": st.sampled_from([None, "a", "b"]),
        "color": st.sampled_from(["red", "blue"]),
        "group": st.sampled_from(["g", "h"]),
        "ttl": st.sampled_from([None, None, None, 5.0]),
        "delay": st.sampled_from([None, None, None, 3.0]),
    }
)


@dataclass(eq=False)
class Item:
    """A message as the model sees it. `owner` is None while no consumer has it."""

    number: int
    message: Message
    expires_at: float | None
    held_until: float
    owner: Client | None = None
    deliveries: int = 0
    superseded: bool = False
    refused_by: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Client:
    consumer: QueueConsumer
    priority: int
    color: str | None
    limit: int | None
    desired: bool = True
    having: int = 0
    # The consumer was told of work, or was given some, and has not found nothing since.
    is_obliged: bool = False
    number: int = 0

    @property
    def willing(self) -> bool:
        return self.desired and (self.limit is None or self.having < self.limit)


class QueueMachine(RuleBasedStateMachine):
    """Compares every answer of a broker queue with a list that is sorted and searched from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock(1000.0)
        self.items: list[Item] = []
        self.clients: list[Client] = []
        self.taken: list[tuple[Entry, Item, Client]] = []
        self.dead: list[tuple[Any, str]] = []
        self.model_dead: list[tuple[Any, str]] = []
        self.count = 0
        self.group_owners: dict[object, Client] = {}

    @initialize(kind=st.sampled_from(sorted(KINDS)), feature=st.sampled_from(sorted(FEATURES)))
    def begin(self, kind: str, feature: str) -> None:
        """A queue, and consumers on it: a plain one, a choosy one with little credit, one of high priority."""
        assume("fair" not in kind or "groups" not in feature)
        self.settings = QueueSettings(**KINDS[kind], **FEATURES[feature])
        self.queue = BrokerQueue(
            "q",
            settings=self.settings,
            clock=self.clock,
            dead_letter=lambda queue, message, reason: self.dead.append((message.body, reason.value)),
            on_error=lambda queue, action, error: self._fail(action, error),
        )
        self.add_consumer(0, None, None)
        self.add_consumer(0, "red", 2)
        self.add_consumer(1, "red", None)

    def _fail(self, action: str, error: Exception) -> None:
        raise AssertionError(f"{action}: {error!r}")

    # -- the model

    def _place(self, item: Item) -> tuple[Any, ...]:
        if self.settings.has_levels:
            return (-min(item.message.priority or 0, 2), item.number)
        if self.settings.kind is QueueKind.SORTED:
            key = item.message.headers.get("key")
            return (key is not None, key or "", item.number)
        return (item.number,)

    def _in_order(self) -> list[Item]:
        return sorted(self.items, key=self._place)

    def _is_expired(self, item: Item) -> bool:
        return item.expires_at is not None and item.expires_at <= self.clock()

    def _group_allows(self, item: Item, client: Client) -> bool:
        group = item.message.headers["group"]
        if self.settings.groups is MessageGroups.STANDARD:
            return self.group_owners.get(group, client) is client
        if self.settings.groups is MessageGroups.SHARED:
            holders = [each.owner for each in self.items if each.message.headers["group"] == group and each.owner]
            return all(holder is client for holder in holders)
        return True

    def _suits(self, item: Item, client: Client) -> bool:
        return (
            item.owner is None
            and item.held_until <= self.clock()
            and not self._is_expired(item)
            and client.number not in item.refused_by
            and client.color in (None, item.message.headers["color"])
            and self._group_allows(item, client)
        )

    def _next_for(self, client: Client) -> Item | None:
        return next((item for item in self._in_order() if self._suits(item, client)), None)

    def _remove(self, item: Item, reason: str | None) -> None:
        self.items.remove(item)
        if reason is not None:
            self.model_dead.append((item.message.body, reason))

    def _evict(self) -> None:
        if self.settings.overflow is not Overflow.RING:
            return
        ready = [item for item in self._in_order() if item.owner is None]
        while len(ready) > 4:
            if self.settings.kind is QueueKind.SORTED:
                victim = ready[-1]
            elif self.settings.has_levels:
                lowest = max(self._place(item)[0] for item in ready)
                victim = next(item for item in ready if self._place(item)[0] == lowest)
            else:
                victim = ready[0]
            ready.remove(victim)
            self._remove(victim, "expired" if self._is_expired(victim) else "maxlen")

    def _let_time_pass(self) -> None:
        """Expire everything: what the queue does lazily, the model does whenever the clock moves."""
        self.queue.housekeeping()
        for item in list(self.items):
            if item.owner is None and self._is_expired(item):
                self._remove(item, "expired")

    # -- the rules

    @rule(specifications=st.lists(SPECIFICATIONS, min_size=1, max_size=4))
    def put(self, specifications: list[dict[str, Any]]) -> None:
        for specification in specifications:
            self._put(**specification)

    def _put(
        self, priority: int, key: str | None, color: str, group: str, ttl: float | None, delay: float | None
    ) -> None:
        if self.settings.overflow is Overflow.RING:
            delay = None
        self.count += 1
        headers = {"color": color, "group": group} | ({} if key is None else {"key": key})
        message = Message(self.count, priority=priority, headers=headers, expiration=ttl, delay=delay)
        outcome = self.queue.put(message)
        ready = [item for item in self.items if item.owner is None]
        if self.settings.overflow is Overflow.REJECT and len(ready) >= 4:
            assert not outcome.accepted
            return
        assert outcome.accepted
        now = self.clock()
        if self.settings.kind is QueueKind.LAST_VALUE and key is not None:
            for item in [each for each in self.items if each.message.headers.get("key") == key]:
                item.superseded = True
                if item.owner is None:
                    self._remove(item, None)
        self.items.append(Item(self.count, message, None if ttl is None else now + ttl, now + (delay or 0)))
        self._evict()

    @precondition(lambda self: len(self.clients) < 4)
    @rule(
        priority=st.sampled_from([0, 0, 1]),
        color=st.sampled_from([None, None, "red"]),
        limit=st.sampled_from([None, 1, 2]),
    )
    def add_consumer(self, priority: int, color: str | None, limit: int | None) -> None:
        selector = None if color is None else (lambda message: message.headers["color"] == color)
        consumer = self.queue.add_consumer(
            self._notified,
            priority=priority,
            selector=selector,
            credit=None if limit is None else Credit(limit),
        )
        self.clients.append(Client(consumer, priority, color, limit, number=consumer.number))
        self.queue.set_notify_work_desired(consumer, True)

    def _notified(self, consumer: QueueConsumer) -> None:
        for client in self.clients:
            if client.consumer is consumer:
                client.is_obliged = True

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def remove_consumer(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        self.queue.remove_consumer(client.consumer)
        self.group_owners = {group: owner for group, owner in self.group_owners.items() if owner is not client}

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), desired=st.booleans())
    def declare_interest(self, data: st.DataObject, desired: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.desired = desired
        self.queue.set_notify_work_desired(client.consumer, desired)
        client.is_obliged = client.is_obliged and client.willing

    @precondition(lambda self: self.clients and self.items)
    @rule(data=st.data())
    def pull(self, data: st.DataObject) -> None:
        self._pull(data.draw(st.sampled_from(self.clients)))

    @precondition(lambda self: any(client.is_obliged for client in self.clients))
    @rule(data=st.data())
    def serve(self, data: st.DataObject) -> None:
        """Do as a scheduler does: pull for each consumer that was told, until none is left."""
        while obliged := [client for client in self.clients if client.is_obliged]:
            client = data.draw(st.sampled_from(obliged))
            self._pull(client)
            if client.is_obliged and data.draw(st.booleans()):
                self._settle(*self.taken.pop(), "accept")

    def _pull(self, client: Client) -> None:
        self._let_time_pass()
        expected = self._next_for(client) if client.willing else None
        if expected is not None:
            rivals = [each for each in self.clients if each.priority > client.priority and each.willing]
            if any(self._suits(expected, rival) for rival in rivals):
                expected = None
        entry = self.queue.deliver_single_message(client.consumer)
        assert (entry and entry.message.body) == (expected and expected.message.body)
        client.is_obliged = False
        if entry is None or expected is None:
            return
        expected.owner = client
        expected.deliveries += 1
        assert entry.delivery_count == expected.deliveries
        client.having += 1
        client.is_obliged = client.willing
        if self.settings.groups is MessageGroups.STANDARD:
            self.group_owners[expected.message.headers["group"]] = client
        self.taken.append((entry, expected, client))

    def _settle(self, entry: Entry, item: Item, client: Client, how: str) -> None:
        self._let_time_pass()
        item.owner = None
        client.having -= 1
        if how == "accept":
            self.items.remove(item)
            self.queue.accept(entry, client.consumer)
        elif how == "reject":
            self._remove(item, "rejected")
            self.queue.reject(entry, client.consumer)
        else:
            self._release_in_model(item, client, how)
            self.queue.release(entry, client.consumer, refused=how == "refuse", counted=how != "undo")
        if client.consumer.credit is not None and client.consumer.credit.settled(1, entry.size):
            self.queue.credit_changed(client.consumer)

    def _release_in_model(self, item: Item, client: Client, how: str) -> None:
        if how == "undo":
            item.deliveries -= 1
        if how == "refuse":
            item.refused_by.add(client.number)
        limit = self.settings.max_delivery_attempts
        if limit is not None and item.deliveries >= limit:
            self._remove(item, "delivery_limit")
        elif self._is_expired(item):
            self._remove(item, "expired")
        elif item.superseded:
            self._remove(item, None)
        else:
            self._evict()

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), how=st.sampled_from(["accept", "release", "release", "refuse", "undo", "reject"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        index = data.draw(st.integers(0, len(self.taken) - 1))
        self._settle(*self.taken.pop(index), how)

    @precondition(lambda self: self.items)
    @rule(seconds=st.sampled_from([1.0, 2.0, 6.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._let_time_pass()

    @precondition(lambda self: self.items)
    @rule(color=st.sampled_from(["red", "blue"]))
    def delete_messages(self, color: str) -> None:
        self._let_time_pass()
        doomed = [item for item in self.items if item.owner is None]
        doomed = [item for item in doomed if item.message.headers["color"] == color]
        assert self.queue.delete_messages(lambda message: message.headers["color"] == color) == len(doomed)
        for item in doomed:
            self.items.remove(item)

    # -- what must hold after every step

    @invariant()
    def same_messages_in_the_same_order(self) -> None:
        if not hasattr(self, "queue"):
            return
        ready = [item.message.body for item in self._in_order() if item.owner is None]
        assert [message.body for message in self.queue.browse()] == ready
        assert len(self.queue) == len(self.items)
        assert sorted(self.dead) == sorted(self.model_dead)

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "queue"):
            self.queue.check_invariants()

    @invariant()
    def nothing_waits_unnoticed(self) -> None:
        """While an entry could go to a willing consumer, somebody has been told and has not come back empty."""
        if not hasattr(self, "queue") or any(client.is_obliged for client in self.clients):
            return
        for client in self.clients:
            assert not client.willing or self._next_for(client) is None, "an entry waits, and nobody was told"


TestQueueMachine = pytest.mark.slow(selected=True)(QueueMachine.TestCase)
TestQueueMachine.settings = settings(max_examples=examples(250), stateful_step_count=60, deadline=None)
