"""A store that keeps everything in memory: nothing survives. It promises the order and the wholeness, like any other.

Promise     What `MessageStore` says, but for the disk. A test holds commits back, lets them go one by one, has one
            refused or the store fail, and gets what a restart or a crash would have left.
State       `_lock` guards all other fields of `_Keeper`. The writer changes them, any thread reads them. What waits to
            be committed is `GroupCommit`'s.
Lock order  `_lock` is a leaf.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

from .._locks import Lock
from ._batch import Submission
from ._dropped import Dropped
from ._errors import StoreError, StoreFailed, StoreFull
from ._front import StoreFront
from ._group_commit import GroupCommit
from ._protocol import (
    FOR_EVER,
    Define,
    Definition,
    Delete,
    Delivered,
    DropQueue,
    Durability,
    Header,
    Held,
    Level,
    Moment,
    Operation,
    Outline,
    Put,
    StoreStatistics,
    Undefine,
)

MAX_PENDING_BYTES = 8 << 20


class MemoryStore(StoreFront):
    """Messages of many queues in this process's memory; full when bodies of `max_bytes` stand, where that is given."""

    _reader: _Keeper

    def __init__(
        self, *, max_bytes: int | None = None, max_pending_bytes: int = MAX_PENDING_BYTES, name: str = "memory"
    ) -> None:
        if max_bytes is not None and max_bytes < 0:
            raise ValueError(f"max_bytes is {max_bytes}; it is at least 0, or None")
        self._settings = (max_bytes, max_pending_bytes, name)
        self._reader = _Keeper(max_bytes)
        self._floor = 0
        self._start(1)

    def _start(self, next_id: int) -> None:
        _, max_pending_bytes, name = self._settings
        self._commits = GroupCommit(
            self._reader, name=f"store {name!r}", next_id=next_id, max_pending_bytes=max_pending_bytes
        )

    @property
    def durability(self) -> Durability:
        return Durability.MEMORY

    def statistics(self) -> StoreStatistics:
        self._commits.check_open()
        operations, pending_bytes = self._commits.pending()
        return self._reader.statistics(operations, pending_bytes)

    # For tests

    def hold(self) -> None:
        """Commit nothing until `release` or `close`; threads that wait for a commit go on waiting."""
        self._commits.hold()

    def release(self, submissions: int | None = None) -> None:
        """Let so many of the submissions made since `hold` be committed, or all and hold no longer."""
        self._commits.release(submissions)

    def fail_at(self, nth: int, error: StoreError) -> None:
        """Have the n-th submission from now on (1: the next to be committed) refused with `error`, and nothing else.

        With a `StoreFailed` it is the store that fails, there and for good.
        """
        self._reader.fail_at(nth, error)

    def reopened(self, *, crashed: bool = False) -> MemoryStore:
        """A new store with what this one, closed or failed, would have left on a disk.

        Transient messages are gone. After a crash, all messages that there were may have been delivered before.
        """
        new = MemoryStore.__new__(MemoryStore)
        new._settings = self._settings
        new._reader = self._reader.without_transient()
        next_id = self._commits.next_id
        new._floor = next_id if crashed else self._floor
        new._start(next_id)
        return new


class _Message:
    """A stored message."""

    __slots__ = ("body", "header", "level", "queue", "transient")

    def __init__(self, put: Put) -> None:
        self.header = Header(put.id, len(put.body), put.expires_at, put.deliveries, put.properties, put.held_until_ms)
        self.body = put.body
        self.queue = put.queue
        self.level = put.level
        self.transient = put.transient


class _Shelf:
    """The ids of one level of one queue, in order. Those that were removed stay until half of them are."""

    __slots__ = ("bytes", "ids", "live", "start")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.live: set[int] = set()
        self.start = 0  # before this, every id was removed
        self.bytes = 0

    def add(self, message_id: int, size: int) -> None:
        self.live.add(message_id)
        self.bytes += size
        place = bisect_left(self.ids, message_id)
        if place == len(self.ids) or self.ids[place] != message_id:
            self.ids.insert(place, message_id)
        self.start = min(self.start, place)

    def remove(self, message_id: int, size: int) -> None:
        self.live.discard(message_id)
        self.bytes -= size
        while self.start < len(self.ids) and self.ids[self.start] not in self.live:
            self.start += 1
        if 2 * len(self.live) < len(self.ids) - 100:
            self.ids = [one for one in self.ids if one in self.live]
            self.start = 0

    def after(self, message_id: int, limit: int) -> list[int]:
        found: list[int] = []
        for place in range(max(self.start, bisect_right(self.ids, message_id)), len(self.ids)):
            if len(found) >= limit:
                break
            if self.ids[place] in self.live:
                found.append(self.ids[place])
        return found


class _Keeper:
    """The messages themselves."""

    def __init__(self, max_bytes: int | None) -> None:
        self._lock = Lock()
        self._max_bytes = max_bytes
        self._messages: dict[int, _Message] = {}
        self._shelves: dict[tuple[int, int], _Shelf] = {}
        self._expiring: dict[int, float] = {}
        self._holding: set[int] = set()
        self._definitions: dict[tuple[str, str], str] = {}
        self._dropped = Dropped()
        self._bytes = 0
        self._commits = 0
        self._failure: tuple[int, StoreError] | None = None  # in how many submissions, and how

    # The writer's side

    @property
    def is_safe(self) -> bool:
        return True

    def commit(self, submissions: Sequence[Submission], next_id: int, has_more: Callable[[], bool]) -> None:
        with self._lock:
            for part in (part for submission in submissions for part in submission.parts()):
                part.error = self._failure_now_locked() or self._reason_against_locked(part.operations)
                if part.error is None:
                    for operation in part.operations:
                        self._apply_locked(operation)
            self._commits += 1

    def rest(self, next_id: int, *, is_idle: bool) -> float | None:
        return None

    def finish(self, next_id: int) -> None:
        pass

    def let_go(self) -> None:
        pass

    def fail_at(self, nth: int, error: StoreError) -> None:
        with self._lock:
            self._failure = (nth, error)

    def _failure_now_locked(self) -> StoreError | None:
        if self._failure is None:
            return None
        left, error = self._failure
        self._failure = None if left <= 1 else (left - 1, error)
        if left > 1:
            return None
        if isinstance(error, StoreFailed):
            raise error
        return error

    def _reason_against_locked(self, operations: Sequence[Operation]) -> StoreError | None:
        puts = [operation for operation in operations if isinstance(operation, Put)]
        removed = {one for operation in operations if isinstance(operation, Delete) for one in operation.ids}
        for put in puts:
            if put.id in self._messages and put.id not in removed:
                return StoreError(f"message {put.id} is stored already; a message is put once")
        wanted = sum(len(put.body) for put in puts)
        if puts and self._max_bytes is not None and self._bytes + wanted > self._max_bytes:
            return StoreFull(
                f"no room for {wanted} bytes: {self._bytes} of {self._max_bytes} bytes stand; "
                "try again when messages were consumed, or raise max_bytes"
            )
        return None

    def _apply_locked(self, operation: Operation) -> None:
        match operation:
            case Put():
                if operation.queue not in self._dropped:
                    self._place_locked(_Message(operation))
            case Delete(ids):
                for message_id in ids:
                    self._delete_locked(message_id)
            case Delivered(message_id, deliveries):
                if (message := self._messages.get(message_id)) is not None:
                    message.header = message.header._replace(deliveries=deliveries)
            case Define(kind, key, document):
                self._definitions[kind, key] = document
            case Undefine(kind, key):
                self._definitions.pop((kind, key), None)
            case DropQueue(queue):
                self._dropped.add(queue)
                for message_id in [one for one, message in self._messages.items() if message.queue == queue]:
                    self._delete_locked(message_id)

    def _place_locked(self, message: _Message) -> None:
        header = message.header
        self._messages[header.id] = message
        self._shelves.setdefault((message.queue, message.level), _Shelf()).add(header.id, header.size)
        self._bytes += header.size
        if header.expires_at is not None:
            self._expiring[header.id] = header.expires_at
        if header.held_until_ms is not None:
            self._holding.add(header.id)

    def _delete_locked(self, message_id: int) -> None:
        message = self._messages.pop(message_id, None)
        if message is None:
            return
        shelf = self._shelves[message.queue, message.level]
        shelf.remove(message_id, message.header.size)
        if not shelf.live:
            del self._shelves[message.queue, message.level]
        self._bytes -= message.header.size
        self._expiring.pop(message_id, None)
        self._holding.discard(message_id)

    # The readers' side

    def page(self, queue: int, after: int, limit: int, level: int, held_before_ms: int) -> list[Header]:
        found: list[Header] = []
        with self._lock:
            shelf = self._shelves.get((queue, level))
            while shelf is not None and len(found) < limit and (ids := shelf.after(after, limit)):
                headers = [self._messages[one].header for one in ids]
                found += [each for each in headers if (each.held_until_ms or 0) < held_before_ms]
                after = ids[-1]
        return found[:limit]

    def held(self, queue: int, after: Moment, limit: int) -> list[tuple[int, Header]]:
        with self._lock:
            waiting = [
                (each.header.held_until_ms, each.level, one)
                for one in self._holding
                if (each := self._messages[one]).queue == queue and each.header.held_until_ms is not None
            ]
            soonest = heapq.nsmallest(limit, [moment for moment in waiting if moment > after])
            return [(level, self._messages[one].header) for _, level, one in soonest]

    def held_after(self, queue: int, moment_ms: int) -> list[Held]:
        found: dict[int, tuple[int, int]] = {}
        for level, header in self.held(queue, (moment_ms, FOR_EVER, FOR_EVER), FOR_EVER):
            count, size = found.get(level, (0, 0))
            found[level] = (count + 1, size + header.size)
        return [Held(level, *each) for level, each in sorted(found.items())]

    def outlines(self, queue: int, after: int, limit: int, now: float, level: int) -> list[Outline]:
        found: list[Outline] = []
        while len(found) < limit and (page := self.page(queue, after, limit, level, FOR_EVER)):
            left = [each for each in page if each.expires_at is None or each.expires_at > now]
            found += [Outline(*each[:2], each.held_until_ms) for each in left]
            after = page[-1].id
        return found[:limit]

    def read(self, ids: Iterable[int]) -> dict[int, bytes]:
        wanted = list(ids)
        with self._lock:
            return {one: self._messages[one].body for one in wanted if one in self._messages}

    def expired(self, now: float, limit: int) -> list[tuple[int, int, int]]:
        with self._lock:
            due = ((at, one) for one, at in self._expiring.items() if at <= now)
            soonest = heapq.nsmallest(limit, due)
            return [(self._messages[one].queue, self._messages[one].level, one) for _, one in soonest]

    def next_expiry(self, now: float) -> float | None:
        with self._lock:
            return min((at for at in self._expiring.values() if at > now), default=None)

    def levels(self) -> list[Level]:
        with self._lock:
            return [
                Level(queue, level, len(shelf.live), shelf.bytes, shelf.ids[shelf.start], max(shelf.live))
                for (queue, level), shelf in sorted(self._shelves.items())
            ]

    def definitions(self) -> list[Definition]:
        with self._lock:
            return [Definition(kind, key, document) for (kind, key), document in self._definitions.items()]

    def statistics(self, pending_operations: int, pending_bytes: int) -> StoreStatistics:
        with self._lock:
            return StoreStatistics(
                messages=len(self._messages),
                bytes=self._bytes,
                commits=self._commits,
                syncs=0,
                pending_operations=pending_operations,
                pending_bytes=pending_bytes,
                file_bytes=0,
                free_bytes=0,
            )

    def without_transient(self) -> _Keeper:
        """A copy without the transient messages."""
        new = _Keeper(self._max_bytes)
        with self._lock:
            new._definitions = dict(self._definitions)
            for message in self._messages.values():
                if not message.transient:
                    new._place_locked(message)
        return new
