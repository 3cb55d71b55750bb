"""Write your own kinds of queue: the shortest job first, and the newest message first."""

from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import ClassVar

from multiqueue.broker import (
    Broker,
    Entry,
    EntryList,
    Message,
    QueueSettings,
    SortedEntryList,
    register_queue_kind,
)


class ShortestJobFirst(SortedEntryList):
    """Sorted by something else than a header: all that is left to say is by what."""

    def key_of(self, message: Message) -> float:
        seconds = message.headers.get("seconds")
        return float(seconds) if isinstance(seconds, int | float) else 0.0


class NewestFirst(EntryList):
    """A list from the ground up. What arrives stands before all others, so positions fall: -1, -2, -3."""

    start: ClassVar[float] = float("-inf")

    def __init__(self, settings: QueueSettings) -> None:
        self._positions: list[float] = []
        self._entries: dict[float, Entry] = {}
        self._arrivals = 0

    def add(self, entry: Entry) -> None:
        self._arrivals += 1
        entry.position = -self._arrivals
        insort(self._positions, entry.position)
        self._entries[entry.position] = entry

    def remove(self, entry: Entry) -> None:
        del self._entries[entry.position]
        del self._positions[bisect_right(self._positions, entry.position) - 1]

    def get(self, position: float) -> Entry | None:
        return self._entries.get(position)

    def after(self, position: float) -> Entry | None:
        index = bisect_right(self._positions, position)
        return self._entries[self._positions[index]] if index < len(self._positions) else None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return map(self._entries.__getitem__, self._positions)


def main() -> None:
    register_queue_kind("shortest-job-first", ShortestJobFirst)
    register_queue_kind("newest-first", NewestFirst)
    with Broker() as broker:
        broker.declare_queue("jobs", settings=QueueSettings(kind="shortest-job-first"))
        broker.declare_queue("news", arguments={"x-queue-kind": "newest-first"})  # as over AMQP
        for body, seconds in [("report", 60), ("mail", 1), ("resize", 5)]:
            broker.publish(Message(body, routing_key="jobs", headers={"seconds": seconds}))
            broker.publish(Message(body, routing_key="news"))
        jobs = broker.subscribe("jobs", auto_accept=True)
        news = broker.subscribe("news", auto_accept=True)
        print([jobs.get().body for _ in range(3)])  # ['mail', 'resize', 'report']
        print([news.get().body for _ in range(3)])  # ['resize', 'mail', 'report']


if __name__ == "__main__":
    main()
