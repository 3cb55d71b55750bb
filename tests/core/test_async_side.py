"""Coroutines and threads on the same queues: nothing is lost, and no taker sleeps beside an element."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from multiqueue import Detached, LinkedBlockingMultiQueue, Queue, ShutDown
from multiqueue.testing import Threads, wait_until_blocked


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 30))


@pytest.fixture
def mq() -> LinkedBlockingMultiQueue[Any]:
    return LinkedBlockingMultiQueue()


async def parked(count: int, *queues: Any) -> None:
    """Let the loop run until so many are parked."""
    while sum(_waiting(queue) for queue in queues) != count:
        await asyncio.sleep(0)


def _waiting(queue: Any) -> int:
    figures = queue.statistics()
    return figures.waiting_takers + getattr(figures, "waiting_putters", 0)


def test_what_is_there_is_taken_at_once(mq: LinkedBlockingMultiQueue[Any]) -> None:
    """async_get and async_take return what is due without waiting; async_put puts it."""

    async def main() -> None:
        sub = mq.add_subqueue("a", capacity=2)
        await sub.async_put(1)
        await sub.async_put(2)
        assert await mq.async_get() == 1
        assert await mq.async_take() == (sub, 2)

    run(main())


def test_a_thread_wakes_a_coroutine_and_the_other_way_round(mq: LinkedBlockingMultiQueue[Any]) -> None:
    """A put by a thread wakes a coroutine that waits; a take by a coroutine wakes a thread that waits for room."""
    sub = mq.add_subqueue("a", capacity=1)

    async def main() -> None:
        taker = asyncio.create_task(mq.async_get())
        await parked(1, mq)
        with Threads() as threads:
            threads.start(sub.put, 1)
            assert await taker == 1
            sub.put(2)
            putter = threads.start(sub.put, 3)
            wait_until_blocked(putter.thread)
            assert await sub.async_get() == 2
            assert await mq.async_get() == 3

    run(main())


def test_async_put_waits_for_room() -> None:
    """async_put waits while the queue is full, and goes on when an element is taken."""
    queue: Queue[int] = Queue(1)

    async def main() -> None:
        await queue.async_put(1)
        putter = asyncio.create_task(queue.async_put(2))
        await parked(1, queue)
        assert queue.get() == 1
        await putter
        assert queue.get() == 2

    run(main())


def test_a_cancelled_taker_has_taken_nothing(mq: LinkedBlockingMultiQueue[Any]) -> None:
    """One that is cancelled while it waits leaves no waiter parked; an element put later goes to another."""
    sub = mq.add_subqueue("a")

    async def main() -> None:
        for take in (mq.async_get, sub.async_get):
            taker = asyncio.create_task(take())
            await parked(1, mq, sub)
            taker.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taker
            await parked(0, mq, sub)
        sub.put(1)
        assert await mq.async_get() == 1

    run(main())


def test_cancelled_after_it_was_woken(mq: LinkedBlockingMultiQueue[Any]) -> None:
    """One that is cancelled between its wake-up and its return passes the wake-up on (core 5)."""
    sub = mq.add_subqueue("a")

    async def main() -> None:
        first, second = asyncio.create_task(mq.async_get()), asyncio.create_task(mq.async_get())
        await parked(2, mq)
        sub.put(1)  # wakes the first
        first.cancel()
        assert await second == 1
        with pytest.raises(asyncio.CancelledError):
            await first

    run(main())


def test_cancelled_putter_after_it_was_woken() -> None:
    """A putter that is cancelled after there was room for it passes the room on, and has put nothing."""
    queue: Queue[int] = Queue(1)

    async def main() -> None:
        queue.put(0)
        first, second = asyncio.create_task(queue.async_put(1)), asyncio.create_task(queue.async_put(2))
        await parked(2, queue)
        assert queue.get() == 0
        first.cancel()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
        assert list(queue) == [2]

    run(main())


def test_closing_ends_every_wait(mq: LinkedBlockingMultiQueue[Any]) -> None:
    """Coroutines that wait learn of a removal and of a shutdown."""
    full = mq.add_subqueue("full", capacity=1)
    full.put(1)
    full.disable()

    async def main() -> None:
        putter, taker = asyncio.create_task(full.async_put(2)), asyncio.create_task(mq.async_get())
        await parked(2, mq, full)
        mq.remove_subqueue("full")
        with pytest.raises(Detached):
            await putter
        mq.shutdown()
        with pytest.raises(ShutDown):
            await taker

    run(main())


def test_a_loop_that_is_gone_swallows_no_wake_up(mq: LinkedBlockingMultiQueue[Any]) -> None:
    """A coroutine left behind in a closed event loop is passed over; the wake-up goes to the next taker."""
    sub = mq.add_subqueue("a")
    loop = asyncio.new_event_loop()
    orphan = loop.create_task(mq.async_get())
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert mq.statistics().waiting_takers == 1
    loop.close()
    with Threads() as threads:
        taker = threads.start(mq.get)
        wait_until_blocked(taker.thread)
        sub.put(1)
        assert taker.result() == 1
    assert not orphan.done()
    orphan._log_destroy_pending = False  # type: ignore[attr-defined]


def test_two_loops_and_threads_share_the_work(mq: LinkedBlockingMultiQueue[Any]) -> None:
    """Takers in two event loops and a thread get each element once."""
    subs = [mq.add_subqueue(n, capacity=5) for n in range(3)]
    taken: list[int] = []

    async def take_all() -> None:
        try:
            while True:
                taken.append(await mq.async_get())
                await asyncio.sleep(0)
        except ShutDown:
            pass

    def take_in_thread() -> None:
        while (item := mq.poll(None, default=None)) is not None:
            taken.append(item)

    with Threads() as threads:
        for _ in range(2):
            threads.start(lambda: run(take_all()))
        threads.start(take_in_thread)
        putters = [threads.start(lambda n=n: [subs[n].put(n * 1000 + i + 1) for i in range(300)]) for n in range(3)]
        for putter in putters:
            putter.join()
        mq.shutdown()
    assert sorted(taken) == sorted(n * 1000 + i + 1 for n in range(3) for i in range(300))
