"""A broker over a store whose commits the test lets go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from multiqueue.broker import Broker, VirtualHost
from multiqueue.store import MemoryStore


class StoredBroker(Broker):
    """A broker with `memory`, its store: it can be held, fail, and be opened again as after a crash."""

    memory: MemoryStore

    def _open(self, name: str, *, again: bool = False) -> VirtualHost:
        self.memory = MemoryStore()
        self._data: Any = SimpleNamespace(open=lambda name, again: self.memory)  # while the host is made
        try:
            return super()._open(name, again=again)
        finally:
            self._data = None


@contextmanager
def held_broker(housekeeping_interval: float) -> Iterator[StoredBroker]:
    """A broker with a durable queue `q`, of which nothing that is published is committed yet."""
    started = StoredBroker(housekeeping_interval=housekeeping_interval)
    with started:
        started.declare_queue("q", durable=True)
        started.memory.hold()
        yield started
        started.memory.release()
