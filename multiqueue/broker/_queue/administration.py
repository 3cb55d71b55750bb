"""An administrator's verbs for the messages of a queue: purge, move, copy, delete, browse, change priority.

Promise     Only ready entries are touched, unless `steal` takes those that consumers have and have not
            settled. Each message is where it was or where it should be, never in both places and, while the
            process lives, never in none. What a store has is moved in one commit.
Lock        Entries are looked at in batches of 256 under the lock; the selector is asked between the holds. What
            changed meanwhile is noticed when an entry is claimed. No two queues are ever locked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from .._base.message import Message, PutOutcome, anew
from .._selector.selector import Selector
from .callbacks import Callbacks
from .consumer import Predicate
from .entry import Entry, Position
from .entry_list import EntryList, newcomers
from .life import Life

if TYPE_CHECKING:
    from .._durable.submission import QueueJournal
    from .queue import BrokerQueue

_BATCH: Final = 256  # entries per hold of the lock: some tens of microseconds


@dataclass(eq=False, repr=False, slots=True)
class ResidentWalk:
    """A way through a queue that keeps everything in memory."""

    _life: Life
    entries: EntryList
    _callbacks: Callbacks

    def pages(self, *, bodies: bool) -> Iterator[list[Entry]]:
        """As `Walk.pages`. The lock is held for 256 entries."""
        position: Position | None = self.entries.start
        with self._life.lock:
            is_new = newcomers(self.entries)  # or a copy to a queue that feeds this one might never end
        while position is not None:
            batch: list[Entry] = []
            with self._life.lock:
                for _ in range(_BATCH):
                    entry = self.entries.after(position)
                    position = None if entry is None else entry.position
                    if entry is None:
                        break
                    if not is_new(entry):
                        batch.append(entry)
            if batch:
                yield batch

    def purge(self, stop: Callable[[], bool]) -> int:
        now, count = self._life.clock(), 0
        for batch in self.pages(bodies=False):
            if stop():
                break
            with self._callbacks.deciding() as after:
                if self._life.deleted:
                    break
                if not self._life.source.expires_at_head:
                    batch = [entry for entry in batch if entry.expires_at is None or entry.expires_at > now]
                count += self._life.purge(batch, after)
        return count


class Administration:
    """An administrator's verbs for one queue, which a `BrokerQueue` has."""

    label: str
    is_stored: bool
    journal: QueueJournal | None
    life: Life
    callbacks: Callbacks
    check_open: Callable[[], None]

    def purge(self, stop: Callable[[], bool] = lambda: False) -> int:
        """Delete all that is ready; returns how many messages that was.

        Messages that arrive meanwhile stay, and so do those that a consumer had in that time. It costs some
        microseconds a message, in slices between which others have the queue; where `stop()` says so, it ends after one
        of them. Waits for commits now and then, so that a store has time for others.
        """
        with self.life.pinned() as walk:
            rows = self.life.rows
            count = walk.purge(stop if rows is None else rows.host.paced(stop))
        self.check_open()
        return count

    def delete_messages(
        self, selector: Predicate | None = None, *, limit: int | None = None, steal: bool = False
    ) -> int:
        """Delete the messages the selector matches, at most `limit`; returns how many.

        With `steal` also those that consumers have: settling them later counts for nothing.
        """
        claimed: list[Entry] = []  # whose rows are deleted together
        rows = self.life.rows
        pace = None if rows is None else rows.host.paced()

        def delete(entry: Entry) -> bool:
            if not self._claim(entry, steal):
                return False
            claimed.append(entry)
            if len(claimed) == _BATCH:
                self._end(claimed)
                if pace is not None:
                    pace()
            return True

        try:
            return self._each(delete, selector, limit, steal=steal, bodies=False)
        finally:
            self._end(claimed)

    def move_messages(
        self, target: BrokerQueue, selector: Predicate | None = None, *, limit: int | None = None, steal: bool = False
    ) -> int:
        """Move matching messages to the end of another queue; returns how many.

        Stops nothing when the target refuses one (its limit, its deletion, a full store): that one stays. Waits for
        the commits of what a store has.

        Raises:
            ValueError: the target is this queue.
        """
        if target is self:
            raise ValueError(f"{self.label} cannot be moved to itself")
        refused: list[Entry] = []

        def move(entry: Entry) -> bool:
            return self._claim(entry, steal) and self._move(entry, target, anew(entry.message), refused)

        return self._each(move, selector, limit, steal=steal, refused=refused)

    def copy_messages(self, target: BrokerQueue, selector: Predicate | None = None, *, limit: int | None = None) -> int:
        """Put matching messages on another queue as well; returns how many it accepted. Raises as `move_messages`."""
        if target is self:
            raise ValueError(f"{self.label} cannot be copied to itself")
        return self._each(lambda entry: target.put(anew(entry.message)).accepted, selector, limit)

    def change_priority(self, priority: int, selector: Predicate | None = None, *, limit: int | None = None) -> int:
        """Give matching messages another priority: each goes to the end of its new level. Returns how many.

        Raises:
            ValueError: this is no priority queue.
        """
        settings = self.life.settings
        if not settings.has_levels:
            raise ValueError(f"{self.label} is a {settings.kind_name} queue; it knows no priorities")
        refused: list[Entry] = []

        def change(entry: Entry) -> bool:
            if entry.message.priority == priority:
                return False
            message = replace(entry.message, priority=priority)
            return self._claim(entry) and self._move(entry, cast("BrokerQueue", self), message, refused, like=entry)

        return self._each(change, selector, limit, refused=refused)

    def browse(
        self, selector: Predicate | None = None, *, limit: int | None = None, limit_bytes: int | None = None
    ) -> list[Message]:
        """The ready messages, in service order; they stay. A snapshot in batches, not a subscription.

        `limit` is a number of messages. With `limit_bytes` the one with which all together have more is the last.
        """
        found: list[Message] = []
        left = float("inf") if limit_bytes is None else limit_bytes
        matching = self._matching(selector, steal=False)
        for entry in islice(matching, None if limit is None else max(limit, 0)):
            found.append(entry.message)
            left -= entry.size
            if left < 0:
                break
        return found

    def _each(
        self,
        handle: Callable[[Entry], bool],
        selector: Predicate | None,
        limit: int | None,
        *,
        steal: bool = False,
        bodies: bool = True,
        refused: list[Entry] | None = None,
    ) -> int:
        """Have matching entries handled, under no lock, until `limit` of them were; returns how many.

        With a list that a full store adds to, those that are `refused` do not count, and commits are waited for.
        """
        handled, journal = 0, self.journal
        for entry in self._matching(selector, steal=steal, bodies=bodies):
            if limit is not None and handled - len(refused or ()) >= limit:
                break
            handled += handle(entry)
        if refused is not None and handled and journal is not None and journal.host.may_wait:
            journal.host.submit(()).wait()
        return handled - len(refused or ())

    def _claim(self, entry: Entry, steal: bool = False) -> bool:
        with self.callbacks.deciding() as after:
            return not self.life.deleted and self.life.seize(entry, after, steal=steal)

    def _end(self, claimed: list[Entry]) -> None:
        """Take claimed entries out for good, and off the list."""
        with self.callbacks.deciding() as after:
            self.life.end(claimed, None, after)
            self.life.notifier.pass_baton(after)
        claimed.clear()

    def _give_back(self, entry: Entry) -> None:
        with self.callbacks.deciding() as after:
            self.life.release(entry, None, after, counted=True, failed=False)
            self.life.notifier.pass_baton(after)

    def _move(
        self, entry: Entry, target: BrokerQueue, message: Message, refused: list[Entry], *, like: Entry | None = None
    ) -> bool:
        """Move a claimed entry, in one commit of what stores have; False when the target does not take it."""
        journal = self.journal or target.journal
        batch = None if journal is None else journal.batch()
        if batch is not None:
            batch.then(lambda: self._moved(entry), otherwise=lambda: self._move_refused(entry, refused))
        accepted = False
        try:
            if batch is not None and target.is_stored and message.persistent:
                accepted = batch.put(target, message, like=like).accepted
            elif like is not None:
                accepted = self._put_like(like, message)
            else:
                accepted = target.put(message).accepted
        finally:
            if not accepted:
                self._give_back(entry)
        if batch is None:
            if accepted:
                self._moved(entry)
        elif accepted:
            if entry.is_stored and self.is_stored:
                batch.delete(entry.number)
            batch.submit()
        return accepted

    def _put_like(self, like: Entry, message: Message) -> bool:
        entry = self.life.entry_of(message)
        entry.take_after(like)
        return self.life.put((entry,), unlimited=True) is not PutOutcome.DELETED

    def _moved(self, entry: Entry) -> None:
        if entry.is_stored and self.is_stored:
            entry.is_settled_elsewhere = True
        self._end([entry])

    def _move_refused(self, entry: Entry, refused: list[Entry]) -> None:
        self._give_back(entry)
        refused.append(entry)

    # -- looking

    def _matching(self, selector: Predicate | None, *, steal: bool, bodies: bool = True) -> Iterator[Entry]:
        """The entries that match; without `bodies`, those that had to be read may have none."""
        matches, source = self.callbacks.matches, self.life.source
        with self.life.pinned() as walk:
            for batch in walk.pages(bodies=bodies or not isinstance(selector, Selector | None)):
                now = self.life.clock()
                for entry in batch:
                    if entry.expires_at is not None and entry.expires_at <= now and not source.expires_at_head:
                        continue  # housekeeping's, or its owner's
                    if (entry.is_ready or (steal and entry.is_acquired)) and matches(selector, entry.message):
                        yield entry
        self.check_open()
