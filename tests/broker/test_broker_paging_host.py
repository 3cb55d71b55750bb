"""A virtual host whose memory is far too small for what stands on its queues."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from broker_durable_support import InMemory, OnDisk
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from test_broker_durable_machine import QUEUES, Copy, DurableMachine, run

from multiqueue.broker import (
    ConsumerNotAdmitted,
    Message,
)
from multiqueue.broker._subscription import PullSubscription
from multiqueue.errors import Empty

LIMIT = 16_000  # some ten messages of a few bytes: each costs 768 beside its body
SELECTORS = {None: range(10), "JMSPriority = 0": range(1), "JMSPriority > 0": range(1, 10)}


@dataclass
class Taker:
    queue: str
    selector: str | None
    subscription: PullSubscription

    def wants(self, copy: Copy) -> bool:
        return copy.priority in SELECTORS[self.selector]


class PagingHostMachine(DurableMachine):
    """The machine of durability with a budget of a few messages, and consumers with selectors that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.keeper.close()
        options = {"memory_limit": LIMIT}
        if self.directory is None:
            self.keeper = InMemory(**options)
        else:
            self.keeper = OnDisk(self.directory / "paged", **options)
        self._declare()
        self.takers: list[Taker] = []

    @rule(
        name=st.sampled_from(["plain", "letters", "levels"]),
        count=st.integers(1, 12),
        priority=st.integers(0, 2),
        size=st.sampled_from([1, 400, 1500]),
    )
    def publish_a_flood(self, name: str, count: int, priority: int, size: int) -> None:
        for _ in range(count):
            self.numbers += 1
            body = b"%d" % self.numbers + b"x" * size
            self.keeper.host.publish_nowait(
                Message(body, routing_key=name, persistent=True, priority=priority),
            )
            self.lists.add(name, Copy(body, True, priority))

    @precondition(lambda self: len(self.takers) < 4)
    @rule(name=st.sampled_from(["plain", "levels"]), selector=st.sampled_from(list(SELECTORS)))
    def subscribe(self, name: str, selector: str | None) -> None:
        try:
            subscription = self.keeper.host.subscribe(name, selector=selector, prefetch=3)
        except ConsumerNotAdmitted:
            return
        self.takers.append(Taker(name, selector, subscription))

    @precondition(lambda self: self.takers)
    @rule(pick=st.integers(0, 3))
    def receive(self, pick: int) -> None:
        taker = self.takers[pick % len(self.takers)]
        if len(taker.subscription.target.unsettled()) == 3:
            return
        self.settled()
        wanted = [copy for copy in self.lists.ready(taker.queue) if taker.wants(copy)]
        if not wanted:
            with pytest.raises(Empty):
                taker.subscription.get(timeout=0)
            return
        received = taker.subscription.get(timeout=10)
        first = wanted[0]
        first.deliveries += 1
        assert received.body == first.body
        assert received.delivery_count == first.deliveries
        first.held = received

    @precondition(lambda self: self.takers)
    @rule(pick=st.integers(0, 3))
    def unsubscribe(self, pick: int) -> None:
        """What was not settled goes back to its place."""
        taker = self.takers.pop(pick % len(self.takers))
        unsettled = {id(delivery) for delivery in taker.subscription.target.unsettled()}
        taker.subscription.close()
        for copy in self.lists.queues[taker.queue]:
            if copy.held is not None and id(copy.held.delivery) in unsettled:
                copy.held = None

    @rule(limit=st.sampled_from([LIMIT, 10_000, 60_000]))
    def change_the_budget(self, limit: int) -> None:
        self.keeper.host.memory_limit = limit

    def _stop(self) -> None:
        while self.takers:
            self.unsubscribe(0)

    def delete_and_declare_again(self) -> None:
        """As the machine of durability has it: without this rule here, whose consumers it would end."""

    @rule()
    def restart(self) -> None:
        self._stop()
        super().restart()

    @rule()
    def crash(self) -> None:
        self._stop()
        super().crash()

    def agrees(self) -> None:
        self.settled()
        host = self.keeper.host
        for name in QUEUES:
            bodies = [message.body for message in host.queue(name).browse()]
            assert bodies == [copy.body for copy in self.lists.ready(name)], name
            assert len(host.queue(name)) == len(self.lists.queues[name])
        host.check_invariants()

    def teardown(self) -> None:
        self._stop()
        super().teardown()


class PagingDiskMachine(PagingHostMachine):
    kind = "sqlite"


def test_a_paged_host_over_memory_agrees_with_lists() -> None:
    """With a budget of ten messages nothing is lost, doubled or out of order, whoever comes, goes, and crashes."""
    run(PagingHostMachine, 60, 30)


def test_a_paged_host_over_sqlite_agrees_with_lists() -> None:
    """The same on a disk."""
    run(PagingDiskMachine, 12, 30)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [PagingHostMachine, PagingDiskMachine])
def test_a_paged_host_agrees_with_lists_for_long(machine: type[PagingHostMachine]) -> None:
    """The same for many more histories."""
    run(machine, 500, 50)
