"""A broker over a store whose commits the test lets go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from multiqueue.broker import Broker
from multiqueue.store import MemoryStore, MessageStore


class StoredBroker(Broker):
    """A broker with `memory`, its store: it can be held, fail, and be opened again as after a crash."""

    memory: MemoryStore

    def _store_of(self, name: str) -> MessageStore:
        self.memory = MemoryStore()
        return self.memory


@contextmanager
def held_broker(housekeeping_interval: float) -> Iterator[StoredBroker]:
    """A broker with a durable queue `q`, of which nothing that is published is committed yet."""
    started = StoredBroker(housekeeping_interval=housekeeping_interval)
    with started:
        started.declare_queue("q", durable=True)
        started.memory.hold()
        yield started
        started.memory.release()
