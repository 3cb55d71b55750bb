"""Each operation of the engine, small, for the proofs of memory: `.ci/engine leaks` and `.ci/engine memory`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from broker_parts_support import FairEntry, FairOptions, Tenants

from multiqueue import Empty, FairQueue, Full, LinkedBlockingMultiQueue, Queue, ShutDown
from multiqueue.broker import Message
from multiqueue.core import Ring, Turn

QUEUE: Any = SimpleNamespace(name="q")


def _entry(number: int, tenant: str) -> FairEntry:
    entry = FairEntry(QUEUE, Message(b""), number)
    entry.position, entry.key = number, tenant
    return entry


class House:
    """A multi-queue with three lanes, elements in two of them, a queue by itself, and a broker queue's tenants."""

    def __init__(self) -> None:
        self.m: LinkedBlockingMultiQueue[Any] = LinkedBlockingMultiQueue()
        self.a = self.m.add_subqueue("a", capacity=4)
        self.b = self.m.add_subqueue("b", weight=2, max_in_flight=3)
        self.c = self.m.add_subqueue("c", 1)
        self.q: Queue[Any] = Queue(4)
        self.f: FairQueue[Any] = FairQueue(weights={"f1": 2.5}, capacity=9)
        for index in range(6):
            self.f.put(("f", index), key=("f1", index % 2), cost=1.5)
        for index in range(3):
            self.a.put(("a", index))
            self.b.put(("b", index))
            self.q.put(("q", index))
        self.t = Tenants(FairOptions.of({}), lambda: 1000.0, lambda when: None, {})
        self.t.have_objects(has_all=True)
        self.t.arrive([_entry(number, f"t{number // 3}") for number in range(300, 310)])
        self.run: list[Any] = []
        self.t.take_turns(self.run, 2, 1000)
        self.coming = [
            _entry(400 + number, tenant) for number, tenant in enumerate(["t100", "new", "t102", "new", "new"])
        ]

    def check_invariants(self) -> None:
        """Raise AssertionError when something contradicts itself."""
        for each in (self.m, self.q, self.f, self.t):
            each.check_invariants()
        for lane in self.t.lanes():
            assert lane.waiting_bytes == sum(entry.size for entry in lane.arrived)

    def elements(self) -> list[Any]:
        """All that is in it, sub-queue by sub-queue."""
        waiting = [entry for lane in self.t.lanes() for entry in lane.arrived]
        entries = sorted([*waiting, *self.run], key=lambda entry: entry.position)
        return [*self.a, *self.b, *self.c, *self.q, *_all_of(self.f), *entries]


class First:
    """A selection that keeps to the order of service."""

    def select(self, ready: Any) -> Any:
        return ready[0]

    def taken(self, subqueue: Any) -> None:
        pass


def _selecting(house: House) -> list[Any]:
    m: LinkedBlockingMultiQueue[Any] = LinkedBlockingMultiQueue(selection=First())
    m.add_subqueue("x").put_many([1, 2, 3])
    return [m.get(), *m.get_many(5)]


def _full(house: House) -> None:
    house.q.put(0)
    try:
        house.q.put(1, timeout=0.001)
    except Full:
        pass


def _empty(house: House) -> None:
    house.c.disable()
    try:
        house.c.get(timeout=0.001)
    except Empty:
        pass


def _removed(house: House) -> None:
    removed = house.m.remove_subqueue("a")
    try:
        removed.put(1)
    except ShutDown:
        pass
    assert removed.clear() == 3


def _shutdown(house: House) -> None:
    house.m.shutdown(immediate=True)
    house.q.shutdown()
    try:
        house.m.get()
    except ShutDown:
        pass


def _async(house: House) -> None:
    async def wait() -> None:
        try:
            await asyncio.wait_for(house.c.async_get(), 0.001)
        except TimeoutError:
            pass
        waiting = asyncio.create_task(house.c.async_get())
        await asyncio.sleep(0)
        house.c.put(1)
        assert await waiting == 1

    asyncio.run(wait())


def _attributes(house: House) -> None:
    with house.q.mutex:
        house.q.queue.append("last")
    house.q.queue.pop()
    house.q.put(1)


def _many(house: House) -> None:
    house.c.put_many(range(5000))
    assert len(house.c.get_many(10_000)) == 5000


def _ring(house: House) -> None:
    """Turns that come, are served, move and go, in a ring within a ring; and at the end all of it is a circle."""
    ring = Ring()
    customer = Turn(ring, weight=2.5)
    inner = Ring(customer)
    turns = [Turn(inner, priority=number) for number in range(5)]
    for turn in turns:
        turn.join()
    for _ in range(10):
        due = ring.due()
        assert due is not None
        due.charge(3.0)
        due.leave()
        due.resume()
        due.priority += 3
    turns[1].leave()
    inner.check_invariants()


def _all_of(fair: FairQueue[Any]) -> list[Any]:
    """What is in it, in no order of service: taken, and put again."""
    taken = []
    while not fair.empty():
        taken.append(fair.take())
    for key, item in taken:
        fair.put(item, key=key)
    return sorted(item for _, item in taken)


def _fair(house: House) -> None:
    """Keys come, are set, limited and paused, and go; and a queue of them ends as a circle."""
    queue: FairQueue[Any] = FairQueue(max_in_flight=2)
    for number in range(40):
        queue.put(number, key=("customer", number % 5, number), cost=2.0)
    queue.set_max_in_flight("customer", 5)
    queue.pause(("customer", 1))
    while queue.poll(default=None) is not None:
        pass
    queue.task_done(("customer", 2, 2))
    queue.resume(("customer", 1))
    queue.put(queue, key=queue)
    queue.waiting()
    queue.check_invariants()


# Whether it takes elements: what it returns is what it has taken.
OPERATIONS: dict[str, Callable[[House], Any]] = {
    "put": lambda house: house.b.put(1),
    "put first": lambda house: house.a.put_first(1),
    "put many": lambda house: house.c.put_many(range(20)),
    "offer": lambda house: house.a.offer(1),
    "get": lambda house: house.m.get(),
    "get in time": lambda house: house.m.get(timeout=1),
    "take": lambda house: house.m.take(),
    "poll": lambda house: house.m.poll(),
    "get many": lambda house: house.m.get_many(4),
    "get of one": lambda house: house.b.get(),
    "drain": lambda house: house.m.drain_to([].append),
    "selection": _selecting,
    "full": _full,
    "empty": _empty,
    "remove": lambda house: house.a.remove(("a", 1)),
    "clear": lambda house: house.b.clear(),
    "iterate": lambda house: list(house.a),
    "settings": lambda house: setattr(house.a, "priority", 3),
    "reasons": lambda house: house.a.disable("why"),
    "statistics": lambda house: house.m.statistics(),
    "add and remove": _removed,
    "shutdown": _shutdown,
    "coroutines": _async,
    "attributes": _attributes,
    "many": _many,
    "peek": lambda house: (house.m.peek(), house.a.peek()),
    "ring": _ring,
    "fair": _fair,
    "fair put": lambda house: house.f.put(1, key=("f1", 7)),
    "fair get": lambda house: house.f.get(),
    "fair take": lambda house: house.f.take(),
    "fair get many": lambda house: house.f.get_many(4),
    "runs arrive": lambda house: house.t.arrive(house.coming),
    "runs take": lambda house: house.t.take_turns(house.run, 9, 2800),
    "runs end": lambda house: house.t.end(house.run),
    "task done": lambda house: (house.m.get(), house.a.task_done()),
}
