"""A virtual host whose memory is far too small for what stands on its queues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from broker_durable_support import Forgetful, InMemory, OnDisk, holding, keepers
from broker_parts_support import InPieces, here, reader
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from test_broker_durable_machine import QUEUES, Copy, DurableMachine, Lists, names, run

from multiqueue.broker import (
    ConsumerNotAdmitted,
    Message,
    MessageTooLarge,
    Policy,
    PullSubscription,
    Received,
    VirtualHost,
)
from multiqueue.errors import Empty, ShutDown
from multiqueue.store import Header, MemoryStore, StoreFailed
from multiqueue.testing import PATIENCE, wait_until_blocked

LIMIT = 16_000  # some ten messages of a few bytes: each costs 768 beside its body
PREFETCH = 3
SELECTORS = {None: range(10), "JMSPriority = 0": range(1), "JMSPriority > 0": range(1, 10)}


@dataclass
class Taker:
    queue: str
    selector: str | None
    settles: bool  # on delivery
    subscription: PullSubscription

    @property
    def has_credit(self) -> bool:
        return len(self.subscription.target.unsettled()) < PREFETCH

    def wants(self, copy: Copy) -> bool:
        return copy.priority in SELECTORS[self.selector]


class PagingHostMachine(DurableMachine):
    """The machine of durability with a budget of a few messages, and consumers with selectors that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.keeper.close()
        options = {"memory_limit": LIMIT}
        if self.kind == "none":
            self.keeper = Forgetful(**options)
            self.lists = NothingStored()
        elif self.directory is None:
            self.keeper = InMemory(**options)
        else:
            self.keeper = OnDisk(self.directory / "paged", **options)
        self._declare()
        self.takers: list[Taker] = []

    @rule(
        name=st.sampled_from(["plain", "letters", "levels", "memory"]),
        count=st.integers(1, 12),
        priority=st.integers(0, 2),
        size=st.sampled_from([1, 400, 1500]),
        persistent=st.booleans(),
    )
    def publish_a_flood(self, name: str, count: int, priority: int, size: int, persistent: bool) -> None:
        for _ in range(count):
            self.numbers += 1
            body = b"%d" % self.numbers + b"x" * size
            self.keeper.host.publish_nowait(
                Message(body, routing_key=name, persistent=persistent, priority=priority),
            )
            self.lists.add(name, Copy(body, persistent, priority))
        self.settled()

    @rule(
        name=st.sampled_from(["memory", "plain", "levels"]),
        selector=st.sampled_from(list(SELECTORS)),
        settles=st.booleans(),
    )
    def subscribe(self, name: str, selector: str | None, settles: bool) -> None:
        if len(self.takers) == 4:
            return
        try:
            subscription = self.keeper.host.subscribe(name, selector=selector, prefetch=PREFETCH, auto_accept=settles)
        except ConsumerNotAdmitted:
            return
        self.takers.append(Taker(name, selector, settles, subscription))

    @rule(pick=st.integers(0, 3))
    def receive(self, pick: int) -> None:
        if not self.takers:  # whether one was admitted depends on what was in memory: no precondition
            return
        taker = self.takers[pick % len(self.takers)]
        if not taker.has_credit:
            return
        self.settled()
        wanted = [copy for copy in self.lists.ready(taker.queue) if taker.wants(copy)]
        if not wanted:
            with pytest.raises(Empty):
                taker.subscription.get(timeout=0)
            return
        taker, received = self._first_served(taker)
        first = next(copy for copy in self.lists.ready(taker.queue) if taker.wants(copy))
        first.deliveries += 1
        assert received.body == first.body
        assert received.delivery_count == first.deliveries
        if taker.settles:
            self.lists.queues[taker.queue].remove(first)
        else:
            first.held = received

    @rule(name=names)
    def get(self, name: str) -> None:
        """A get is a consumer too, and may find no room beside the others."""
        try:
            super().get(name)
        except ConsumerNotAdmitted:
            pass

    def _first_served(self, taker: Taker) -> tuple[Taker, Received]:
        """This one, or another that the queue told of its message: it tells one of those that have credit."""
        others = [each for each in self.takers if each.queue == taker.queue and each is not taker]
        rivals = [each for each in others if each.has_credit]
        if not rivals:
            return taker, taker.subscription.get(timeout=PATIENCE)
        for _ in range(500):
            for each in (taker, *rivals):
                try:
                    return each, each.subscription.get(timeout=0.01)
                except Empty:
                    pass
        raise AssertionError(f"nobody is told of what is on {taker.queue}")

    @rule(pick=st.integers(0, 3))
    def unsubscribe(self, pick: int) -> None:
        """What was not settled goes back to its place."""
        if not self.takers:
            return
        taker = self.takers.pop(pick % len(self.takers))
        unsettled = {id(delivery) for delivery in taker.subscription.target.unsettled()}
        taker.subscription.close()
        for copy in self.lists.queues[taker.queue]:
            if copy.held is not None and id(copy.held) in unsettled:
                copy.held = None

    @rule(name=names)
    def page_out(self, name: str) -> None:
        """As when other queues need the memory; on those that page already this does nothing."""
        self.keeper.host.queue(name).life.limit.page_out()

    @rule(name=names)
    def keep_house(self, name: str) -> None:
        """An empty queue that was paged out keeps everything in memory again."""
        self.keeper.host.queue(name).housekeeping()

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

    @invariant()
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


class NothingStored(Lists):
    def is_stored(self, name: str, copy: Copy) -> bool:
        return False


class ForgetfulMachine(PagingHostMachine):
    """A virtual host without a store: every queue keeps its messages in memory until they outgrow it."""

    kind = "none"


@pytest.mark.slow(selected=True)
def test_a_paged_host_over_memory_agrees_with_lists() -> None:
    """With a budget of ten messages nothing is lost, doubled or out of order, while consumers come, go and crash."""
    run(PagingHostMachine, 60, 30)


@pytest.mark.slow(selected=True)
def test_a_paged_host_over_sqlite_agrees_with_lists() -> None:
    """The same on a disk."""
    run(PagingDiskMachine, 12, 30)


def test_a_host_without_a_store_agrees_with_lists_when_its_queues_outgrow_the_memory() -> None:
    """Where nothing is durable, what outgrows the memory is neither lost, doubled nor out of order."""
    run(ForgetfulMachine, 40, 30)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [PagingHostMachine, PagingDiskMachine, ForgetfulMachine])
def test_a_paged_host_agrees_with_lists_for_long(machine: type[PagingHostMachine]) -> None:
    """The same for many more histories."""
    run(machine, 200, 50)


# One promise at a time


def _publish(host: VirtualHost, count: int, *, queue: str = "q", size: int = 100, colour: str = "blue") -> None:
    for number in range(count):
        body = b"%d" % number + b"x" * size
        host.publish_nowait(Message(body, routing_key=queue, persistent=True, headers={"colour": colour}))
    host.wait_for_commits()


@pytest.fixture
def host() -> Iterator[VirtualHost]:
    with_store = VirtualHost(store=MemoryStore(), memory_limit=200_000)
    with_store.declare_queue("q", durable=True)
    yield with_store
    with_store.close()


def _deep(count: int, limit: int) -> None:
    """One red message behind `count` blue ones, and a consumer of red."""
    host = VirtualHost(store=MemoryStore(), memory_limit=limit)
    try:
        host.declare_queue("q", durable=True)
        _publish(host, count)
        _publish(host, 1, colour="red")
        with host.subscribe("q", selector="colour = 'red'") as reds:
            received = reds.get(timeout=240)
            assert received.message.headers["colour"] == "red"
            statistics = host.memory_statistics()
            assert statistics.used <= limit
            # One scan: each page has 500 headers, and one more load brings the body.
            assert statistics.loads <= count // 500 + 10
            received.accept()
        assert len(host.queue("q")) == count
    finally:
        host.close()


@pytest.mark.slow(selected=True)
def test_one_match_behind_many_that_do_not_match_is_delivered() -> None:
    """A consumer with a selector never starves: its message is found in one scan of the headers, in 4 MiB."""
    _deep(20_000, 4 << 20)


@pytest.mark.slow
def test_one_match_behind_a_hundred_thousand_is_delivered() -> None:
    """The same behind 100,000."""
    _deep(100_000, 4 << 20)


@pytest.mark.slow
def test_one_match_behind_a_million_is_delivered() -> None:
    """The same behind a million."""
    _deep(1_000_000, 4 << 20)


def test_a_message_that_the_budget_cannot_take_is_refused(host: VirtualHost) -> None:
    """A message of more than a quarter of the memory is refused with the figures, and nothing is stored."""
    with pytest.raises(MessageTooLarge, match=r"60000 bytes .* limit of 200000 bytes"):
        host.publish(Message(b"x" * 60_000, routing_key="q", persistent=True))
    assert len(host.queue("q")) == 0
    host.memory_limit = 400_000
    host.publish(Message(b"x" * 60_000, routing_key="q", persistent=True))
    assert host.get("q") is not None


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("arguments", [{}, {"qpid.queue_sort_key": "n"}], ids=["pages", "never pages"])
def test_a_message_beyond_a_quarter_of_the_memory_is_refused_whatever_it_is_for(
    stored: bool, persistent: bool, arguments: dict[str, object]
) -> None:
    """Transient or not, on whatever queue, in a transaction too: no queue has it, and what is smaller passes.

    (bounded-memory 15)
    """
    host = VirtualHost(store=MemoryStore() if stored else None, memory_limit=200_000)
    host.declare_queue("q", durable=True, arguments=arguments)
    host.declare_queue("other")
    for name in ("q", "other"):
        host.bind_queue(name, "amq.fanout", "")
    large, small = (Message(b"x" * size, exchange="amq.fanout", persistent=persistent) for size in (300_000, 40_000))
    publisher, transaction = host.publisher(lambda told: None), host.transaction()
    for publish in (host.publish, host.publish_nowait, publisher.publish, transaction.publish):
        with pytest.raises(MessageTooLarge, match=r"300000 bytes .* limit of 200000 bytes"):
            publish(large)
    transaction.commit()
    host.wait_for_commits()
    assert (len(host.queue("q")), len(host.queue("other"))) == (0, 0)
    host.publish(small)
    assert (len(host.queue("q")), len(host.queue("other"))) == (1, 1)
    host.check_invariants()
    host.close()


def test_a_consumer_for_whom_there_is_no_memory_is_not_admitted(host: VirtualHost) -> None:
    """A prefetch that the budget could not carry is refused while the queue pages; a smaller one is admitted."""
    host.queue("q").life.limit.page_out()
    with pytest.raises(ConsumerNotAdmitted, match="raise the memory limit"):
        host.subscribe("q", prefetch=100_000)
    host.subscribe("q", prefetch=10).close()
    assert host.queue("q").consumers() == []


def test_a_thousand_consumers_of_one_queue_share_a_list(host: VirtualHost) -> None:
    """Consumers that want the same cost the same as one, and everything is delivered once."""
    host.memory_limit = 1 << 20
    host.queue("q").life.limit.page_out()
    subscriptions = [host.subscribe("q", prefetch=1) for _ in range(1000)]
    assert len(host.memory_statistics().targets) == 1
    _publish(host, 1000)
    bodies = {subscription.get(timeout=PATIENCE).body for subscription in subscriptions}
    assert len(bodies) == 1000
    for subscription in subscriptions:
        subscription.close()
    assert len(host.queue("q")) == 1000


def test_a_refused_message_goes_to_others_alone(host: VirtualHost) -> None:
    """A consumer that refused a message goes on with a list of its own, and the others get what it refused."""
    _publish(host, 3)
    first = host.subscribe("q")
    refused = first.get(timeout=PATIENCE)
    refused.release(refused=True)
    assert first.get(timeout=PATIENCE).body == b"1" + b"x" * 100
    second = host.subscribe("q")
    assert second.get(timeout=PATIENCE).body == refused.body
    first.close()
    second.close()


def test_a_browser_sees_everything_once_and_takes_nothing(host: VirtualHost) -> None:
    """Browsing pages through what is in the store alone, in order."""
    _publish(host, 1000)
    with host.subscribe("q", browse=True) as browser:
        seen = [browser.get(timeout=PATIENCE).body for _ in range(1000)]
    assert seen == [b"%d" % number + b"x" * 100 for number in range(1000)]
    assert len(host.queue("q")) == 1000
    assert host.memory_statistics().used <= 200_000


def test_a_priority_queue_serves_the_highest_level_first_from_the_store() -> None:
    """What comes later with a higher priority is served before all that is in the store with a lower one."""
    host = VirtualHost(store=MemoryStore(), memory_limit=100_000)
    host.declare_queue("p", durable=True, arguments={"x-max-priority": 2})
    for number in range(600):
        message = Message(b"%d" % number, routing_key="p", persistent=True, priority=number % 3)
        host.publish_nowait(message)
    host.wait_for_commits()
    with host.subscribe("p", prefetch=1) as subscription:
        bodies = []
        for _ in range(600):
            received = subscription.get(timeout=PATIENCE)
            bodies.append(int(received.body))  # type: ignore[call-overload]
            received.accept()
    assert bodies == sorted(range(600), key=lambda number: (-(number % 3), number))
    host.close()


def test_a_ring_of_priorities_evicts_the_lowest_that_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a message of a low priority comes while the ring looks behind it for what goes first, it is what goes."""
    keeper = InMemory()
    arguments = {"x-max-priority": 1, "x-max-length": 3}
    keeper.host.declare_queue("p", durable=True, arguments=arguments)

    def publish(number: int, priority: int, **options: bool) -> None:
        keeper.host.publish(Message(b"%d" % number, routing_key="p", priority=priority, **options))

    for number in range(3):
        publish(number, int(number > 0), persistent=True)
    host = keeper.restart()  # what it has now is in the store
    comes = threading.Event()

    def nap() -> None:
        if not comes.is_set():
            publish(4, 0)
            comes.set()

    monkeypatch.setattr(reader, "nap", nap)
    publish(3, 1, persistent=True)  # the store's thread evicts the first for it, and leaves it to another to go on
    assert comes.wait(PATIENCE)
    wait_until_blocked(lambda: len(host.queue("p")) == 3)
    assert [message.body for message in host.queue("p").browse()] == [b"1", b"2", b"3"]
    keeper.close()


@pytest.mark.parametrize("kind", ["standard", "fair"])
def test_a_ring_evicts_what_is_held_where_there_is_nothing_else(kind: str) -> None:
    """Messages whose delay is not over count at a limit, and the oldest of them go, also of a queue that pages."""
    keeper = InMemory()
    keeper.host.declare_queue("ring", durable=True, arguments={"x-queue-kind": kind})
    host = keeper.restart()
    for number in range(6):
        host.publish(Message(b"%d" % number, routing_key="ring", persistent=True, delay=1000.0))
    host.policies.set(Policy(name="p", pattern="ring", definition={"max-length": 3}))
    assert [message.body for message in host.queue("ring").browse()] == [b"3", b"4", b"5"]
    keeper.close()


def test_what_is_left_to_a_thread_that_is_about_to_end_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that comes behind the last look at a ring, before the thread that looked is done, has another look."""
    later: list[Callable[[], bool]] = []
    work, looks = InPieces(later.append), list[str]()

    def look() -> None:
        if not work.leave_to_other(look):
            work.run(steps())

    def steps() -> Iterator[None]:
        looks.append("begun")
        yield
        if len(looks) == 1:
            look()  # after all that these steps look at

    monkeypatch.setattr(here, "serves_many", True)
    look()
    while later:
        piece = later.pop()
        while piece():
            pass
    assert looks == ["begun", "begun"]


def test_a_ring_evicts_what_is_in_the_store_alone() -> None:
    """A limit is kept when the oldest message is not in memory, and what it evicts is deleted and dead-lettered."""
    store = MemoryStore()
    host = VirtualHost(store=store, memory_limit=50_000)
    host.declare_queue("dead")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    host.declare_queue("ring", durable=True, arguments={"x-max-length": 100, "x-overflow": "drop-head", **to_dead})
    _publish(host, 300, queue="ring")
    host.wait_for_commits()  # of the dead letters, which the commits of the others caused
    assert [len(host.queue(name)) for name in ("ring", "dead")] == [100, 200]
    assert host.queue("ring").browse(limit=1)[0].body == b"200" + b"x" * 100
    host.wait_for_commits()
    number = host.queue("ring").store_number  # the dead letters have outgrown the memory: they have rows as well
    assert sum(level.messages for level in store.levels() if level.queue == number) == 100
    host.close()


@pytest.mark.parametrize("kind", ["standard", "fair"])
def test_a_ring_keeps_its_limit_where_there_is_no_room_for_its_head(
    host: VirtualHost, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """What is unsettled takes the whole memory: the oldest messages go all the same, in order, without an error."""
    host.memory_limit = 16_000
    _publish(host, 200)
    host.declare_queue("ring", arguments={"x-max-length": 3, "x-queue-kind": kind})
    taken: list[Received | None] = []  # a message that nobody has goes back
    with pytest.raises(ConsumerNotAdmitted):
        taken.extend(host.get("q") for _ in range(200))
    _publish(host, 20, queue="ring", size=1000)
    assert [message.body[:2] for message in host.queue("ring").browse()] == [b"17", b"18", b"19"]
    assert not caplog.records


def test_management_reaches_what_is_in_the_store_alone(host: VirtualHost) -> None:
    """Moving, copying, browsing and purging do not ask where a message is."""
    host.declare_queue("other", durable=True)
    _publish(host, 700)
    queue, other = host.queue("q"), host.queue("other")
    assert queue.move_messages(other, limit=200) == 200
    assert queue.copy_messages(other, lambda message: message.body == b"650" + b"x" * 100) == 1
    assert queue.delete_messages(limit=100) == 100
    assert queue.purge() == 400
    host.wait_for_commits()  # of the copy
    assert len(other) == 201
    assert len(other.browse()) == 201


def test_a_look_ends_when_its_queue_is_deleted(host: VirtualHost) -> None:
    """A walk over messages that only memory had, and whose queue is deleted meanwhile, comes to an end."""
    host.memory_limit = 4 << 20
    _publish(host, 260)
    for number in range(40):
        host.publish(Message(b"%d" % number, routing_key="q"))
    queue = host.queue("q")

    def delete(message: Message) -> bool:
        queue.delete()
        return True

    assert len(queue.browse(delete)) < 300


def test_transient_messages_of_a_durable_queue_are_written_out_and_come_back(host: VirtualHost) -> None:
    """A durable queue keeps the memory with transient messages too: they go to the store, and go when consumed."""
    for number in range(1000):
        host.publish(Message(b"%d" % number + b"x" * 400, routing_key="q"))
    store = host.store
    assert store is not None
    assert host.memory_statistics().used <= 200_000
    assert store.statistics().messages > 500
    with host.subscribe("q", prefetch=1) as subscription:
        for number in range(1000):
            received = subscription.get(timeout=PATIENCE)
            assert received.body == b"%d" % number + b"x" * 400
            received.accept()
    host.wait_for_commits()
    assert store.statistics().messages == 0


def test_transient_and_persistent_messages_keep_their_order_when_written_out() -> None:
    """A transient message that waited for its turn takes, in the store, the place of the row that kept its turn."""
    host = VirtualHost(store=MemoryStore(), memory_limit=16_000)
    host.declare_queue("q", durable=True)
    expected = [b"%d" % number + b"x" * 300 for number in range(60)]
    for number, body in enumerate(expected):
        host.publish_nowait(Message(body, routing_key="q", persistent=number % 3 == 0))
    for _ in range(3):
        host.wait_for_commits()
    assert [message.body for message in host.queue("q").browse()] == expected
    with host.subscribe("q", prefetch=1) as subscription:
        for body in expected:
            received = subscription.get(timeout=PATIENCE)
            assert received.body == body
            received.accept()
    host.close()


def test_a_transient_message_that_comes_back_goes_to_a_consumer_with_a_selector(host: VirtualHost) -> None:
    """It comes back to the list that its selector had let it into, also where the store has no row of it."""
    host.publish(Message(b"first", routing_key="q", headers={"colour": "red"}))
    _publish(host, 1, colour="red")
    with host.subscribe("q", selector="colour = 'red'", prefetch=1) as reds:
        first = reds.get(timeout=PATIENCE)
        first.release()
        assert reds.get(timeout=PATIENCE).body == b"first"


def test_nothing_is_in_memory_when_nothing_is_on_the_queue(host: VirtualHost) -> None:
    """Accounts return to zero when everything is consumed and the consumers are gone."""
    for _ in range(3):
        _publish(host, 500)
        with host.subscribe("q", prefetch=20) as subscription:
            for _ in range(500):
                subscription.get(timeout=PATIENCE).accept()
        host.wait_for_commits()
        assert host.memory_statistics().used == 0


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 2}], ids=["standard", "priority"])
def test_what_is_settled_while_it_is_written_out_does_not_come_back(arguments: dict[str, object]) -> None:
    """Not even when the deletion of the row by which it took its turn is committed in between."""
    store = MemoryStore()
    host = VirtualHost(store=store, memory_limit=200_000)
    queue = host.declare_queue("q", durable=True, arguments=arguments)
    assert queue.life.limit.page_out()
    with holding(store):
        host.publish_nowait(Message(b"first", routing_key="q", persistent=True))
        host.publish(Message(b"second", routing_key="q", priority=1))  # behind the first, so it takes its turn
        store.release(1)
        store.release(1)
        wait_until_blocked(lambda: len(queue) == 2)
        writer = threading.Thread(target=queue._pager.catch_up)  # behind the deletion of the turn
        writer.start()
        wait_until_blocked(writer)
        taken = [host.get("q", auto_accept=True) for _ in range(2)]
        assert sorted(received.body for received in taken if received) == [b"first", b"second"]  # type: ignore[type-var]
        store.release(2)  # the deletion of the turn, and the row itself; not the row's deletion
        writer.join()
        assert [level for level in store.levels() if level.queue == queue.store_number]
        assert queue.browse() == []
        with host.subscribe("q", selector="JMSPriority >= 0"):
            wait_until_blocked(lambda: not any(each.is_open for each in host.memory_statistics().targets))
            assert [each.entries for each in host.memory_statistics().targets] == [0, 0]  # the gets', and this
    assert host.wait_for_commits(PATIENCE)
    assert host.wait_for_commits(PATIENCE)
    assert (len(queue), store.statistics().messages, host.memory_statistics().used) == (0, 0, 0)
    host.close()


def test_a_get_for_which_there_is_no_room_says_so(host: VirtualHost) -> None:
    """Where what is unsettled takes the whole memory, a get does not claim that its queue is empty."""
    host.memory_limit = 16_000
    _publish(host, 200)
    taken: list[Received | None] = []
    with pytest.raises(ConsumerNotAdmitted, match="a get of q finds no room"):
        taken.extend(host.get("q") for _ in range(200))
    assert None not in taken
    assert len(taken) > 20
    host._memory.begin_writing(1, may_wait=False)  # a commit on its way may make room
    assert host.get("q") is None
    host._memory.end_writing(1)
    assert taken[0] is not None
    taken[0].accept()
    assert host.get("q") is not None


def test_a_get_says_that_the_store_cannot_be_read() -> None:
    """What a get would have to load, and cannot, is an error of that get; it does not try for ever."""
    store = MemoryStore()
    host = VirtualHost(store=store, memory_limit=200_000)
    host.declare_queue("q", durable=True)
    _publish(host, 1)
    host.close()
    host = VirtualHost(store=store.reopened(crashed=False), memory_limit=200_000)
    assert isinstance(host.store, MemoryStore)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host.store, "page", _fail)
        with pytest.raises(StoreFailed, match="the disk is gone"):
            host.get("q")
    assert host.get("q") is not None
    host.close()


def test_a_consumer_of_what_cannot_be_read_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """It does not wait for what will not come; the log says why, and other queues go on. It may consume again."""
    store = MemoryStore()
    host = VirtualHost(store=store, memory_limit=200_000)
    host.declare_queue("q", durable=True)
    _publish(host, 3)
    host.close()
    host = VirtualHost(store=store.reopened(crashed=False), memory_limit=200_000)
    host.declare_queue("other")
    assert isinstance(host.store, MemoryStore)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host.store, "read", _fail)
        with host.subscribe(["q", "other"]) as both, host.subscribe("q", prefetch=2) as one:
            with pytest.raises(ShutDown):
                one.get(timeout=PATIENCE)
            assert one.is_closed
            host.publish(Message(b"here", routing_key="other"))
            assert both.get(timeout=PATIENCE).body == b"here"
            wait_until_blocked(lambda: both.queues == ["other"])
    assert "the disk is gone" in caplog.text
    assert host.queue("q").consumers() == []
    host.check_invariants()
    with host.subscribe("q") as again:
        assert [again.get(timeout=PATIENCE).body for _ in range(3)] == [
            b"%d" % number + b"x" * 100 for number in range(3)
        ]
    host.close()


def _fail(*arguments: object, **options: object) -> list[Header]:
    raise StoreFailed("the disk is gone")


def test_opening_reads_no_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue is opened by its figures: what is on it is loaded when somebody wants it."""
    monkeypatch.setattr("multiqueue.broker._paging.memory.MemoryManager.refill_heads", lambda self: None)
    keeper = next(keepers(tmp_path, "sqlite", memory_limit=1 << 20))
    keeper.host.declare_queue("q", durable=True)
    _publish(keeper.host, 2000)
    host = keeper.restart()
    assert len(host.queue("q")) == 2000
    assert (host.memory_statistics().loads, host.memory_statistics().used) == (0, 0)
    with host.subscribe("q", prefetch=1) as subscription:
        assert subscription.get(timeout=PATIENCE).body == b"0" + b"x" * 100
    keeper.close()


@pytest.mark.slow
def test_a_million_messages_leave_nothing_behind() -> None:
    """After a million messages through a small budget the accounts are empty, and nothing was lost or doubled."""
    host = VirtualHost(store=MemoryStore(), memory_limit=1 << 20)
    host.declare_queue("q", durable=True)
    for _ in range(100):
        _publish(host, 10_000)
        with host.subscribe("q", prefetch=100) as subscription:
            for number in range(10_000):
                received = subscription.get(timeout=PATIENCE)
                assert received.body == b"%d" % number + b"x" * 100
                received.accept()
    host.wait_for_commits()
    assert host.memory_statistics().used == 0
    host.close()


def test_a_loader_lets_go_of_what_a_long_list_that_has_left_names() -> None:
    """Without anybody's doing: the memory of its lines is free soon after the last consumer has gone."""
    host = VirtualHost(store=MemoryStore())
    queue = host.declare_queue("q", durable=True)
    for _ in range(1500):
        host.publish_nowait(Message(b"", routing_key="q", persistent=True))
    host.wait_for_commits()
    assert queue.life.limit.page_out()
    consumer = queue.add_consumer(lambda _: None)
    queue.set_notify_work_desired(consumer, True)
    wait_until_blocked(lambda: host.memory_statistics().targets[0].entries == 1500)
    queue.remove_consumer(consumer)
    wait_until_blocked(lambda: host.memory_statistics().entries == 0)
    host.check_invariants()
    host.close()
