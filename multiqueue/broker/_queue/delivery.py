"""Delivering: how a consumer pulls, and where selectors are asked.

Who runs    For one consumer, one thread at a time may be in `deliver_single_message`; where that matters, a second
            one is refused with an error.
Selectors   are user code, so they are asked between two holds of the lock: a consumer with a selector takes a batch
            of entries out of its own view, asks, and puts back what it did not use. Batches double from 1 to 64
            while everything is refused, so a million refusals cost a million calls and few holds.
Source      `deliver_single_message` is AbstractQueue#deliverSingleMessage of "Consumer-Queue Interactions".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from .administration import QueueManagement
from .consumer import QueueConsumer
from .core import Pull
from .cursor import Reader
from .entry import Entry
from .stock import After

_LARGEST_BATCH: Final = 64  # entries a selector is asked about between two holds; some 20 us of lock


class QueueDelivery(QueueManagement):
    """The part of `BrokerQueue` that hands out entries."""

    def deliver_single_message(self, consumer: QueueConsumer) -> Entry | None:
        """The next entry for this consumer, now its own (a browser's stays where it is); None when there is none.

        After None the consumer will be notified again. After an entry it must call again: it will not be.

        Raises:
            RuntimeError: another call for this consumer is under way, perhaps one that runs its selector.
        """
        after: After = []
        entry = None
        with self._lock:
            if not consumer.is_willing:
                return None
            rivals, asks = self._rivals_locked(consumer)
            if asks:
                self._begin_pull_locked(consumer)
            else:
                entry = self._core.pull(consumer, rivals, after)
                self._core.delivered += entry is not None
        if after:
            self._act(after)
        if asks:
            try:
                entry = self._pull_filtered(consumer)
            finally:
                consumer.pulling = False
        if self._rows is not None and entry is not None and consumer.auto_accept and consumer.acquires:
            self._forget_stored(self._rows, (entry,))
        return entry

    def deliver_messages(self, consumer: QueueConsumer, most: int, most_bytes: int) -> list[Entry]:
        """As `deliver_single_message`, up to `most` entries in one hold of the lock; where selectors are asked, one.

        The entry with which their sizes reach `most_bytes` is the last.
        After an empty list the consumer will be notified again; after any other it must call again.

        Raises:
            RuntimeError: as `deliver_single_message`.
        """
        after: After = []
        entries: list[Entry] = []
        left = most_bytes
        with self._lock:
            rivals, asks = self._rivals_locked(consumer) if consumer.is_willing else ((), False)
            while not asks and consumer.is_willing and len(entries) < most and left > 0:
                entry = self._core.pull(consumer, rivals, after)
                if entry is None:
                    break
                entries.append(entry)
                left -= entry.size
            self._core.delivered += len(entries)
        if asks:
            entry = self.deliver_single_message(consumer)
            return [] if entry is None else [entry]
        if after:
            self._act(after)
        if self._rows is not None and entries and consumer.auto_accept and consumer.acquires:
            self._forget_stored(self._rows, entries)
        return entries

    def _rivals_locked(self, consumer: QueueConsumer) -> tuple[Sequence[QueueConsumer], bool]:
        """Consumers that go before this one, and whether a selector has to be asked in a pull."""
        core = self._core
        rivals = core.rivals(consumer) if len(core.consumers.levels) > 1 else ()
        # What a paged queue gives was matched when it came into the consumer's list.
        asks = (consumer.selector is not None and not core.is_paged) or (
            len(rivals) > 0 and any(rival.selector is not None for rival in rivals)
        )
        return rivals, asks

    def get(self, owner: object, *, auto_accept: bool = False) -> Entry | None:
        """The first available entry, for an owner that is no consumer; None when there is none.

        Does not block, but for reading what a store alone has.

        Raises:
            ConsumerNotAdmitted: the queue is paged, and what is unsettled leaves no memory for its next message.
            StoreError: the store cannot be read.
        """
        while True:
            entry, may_come = self._get_now(owner, auto_accept)
            if not may_come or not self._load_for_get():
                break
        if entry is None and self._core.is_paged:
            self._check_for_loss()
        if self._rows is not None and entry is not None and auto_accept:
            self._forget_stored(self._rows, (entry,))
        return entry

    def _get_now(self, owner: object, auto_accept: bool) -> tuple[Entry | None, bool]:
        """What can be had from memory, and whether a look into the store may bring something."""
        after: After = []
        with self._lock:
            core = self._core
            if core.deleted:
                return None, False
            core.last_used = self._clock()
            core.begin_get()
            # With groups, what one owner passes over another may have: no shared place in the queue.
            reader = core.getter if core.groups is None else Reader(core.entries.start, owner)
            entry = core.next_for(reader, after)
            if entry is not None:
                core.pass_over(reader, entry)
                core.acquire(entry, owner, after, locked=False)
                core.delivered += 1
                if auto_accept:
                    core.accept(entry, owner, after)
            may_come = core.end_get(found=entry is not None)
        self._act(after)
        return entry, may_come

    def _begin_pull_locked(self, consumer: QueueConsumer) -> None:
        if consumer.pulling:
            raise RuntimeError(f"{consumer!r} is being pulled already; one thread at a time may do that")
        consumer.pulling = True

    def _pull_filtered(self, consumer: QueueConsumer) -> Entry | None:
        """`deliver_single_message` where a selector has to be asked.

        1. Hold the lock, move the consumer past a batch of entries.  2. Ask its selector, and those of rivals of
        higher priority, without the lock.  3. Hold the lock, put back what was not refused, and take the match
        if nothing has changed that forbids it; else begin again. The consumer stays NOTIFIED meanwhile: it leaves
        that list in the same hold in which it finds nothing, so no put goes unseen.
        """
        size = 1
        while True:
            after: After = []
            with self._lock:
                core = self._core
                batch = core.examine(consumer, size, after)
                rivals = core.rivals(consumer) if batch else ()
            self._act(after)
            if not batch:
                return None
            matched, claimants = self._ask(consumer, batch, rivals)
            if matched is None:
                with self._lock:
                    if self._core is core:
                        core.turn_down(consumer, batch)
                size = min(2 * size, _LARGEST_BATCH)
                continue
            after = []
            with self._lock:
                # A queue that has begun to page meanwhile finds it again.
                paged_since = self._core is not core
                pull = Pull.AGAIN if paged_since else core.pull_matched(consumer, matched, rivals, claimants, after)
                self._core.delivered += pull is Pull.TAKEN
            self._act(after)
            if pull is not Pull.AGAIN:
                return matched if pull is Pull.TAKEN else None

    def _ask(
        self, consumer: QueueConsumer, batch: list[Entry], rivals: Sequence[QueueConsumer]
    ) -> tuple[Entry | None, list[QueueConsumer]]:
        """The first entry of the batch that the consumer wants, and the rivals that want it too.

        What follows it in the batch is put back; so is all of it when a selector ends the call.
        """
        unused = batch
        try:
            matched = self._first_match(consumer, batch)
            claimants = [] if matched is None else self._wanting(rivals, matched)
            unused = [] if matched is None else batch[batch.index(matched) + 1 :]
        finally:
            if unused:
                with self._lock:
                    for entry in unused:
                        consumer.revisit(entry)
        return matched, claimants

    def _first_match(self, consumer: QueueConsumer, batch: list[Entry]) -> Entry | None:
        selector = consumer.selector
        if selector is None:
            return batch[0]
        return next((entry for entry in batch if self._matches(selector, entry.message)), None)

    def _wanting(self, consumers: Iterable[QueueConsumer], entry: Entry) -> list[QueueConsumer]:
        return [each for each in consumers if each.selector is None or self._matches(each.selector, entry.message)]
