"""Spill: how a queue that fills the memory begins to page, and holds publishers back when it cannot.

"From memory to the store, and back" in docs/design/bounded-memory.md has the steps.

State       `_period` and the queue's `source` and `walk` change together, in one hold of the queue's lock. A pin of the
            queue puts that off. Its `rows` stay when the queue is back in memory: rows settled before are still deleted
            there.
Waiting     No consumer learns that its queue begins to page. One that was NOTIFIED still pulls, and passes the baton
            if it finds nothing; each slice that is adopted passes the baton; a load tells of what a selector wants.
Who runs    The publisher that wanted room, under no lock. On a thread that must not take long it does one piece, and a
            loader the others; until they are done, or the store has nearly caught up, publishers are held back
            (`DepthLimit.is_behind`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from multiqueue.store import Commit, Level, Put, StoreDamaged, StoreError

from .._base.message import DeadLetterReason
from .._base.message_codec import encode_message
from .._base.ports import AT_ONCE
from .._base.settings import QueueKind
from .._base.waits import may_take_long, nap
from .._queue.consumer import QueueConsumer
from .._queue.entry import Entry
from .._queue.entry_source import ResidentEntries
from .._queue.fair_entries import FairEntries
from .._queue.queue import BrokerQueue
from .memory import MemoryManager
from .paged_entries import PagedEntries
from .paged_fair_entries import PagedFairEntries
from .reader import PagedReader
from .target_list import LEVEL_SHIFT, number_of

if TYPE_CHECKING:
    from .._durable.submission import QueueJournal

_BATCH: Final = 1000  # rows of one submission
_PIECE: Final = 512  # the same where others wait meanwhile: some 5 ms
_SLICE: Final = 256  # messages that are known to be written, in one hold of the locks: a millisecond
_log = logging.getLogger("multiqueue.broker")


@dataclass(eq=False)
class Spill:
    """Lets one queue page, and goes on while it does. Nothing of it is called under the queue's lock."""

    _queue: BrokerQueue
    _memory: MemoryManager
    _new_rows: Callable[[], QueueJournal | None]  # a place for rows, None for none now
    _period: PagedReader | None = None  # while the queue pages, until it is back in memory
    _is_catching_up: bool = False  # a loader is, or a commit that it goes on with. Guarded by the queue's lock

    def __post_init__(self) -> None:
        # The other kinds need all their entries to know which is next.
        settings, kinds = self._queue.settings, (QueueKind.STANDARD, QueueKind.PRIORITY, QueueKind.FAIR)
        self._may_page = settings.kind in kinds and not settings.has_groups
        self._keep_in_memory_locked()

    def _keep_in_memory_locked(self) -> None:
        """Keep everything in memory from now on, nothing being on the queue, or the queue being new."""
        life, is_stored = self._queue.life, self._queue.journal is not None and self._may_page
        self._queue.keep_in_memory(self._memory.paging.departed if is_stored else None)
        page_out = self.page_out if self._may_page else None
        life.limit.keep_within(self._memory, page_out, lambda: is_stored and not life.pins)

    # -- opening

    def recover(self, levels: Iterable[Level]) -> bool:
        """Take in what a store has by its figures alone; False where the entries themselves are needed."""
        journal = self._queue.journal
        if journal is None or not self._may_page:
            return False
        source = self._begin(journal)
        last = source.area.last
        for level in levels:
            if not source.area.is_keyed and level.level not in last:
                raise StoreDamaged(
                    f"the store has messages on level {level.level} of {self._queue.label}, which has"
                    f" {len(last)}; `multiqueue store check` says more"
                )
            last[level.level] = level.level << LEVEL_SHIFT | level.last
            if isinstance(source, PagedFairEntries) and self._period is not None:
                self._period.name_tenant(source, level)
        now_ms = journal.host.wall_ms(self._queue.life.clock())
        source.recover_held(now_ms, journal.store.held_after(journal.number, now_ms))
        self._memory.relieve()  # with a queue that pages there is less for others
        return True

    def check_size(self, size: int) -> None:
        """Return if a message of this size, in bytes of its body, can be kept. Raises MessageTooLarge: it cannot."""
        if self._may_page and size > self._memory.largest_body:
            self._memory.check_size(size, self._queue.label)

    # -- from memory to rows, and back

    def relieve(self) -> None:
        """More is on the queue than there is memory for: page, or hold publishers back."""
        life = self._queue.life
        limit = life.limit
        self._memory.relieve(limit if limit.is_reserving else None)
        with self._queue.life.lock:
            # Others have all that they may have, and the share has room: it is what pages that takes the rest.
            must_page = limit.can_page and not limit.reserve()
        if must_page and self.page_out():
            self._memory.relieve()  # with a queue that pages there is less for others
        with self._queue.callbacks.deciding() as after:
            if limit.seek_room(after):
                life.visit_by(AT_ONCE)

    def page_out(self) -> bool:
        """Let the store have the queue's messages; False when it cannot have it now. Under no lock."""
        rows = self._rows()
        if rows is None:
            return False
        limit = self._queue.life.limit
        with self._queue.callbacks.deciding() as after:
            if self._period is not None:
                return True
            if not self._may_page_out_locked():
                return False
            self._begin(rows)
            if limit.throttled and limit.has_room():
                limit.end_throttling(after)
        self.catch_up()
        return True

    def catch_up(self) -> None:
        """Adopt and write out: all of it, or a piece where this thread must not take long; a loader goes on."""
        period, life = self._period, self._queue.life
        if period is None:
            return
        if may_take_long():
            while period.adopt_some():
                nap()
            with suppress(StoreError):  # it stays in memory; a publisher of something that must be stored is told
                for commit in self._write_out(period):
                    commit.wait()  # so this publisher does not outrun the store
            self._let_publishers_go_on()
            return
        with life.lock:
            is_first, self._is_catching_up = not self._is_catching_up, True
            if (self._memory.is_far_behind or not period.source.is_whole) and not life.deleted:
                life.limit.fall_behind()
        if is_first and self._go_on():
            self._memory.do_later(self._go_on)

    def _go_on(self) -> bool:
        """A piece of catching up; True when the next one can follow at once. A commit calls for the next otherwise."""
        period, commit = self._period, None
        try:
            if period is not None:
                if period.adopt_some():
                    return True
                commit = next(self._write_out(period, _PIECE), None)
            if commit is not None:
                commit.add_done_callback(self._written_some)
        except BaseException as error:
            self._let_publishers_go_on(is_done=True)  # it stays in memory
            if not isinstance(error, StoreError):
                raise
            return False
        if commit is None or not self._memory.is_far_behind:
            self._let_publishers_go_on(is_done=commit is None)
        return False

    def _written_some(self, error: BaseException | None) -> None:
        if error is None:
            self._memory.do_later(self._go_on)
        else:
            self._let_publishers_go_on(is_done=True)  # it stays in memory

    def _let_publishers_go_on(self, *, is_done: bool = False) -> None:
        with self._queue.callbacks.deciding() as after:
            self._is_catching_up = self._is_catching_up and not is_done
            self._queue.life.limit.catch_up(after)

    def keep_in_memory(self) -> None:
        """Page no longer if nothing is on the queue and nothing reads it. Under no lock."""
        life = self._queue.life
        with self._queue.life.lock:
            period = self._period
            if period is None or life.figures.depth or life.deleted or life.pins:
                return
            if period.source.area.writing:
                return  # a row is on its way of what was settled; paging is to know of it
            self._memory.end_area(period.source.area)
            self._period = None
            life.limit.end_paging()
            self._keep_in_memory_locked()

    def _rows(self) -> QueueJournal | None:
        if self._queue.journal is not None:
            return self._queue.journal
        if self._period is not None or self._queue.life.deleted:
            return None
        try:
            return self._new_rows()
        except (StoreError, OSError) as error:
            label, extra = self._queue.label, {"queue": self._queue.name}
            _log.error("%s cannot page, and holds publishers back", label, exc_info=error, extra=extra)
            return None

    def _may_page_out_locked(self) -> bool:
        life = self._queue.life
        if life.deleted or life.pins or not isinstance(life.source, ResidentEntries | FairEntries):
            return False
        if self._queue.journal is not None:
            return True
        first = life.source.entries.after(life.source.entries.start)
        # Objects of this process: memory alone can keep them.
        return first is None or isinstance(first.message.body, bytes | bytearray | memoryview)

    def _begin(self, rows: QueueJournal) -> PagedEntries:
        """Page from now on. The lock is held, or the queue is new."""
        queue, memory, life = self._queue, self._memory, self._queue.life
        old, own_rows = life.source, rows if queue.journal is None else None
        source: PagedEntries
        if isinstance(old, FairEntries):
            source = PagedFairEntries(life, queue.name, memory, self, own_rows)
            old = old.log
        else:
            source = PagedEntries(life, queue.name, memory, self, own_rows)
        assert isinstance(old, ResidentEntries)
        reader = PagedReader(queue, source, memory, rows)
        memory.open_area(source.area, reader)
        rows.host.begin_paging()
        life.limit.begin_paging(lambda: source.is_overfull)
        life.read_from(source, reader)  # first: what comes to be held or to expire is its own
        source.adopt(old, list(life.consumers))
        life.rows, self._period = rows, reader
        return source

    # -- writing out

    def _write_out(self, period: PagedReader, most: int = _BATCH) -> Iterator[Commit]:
        """Hand in what is in memory alone, and not on its way already: the commit of one batch after the other.

        It stays in memory until the store has it, and is deleted there when it was settled before that.
        """
        area = period.source.area
        while True:
            with self._memory as paging:
                batch = [area.slots[each].payload for each in paging.begin_writing_out(area, most)]
            if not batch:
                return
            with self._queue.life.lock:  # which decides whether one ends before its row says that it is held
                for entry in [each for each in batch if each.held_until is not None and each.is_ready]:
                    entry.held_until_ms = period.rows.host.wall_ms(entry.held_until)
            entries: list[Entry] = []
            puts: list[Put] = []
            try:
                for entry in batch:
                    put = self._put_of(entry, period.rows)
                    if put is None:
                        self._not_written(period, [entry], for_good=True)
                    else:
                        entries.append(entry)
                        puts.append(put)
                written, failed = partial(self._written, period, entries), partial(self._not_written, period, entries)
                commit = period.rows.submit(puts, written, failed) if puts else None
            except BaseException:
                self._not_written(period, batch)
                raise
            if commit is not None:
                yield commit

    def _put_of(self, entry: Entry, rows: QueueJournal) -> Put | None:
        """The row of an entry; None when no store can keep it, or it could not be loaded again."""
        message, host = entry.message, rows.host
        body = message.body
        if entry.size > self._memory.largest_body or not isinstance(body, bytes | bytearray | memoryview):
            return None
        try:
            properties = encode_message(message)
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
            held_until_ms=entry.held_until_ms,
        )

    def _written(self, period: PagedReader, entries: list[Entry]) -> None:
        """On the store's thread: what was settled meanwhile must go there as well."""
        settled: list[int] = []
        for begin in range(0, len(entries), _SLICE):
            some = entries[begin : begin + _SLICE]
            with self._queue.life.lock:
                with self._memory as paging:
                    for entry in some:
                        entry.is_stored = paging.backed(period.source.area, entry.position)
                        if not entry.is_stored:
                            settled.append(number_of(entry.position))
                for entry in some:
                    if entry.is_stored and entry.held_until_ms is not None:
                        period.source.stored(entry)
        if settled:
            period.rows.delete(settled)

    def _not_written(
        self, period: PagedReader, entries: Sequence[Entry], error: object = None, *, for_good: bool = False
    ) -> None:
        """The store does not take them now, or no store ever: they stay in memory."""
        with self._memory as paging:
            for entry in entries:
                paging.writing_failed(period.source.area, entry.position, for_good=for_good)

    # -- while it pages

    def load_for_get(self, *, may_come: bool) -> bool:
        """Do one load for a get that found nothing, if something `may_come`; False when that can bring nothing.
        Raises as `BrokerQueue.get`.
        """
        period = self._period
        if period is None:
            return False
        if may_come and (period.load_for_get() or (not period.source.is_whole and period.adopt_some())):
            return True
        if error := period.loss():
            raise error
        return False

    def report_loss(self, consumer: QueueConsumer) -> None:
        """Tell that counted messages are lost, and cancel the consumers that would wait for them."""
        if (period := self._period) and (error := period.loss(consumer)):
            _log.error("%s; its consumers are cancelled", error, extra={"queue": self._queue.name})

    def trim(self) -> None:
        """Evict the entries above the limit of a ring, in memory or in the store."""
        if period := self._period:
            period.trim()

    def drop_each(self, reason: DeadLetterReason) -> int:
        """Dead-letter ready messages in a store; returns how many messages that was."""
        period = self._period
        return 0 if period is None or self._queue.life.deleted else period.drop_each(reason)

    def keep_time(self) -> None:
        """Drop what the store alone knows to be past its time, and bring what it knows to be due soon."""
        if period := self._period:
            period.rows.host.drop_expired()
            period.fetch_held()
