"""Wait in a coroutine on many queues that threads fill."""

import asyncio
import threading

from multiqueue import LinkedBlockingMultiQueue, ShutDown

events: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
sensors = [events.add_subqueue(name, capacity=2) for name in ("door", "window")]


def measure(sensor: int) -> None:
    for value in range(3):
        sensors[sensor].put(10 * sensor + value)  # waits while the coroutine is behind


async def collect() -> dict[str, list[int]]:
    seen: dict[str, list[int]] = {"door": [], "window": []}
    try:
        while True:
            subqueue, value = await events.async_take()
            seen[str(subqueue.key)].append(value)
            subqueue.task_done()
    except ShutDown:
        return seen


async def main() -> None:
    threads = [threading.Thread(target=measure, args=(n,)) for n in range(2)]
    collected = asyncio.create_task(collect())
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    events.shutdown()
    print(await collected)


asyncio.run(main())
