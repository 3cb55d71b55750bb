"""Publishers that wait for the memory: each wait ends, in every order and whichever of them fails."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest
from broker_parts_support import Account, Area, MemoryManager, Share, TargetList
from explorations_support import explored

from multiqueue.broker import ConsumerNotAdmitted, Message, VirtualHost
from multiqueue.store import MemoryStore, StoreFull
from multiqueue.testing import PATIENCE, Run, explore

LIMIT = 16_000  # of which an eighth may wait for its commit: two messages of 900 bytes
COST = 900
MODULES = [threading, sys.modules[MemoryManager.__module__]]  # which make the locks


def _hold(scenario: Callable[[Run], None]) -> None:
    assert explore(scenario, modules=MODULES).schedules > 1


@explored(_hold)
def test_publishers_and_commits_end_in_every_order(run: Run) -> None:
    """Three publishers, room for two: the third goes on when another's commit ends, and nothing stays charged."""
    memory = MemoryManager(LIMIT)

    def publish() -> None:
        memory.begin_writing(COST, may_wait=True)
        memory.end_writing(COST)

    for _ in range(3):
        run.spawn(publish)
    run.join()
    assert memory.statistics().used == 0


def test_a_publisher_that_waits_goes_on_when_the_memory_is_closed() -> None:
    """A closed virtual host keeps no publisher waiting, in every order of publishers, their commits and the close."""

    def scenario(run: Run) -> None:
        memory = MemoryManager(LIMIT)
        memory.begin_writing(2 * COST, may_wait=True)  # and its commit never comes
        for _ in range(2):
            run.spawn(memory.begin_writing, COST, may_wait=True)
        run.spawn(memory.close)
        run.join()

    assert explore(scenario, modules=MODULES).schedules > 1


@pytest.mark.parametrize(("size", "most"), [(100 << 10, 12 << 20), (1 << 20, 24 << 20)])
def test_more_of_large_messages_may_wait_for_their_commit(size: int, most: int) -> None:
    """A publisher on an I/O thread is held back beyond 12 MiB of small messages, whose commits take long, and beyond 24
    of large ones."""
    memory = MemoryManager(1 << 30)
    told = threading.Event()
    given = 0
    while not memory.hold_back(told.set):
        memory.begin_writing(size, may_wait=False)
        given += size
    assert most < given <= most + size
    assert not told.is_set()
    memory.end_writing(size)
    assert told.is_set()


class Unmanned(MemoryManager):
    """Without loaders: tests are the loaders themselves."""

    def _start(self) -> None:
        pass


def _loading(memory: MemoryManager) -> TargetList:
    """A list that a load is under way for."""
    target = memory.paging.join(Area("q"), "a consumer", Share(0))
    target.loading = True
    memory.paging.stirred = False
    return target


def _wait_for_stir(memory: MemoryManager) -> None:
    """What a loader does when it has nothing to do. That it is woken is not enough for it: something must stir."""
    with memory._lock:
        while not memory.paging.stirred:
            memory._work.wait()


@explored(_hold)
def test_the_end_of_a_commit_reaches_a_publisher_behind_somebody_who_waits_for_a_load(run: Run) -> None:
    """A get and a publisher wait at one place, for different ends: when the commit ends the publisher goes on, though
    the get, which came first and whose load is under way still, is woken as well."""
    memory = MemoryManager(LIMIT)
    target = _loading(memory)
    memory.begin_writing(2 * COST, may_wait=True)

    def publish() -> None:
        memory.begin_writing(COST, may_wait=True)
        memory.close()  # only now does the get go on

    run.spawn(memory.load_now, target)
    run.spawn(publish)
    run.spawn(memory.end_writing, 2 * COST)
    run.join()


@explored(_hold)
def test_a_publisher_that_waits_has_woken_a_loader_for_what_it_pushed_out(run: Run) -> None:
    """A publisher that finds no room, although the head cache has given what it had, wakes a loader before it waits:
    the loader does not sleep until the commit that the publisher waits for."""
    memory = Unmanned(LIMIT)
    paging = memory.paging
    memory.begin_writing(COST, may_wait=True)
    paging.arrive(Area("other"), 1, COST // 2, "in the head cache")
    paging.want(_loading(memory))
    paging.charge(Account.UNPAGED, paging.free)
    paging.stirred = False

    def load() -> None:
        _wait_for_stir(memory)
        memory.end_writing(COST)

    run.spawn(load)
    run.spawn(memory.begin_writing, COST, may_wait=True)
    run.join()


@explored(_hold)
def test_a_get_that_finds_no_room_has_woken_a_loader_for_what_others_gave(run: Run) -> None:
    """A load that a get wants does not fit, although another list has given all but its first message: a loader is
    woken, for somebody else may be content with less."""
    memory = Unmanned(LIMIT)
    paging = memory.paging
    rich, poor = (paging.join(area, "a consumer", Share(0)) for area in (Area("rich"), Area("poor")))
    for position in (1, 2):
        paging.arrive(rich.area, position, COST, position)
    paging.charge(Account.UNPAGED, paging.free - 256)  # room for a line, and not for what it names
    paging.arrive(poor.area, 1, 2 * COST, None)
    for target in (rich, poor):
        paging.set_hungry(target, True)
    paging.stirred = False

    def get() -> None:
        with pytest.raises(ConsumerNotAdmitted):
            memory.load_now(poor)
        assert rich.direct == 1

    run.spawn(_wait_for_stir, memory)
    run.spawn(get)
    run.join()


def test_a_caller_that_is_interrupted_leaves_the_consumers_of_other_lists_to_the_next() -> None:
    """1. A get is to tell the consumers of two lists.  2. A signal's handler raises in the first.  3. The next caller
    tells those of the second."""
    memory = Unmanned(LIMIT)
    told: list[TargetList] = []

    class Teller:
        number = 0

        def feed(self, target: TargetList) -> None:
            with memory as paging:
                paging.served.pop(target, None)
            told.append(target)
            if len(told) == 1:
                raise KeyboardInterrupt

    targets = []
    for name in ("one", "two"):
        area = Area(name)
        memory.open_area(area, Teller())  # type: ignore[arg-type]  # what telling needs of a reader
        targets.append(memory.paging.join(area, "a consumer", Share(0)))
    memory.paging.served.update(dict.fromkeys(targets))
    with pytest.raises(KeyboardInterrupt):
        memory.load_now(targets[0])
    memory.load_now(targets[1])
    assert told == targets
    assert not memory.paging.served


def test_what_follows_a_refusal_does_not_wait_for_commits() -> None:
    """1. The first thing that the store does is to refuse a message.  2. Its publisher's callback publishes another,
    while more waits for its commit than the memory likes.  3. It does not wait: that commit is its own thread's.
    """
    store = MemoryStore()
    host = VirtualHost(store=store, memory_limit=LIMIT)
    host.declare_queue("q", durable=True)
    answered: list[BaseException | None] = []
    called = threading.Event()

    def publish_again(error: BaseException | None) -> None:
        answered.append(error)
        host.publish_nowait(Message(b"x" * 600, routing_key="q", persistent=True))
        called.set()

    store.fail_at(1, StoreFull("no room"))
    store.hold()
    refused = host.publish_nowait(Message(b"x", routing_key="q", persistent=True))
    refused.add_done_callback(publish_again)
    host.publish_nowait(Message(b"x" * 200, routing_key="q", persistent=True))
    store.release()
    try:
        assert called.wait(PATIENCE), "the store's thread waits for itself"
        assert isinstance(answered[0], StoreFull)
        host.wait_for_commits(PATIENCE)
        assert len(host.queue("q")) == 2
    finally:
        host._memory.close()  # or a broken store's thread would wait for ever
        host.close()


def test_the_memory_stays_usable_when_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no thread for a loader, the call that wanted one raises, and no other is stopped."""
    host = VirtualHost(store=MemoryStore(), memory_limit=LIMIT)
    host.declare_queue("q", durable=True)
    for _ in range(11):  # half of the memory
        host.publish(Message(b"x", routing_key="q", persistent=True))

    def fail(memory: MemoryManager) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryManager, "_start", fail)
        with pytest.raises(RuntimeError):
            host.subscribe("q", selector="colour = 'red'", prefetch=1)
    assert host._memory._lock.acquire(timeout=1)
    host._memory._lock.release()
    assert host.get("q", auto_accept=True) is not None
    host.close()
