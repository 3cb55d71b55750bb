"""What the tests of stores share: the kinds of store, a way to open each again, and a list to compare them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from multiqueue.store import Level, MemoryStore, MessageStore, Put, SqliteStore, StoreError
from multiqueue.store.cli import store as command

KINDS = ("memory", "sync", "files", "relaxed", "scratch")  # "files": as "sync", with each body in a file of bodies
Opener = Callable[[], MessageStore]


def open_store(kind: str, directory: Path) -> MessageStore:
    """A store of that kind; one on disk in `directory`."""
    if kind == "memory":
        return MemoryStore()
    if kind == "scratch":
        return SqliteStore.scratch(directory)
    if kind == "files":
        # A log this short makes files of 128 bytes, so that they come, are written anew and go all the time.
        return SqliteStore(directory, reserve_bytes=0, large_commit_bytes=1, log_bytes=32)
    return SqliteStore(directory, durability=kind, reserve_bytes=0)


def reopen(store: MessageStore, directory: Path) -> MessageStore:
    """What is there after a clean close of a store that survives one."""
    store.close()
    if isinstance(store, MemoryStore):
        return store.reopened()
    return SqliteStore(directory, durability=store.durability, reserve_bytes=0)


def put(queue: int, body: bytes = b"body", **options: object) -> Put:
    """A message on a queue."""
    return Put(queue, b"properties of " + body[:20], body, **options)  # type: ignore[arg-type]


def stored(store: MessageStore, *messages: Put) -> list[int]:
    """Commit messages in one submission; their ids."""
    store.submit(messages).wait()
    return [message.id for message in messages]


def ids(store: MessageStore, queue: int, *, level: int = 0, page: int = 100) -> list[int]:
    """All ids of one level of a queue, read page by page."""
    found: list[int] = []
    while headers := store.page(queue, found[-1] if found else 0, page, level=level):
        found += [header.id for header in headers]
    return found


def run(*arguments: object, text: str | None = None) -> Result:
    """What `multiqueue store ARGUMENTS` does; an error of ours comes as the command line would report it."""
    result = CliRunner().invoke(command, [str(one) for one in arguments], input=text)
    if result.exception is not None and not isinstance(result.exception, SystemExit | StoreError):
        raise result.exception
    return result


@dataclass
class Kept:
    """A message in the model."""

    queue: int
    level: int
    body: bytes
    properties: bytes
    expires_at: float | None
    deliveries: int
    transient: bool
    held_until_ms: int | None

    @classmethod
    def of(cls, message: Put) -> Kept:
        return cls(
            message.queue,
            message.level,
            message.body,
            message.properties,
            message.expires_at,
            message.deliveries,
            message.transient,
            message.held_until_ms,
        )


def levels_of(model: dict[int, Kept]) -> list[Level]:
    """What `levels` must say of the messages in a model."""
    places = sorted({(kept.queue, kept.level) for kept in model.values()})
    found = []
    for place in places:
        here = {one: kept for one, kept in model.items() if (kept.queue, kept.level) == place}
        size = sum(len(kept.body) for kept in here.values())
        found.append(Level(*place, len(here), size, min(here), max(here)))
    return found


@contextmanager
def closing(store: MessageStore) -> Iterator[MessageStore]:
    """Close the store at the end, whatever comes."""
    try:
        yield store
    finally:
        store.close()
