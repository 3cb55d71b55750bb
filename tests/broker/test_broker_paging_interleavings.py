"""What threads do to each other while a queue begins to page, and comes back to memory: in every order of its locks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import pytest
from broker_parts_support import Journal, MemoryManager, PagedEntries, QueueJournal, Spill
from broker_parts_support import credit as _credit
from broker_parts_support import queue as _queue_module
from explorations_support import explored, surprises

from multiqueue.broker import BrokerQueue, Message, QueueConsumer
from multiqueue.store import Delete, Header, MemoryStore, Operation, Put
from multiqueue.testing import Run, explore

LIMIT = 1 << 20


class Unmanned(MemoryManager):
    """Without loaders: `Office.load` is one."""

    def _start(self) -> None:
        pass


class Done:
    """A commit that is made."""

    is_done = True

    def wait(self, timeout: float | None = None) -> bool:
        return True


class Instant:
    """A store that commits in the call, on the thread that hands something in."""

    redeliver_floor = 0

    def __init__(self) -> None:
        self.rows: dict[int, Put] = {}
        self.numbers = 0

    def allocate(self) -> int:
        self.numbers += 1
        return self.numbers

    def submit(
        self,
        operations: Sequence[Operation],
        committed: Callable[[], object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
        *,
        lingers: bool = False,
        waits: bool = True,
    ) -> Done:
        for each in operations:
            if isinstance(each, Put):
                self.rows[each.id] = each
            elif isinstance(each, Delete):
                for number in each.ids:
                    self.rows.pop(number, None)
        if committed is not None:
            committed()
        return Done()

    def page(self, queue: int, after: int, limit: int, *, level: int = 0) -> list[Header]:
        found = sorted(number for number, put in self.rows.items() if put.queue == queue and number > after)
        rows = [self.rows[number] for number in found[:limit]]
        return [Header(put.id, len(put.body), put.expires_at, put.deliveries, put.properties) for put in rows]

    def read(self, ids: Iterable[int]) -> dict[int, bytes]:
        return {number: self.rows[number].body for number in ids if number in self.rows}

    def expired(self, now: float, limit: int) -> list[tuple[int, int, int]]:
        return []

    def next_expiry(self, now: float) -> float | None:
        return None


class Office:
    """A queue that outgrows its memory when told to, and consumers that write down that they were told."""

    def __init__(self) -> None:
        self.told: list[QueueConsumer] = []
        self.given: list[object] = []
        self.memory = Unmanned(LIMIT)
        self.store = Instant()
        journal = Journal(self.store, self.memory)  # type: ignore[arg-type]  # what a queue needs of it

        def new_rows() -> QueueJournal:
            return QueueJournal(journal, self.store.allocate(), lambda *arguments: None)

        self.queue = BrokerQueue(
            "q",
            clock=lambda: 0.0,
            pager_of=lambda queue: Spill(queue, self.memory, new_rows),
            on_error=self._fail,
        )

    def _fail(self, queue: object, action: str, error: Exception) -> None:
        raise AssertionError(action) from error

    def consumer(self, *, selects: bool = False) -> QueueConsumer:
        selector = _selects if selects else None
        consumer = self.queue.add_consumer(self.told.append, selector=selector, auto_accept=True)
        self.queue.set_notify_work_desired(consumer, True)
        return consumer

    def put(self, *bodies: bytes) -> None:
        for body in bodies:
            self.queue.put(Message(body))

    def load(self) -> None:
        """What a loader does until there is nothing to load."""
        memory = self.memory
        while True:
            with memory._lock:
                load = memory._loads.next_load()
                served = list(memory.paging.served)
            memory._tell(served)
            if load is None:
                return
            memory._perform(load)

    def pull(self) -> None:
        """What those do that were told."""
        while self.told:
            consumer = self.told.pop()
            while (entry := self.queue.deliver_single_message(consumer)) is not None:
                self.given.append(entry.message.body)

    def work_off(self) -> list[object]:
        """Load, let each told consumer pull; then none may be left waiting. All that was given, in order."""
        while self.told or self.memory.paging.stirred:
            self.load()
            self.pull()
        self.queue.check_invariants()
        self.memory.check_invariants()
        return self.given

    @property
    def pages(self) -> bool:
        return isinstance(self.queue.life.source, PagedEntries)


def _selects(message: Message) -> bool:
    return True


def in_orders(*, preemptions: int = 2, within: Sequence[str] = ()) -> Callable[..., Callable[..., None]]:
    modules = [_queue_module, _credit, threading]
    most = surprises(preemptions)

    def hold(scenario: Callable[[Run], None]) -> None:
        assert explore(scenario, modules=modules, preemptions=most, within=within).schedules > 1

    return explored(hold)


@pytest.mark.parametrize("selects", [False, True])
@in_orders()
def test_publish_against_coming_back(run: Run, selects: bool) -> None:
    """A message that comes while its queue, empty, goes back to memory is delivered, from here or from there."""
    office = Office()
    office.consumer(selects=selects)
    assert office.queue.life.limit.page_out()
    run.spawn(office.put, b"a", b"b")
    run.spawn(office.queue.housekeeping)
    run.join()
    assert office.work_off() == [b"a", b"b"]
    assert len(office.queue) == 0
    office.queue.housekeeping()
    assert not office.pages
    assert (office.store.rows, office.memory.statistics().used) == ({}, 0)


@pytest.mark.parametrize("is_kept", [False, True])
@in_orders()
def test_settling_against_coming_back(run: Run, is_kept: bool) -> None:
    """The last message is settled, or given back, while housekeeping looks: a queue with a message on it stays."""
    office = Office()
    office.put(b"a")
    assert office.queue.life.limit.page_out()
    entry = office.queue.get(office)
    assert entry is not None
    settle = office.queue.release if is_kept else office.queue.accept
    run.spawn(settle, entry, office)
    run.spawn(office.queue.housekeeping)
    run.join()
    assert len(office.queue) == is_kept
    assert office.pages or not is_kept
    office.consumer()
    assert office.work_off() == [b"a"] * is_kept


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("selects", [False, True])
@in_orders(preemptions=1)
def test_beginning_to_page_against_publishing_and_pulling(run: Run, selects: bool) -> None:
    """A client that publishes and pulls while a queue begins to page loses nothing and gets nothing twice."""
    office = Office()
    office.put(b"a")
    office.consumer(selects=selects)
    run.spawn(office.queue.life.limit.page_out)
    run.spawn(office.put, b"b")
    run.spawn(office.pull)
    run.join()
    assert office.work_off() == [b"a", b"b"]
    assert office.pages
    assert office.store.rows == {}


@in_orders(preemptions=1, within=["multiqueue.broker._paging.reader"])
def test_a_selector_is_asked_about_what_comes_back_while_it_is_written_out(run: Run) -> None:
    """1. A message that memory alone has is given back.  2. A load asks a selector about it, while it is written out
    and let go of.  3. It is found in the one place or in the other."""
    office = Office()
    office.queue.life.limit.page_out()
    office.put(b"a")
    entry = office.queue.get(office)
    assert entry is not None
    office.consumer(selects=True)
    office.load()
    office.queue.release(entry, office)

    def write_out() -> None:
        office.queue._pager.catch_up()
        for limit in (900, LIMIT):  # less than one message takes: all that can be is let go of
            with office.memory as paging:
                paging.set_limit(limit)

    run.spawn(write_out)
    run.spawn(office.load)
    run.join()
    assert office.work_off() == [b"a"]


def test_the_store_of_these_tests_pages_as_others_do() -> None:
    """What these schedules stand on reads rows like a store that is tested by itself."""
    ours, real = Instant(), MemoryStore()
    stores: tuple[Instant | MemoryStore, ...] = (ours, real)
    for store in stores:
        puts = [Put(1, b"p", b"x" * number, id=store.allocate()) for number in range(3)]
        store.submit(puts).wait()
        store.submit([Delete([puts[0].id])]).wait()
    assert ours.page(1, 0, 10) == real.page(1, 0, 10)
    assert ours.read([2, 3]) == real.read([2, 3])
    real.close()
