"""Where the message of an entry goes that has left its queue for a reason: to the dead letters.

Promise     The dead letter of a stored message and the end of its row are one commit. One that cannot be dead-lettered
            stays where it is stored.
Who runs    The thread that took the entry out, under no lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
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
        self._guard = partial(self._callbacks.guard, "dead letter callback")

    def send_on(self, entry: Entry, reason: DeadLetterReason | None) -> None:
        """Send on, if there is a reason, the message of an entry that has left, or was turned away."""
        if reason is None:
            return
        journal = self._queue.journal
        if journal is None or not entry.is_stored:
            if self._send is not None:
                _chain.run(partial(self._guard, partial(self._send, entry.message, reason)))
        elif not entry.is_settled_elsewhere:
            batch = journal.batch(is_owed=True)
            batch.delete(entry.number)
            _chain.run(lambda: self._store_on(journal, entry.message, reason, batch))

    def _store_on(self, journal: Rows, message: Message, reason: DeadLetterReason, batch: Batch) -> None:
        if self._guard(partial(journal.dead_letter, self._queue, message, reason, batch)):
            batch.submit_if_open()
        else:
            batch.withdraw()  # it stays where it is stored, and comes back when that is opened
