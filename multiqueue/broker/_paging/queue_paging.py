"""A paged queue's dealings with its store, the lock being free: reading, writing out, trimming, expiring.

Promise     What is read is claimed under the lock before anything is done to it, so what has gone meanwhile is left
            alone. What is written out stays in memory until the store has it, and is deleted there when it was
            settled before that.
State       None of its own; see `_paging/paged_core`.
Who runs    Loaders (`feed`), publishers (`write_out`, `trim`), whoever gets (`_load_for_get`), housekeeping (`expire`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from multiqueue.store import Put, StoreDamaged, StoreError

from .._base.message_codec import encode_message
from .._base.outcome import DeadLetterReason
from .._base.settings import QueueKind
from .._queue.core import QueueCore
from .._queue.entry import Entry
from .._queue.settlement import QueueSettlement
from .._queue.stock import After
from .paged_core import PagedCore, may_page
from .paged_entries import number_of
from .reader import PagedReading
from .target_list import LEVEL_SHIFT

if TYPE_CHECKING:
    from multiqueue.store import Commit, Header

    from .._base.message import Message
    from .._durable.journal import QueueJournal
    from .._queue.consumer import Predicate, QueueConsumer
    from .target_list import TargetList

_log = logging.getLogger("multiqueue.broker")

_BATCH: Final = 1000  # rows of one submission
_SLICE: Final = 512  # messages that are purged in one hold of the locks: a millisecond
_SLICES_ON_THE_WAY: Final = 4  # to the store: some 20 ms that other commits wait


class QueuePaging(QueueSettlement):
    """The part of `BrokerQueue` that reads and writes what is not in memory."""

    _reading: PagedReading | None = None  # Invariant: not None if and only if the core is paged.

    def recovered(self, header: Header, body: bytes) -> Entry:
        """As `QueueArrival.recovered`."""
        raise NotImplementedError

    @contextmanager
    def looking(self) -> Iterator[None]:
        """A block in which the queue's core stays: what is read in it is claimed from the core it was read for."""
        walk = object()
        self._walks.add(walk)
        try:
            yield
        finally:
            self._walks.discard(walk)

    def matches(self, selector: Predicate, message: Message) -> bool:
        """Ask a selector, under no lock; one that raises has refused."""
        return self._matches(selector, message)

    def feed(self, target: TargetList) -> None:
        """Tell the consumers of a list that a load has brought something."""
        after: After = []
        with self._lock:
            core = self._core
            if isinstance(core, PagedCore) and not core.deleted:
                core.fed(target, after)
        self._act(after)

    def cancel_fed(self, target: TargetList) -> None:
        """Cancel the consumers of a list: the store cannot be read for them. What they have is theirs to settle."""
        after: After = []
        with self._lock:
            core = self._core
            if isinstance(core, PagedCore) and not core.deleted:
                core.cancel_fed(target, after)
        self._act(after)

    def _new_core(self) -> QueueCore:
        journal, memory = self._journal, self._memory
        if journal is None or memory is None or not may_page(self.settings):
            return super()._new_core()
        core = PagedCore(self, self.settings, self._clock, memory, self)
        self._reading = PagedReading(self, core, journal.store, journal.number)
        memory.open_area(core.area, journal.number, self._reading)
        return core

    def _load_for_get(self) -> bool:
        """Do one load of the list that gets have; False when that can bring nothing.

        Raises:
            ConsumerNotAdmitted: there is something, and no room for it.
            StoreError: the store cannot be read.
        """
        core = self._core
        target = core.list_for_get if isinstance(core, PagedCore) else None
        return target is not None and self._memory is not None and self._memory.load_now(target)

    def _check_for_loss(self) -> None:
        """Return if a get that found nothing has met no contradiction.

        Raises:
            StoreDamaged: messages are counted, and the store shows none.
        """
        with self._lock:
            core = self._core
            lost = core.available if isinstance(core, PagedCore) and core.has_lost(core.getter) else 0
        if lost:
            raise self._loss_of(lost)

    def report_loss(self, consumer: QueueConsumer) -> None:
        after: After = []
        with self._lock:
            core = self._core
            if not isinstance(core, PagedCore) or not core.has_lost(consumer):
                return
            lost, target = core.available, core.feeds.target_of(consumer)
            assert target is not None, "who has lost something has a list"
            core.cancel_fed(target, after)
        _log.error("%s; its consumers are cancelled", self._loss_of(lost))
        self._act(after)

    def _loss_of(self, lost: int) -> StoreDamaged:
        return StoreDamaged(
            f"{lost} messages of {self.label} are gone from the store, and nobody has settled them;"
            " `multiqueue store check` looks for more"
        )

    # -- everything that stands on the queue

    def _pages(self, *, bodies: bool, lowest_first: bool = False) -> Iterator[list[Entry]]:
        reading = self._reading
        return iter(()) if reading is None else reading.pages(bodies=bodies, lowest_first=lowest_first)

    def _purge_paged(self, core: PagedCore, stop: Callable[[], bool]) -> int:
        """Delete what nobody has and stands on a paged queue now; returns how many messages that was.

        First what the store does not show: should it be written out meanwhile, the store shows it afterwards.
        """
        count = 0
        now = self._clock()
        with self.looking():
            with core.memory:
                ends = list(core.area.last)
            with self._lock:
                known = core.beside_the_store(ends)
            for begin in range(0, len(known), _SLICE):
                if stop():
                    return count
                after: After = []
                with self._lock:
                    gone = core.purge_known(known[begin : begin + _SLICE], now, after)
                self._act(after)
                self._forget_stored(self._rows_of(), gone)
                count += len(gone)
            for end in ends:
                count += self._purge_level(core, end, stop)
        return count

    def _purge_level(self, core: PagedCore, end: int, stop: Callable[[], bool]) -> int:
        """As `_purge_paged`, of what the store has of one level up to its end."""
        rows = self._rows_of()
        level, wall_now = end >> LEVEL_SHIFT, rows.host.wall_clock()
        count, position = 0, level << LEVEL_SHIFT
        commits: deque[Commit] = deque()  # what other publishers' commits wait for is bounded
        while position < end and not (stop() or core.deleted):
            after: After = []
            with core.memory as paging:
                look = paging.look(core.area)
            try:
                page = rows.store.outlines(rows.number, number_of(position), _SLICE, wall_now, level=level)
                found = [(level << LEVEL_SHIFT | each.id, each.size) for each in page]
                with self._lock:
                    gone = core.purge_stored([each for each in found if each[0] <= end], after)
            finally:
                with core.memory as paging:
                    paging.end_look(look)
            self._act(after)
            count += len(gone)
            commit = rows.delete([number_of(each) for each in gone]) if gone else None
            if commit is not None and rows.host.may_wait:
                commits.append(commit)
                if len(commits) > _SLICES_ON_THE_WAY:
                    with suppress(StoreError):  # whoever waits for it is told
                        commits.popleft().wait()
            if len(page) < _SLICE:
                break
            position = found[-1][0]
        return count

    def _drop_each(self, reason: DeadLetterReason) -> int:
        """Dead-letter everything that nobody has, of a paged queue; returns how many messages that was."""
        if self._reading is None or self._core.deleted:
            return 0
        dropped = 0
        for batch in self._pages(bodies=True):
            for entry in batch:
                dropped += self._drop_now(entry, reason)
        return dropped

    def _drop_now(self, entry: Entry, reason: DeadLetterReason | None) -> bool:
        after: After = []
        with self._lock:
            dropped = self._core.drop(entry, reason, after)
        self._act(after)
        return dropped

    def drop_expired(self, entry: Entry) -> bool:
        """A message that was read is past its time; False when somebody has it, or it is gone."""
        return self._drop_now(entry, DeadLetterReason.EXPIRED)

    def _expire_stored(self) -> None:
        """Have what the store alone knows to be past its time dropped."""
        if self._reading is not None and self._memory is not None and self._memory.expiry is not None:
            self._memory.expiry.look()

    def trim(self) -> None:
        """Evict, from the head or the lowest level, what a ring has above its limit and the store alone has."""
        if self.settings.kind is QueueKind.STANDARD:
            self._trim_head()
            return
        for batch in self._pages(bodies=True, lowest_first=True):
            for entry in batch:
                if not self._core.is_over_limit:
                    return
                self._drop_now(entry, DeadLetterReason.MAXLEN)

    def _trim_head(self) -> None:
        while True:
            after: After = []
            with self._lock:
                core = self._core
                if not core.is_over_limit or core.deleted:
                    return
                core.begin_get()
                victim = core.next_for(core.getter, after)
                if victim is not None:
                    core.drop(victim, DeadLetterReason.MAXLEN, after)
                may_come = core.end_get(found=victim is not None)
            self._act(after)
            if victim is None and not (may_come and self._load_for_get()):
                return

    # -- writing out

    def write_out(self) -> None:
        """Give the store what is in memory alone, and wait until it has it, so that publishers do not outrun it."""
        core = self._core
        if not isinstance(core, PagedCore):
            return
        try:
            while batch := core.begin_writing_out(_BATCH):
                commit = self._write_out(core, batch)
                if not self._rows_of().host.may_wait:
                    return
                if commit is not None:
                    commit.wait()
        except StoreError:
            pass  # it stays in memory; whoever publishes something that must be stored is told

    def _write_out(self, core: PagedCore, batch: list[Entry]) -> Commit | None:
        entries: list[Entry] = []
        puts: list[Put] = []
        for entry in batch:
            put = self._put_of(entry)
            if put is None:
                core.keep(entry)
                continue
            entries.append(entry)
            puts.append(put)
        if not puts:
            return None
        written = partial(self._written_out, core, entries)
        try:
            return self._rows_of().host.submit(puts, written, lambda error: core.writing_failed(entries))
        except BaseException:
            core.writing_failed(entries)
            raise

    def _rows_of(self) -> QueueJournal:
        assert self._rows is not None, "a queue that pages has rows"
        return self._rows

    def _put_of(self, entry: Entry) -> Put | None:
        """The row of an entry; None when no store can keep it, or it could not be loaded again."""
        assert self._memory is not None
        rows, message = self._rows_of(), entry.message
        host, body = rows.host, message.body
        if not self._memory.is_loadable(entry.size):
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

    def _written_out(self, core: PagedCore, entries: list[Entry]) -> None:
        """On the store's thread: what was settled meanwhile must go there as well."""
        settled: list[int] = []
        with self._lock:
            for entry in entries:
                if not core.written_out(entry):
                    settled.append(number_of(entry.position))
        if settled:
            self._rows_of().delete(settled)
