"""What an administrator does to the messages of a queue: purge, move, copy, delete, browse, change priority.

Promise     Only ready entries are touched, unless `steal` takes those that consumers have and have not
            settled. Each message is where it was or where it should be, never in both places and, while the
            process lives, never in none. What a store has is moved in one commit.
Lock        Entries are looked at in batches of 256 under the lock; the selector is asked between the holds. What
            changed meanwhile is noticed when an entry is claimed. No two queues are ever locked at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from .._base.polled_lock import HeldLock
from .._base.settings import QueueKind
from .._selector.selector import Selector
from .callbacks import Callbacks
from .dead_letters import DeadLetters
from .entry import Entry
from .entry_list_kinds import newcomers
from .entry_source import ResidentEntries
from .state import QueueState

if TYPE_CHECKING:
    from .._base.message import Message
    from .consumer import Predicate
    from .entry import Position
    from .ports import MoveTarget, Walk

_BATCH: Final = 256  # entries per hold of the lock: some tens of microseconds


class ResidentWalk:
    """A way through a queue that keeps everything in memory."""

    def __init__(
        self,
        state: QueueState,
        source: ResidentEntries,
        lock: HeldLock,
        callbacks: Callbacks,
        dead_letters: DeadLetters,
    ) -> None:
        self._state = state
        self._entries = source.entries
        self._lock = lock
        self._callbacks = callbacks
        self._dead_letters = dead_letters

    def pages(self, *, bodies: bool, lowest_first: bool = False) -> Iterator[list[Entry]]:
        with self._lock:
            position: Position | None = self._entries.start
            horizon = len(self._entries)  # or a copy to a queue that feeds this one might never end
        seen = 0
        while seen < horizon and position is not None:
            with self._lock:
                batch, position = self._batch_locked(position)
            if batch:
                seen += len(batch)
                yield batch

    def purge(self, stop: Callable[[], bool]) -> int:
        """As `Walk.purge`."""
        now, count = self._state.clock(), 0
        with self._lock:
            is_new = newcomers(self._entries)
            position: Position | None = self._entries.start
        while position is not None and not stop():
            with self._callbacks.deciding(self._lock) as after:
                if self._state.deleted:
                    break
                batch, position = self._batch_locked(position)
                gone = self._state.purge(
                    [
                        entry
                        for entry in batch
                        if not is_new(entry) and (entry.expires_at is None or entry.expires_at > now)
                    ],
                    after,
                )
            count += len(gone)
            self._dead_letters.forget(gone)
        return count

    def _batch_locked(self, position: Position) -> tuple[list[Entry], Position | None]:
        """The next entries behind a position, and where to go on, None at the end."""
        batch: list[Entry] = []
        while len(batch) < _BATCH:
            entry = self._entries.after(position)
            if entry is None:
                return batch, None
            position = entry.position
            batch.append(entry)
        return batch, position


class Administration:
    """What an administrator does to one queue. The methods are those of `BrokerQueue`, which says what they do."""

    def __init__(
        self, queue: MoveTarget, state: QueueState, lock: HeldLock, callbacks: Callbacks, dead_letters: DeadLetters
    ) -> None:
        self._queue = queue
        self._state = state
        self._lock = lock
        self._callbacks = callbacks
        self._dead_letters = dead_letters

    def purge(self, stop: Callable[[], bool]) -> int:
        with self._state.pinned():
            return self._walk().purge(stop)

    def delete_messages(self, selector: Predicate | None, limit: int | None, steal: bool) -> int:
        return self._for_each(selector, limit, steal, lambda entry: True, bodies=False)

    def move_messages(self, target: MoveTarget, selector: Predicate | None, limit: int | None, steal: bool) -> int:
        if target is self._queue:
            raise ValueError(f"{self._queue.label} cannot be moved to itself")
        if not self._queue.is_stored and not target.is_stored:
            return self._for_each(selector, limit, steal, lambda entry: target.put(entry.message).accepted)
        return self._move_each(
            selector, limit, steal, lambda entry, refused: self._move(entry, target, entry.message, refused)
        )

    def copy_messages(self, target: MoveTarget, selector: Predicate | None, limit: int | None) -> int:
        if target is self._queue:
            raise ValueError(f"{self._queue.label} cannot be copied to itself")
        copied = 0
        for entry in self._matching(selector, steal=False):
            if limit is not None and copied >= limit:
                break
            copied += target.put(entry.message).accepted
        return copied

    def change_priority(self, priority: int, selector: Predicate | None, limit: int | None) -> int:
        settings = self._state.settings
        if settings.kind is not QueueKind.PRIORITY:
            raise ValueError(f"{self._queue.label} is a {settings.kind_name} queue; it knows no priorities")
        if not self._queue.is_stored:
            return self._replace_each(priority, selector, limit)

        def change(entry: Entry, refused: list[Entry]) -> bool:
            if entry.message.priority == priority:
                self._give_back(entry)
                return False
            message = dataclasses.replace(entry.message, priority=priority)
            return self._move(entry, self._queue, message, refused, like=entry)

        return self._move_each(selector, limit, False, change)

    def browse(self, selector: Predicate | None, limit: int | None) -> list[Message]:
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
                    self._dead_letters.forget(gone)
                    gone.clear()
        finally:
            self._dead_letters.forget(gone)
        return handled

    def _claim(self, entry: Entry, steal: bool) -> bool:
        with self._callbacks.deciding(self._lock) as after:
            return not self._state.deleted and self._state.seize(entry, after, steal=steal)

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
        with self._callbacks.deciding(self._lock) as after:
            self._state.accept((entry,), None, after)
            self._state.pass_baton(after)

    def _give_back(self, entry: Entry) -> None:
        with self._callbacks.deciding(self._lock) as after:
            self._state.release(entry, None, after, counted=True)
            self._state.pass_baton(after)

    # -- what a store has

    def _move_each(
        self,
        selector: Predicate | None,
        limit: int | None,
        steal: bool,
        move: Callable[[Entry, list[Entry]], bool],
    ) -> int:
        """Claim and begin to move matching entries; returns how many arrived, when all commits are done."""
        moved = 0
        refused: list[Entry] = []  # by a full store
        for entry in self._matching(selector, steal=steal):
            if limit is not None and moved - len(refused) >= limit:
                break
            moved += self._claim(entry, steal) and move(entry, refused)
        journal = self._queue.journal
        if moved and journal is not None and journal.host.may_wait:
            journal.host.wait_for_commits()
        return moved - len(refused)

    def _move(
        self,
        entry: Entry,
        target: MoveTarget,
        message: Message,
        refused: list[Entry],
        *,
        like: Entry | None = None,
    ) -> bool:
        """Begin to move a claimed entry in one commit; False when the target does not take it, and it is back."""
        journal = self._queue.journal or target.journal
        assert journal is not None, "where no store has either queue, messages are put"
        batch = journal.batch()
        batch.then(lambda: self._moved(entry), otherwise=lambda: self._move_refused(entry, refused))
        accepted = False
        try:
            if target.is_stored and message.persistent:
                accepted = batch.put(target, message, like=like).accepted
            else:
                accepted = target.put(message).accepted
        finally:
            if not accepted:
                self._give_back(entry)
        if not accepted:
            return False
        if entry.is_stored and self._queue.is_stored:
            batch.delete(entry.number)
        batch.submit()
        return True

    def _moved(self, entry: Entry) -> None:
        if entry.is_stored and self._queue.is_stored:
            entry.is_settled_elsewhere = True
        self._let_go(entry)
        if not self._queue.is_stored:
            self._dead_letters.forget((entry,))  # perhaps in another store

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
        state = self._state
        successor.key = state.source.key_of(message)
        with self._callbacks.deciding(self._lock) as after:
            if not entry.is_ready or state.deleted:
                return False
            successor.take_after(entry)
            if not state.drop(entry, None, after):
                return False  # of a queue that pages: somebody was faster
            state.append(successor, after)
            state.tell_browsers(after)
            state.pass_baton(after)
            return True

    # -- looking

    def _matching(self, selector: Predicate | None, *, steal: bool, bodies: bool = True) -> Iterator[Entry]:
        """The entries that match; without `bodies`, those that had to be read may have none."""
        matches = self._callbacks.matches
        with self._state.pinned():
            for batch in self._walk().pages(bodies=bodies or not isinstance(selector, Selector | None)):
                now = self._state.clock()
                for entry in batch:
                    if entry.expires_at is not None and entry.expires_at <= now:
                        continue  # housekeeping's, or its owner's
                    if (entry.is_ready or (steal and entry.is_acquired)) and (
                        selector is None or matches(selector, entry.message)
                    ):
                        yield entry

    def _walk(self) -> Walk:
        """The way through the queue, in a block that has pinned its source."""
        with self._lock:  # or the source might be exchanged by somebody that did not see the pin
            return self._state.walk
