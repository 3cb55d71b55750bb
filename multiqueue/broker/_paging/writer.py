"""Writing, evicting and purging what a queue has that pages, the lock being free.

Promise     What is read is claimed under the lock before anything is done to it, so what has gone meanwhile is left
            alone. What is written out stays in memory until the store has it, and is deleted there when it was
            settled before that.
Who runs    Publishers (`write_out`, `trim`), management (`purge`), the thread that deletes the queue (`drop_each`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from multiqueue.store import Commit, Put, StoreError

from .._base.message_codec import encode_message
from .._base.outcome import DeadLetterReason
from .._base.settings import QueueKind
from .._base.waits import InPieces
from .._queue.entry import Entry
from .._queue.ports import Rows
from .._queue.queue import BrokerQueue
from .._queue.state import FEW, nap
from .memory import MemoryManager
from .paged_entries import PagedEntries
from .reader import PagedReader, acting
from .target_list import LEVEL_SHIFT, number_of

_BATCH: Final = 1000  # rows of one submission
_SLICE: Final = 256  # messages that are purged, or known to be written, in one hold of the locks: a millisecond
_SLICES_ON_THE_WAY: Final = 4  # to the store: some 20 ms that other commits wait


@dataclass(eq=False)
class PagedWriter:
    """One queue's while it pages, for its `Pager` and `PagedQueue`. It is also the `Walk` of management."""

    _queue: BrokerQueue
    _source: PagedEntries
    _memory: MemoryManager
    _rows: Rows
    _reader: PagedReader
    _adopt_some: Callable[[], bool]

    def __post_init__(self) -> None:
        self._area = self._source.area
        self._trimming = InPieces(self._memory.do_later)

    def pages(self, *, bodies: bool, lowest_first: bool = False) -> Iterator[list[Entry]]:
        """As `Walk.pages`, everything being adopted before."""
        while self._adopt_some():
            nap()
            yield []
        yield from self._reader.pages(bodies=bodies, lowest_first=lowest_first)

    # -- purging

    def purge(self, stop: Callable[[], bool]) -> int:
        """As `Walk.purge`. First what the store does not show: should it be written out meanwhile, the store shows it
        afterwards.
        """
        count = 0
        state = self._queue.state
        while self._adopt_some():
            if stop():
                return count
            nap()
        now = state.clock()
        with self._memory:
            ends = list(self._area.last)
        with self._queue.state.lock:
            taken = list(self._source.taken.items())
        known = self._beside_the_store(ends, taken)
        for begin in range(0, len(known), _SLICE):
            if stop():
                return count
            with acting(self._queue) as after:
                found = [self._source.get(position) for position in known[begin : begin + _SLICE]]
                entries = [each for each in found if each and (each.expires_at is None or each.expires_at > now)]
                gone = state.purge(entries, after)
            self._queue.dead_letters.forget(gone)
            count += len(gone)
        for end in ends:
            count += self._purge_level(end, stop)
        return count

    def _beside_the_store(self, ends: Sequence[int], taken: Sequence[tuple[int, Entry]]) -> list[int]:
        """Where messages stand that are in memory alone, or held until their time, up to the end of each level."""
        held = [position for position, entry in taken if entry.is_ready]
        with self._memory:
            alone = [
                each for end in ends for each in self._area.unbacked.between(end >> LEVEL_SHIFT << LEVEL_SHIFT, end)
            ]
        return alone + [position for position in held if position <= ends[position >> LEVEL_SHIFT]]

    def _purge_level(self, end: int, stop: Callable[[], bool]) -> int:
        """As `purge`, of what the store has of one level up to its end."""
        rows, state = self._rows, self._queue.state
        level, wall_now = end >> LEVEL_SHIFT, rows.host.wall_clock()
        count, position = 0, level << LEVEL_SHIFT
        commits: deque[Commit] = deque()  # what other publishers' commits wait for is bounded
        while position < end and not (stop() or state.deleted):
            with self._memory.looking(self._area):
                page = rows.store.outlines(rows.number, number_of(position), _SLICE, wall_now, level=level)
                found = [(level << LEVEL_SHIFT | each.id, each.size) for each in page]
                with acting(self._queue) as after:
                    gone, size = self._source.consume_all([each for each in found if each[0] <= end])
                    if gone:
                        state.have_gone(len(gone), size, after)
            count += len(gone)
            commit = rows.delete([number_of(each) for each in gone]) if gone else None
            if commit is not None and rows.host.may_wait:
                commits.append(commit)
                if len(commits) > _SLICES_ON_THE_WAY:
                    with suppress(StoreError):  # the thread that waits for it is told
                        commits.popleft().wait()
            if len(page) < _SLICE:
                break
            position = found[-1][0]
        return count

    # -- dropping

    def drop_each(self, reason: DeadLetterReason) -> int:
        dropped = 0
        for batch in self.pages(bodies=True):
            for entry in batch:
                dropped += self._reader.drop(entry, reason)
                if not dropped % FEW:
                    nap()
        return dropped

    def trim(self) -> None:
        """As `PagedQueue.trim`: from the head, or from the lowest level."""
        if not self._trimming.goes_on:
            is_head = self._queue.settings.kind is QueueKind.STANDARD
            self._trimming.run(self._trim_head() if is_head else self._trim_levels())

    def _trim_levels(self) -> Iterator[None]:
        for batch in self.pages(bodies=True, lowest_first=True):
            for begin in range(0, len(batch) or 1, FEW):
                for entry in batch[begin : begin + FEW]:
                    if not self._queue.state.limit.is_exceeded():
                        return
                    self._reader.drop(entry, DeadLetterReason.MAXLEN)
                yield
                nap()

    def _trim_head(self) -> Iterator[None]:
        """Evict from the head; yields after some that were in memory, and after a load."""
        state = self._queue.state
        while True:
            with acting(self._queue) as after:
                victim, may_come = None, True
                for _ in range(FEW):
                    if not state.limit.is_exceeded() or state.deleted:
                        may_come = False
                        break
                    victim, may_come = state.evict_head(after)
                    if victim is None:
                        break
            if victim is None and not (may_come and self._reader.load_for_get()):
                return
            yield
            nap()

    # -- writing out

    def write_out(self, most: int = _BATCH) -> Iterator[Commit]:
        """Hand in what is in memory alone, and not on its way already: the commit of one batch after the other."""
        while True:
            with self._memory as paging:
                positions = paging.begin_writing_out(self._area, most)
                batch = [self._area.slots[position].payload for position in positions]
            if not batch:
                return
            commit = self._write_out(batch)
            if commit is not None:
                yield commit

    def _write_out(self, batch: list[Entry]) -> Commit | None:
        entries: list[Entry] = []
        puts: list[Put] = []
        for entry in batch:
            put = self._put_of(entry)
            if put is None:
                with self._memory as paging:
                    paging.writing_failed(self._area, entry.position, for_good=True)
                continue
            entries.append(entry)
            puts.append(put)
        if not puts:
            return None
        try:
            return self._rows.submit(puts, partial(self._written, entries), lambda error: self._failed(entries))
        except BaseException:
            self._failed(entries)
            raise

    def _put_of(self, entry: Entry) -> Put | None:
        """The row of an entry; None when no store can keep it, or it could not be loaded again."""
        rows, message = self._rows, entry.message
        host, body = rows.host, message.body
        if entry.size > self._memory.largest_body:
            return None
        try:
            properties = encode_message(message, None if entry.held_until is None else host.wall_time(entry.held_until))
            if not isinstance(body, bytes | bytearray | memoryview):
                return None
        except TypeError:
            return None
        return Put(
            rows.number,
            properties,
            bytes(body),
            level=entry.level,
            expires_at=None if entry.expires_at is None else host.wall_time(entry.expires_at),
            transient=True,
            id=entry.number,
        )

    def _written(self, entries: list[Entry]) -> None:
        """On the store's thread: what was settled meanwhile must go there as well."""
        settled: list[int] = []
        for begin in range(0, len(entries), _SLICE):
            with self._queue.state.lock, self._memory as paging:
                for entry in entries[begin : begin + _SLICE]:
                    entry.is_stored = paging.backed(self._area, entry.position)
                    if not entry.is_stored:
                        settled.append(number_of(entry.position))
        if settled:
            self._rows.delete(settled)

    def _failed(self, entries: Sequence[Entry]) -> None:
        """The store does not take them now: they stay in memory."""
        with self._memory as paging:
            for entry in entries:
                paging.writing_failed(self._area, entry.position)
