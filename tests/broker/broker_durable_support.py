"""What the tests of the broker's durability share: virtual hosts over stores that can be opened again."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multiqueue.broker import Message, VirtualHost
from multiqueue.store import MemoryStore, MessageStore, SqliteStore, StoreFailed


class Keeper(ABC):
    """One virtual host over one store, its restarts and its crashes. Closes what it opened."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.host = VirtualHost(store=self.make(), **options)

    @property
    def store(self) -> MessageStore:
        assert self.host.store is not None
        return self.host.store

    def restart(self) -> VirtualHost:
        """Close cleanly and open again."""
        self.host.close()
        return self._open(self.again(crashed=False))

    def crash(self) -> VirtualHost:
        """Open what is left when the process dies now. What was submitted before is committed first."""
        self.store.submit([]).wait()
        left = self.again(crashed=True)
        self.host.close()
        return self._open(left)

    def close(self) -> None:
        self.host.close()

    def _open(self, store: MessageStore | None) -> VirtualHost:
        self.host = VirtualHost(store=store, **self.options)
        return self.host

    @abstractmethod
    def make(self) -> MessageStore | None: ...

    @abstractmethod
    def again(self, *, crashed: bool) -> MessageStore | None:
        """The store of the next life; after a crash made while the old one still stands."""


class Forgetful(Keeper):
    """A virtual host without a store: every life begins with nothing."""

    def make(self) -> None:
        return None

    def again(self, *, crashed: bool) -> None:
        return None

    def crash(self) -> VirtualHost:
        return self.restart()


class InMemory(Keeper):
    def make(self) -> MemoryStore:
        self.memory = MemoryStore()
        return self.memory

    def again(self, *, crashed: bool) -> MemoryStore:
        old, self.memory = self.memory, self.memory.reopened(crashed=crashed)
        if crashed:  # the dead write nothing more
            old.fail_at(1, StoreFailed("this process died"))
        return self.memory


class OnDisk(Keeper):
    """Every life after a crash has a copy of the directory: the files as they were at that moment."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.lives = 0
        super().__init__(**options)

    def make(self) -> SqliteStore:
        return SqliteStore(self.path / str(self.lives), durability="relaxed")

    def again(self, *, crashed: bool) -> SqliteStore:
        if crashed:
            old = self.path / str(self.lives)
            self.lives += 1
            copy_still(old, self.path / str(self.lives))
        return self.make()


def copy_still(source: Path, target: Path) -> None:
    """Copy a directory in which a thread may still write, at a moment in which it does not."""
    while True:
        before = _stamps(source)
        shutil.copytree(source, target)
        if _stamps(source) == before:
            return
        shutil.rmtree(target)


def _stamps(path: Path) -> list[tuple[str, int, int]]:
    return sorted((each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in path.iterdir())


def keepers(path: Path, kind: str, **options: Any) -> Iterator[Keeper]:
    """A fixture's body: the keeper of this kind, closed at the end."""
    keeper = InMemory(**options) if kind == "memory" else OnDisk(path, **options)
    yield keeper
    keeper.close()


@contextmanager
def holding(store: MemoryStore) -> Iterator[None]:
    """A block in which nothing is committed; whatever happens in it, no thread waits for ever."""
    store.hold()
    try:
        yield
    finally:
        store.release()


def persistent(body: bytes = b"", key: str = "q", **properties: Any) -> Message:
    """A message that a durable queue keeps."""
    return Message(body, routing_key=key, persistent=True, **properties)


def bodies(host: VirtualHost, queue: str = "q") -> list[object]:
    """The ready messages of a queue."""
    return [message.body for message in host.queue(queue).browse()]


def take_all(host: VirtualHost, queue: str = "q") -> list[tuple[object, bool]]:
    """Get and settle everything: bodies, and whether they were flagged."""
    taken = []
    while (received := host.get(queue)) is not None:
        taken.append((received.body, received.redelivered))
        received.accept()
    return taken
