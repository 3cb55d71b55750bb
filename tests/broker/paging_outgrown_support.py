"""What the tests of queues that outgrow their memory share: a host on 200 kB, and who fills and drains its queues."""

from __future__ import annotations

from collections.abc import Iterator

from broker_parts_support import PagedEntries

from multiqueue.broker import BrokerQueue, Message, VirtualHost
from multiqueue.store import MemoryStore
from multiqueue.testing import PATIENCE, FakeClock

LIMIT = 200_000  # of which queues in memory have three quarters until one pages: some 170 messages of 100 bytes
STORES = ["no store", "store"]


def small_host(store: str, clock: FakeClock | None = None) -> Iterator[VirtualHost]:
    """A virtual host with little memory, closed when the test ends; `store` is one of STORES."""
    clock = clock or FakeClock(1000.0)
    host = VirtualHost(
        store=MemoryStore() if store == "store" else None, memory_limit=LIMIT, clock=clock, wall_clock=clock
    )
    yield host
    host.close()


def pages(queue: BrokerQueue) -> bool:
    """Whether what is on the queue has been paged out."""
    return isinstance(queue.life.source, PagedEntries)


def fill(host: VirtualHost, numbers: range, queue: str = "q", *, size: int = 100, colour: str = "blue") -> None:
    """Publish messages that are numbered in their bodies."""
    for number in numbers:
        body = b"%06d" % number + b"x" * size
        host.publish(Message(body, routing_key=queue, headers={"colour": colour, "n": number}))


def number_in(message: Message) -> int:
    """The number that `fill` gave it."""
    assert isinstance(message.body, bytes)
    return int(message.body[:6])


def drain(host: VirtualHost, count: int, queue: str = "q", **options: object) -> list[int]:
    """Consume so many messages; their numbers."""
    numbers = []
    with host.subscribe(queue, prefetch=10, **options) as subscription:  # type: ignore[arg-type]
        for _ in range(count):
            received = subscription.get(timeout=PATIENCE)
            numbers.append(number_in(received.message))
            received.accept()
    return numbers


def rows(host: VirtualHost) -> int:
    """How many messages the store has that the queues' rows are in, when it has done what was asked of it."""
    journal = host._journal or host._scratch
    if journal is None:
        return 0
    journal.wait_for_commits()
    journal.wait_for_commits()
    return sum(level.messages for level in journal.store.levels())
