"""Delayed messages on queues that page: held in the store, near their time in memory, and had when it has come."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from broker_parts_support import Found, Load, Loads, PagedEntries, Span, moment_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from multiqueue.broker import Message, Overflow, QueueKind, QueueSettings, VirtualHost
from multiqueue.store import MemoryStore, Put
from multiqueue.testing import PATIENCE, FakeClock

LIMIT = 100_000  # of which a sixteenth is for what is near: some four messages


class Waiting(RuleBasedStateMachine):
    """One queue that pages, and a list of what is on it."""

    kind = QueueKind.STANDARD
    is_durable = True
    shift = 0.0  # of the wall clock

    @initialize()
    def open(self) -> None:
        self.clock = FakeClock(1000.0)
        self.store = MemoryStore()
        self.number = 0
        self.there: dict[int, float] = {}  # until when each message is held
        self.open_host()
        more: dict[str, Any] = {"max_priority": 2} if self.kind is QueueKind.PRIORITY else {}
        self.host.declare_queue("q", settings=QueueSettings(kind=self.kind, durable=self.is_durable, **more))
        self.begin_to_page()

    def begin_to_page(self) -> None:
        """Fill the queue; one message that waits for ever has it go on paging."""
        self.publish(1e6, 0)
        while not self.is_paging:
            self.publish(0.0, 0)
            self.commit()
        self.drain()

    def open_host(self) -> None:
        self.host = VirtualHost(
            store=self.store, memory_limit=LIMIT, clock=self.clock, wall_clock=lambda: self.clock() + self.shift
        )
        self.consumed = 0

    @property
    def queue(self) -> Any:
        return self.host.queue("q")

    @property
    def is_paging(self) -> bool:
        return isinstance(self.queue.life.source, PagedEntries)

    def commit(self) -> None:
        for _ in range(2):  # what follows a commit may submit again
            self.host.wait_for_commits()

    def publish(self, delay: float, priority: int) -> None:
        self.number += 1
        headers = {"n": self.number, "tenant": f"t{self.number % 3}"}
        body = b"x" * 300
        self.there[self.number] = self.clock() + delay
        self.host.publish_nowait(
            Message(
                body,
                routing_key="q",
                persistent=self.is_durable,
                delay=delay or None,
                priority=priority,
                headers=headers,
            )
        )

    @rule(delays=st.lists(st.integers(0, 9), min_size=1, max_size=25), priority=st.integers(0, 2))
    def put(self, delays: list[int], priority: int) -> None:
        for delay in delays:
            self.publish(delay * 10.0, priority)
        self.commit()

    @rule(seconds=st.sampled_from([1.0, 9.0, 10.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def keep_time(self) -> None:
        for _ in range(100):
            self.commit()
            again = self.queue.housekeeping()
            if again is None or again > self.clock():
                return

    @rule(most=st.integers(1, 200), gives_back=st.booleans())
    def drain(self, most: int = 1000, gives_back: bool = False) -> None:
        """Whoever gets what can be had has all that is due, and nothing else."""
        self.keep_time()
        due = {number for number, until in self.there.items() if until <= self.clock()}
        got: list[int] = []
        taken = []
        while len(got) < most and (received := self.host.get("q")) is not None:
            got.append(received.message.headers["n"])
            taken.append(received)
        assert set(got) <= due, "a message came before its time"
        assert len(got) == len(set(got)) == min(most, len(due))
        if self.kind is QueueKind.STANDARD:
            assert got == sorted(due)[:most]
        for received in taken:
            if gives_back:
                received.release()
            else:
                received.accept()
                del self.there[received.message.headers["n"]]
        self.commit()

    @rule()
    def purge(self) -> None:
        self.keep_time()
        assert self.queue.purge() == len(self.there)
        self.there.clear()
        self.commit()
        self.begin_to_page()

    @rule(least=st.integers(0, 100))
    def cancel(self, least: int) -> None:
        """Delete what has a number above, wherever it is."""
        gone = {number for number in self.there if number % 100 > least}
        deleted = self.queue.delete_messages(lambda message: message.headers["n"] % 100 > least)
        assert deleted == len(gone)
        for number in gone:
            del self.there[number]
        self.commit()
        self.begin_to_page()

    @rule()
    def browse(self) -> None:
        assert sorted(message.headers["n"] for message in self.queue.browse()) == sorted(self.there)

    @rule()
    def restart(self) -> None:
        if self.is_durable:
            self.host.close()
            self.store = self.store.reopened()
            self.open_host()

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "host"):
            self.commit()
            self.keep_time()
            figures = self.queue.statistics()
            assert figures.depth == len(self.there)
            assert figures.held == sum(until > self.clock() for until in self.there.values())
            if self.is_paging:
                self.host.check_invariants()

    def teardown(self) -> None:
        if hasattr(self, "host"):
            self.host.close()


@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "transient"])
@pytest.mark.parametrize("kind", [QueueKind.STANDARD, QueueKind.PRIORITY, QueueKind.FAIR])
def test_any_history(kind: QueueKind, is_durable: bool) -> None:
    """Whatever happens to a queue that pages, a delayed message is there, counted as held, cannot be had before its
    time and can be afterwards (bounded-memory 19)."""
    machine = type(f"Waiting{kind.name}", (Waiting,), {"kind": kind, "is_durable": is_durable})
    machine.TestCase.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
    machine.TestCase().runTest()


@pytest.fixture
def desk() -> Iterator[Waiting]:
    """A durable queue that pages, and is empty."""
    desk = Waiting()
    desk.open()
    yield desk
    desk.teardown()


def test_what_waits_takes_little_memory(desk: Waiting) -> None:
    """Of many messages that wait few are entries, and all come in the order of their times (bounded-memory 19)."""
    desk.put([9 - number % 10 for number in range(300)], 0)
    desk.restart()
    desk.drain()
    source = desk.queue.life.source
    assert desk.queue.statistics().held == 271
    assert len(source.taken) < 20
    assert source.held.far > 250
    for _ in range(9):
        desk.is_sound()
        desk.drain()
        desk.clock.advance(10.0)
    desk.drain()
    assert len(desk.there) == 1


def test_what_waits_takes_little_memory_once_it_is_written_out(desk: Waiting) -> None:
    """A message that is not durable leaves the memory when its row is committed."""
    desk.teardown()
    desk.is_durable = False
    desk.open()
    desk.put([9 - number % 9 for number in range(300)], 0)
    desk.is_sound()
    assert desk.queue.statistics().held == 301
    assert len(desk.queue.life.source.taken) < 20


def test_nothing_can_be_had_before_what_is_far(desk: Waiting) -> None:
    """What is let go is far, and neither that nor anything due later ends, or is taken by a load that read it."""
    desk.put([9 - number % 9 for number in range(100)], 0)
    source = desk.queue.life.source
    entry = max(source.taken.values(), key=moment_of)
    with desk.host.subscribe("q", prefetch=1), desk.queue.life.lock:
        source.held.let_go(entry)
        assert source.held.is_far(entry.held_until_ms, entry.position)
        assert source.area.near < moment_of(entry)
        near = source.area.near
        assert not source.held.may_end(entry)
        assert source.area.near == near
        source.taken.pop(entry.position)
        target = source.area.lists[0]
        with source._memory as paging:
            paging.let_wait(source.area, entry.position)
            target.scans[0] = entry.position - 1
            load = Load(source.area, target=target, spans=[Span(0, entry.position - 1, entry.position)])
            source.area.looks.append(load)
            Loads(paging).loaded(load, [Found(entry.position, 1000, entry, entry.held_until_ms)])
            assert entry.position not in target.entries


def test_what_waits_expires_wherever_it_is(desk: Waiting) -> None:
    """A message whose time to live ends before its delay is dead-lettered then: far or near."""
    desk.host.declare_queue("dead", settings=QueueSettings(durable=True))
    dead_letters = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    queue = desk.host.declare_queue("short", settings=QueueSettings(durable=True, **dead_letters))
    for number in range(100):
        body = b"x" * 1000
        desk.host.publish(
            Message(body, routing_key="short", persistent=True, delay=100.0 + number, expiration=float(number))
        )
    desk.commit()
    assert isinstance(queue.life.source, PagedEntries)
    assert queue.life.source.held.far
    assert queue.life.source.taken
    desk.clock.advance(60.5)
    desk.commit()
    queue.housekeeping()
    desk.commit()
    assert [queue.statistics().held, queue.statistics().depth] == [39, 39]
    assert desk.host.queue("dead").statistics().depth == 61


def test_a_ring_of_messages_that_wait_stays_within_its_limit(desk: Waiting) -> None:
    """What is above a limit goes although all of it waits for its time."""
    desk.host.declare_queue("ring", settings=QueueSettings(durable=True, max_length=30, overflow=Overflow.RING))
    for number in range(200):
        body = b"x" * 1000
        desk.host.publish(Message(body, routing_key="ring", persistent=True, delay=5.0 + number))
    desk.commit()
    assert isinstance(desk.host.queue("ring").life.source, PagedEntries)
    assert desk.host.queue("ring").statistics().held == 30


def test_a_consumer_with_a_selector_has_what_it_wants_when_its_time_comes(desk: Waiting) -> None:
    """A selector is asked about a message when it comes near its time, whether its consumer came before or after."""
    with desk.host.subscribe("q", selector="tenant = 't1'", prefetch=10) as before:
        desk.put([1] * 60, 0)
        with desk.host.subscribe("q", selector="tenant = 't2'", prefetch=10) as after:
            desk.is_sound()
            desk.clock.advance(10.0)
            for _ in range(20):
                for subscription, tenant in ((before, "t1"), (after, "t2")):
                    desk.keep_time()
                    received = subscription.get(timeout=PATIENCE)
                    assert received is not None
                    assert received.message.headers["tenant"] == tenant
                    received.accept()
                    del desk.there[received.message.headers["n"]]
    desk.is_sound()


def test_what_came_near_beyond_what_was_let_go_is_shown_to_a_later_selector(
    desk: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Rows are read.  2. A message is put that is due before most of them, and let go.  3. The rows come near, with
    a gap.  4. A consumer comes, and its load reads nothing that is due long after the gap.  It has all of it."""
    for number in range(30):
        desk.publish(100.0 * number, 0)
    desk.commit()
    for _ in range(4):
        desk.clock.advance(100.0)
        desk.drain()
    read = desk.store.held

    def put_meanwhile(queue: int, after: tuple[int, int, int], limit: int) -> list[Any]:
        rows = read(queue, after, limit)
        monkeypatch.undo()
        desk.publish(after[0] / 1000 + 1.0 - desk.clock(), 0)
        desk.commit()
        return rows

    monkeypatch.setattr(desk.store, "held", put_meanwhile)
    while desk.store.held is put_meanwhile:
        desk.clock.advance(100.0)
        desk.drain()
    desk.is_sound()
    with desk.host.subscribe("q", selector="n > 0", prefetch=100) as later:
        while len(desk.there) > 1:
            desk.clock.advance(100.0)
            for _ in [each for each in desk.there.values() if each <= desk.clock()]:
                desk.keep_time()
                received = later.get(timeout=PATIENCE)
                received.accept()
                del desk.there[received.message.headers["n"]]
    desk.is_sound()


def test_a_message_of_an_earlier_format_waits_for_its_time() -> None:
    """Until format 3 the properties said until when a message is held."""
    desk = Waiting()
    desk.open()
    number = desk.queue.store_number
    desk.host.close()
    desk.store = desk.store.reopened()
    desk.store.submit([Put(number, b'{"k":"q","u":1050.0}', b"old"), Put(number, b'{"k":"q"}', b"free")]).wait()
    desk.open_host()
    assert [desk.host.get("q").body, desk.host.get("q")] == [b"free", None]
    desk.clock.advance(60.0)
    desk.keep_time()
    assert desk.host.get("q").body == b"old"
    desk.host.close()


def test_a_wall_clock_that_is_set_back_for_a_while_loses_nothing(desk: Waiting) -> None:
    """Of messages that were due when their queue was opened, none is taken for one that waits (bounded-memory 19)."""
    desk.put([1] * 300, 0)
    desk.clock.advance(20.0)
    desk.restart()
    desk.shift = -120.0
    desk.put([5] * 40, 0)
    desk.keep_time()
    desk.shift = 0.0
    desk.clock.advance(150.0)
    desk.keep_time()
    for _ in range(340):
        received = desk.host.get("q")
        received.accept()
        del desk.there[received.message.headers["n"]]
        desk.keep_time()
    desk.is_sound()
    assert len(desk.there) == 1


@pytest.mark.parametrize("delay", [2.0**62 / 1000, math.inf])
@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "transient"])
def test_a_message_that_waits_for_ever(desk: Waiting, delay: float, is_durable: bool) -> None:
    """A delay beyond what a store can note is none that refuses its message, or the next."""
    desk.teardown()
    desk.is_durable = is_durable
    desk.open()
    for _ in range(50):
        desk.publish(delay, 0)
        desk.publish(0.0, 0)
    desk.commit()
    desk.drain()
    desk.restart()
    desk.put([0], 0)
    desk.drain()
    desk.is_sound()
    assert len(desk.there) == 51
