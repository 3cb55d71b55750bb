"""What an administrator does to the messages of a queue: purge, move, copy, delete, browse, change priority.

Promise     Only entries that nobody has are touched, unless `steal` takes those that consumers have and have not
            settled. Each message is where it was or where it should be, never in both places and, while the
            process lives, never in none: a move whose target refuses gives the entry back to its place. What a store
            has is moved in one commit, before which the message is on no queue's list, and after which on the target's.
Lock        Entries are looked at in batches of 256 under the lock; the selector is asked between the holds. What
            changed meanwhile is noticed when an entry is claimed. No two queues are ever locked at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from .._base.settings import QueueKind
from .._durable.batch import Submission
from .._paging.paged_core import PagedCore
from .._paging.queue_outgrowing import QueueOutgrowing
from .._selector.selector import Selector
from .entry import Entry
from .entry_list_kinds import newcomers

if TYPE_CHECKING:
    from multiqueue.store import Put

    from .._base.message import Message
    from .._base.outcome import PutOutcome
    from .consumer import Predicate
    from .core import QueueCore
    from .entry import Position
    from .stock import After

_BATCH: Final = 256  # entries per hold of the lock: some tens of microseconds


class QueueManagement(QueueOutgrowing):
    """The administrator's part of `BrokerQueue`."""

    def put(self, message: Message) -> PutOutcome:
        """As `BrokerQueue.put`."""
        raise NotImplementedError

    def admit(
        self, message: Message, *, immediate: bool = False, unlimited: bool = False
    ) -> tuple[PutOutcome, Entry | None]:
        """As `QueueArrival.admit`."""
        raise NotImplementedError

    def hand_over(self, entry: Entry, put: Put) -> None:
        """As `QueueArrival.hand_over`."""
        raise NotImplementedError

    def join_in_turn(self, entry: Entry, turn: Put) -> None:
        """As `QueueArrival.join_in_turn`."""
        raise NotImplementedError

    def withdraw(self, entry: Entry) -> None:
        """As `QueueArrival.withdraw`."""
        raise NotImplementedError

    def purge(self, stop: Callable[[], bool] = lambda: False) -> int:
        """Delete everything that nobody has; returns how many messages that was.

        What comes while this runs stays, and so does what somebody had in that time. It costs some microseconds a
        message, in slices between which others have the queue; where `stop()` says so, it ends after one of them. Waits
        for commits now and then, so that a store has time for others.
        """
        with self._keeping_core() as core:
            return self._purge_paged(core, stop) if isinstance(core, PagedCore) else self._purge_core(core, stop)

    def _purge_core(self, core: QueueCore, stop: Callable[[], bool]) -> int:
        """As `purge`, of a queue that keeps everything in memory."""
        now, count = self._clock(), 0
        with self._lock:
            is_new = newcomers(core.entries)
            position: Position | None = core.entries.start
        while position is not None and not stop():
            after: After = []
            with self._lock:
                position, gone = (None, []) if core.deleted else core.purge_some(position, is_new, now, after)
            self._act(after)
            count += len(gone)
            self._forget_gone(gone)
        return count

    def delete_messages(
        self, selector: Predicate | None = None, *, limit: int | None = None, steal: bool = False
    ) -> int:
        """Delete the messages the selector matches, at most `limit`; returns how many.

        With `steal` also those that consumers have: settling them later counts for nothing.
        """
        return self._for_each(selector, limit, steal, lambda entry: True, bodies=False)

    def move_messages(
        self,
        target: QueueManagement,
        selector: Predicate | None = None,
        *,
        limit: int | None = None,
        steal: bool = False,
    ) -> int:
        """Move matching messages to the end of another queue; returns how many.

        Stops nothing when the target refuses one (its limit, its deletion, a full store): that one stays. Waits for
        the commits of what a store has.

        Raises:
            ValueError: the target is this queue.
        """
        if target is self:
            raise ValueError(f"{self.label} cannot be moved to itself")
        if self._journal is None and not target.is_stored:
            return self._for_each(selector, limit, steal, lambda entry: target.put(entry.message).accepted)
        return self._move_each(
            selector, limit, steal, lambda entry, refused: self._move(entry, target, entry.message, refused)
        )

    def copy_messages(
        self, target: QueueManagement, selector: Predicate | None = None, *, limit: int | None = None
    ) -> int:
        """Put matching messages on another queue as well; returns how many it accepted.

        Raises:
            ValueError: the target is this queue.
        """
        if target is self:
            raise ValueError(f"{self.label} cannot be copied to itself")
        copied = 0
        for entry in self._matching(selector, steal=False):
            if limit is not None and copied >= limit:
                break
            copied += target.put(entry.message).accepted
        return copied

    def change_priority(self, priority: int, selector: Predicate | None = None, *, limit: int | None = None) -> int:
        """Give matching messages another priority: each goes to the end of its new level. Returns how many.

        Raises:
            ValueError: this is no priority queue.
        """
        if self.settings.kind is not QueueKind.PRIORITY:
            raise ValueError(f"{self.label} is a {self.settings.kind_name} queue; it knows no priorities")
        if self._journal is None:
            return self._replace_each(priority, selector, limit)

        def change(entry: Entry, refused: list[Entry]) -> bool:
            if entry.message.priority == priority:
                self._give_back(entry)
                return False
            message = dataclasses.replace(entry.message, priority=priority)
            return self._move(entry, self, message, refused, like=entry)

        return self._move_each(selector, limit, False, change)

    def browse(self, selector: Predicate | None = None, *, limit: int | None = None) -> list[Message]:
        """The messages that nobody has, in service order; they stay. A snapshot in batches, not a subscription."""
        found: list[Message] = []
        for entry in self._matching(selector, steal=False):
            if limit is not None and len(found) >= limit:
                break
            found.append(entry.message)
        return found

    def _for_each(
        self,
        selector: Predicate | None,
        limit: int | None,
        steal: bool,
        handle: Callable[[Entry], bool],
        *,
        bodies: bool = True,
    ) -> int:
        """Claim matching entries, delete those that `handle` (under no lock) says are done with."""
        handled = 0
        gone: list[Entry] = []
        try:
            for entry in self._matching(selector, steal=steal, bodies=bodies):
                if limit is not None and handled >= limit:
                    break
                if self._claim(entry, steal) and self._finish(entry, handle):
                    handled += 1
                    gone.append(entry)
                if len(gone) == _BATCH:
                    self._forget_gone(gone)
        finally:
            self._forget_gone(gone)
        return handled

    def _forget_gone(self, gone: list[Entry]) -> None:
        if self._rows is not None:
            self._forget_stored(self._rows, gone)
        gone.clear()

    def _claim(self, entry: Entry, steal: bool) -> bool:
        after: After = []
        with self._lock:
            claimed = not self._core.deleted and self._core.seize(entry, after, steal=steal)
        self._act(after)
        return claimed

    def _finish(self, entry: Entry, handle: Callable[[Entry], bool]) -> bool:
        done = False
        try:
            done = handle(entry)
        finally:
            if done:
                self._let_go(entry)
            else:
                self._give_back(entry)
        return done

    def _let_go(self, entry: Entry) -> None:
        """Take out an entry that was claimed."""
        after: After = []
        with self._lock:
            self._core.accept(entry, None, after)
            self._core.pass_baton(after)
        self._act(after)

    def _give_back(self, entry: Entry) -> None:
        after: After = []
        with self._lock:
            self._core.release(entry, None, after, counted=True)
            self._core.pass_baton(after)
        self._act(after)

    # -- what a store has

    def _move_each(
        self,
        selector: Predicate | None,
        limit: int | None,
        steal: bool,
        move: Callable[[Entry, list[Entry]], bool],
    ) -> int:
        """Claim matching entries and begin to move each; returns how many arrived, when all commits are done."""
        moved = 0
        refused: list[Entry] = []  # by a full store
        for entry in self._matching(selector, steal=steal):
            if limit is not None and moved - len(refused) >= limit:
                break
            moved += self._claim(entry, steal) and move(entry, refused)
        journal = self._journal
        if moved and journal is not None and journal.host.may_wait:
            journal.host.wait_for_commits()
        return moved - len(refused)

    def _move(
        self,
        entry: Entry,
        target: QueueManagement,
        message: Message,
        refused: list[Entry],
        *,
        like: Entry | None = None,
    ) -> bool:
        """Begin to move a claimed entry in one commit; False when the target does not take it, and it is back."""
        journal = self._journal or target._journal_of()
        submission = Submission(journal.host)
        submission.then(lambda: self._moved(entry), otherwise=lambda: self._move_refused(entry, refused))
        accepted = False
        try:
            if target.is_stored and message.persistent:
                accepted = submission.put(target, message, like=like).accepted
            else:
                accepted = target.put(message).accepted
        finally:
            if not accepted:
                self._give_back(entry)
        if not accepted:
            return False
        if entry.is_stored and self.is_stored:
            submission.delete(entry.number)
        submission.submit()
        return True

    def _moved(self, entry: Entry) -> None:
        if entry.is_stored and self.is_stored:
            entry.bury()
        self._let_go(entry)
        if self._rows is not None and not self.is_stored:
            self._forget_stored(self._rows, (entry,))  # perhaps in another store

    def _move_refused(self, entry: Entry, refused: list[Entry]) -> None:
        self._give_back(entry)
        refused.append(entry)

    # -- what is in memory alone

    def _replace_each(self, priority: int, selector: Predicate | None, limit: int | None) -> int:
        changed = 0
        for entry in self._matching(selector, steal=False):
            if limit is not None and changed >= limit:
                break
            if entry.message.priority != priority:
                changed += self._replace(entry, dataclasses.replace(entry.message, priority=priority))
        return changed

    def _replace(self, entry: Entry, message: Message) -> bool:
        successor = Entry(entry.queue, message, entry.size)
        successor.key = self._core.entries.key_of(message)
        after: After = []
        with self._lock:
            if not entry.is_ready or self._core.deleted:
                return False
            successor.group, successor.expires_at = entry.group, entry.expires_at
            successor.held_until = entry.held_until
            successor.delivery_count, successor.refused_by = entry.delivery_count, entry.refused_by
            if not self._core.drop(entry, None, after):
                return False  # of a queue that pages: somebody was faster
            self._core.append(successor, after)
            self._core.tell_browsers(after)
            self._core.pass_baton(after)
        self._act(after)
        return True

    def _matching(self, selector: Predicate | None, *, steal: bool, bodies: bool = True) -> Iterator[Entry]:
        """The entries that match; without `bodies`, those that had to be read may have none."""
        for batch in self._batches(bodies=bodies or not isinstance(selector, Selector | None)):
            now = self._clock()
            for entry in batch:
                if entry.expires_at is not None and entry.expires_at <= now:
                    continue  # housekeeping's, or its owner's
                if (entry.is_ready or (steal and entry.is_acquired)) and (
                    selector is None or self._matches(selector, entry.message)
                ):
                    yield entry

    def _batches(self, *, bodies: bool) -> Iterator[list[Entry]]:
        with self._keeping_core():
            reading = self._reading
            yield from self._walk() if reading is None else reading.pages(bodies=bodies)

    @contextmanager
    def _keeping_core(self) -> Iterator[QueueCore]:
        """A block in which the queue's core stays as it is."""
        walk = object()
        with self._lock:
            self._walks.add(walk)
            core = self._core
        try:
            yield core
        finally:
            self._walks.discard(walk)

    def _walk(self) -> Iterator[list[Entry]]:
        with self._lock:
            position = self._core.entries.start
            horizon = self._core.depth  # or a copy to a queue that feeds this one might never end
        seen = 0
        while seen < horizon:
            batch: list[Entry] = []
            with self._lock:
                while len(batch) < _BATCH:
                    entry = self._core.entries.after(position)
                    if entry is None:
                        break
                    position = entry.position
                    batch.append(entry)
            if not batch:
                return
            seen += len(batch)
            yield batch
