"""What every part of a broker queue stands on: the lock, the core, and acting after the lock.

State       `_lock` guards the core and everything in it; see `_queue/core`. It is not reentrant, and nothing of
            the user's runs under it: no selector, no callback, no log handler. So a selector or a callback may
            call the queue it is called by.
Lock order  queue lock -> credit lock. Never two queue locks: a move claims in one queue, puts into the other,
            then deletes in the first.
Failures    An exception of a callback goes to `on_error`, by default to the log, and stops nobody else. A
            selector that raises has refused the message. An exception that is no `Exception` goes through.
Assumes     that the clock, which is asked under the lock, is a plain function; no call from a signal handler, `__del__`
            or weakref callback that interrupts a call of the same thread: the lock would never come free; and no
            asynchronous exception while the lock is held. The threads of `_delivery` get none;
            a main thread that must survive Ctrl-C anywhere leaves the broker to them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from threading import Lock  # by name, so that tests can put another one in its place
from typing import TYPE_CHECKING, Any

from .._base.alerts import Alert, AlertMonitor
from .._base.outcome import DeadLetterReason
from .._base.settings import QueueSettings
from .._delivery.housekeeping import AT_ONCE
from .._durable.batch import Submission
from .._durable.journal import QueueJournal
from .core import Clearing, QueueCore
from .stock import After

if TYPE_CHECKING:
    from .._base.message import Message
    from .._paging.memory import MemoryManager
    from .consumer import Predicate
    from .entry import Entry
    from .queue import BrokerQueue

DeadLetterCallback = Callable[["BrokerQueue", "Message", DeadLetterReason], object]
ErrorHandler = Callable[["QueueBase", str, Exception], object]

_log = logging.getLogger("multiqueue.broker")


def _log_error(queue: QueueBase, action: str, error: Exception) -> None:
    _log.error("queue %r: %s failed", queue.name, action, exc_info=error)


class _DeadLetterChain(threading.local):
    """What a thread still has to dead-letter.

    Dead-lettering puts messages on other queues, whose limits may send others on. Each goes to the end of this
    line instead of onto the stack, so a long chain is a loop.
    """

    def __init__(self) -> None:
        self.pending: deque[Callable[[], None]] = deque()
        self.is_running = False

    def run(self, action: Callable[[], None]) -> None:
        self.pending.append(action)
        if self.is_running:
            return
        self.is_running = True
        try:
            self._run_pending()
        finally:
            self.is_running = False

    def _run_pending(self) -> None:
        try:
            while self.pending:
                self.pending.popleft()()
        finally:
            if self.pending:  # one was interrupted; the others must not be lost with it
                self._run_pending()


_chain = _DeadLetterChain()


class QueueBase:
    """A broker queue without its operations. Made by `BrokerQueue`, which says what the arguments are."""

    def __init__(
        self,
        name: str,
        *,
        settings: QueueSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        dead_letter: DeadLetterCallback | None = None,
        on_deleted: Callable[[BrokerQueue], object] | None = None,
        on_alert: Callable[[Alert], object] | None = None,
        on_error: ErrorHandler = _log_error,
        vhost: str = "/",
        journal: QueueJournal | None = None,
        memory: MemoryManager | None = None,
        overflow: Callable[[], QueueJournal | None] | None = None,
    ) -> None:
        self.name = name
        self.vhost = vhost
        self._journal = journal
        # Where the queue has rows: of a durable one its journal, of another one what it got when it began to page.
        self._rows = journal
        self._memory = memory
        self._overflow = overflow  # gives a queue that is not durable a place for rows
        self.settings = settings or QueueSettings()
        self._clock = clock
        self._dead_letter = dead_letter
        self._on_deleted = on_deleted
        self._on_error = on_error
        self._lock = Lock()
        # When housekeeping is to come next, as far as it was asked to. Guarded by the lock.
        self._next_visit = AT_ONCE
        self._request: Callable[[Any, float], object] | None = None
        # Invariant: the number, and the bodies' bytes, of the entries that `admit` gave out and that did not come back.
        self._on_the_way = self._on_the_way_bytes = 0
        self._walks: set[object] = set()  # looks at everything on the queue, by position: until they end its core stays
        self._core = self._new_core()
        self._alerts: AlertMonitor | None = None
        if self.settings.alerts is not None and on_alert is not None:
            self._alerts = AlertMonitor(
                name,
                self.settings.alerts,
                clock,
                lambda alert: self._guard("alert callback", partial(on_alert, alert)),
            )
        # An entry of this queue is more than a message and its size.
        self._needs_more = (
            self._core.is_keyed
            or self._core.groups is not None
            or self._alerts is not None
            or self.settings.message_ttl is not None
        )

    def _new_core(self) -> QueueCore:
        return QueueCore(self, self.settings, self._clock)

    @property
    def is_deleted(self) -> bool:
        """True once it was deleted."""
        return self._core.deleted

    def locked(self) -> Lock:
        """The queue's lock, for whoever clears it: `with queue.locked()`."""
        return self._lock

    def clear(self, clearing: Clearing) -> None:
        """Let go of what stood on this queue, now that it is deleted: a little now, the rest by housekeeping."""
        while not clearing.go_on():
            if self._request is not None:
                self._request(clearing, AT_ONCE)
                return

    def attend(self, ask: Callable[[Any, float], object] | None) -> None:
        """For `Housekeeping`: from now on, `ask(queue, when)` has this queue's `housekeeping` called."""
        self._request = ask

    def visit_by(self, when: float) -> None:
        """Have housekeeping come at this time at the latest. The lock must be held."""
        if when < self._next_visit:
            self._next_visit = when
            if self._request is not None:
                self._request(self, when)

    def page_out(self) -> bool:
        """Let the store have what is on the queue; False when it cannot have it. Under no lock."""
        return False

    def relieve(self) -> None:
        """More is on the queue than its memory lends: make room, or hold publishers back. Under no lock."""
        raise NotImplementedError

    def entry_dropped(self, entry: Entry, reason: DeadLetterReason | None) -> None:
        """An entry is gone; its message, for a reason, goes to the dead-letter callback. Under no lock."""
        if self._journal is not None and entry.is_stored:
            self._drop_stored(self._journal, entry, reason)
            return
        if self._rows is not None:
            self._forget_stored(self._rows, (entry,))
        if reason is not None and self._dead_letter is not None:
            _chain.run(lambda: self._send_dead_letter(entry.message, reason))

    def _drop_stored(self, journal: QueueJournal, entry: Entry, reason: DeadLetterReason | None) -> None:
        """Delete it where it is stored and, in the same commit, put it where dead letters go."""
        if entry.is_buried:
            return
        if reason is None:
            if not self._core.deleted:  # else it goes, or stays, with its queue
                journal.delete((entry.number,))
            return
        submission = Submission(journal.host, is_owed=True)
        submission.delete(entry.number)
        _chain.run(lambda: self._bury(journal, entry.message, reason, submission))

    def _bury(self, journal: QueueJournal, message: Message, reason: DeadLetterReason, submission: Submission) -> None:
        done: list[object] = []

        def bury() -> None:
            journal.dead_letter(self, message, reason, submission)
            done.append(True)

        self._guard("dead letter callback", bury)
        if done:
            submission.submit_if_open()
        else:
            submission.withdraw()  # it stays where it is stored, and comes back when that is opened

    def _forget_stored(self, journal: QueueJournal, entries: Iterable[Entry]) -> None:
        """Delete, where they are stored, entries that left this queue for good."""
        numbers = [entry.number for entry in entries if entry.is_stored and not entry.is_buried]
        if numbers:
            journal.delete(numbers)

    def _journal_of(self) -> QueueJournal:
        assert self._journal is not None, "only a durable queue of a virtual host with a store has a journal"
        return self._journal

    def wait_for_commits(self, timeout: float | None = None) -> bool:
        """Block until the store has everything that happened before; False when `timeout` seconds passed first.

        Raises:
            StoreFailed, StoreClosed: the store came to its end first.
            RuntimeError: called by something that follows a commit, on the store's own thread.
        """
        return self._journal is None or self._journal.host.wait_for_commits(timeout)

    @property
    def is_stored(self) -> bool:
        """True when a store keeps this queue and its persistent messages."""
        return self._journal is not None

    @property
    def store_number(self) -> int:
        """The queue's number in the store; 0 when no store keeps it."""
        return 0 if self._journal is None else self._journal.number

    def _send_dead_letter(self, message: Message, reason: DeadLetterReason) -> None:
        assert self._dead_letter is not None
        self._guard("dead letter callback", partial(self._dead_letter, self, message, reason))  # type: ignore[arg-type]

    def _act(self, after: After) -> None:
        """Do what was decided under the lock, now that it is free."""
        actions = iter(after)
        try:
            for action in actions:
                self._guard("callback", action)
        finally:
            for action in actions:  # those that follow one that was interrupted: somebody waits for them
                self._guard("callback", action)

    def _guard(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # goes to the handler; whatever comes next still runs
            self._on_error(self, what, error)

    def _pass_baton(self) -> None:
        after: After = []
        with self._lock:
            self._core.pass_baton(after)
        self._act(after)

    def _matches(self, selector: Predicate, message: Message) -> bool:
        try:
            return bool(selector(message))
        except Exception as error:  # noqa: BLE001  # goes to the handler; a selector that fails refuses
            self._on_error(self, "selector", error)
            return False

    @property
    def label(self) -> str:
        """The queue as error messages name it."""
        return f"queue {self.name!r} in vhost {self.vhost!r}"

    def __repr__(self) -> str:
        return f"<broker {self.label}>"
