"""The broker queue: messages in strict order, pulled by consumers that are told when there is something to pull.

Promise     A message put is given to one acquiring consumer at a time, in order, until one settles it; what is
            given back returns to its place. A call that refuses what it was asked has changed nothing.
State       One lock guards everything. `_queue/stock` has the entries under it, `_queue/core` the consumers and who
            wakes whom, `_queue/base` the rules about what may run under it: nothing of the user's.
Who runs    Any thread may put, settle, declare interest and manage; `_queue/delivery` says who may pull, and
            `_queue/enqueue` how a message of a durable queue waits for its commit.
Lock order  queue lock -> credit lock. Never two queue locks.
Waiting     Nobody blocks in here, except in `wait_for_room`, which `_queue_stock.end_throttling` ends.
Source      "Consumer-Queue Interactions" (Apache Qpid wiki) for the algorithm and the names.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from .._base.errors import AccessRefused, NotFound, PreconditionFailed
from .._base.outcome import DeadLetterReason
from .._delivery.housekeeping import AT_ONCE
from .consumer import Predicate, QueueConsumer
from .enqueue import QueueArrival
from .invariants import check_liveness, check_structure
from .statistics import QueueStatistics, reset_high_water_marks, take_statistics
from .stock import After

if TYPE_CHECKING:
    from .._base.alerts import AlertMonitor
    from .._base.credit import Credit


class BrokerQueue(QueueArrival):
    """One queue of the broker, without exchanges and without I/O.

    `clock` gives seconds that never go back. `dead_letter(queue, message, reason)` gets what expired, was evicted,
    rejected or delivered too often; `on_deleted(queue)` is told once; `on_alert(alert)` of thresholds reached;
    `on_error(queue, action, error)` of callbacks that failed, by default through the log. All of them run on the
    thread that caused them, without any lock, and may call any queue.
    """

    # -- room

    def when_room(self, callback: Callable[[], object]) -> bool:
        """While the queue is throttled, have `callback` called once it no longer is; False when there is room."""
        with self._lock:
            if not self._core.throttled or self._core.deleted:
                return False
            self._core.room_waiters.append(callback)
            return True

    def wait_for_room(self, timeout: float | None = None) -> bool:
        """Block while the queue is throttled: until its depth is down to 80 % of the limit, or it is deleted.

        Returns False when `timeout` seconds have passed first.
        """
        room = threading.Event()
        if not self.when_room(room.set):
            return True
        try:
            return room.wait(timeout)
        finally:
            with self._lock:
                if room.set in self._core.room_waiters:
                    self._core.room_waiters.remove(room.set)

    # -- consumers

    def add_consumer(
        self,
        on_work: Callable[[QueueConsumer], object],
        *,
        tag: str = "",
        credit: Credit | None = None,
        selector: Predicate | None = None,
        priority: int = 0,
        browse: bool = False,
        auto_accept: bool = False,
        exclusive: bool = False,
        no_local: bool = False,
        connection: object = None,
        lock_deliveries: bool = False,
        on_cancelled: Callable[[QueueConsumer], object] | None = None,
    ) -> QueueConsumer:
        """Register a consumer. It gets nothing until `set_notify_work_desired(consumer, True)`.

        `on_work(consumer)` is called when there may be something to pull, on any thread, under no lock; higher
        `priority` is served first. A browser (`browse`) sees messages without taking them. `auto_accept` settles
        on delivery. With `lock_deliveries` what is delivered cannot be stolen until `unlock`.

        Raises:
            NotFound: the queue was deleted.
            AccessRefused: somebody has it exclusively, or has it at all when `exclusive` is asked for; or it is for a
                single active consumer, which is the other way to have one at a time.
        """
        with self._lock:
            core = self._core
            if core.deleted:
                raise NotFound(f"no {self.label}: it was deleted")
            if exclusive and self.settings.single_active_consumer:
                raise AccessRefused(f"{self.label} has a single active consumer, so none of them is exclusive")
            if len(core.consumers) and (exclusive or any(each.exclusive for each in core.consumers)):
                raise AccessRefused(f"{self.label} in exclusive use")
            consumer = QueueConsumer(
                self,
                core.next_consumer_number(),
                core.entries.start,
                tag=tag,
                on_work=on_work,
                on_cancelled=on_cancelled,
                credit=credit,
                selector=selector,
                priority=priority,
                acquires=not (browse or self.settings.browse_only),
                auto_accept=auto_accept,
                exclusive=exclusive,
                no_local=no_local,
                connection=connection,
                lock_deliveries=lock_deliveries,
            )
            core.add_consumer(consumer)
        return consumer

    def set_notify_work_desired(self, consumer: QueueConsumer, desired: bool) -> None:
        """The consumer does, or does not, want to be notified of work: suspension, back-pressure, start."""
        after: After = []
        with self._lock:
            consumer.desired = desired
            self._core.update_interest(consumer, after)
        self._act(after)

    def credit_changed(self, consumer: QueueConsumer) -> None:
        """Look again whether the consumer's credit lets it work."""
        after: After = []
        with self._lock:
            self._core.update_interest(consumer, after)
        self._act(after)

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Unregister a consumer; removing it twice is harmless.

        What it has not settled stays with it: settle or release that too. The last one to go takes an auto-delete
        queue along.
        """
        after: After = []
        with self._lock:
            removed = self._core.remove_consumer(consumer, after)
            if removed and self.settings.auto_delete and not len(self._core.consumers):
                self._delete_locked(after)
        self._act(after)

    # -- the queue itself

    def delete(self, *, if_unused: bool = False, if_empty: bool = False, dead_letter: bool = False) -> int:
        """Delete the queue; returns how many messages were on it that nobody had.

        Consumers are removed and told. What they have they may still settle; what they release is gone. With
        `dead_letter` the messages go to the dead-letter callback. Deleting twice is harmless.

        Raises:
            PreconditionFailed: it has consumers (`if_unused`), or messages (`if_empty`).
        """
        with self._lock:
            self._check_deletable_locked(if_unused, if_empty)
        # A paged queue's messages are read for that, which must not be done under the lock.
        sent_on = self._drop_each(DeadLetterReason.QUEUE_DELETED) if dead_letter else 0
        after: After = []
        with self._lock:
            if self._core.deleted:
                return sent_on
            self._check_deletable_locked(if_unused, if_empty)
            count = self._delete_locked(after, dead_letter=dead_letter)
        self._act(after)
        return count + sent_on

    def close(self) -> None:
        """End the queue without deleting what a store has of it: the virtual host is closed. Consumers are told."""
        after: After = []
        with self._lock:
            if self._core.deleted:
                return
            self._core.delete(None, after)
        self._act(after)

    def housekeeping(self) -> float | None:
        """Do what time asks for: expire messages, end holds, delete a queue that nobody uses, alert.

        Returns when time asks for something next, on the queue's clock; None: not before something happens to the
        queue. Called by `Housekeeping`, then and at first, or by a test with its own clock.
        """
        now = self._clock()
        self._expire_stored()
        if self._core.short_of_memory:
            self.relieve()  # what kept it from paging may have ended
        while self._keep_time(now):
            pass
        if self._alerts is not None:
            self._inspect(self._alerts, now)
        with self._lock:
            return self._plan_visit_locked()

    def _keep_time(self, now: float) -> bool:
        """Some of what is due, in one hold of the lock; True when there may be more."""
        after: After = []
        with self._lock:
            core = self._core
            there_is_more = core.keep_time(now, after)
            expires = self.settings.expires
            is_idle = not core.deleted and not len(core.consumers)
            if expires is not None and is_idle and now - core.last_used >= expires:
                self._delete_locked(after)
        self._act(after)
        return there_is_more

    def _inspect(self, alerts: AlertMonitor, now: float) -> None:
        with self._lock:
            core = self._core
            oldest = core.oldest_age(now)
        alerts.inspected(core.depth, core.depth_bytes, oldest)

    def _plan_visit_locked(self) -> float | None:
        """From what the queue is now. What happened in the middle of the visit is seen here, so nothing is missed."""
        core = self._core
        if core.deleted:
            return None
        is_watched = core.short_of_memory or (self._alerts is not None and core.depth > 0)
        self._next_visit = AT_ONCE if is_watched else core.next_visit()
        return None if self._next_visit == math.inf else self._next_visit

    def touch(self) -> None:
        """The queue is in use: its `expires` counts from now."""
        with self._lock:
            self._core.last_used = self._clock()

    @property
    def is_throttled(self) -> bool:
        """True while producers should wait for room."""
        return self._core.throttled

    @property
    def is_short_of_memory(self) -> bool:
        """True while the virtual host's memory has no more for it, and it cannot page."""
        return self._core.short_of_memory

    def __len__(self) -> int:
        return self._core.depth

    def statistics(self) -> QueueStatistics:
        """The queue in figures, at one moment."""
        with self._lock:
            return take_statistics(self._core)

    def reset_statistics(self) -> None:
        """Start new high-water marks from what is now."""
        with self._lock:
            reset_high_water_marks(self._core)

    def consumers(self) -> list[QueueConsumer]:
        """The consumers, highest priority first."""
        with self._lock:
            return list(self._core.consumers)

    def check_invariants(self) -> None:
        """Raise AssertionError when the queue contradicts itself, or somebody waits who should not.

        Walks the whole queue under its lock; for tests. Calls selectors, without the lock.
        """
        with self._lock:
            check_structure(self._core)
            doubtful = check_liveness(self._core)
        for entry, consumer, claim in doubtful:
            assert consumer.selector is not None
            assert not self._matches(consumer.selector, entry.message), claim

    # -- details

    def _check_deletable_locked(self, if_unused: bool, if_empty: bool) -> None:
        if self._core.deleted:
            return
        if if_unused and len(self._core.consumers):
            raise PreconditionFailed(f"{self.label} in use")
        if if_empty and self._core.ready:
            raise PreconditionFailed(f"{self.label} not empty")

    def _delete_locked(self, after: After, *, dead_letter: bool = False) -> int:
        count = self._core.delete(DeadLetterReason.QUEUE_DELETED if dead_letter else None, after)
        if self._on_deleted is not None:
            after.append(partial(self._on_deleted, self))
        return count
