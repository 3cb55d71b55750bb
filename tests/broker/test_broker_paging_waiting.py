"""Publishers that wait for the memory: each wait ends, in every order and whoever fails."""

from __future__ import annotations

import threading

import pytest

from multiqueue.broker import Message, VirtualHost
from multiqueue.broker import _memory as memory_module
from multiqueue.broker._memory import MemoryManager
from multiqueue.store import MemoryStore, StoreFull
from multiqueue.testing import Run, explore

LIMIT = 16_000  # of which an eighth may wait for its commit: two messages of 900 bytes
COST = 900
HANG = 20.0


def test_publishers_and_commits_end_in_every_order() -> None:
    """Three publishers, room for two: whoever waits goes on when another's commit ends, and nothing stays charged."""

    def scenario(run: Run) -> None:
        memory = MemoryManager(LIMIT)

        def publish() -> None:
            memory.begin_writing(COST, may_wait=True)
            memory.end_writing(COST)

        for _ in range(3):
            run.spawn(publish)
        run.join()
        assert memory.statistics().used == 0

    assert explore(scenario, modules=[memory_module.threading]).schedules > 1


def test_a_publisher_that_waits_goes_on_when_the_memory_is_closed() -> None:
    """A virtual host that is closed keeps nobody, in every order of publishers, their commits and the close."""

    def scenario(run: Run) -> None:
        memory = MemoryManager(LIMIT)
        memory.begin_writing(2 * COST, may_wait=True)  # and its commit never comes
        for _ in range(2):
            run.spawn(memory.begin_writing, COST, may_wait=True)
        run.spawn(memory.close)
        run.join()

    assert explore(scenario, modules=[memory_module.threading]).schedules > 1


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
        assert called.wait(HANG), "the store's thread waits for itself"
        assert isinstance(answered[0], StoreFull)
        host.wait_for_commits(HANG)
        assert len(host.queue("q")) == 2
    finally:
        host._memory.close()  # or a broken store's thread would wait for ever
        host.close()


def test_the_memory_stays_usable_when_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no thread for a loader, the call that wanted one raises, and nobody else is stopped."""
    host = VirtualHost(store=MemoryStore(), memory_limit=LIMIT)
    host.declare_queue("q", durable=True)
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
