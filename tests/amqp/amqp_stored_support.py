"""A broker over a store whose commits the test lets go."""

from __future__ import annotations

from multiqueue.broker import Broker
from multiqueue.store import MemoryStore, MessageStore


class StoredBroker(Broker):
    """A broker with `memory`, its store: it can be held, fail, and be opened again as after a crash."""

    memory: MemoryStore

    def _store_of(self, name: str) -> MessageStore:
        self.memory = MemoryStore()
        return self.memory
