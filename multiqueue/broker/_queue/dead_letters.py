"""The end of an entry that has left its queue for good: its row goes, and its message to the dead letters.

Promise     The dead letter of a stored message and the end of its row are one commit. One that cannot be dead-lettered
            stays where it is stored.
State       `rows` is set under the queue's lock, and read at any time: of a durable queue its journal, of another one
            what it got when it first began to page.
Who runs    The thread that took the entry out, under no lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from .._base.message import DeadLetterReason, Message
from .callbacks import Callbacks
from .entry import Entry
from .ports import Batch, Rows, WholeQueue


class _Chain(threading.local):
    """The entries that a thread still has to dead-letter, in a line: a long chain of queues is a loop, not a stack."""

    def __init__(self) -> None:
        self.pending: deque[Callable[[], object]] = deque()
        self.is_running = False

    def run(self, *actions: Callable[[], object]) -> None:
        self.pending.extend(actions)
        if self.is_running:
            return
        self.is_running = True
        try:
            while True:
                if not self.pending:
                    break
                self.pending.popleft()()
        finally:
            self.is_running = False
            if self.pending:  # one was interrupted; the others must not be lost with it
                self.run()


_chain = _Chain()


@dataclass(eq=False, repr=False)
class DeadLetters:
    """One queue's. `send(message, reason)` is the dead-letter callback of a queue without a store."""

    _queue: WholeQueue
    _send: Callable[[Message, DeadLetterReason], object] | None
    _callbacks: Callbacks

    def __post_init__(self) -> None:
        self.rows: Rows | None = self._queue.journal
        self._guard = partial(self._callbacks.guard, "dead letter callback")

    def entry_dropped(self, entry: Entry, reason: DeadLetterReason | None) -> None:
        """An entry has left; its message goes to the dead letters if there is a reason."""
        journal = self._queue.journal
        if journal is None or not entry.is_stored:
            self.forget((entry,))
            if reason is not None and self._send is not None:
                _chain.run(partial(self._guard, partial(self._send, entry.message, reason)))
        elif entry.is_settled_elsewhere:
            pass
        elif reason is not None:
            batch = journal.batch(is_owed=True)
            batch.delete(entry.number)
            _chain.run(lambda: self._store_on(journal, entry.message, reason, batch))
        elif not self._queue.is_deleted:  # else it goes, or stays, with its queue
            journal.delete((entry.number,))

    def forget(self, entries: Iterable[Entry]) -> None:
        """Delete, where they are stored, entries that left this queue for good."""
        rows = self.rows
        if rows is None:
            return
        numbers = [entry.number for entry in entries if entry.is_stored and not entry.is_settled_elsewhere]
        if numbers:
            rows.delete(numbers)

    def _store_on(self, journal: Rows, message: Message, reason: DeadLetterReason, batch: Batch) -> None:
        if self._guard(partial(journal.dead_letter, self._queue, message, reason, batch)):
            batch.submit_if_open()
        else:
            batch.withdraw()  # it stays where it is stored, and comes back when that is opened
