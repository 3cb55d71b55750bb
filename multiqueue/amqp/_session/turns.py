"""Whose turn it is: the consumers that may have work, and how many messages each gets.

Promise     A consumer with work is served on its session's thread until it has none. While several of one queue have
            work, each gets one message in turn; one that is alone at its queue, runs.
State       `_lock` guards the set of ready consumers and `_scheduled`. It is a leaf: nothing is called under it.
Waiting     The notification that finds no turn scheduled schedules one. A turn takes the whole set out, and clears the
            flag with it, before it pulls: what is notified meanwhile schedules the next.
Source      "Consumer-Queue Interactions": the publisher's thread notifies, the consumer's thread pulls.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable

from .consumer import Sender, SessionConsumer

_TURN = 256  # deliveries before sockets are read again; some 3 ms
_RUN = 32  # of them in one pull, where no other consumer of its queue waits: the lock is held for some 50 us then


class Turns:
    """The ready consumers of one thread. `schedule` has a turn taken on it, soon; any thread calls it."""

    def __init__(self, schedule: Callable[[Callable[[], None]], object]) -> None:
        self._schedule = schedule
        self._lock = threading.Lock()
        # Invariant: if it is not empty, a turn is scheduled or running.
        self._ready: dict[SessionConsumer, None] = {}
        self._scheduled = False

    def notify(self, consumer: SessionConsumer) -> None:
        """A consumer may have work. Any thread, under no lock of a queue."""
        with self._lock:
            self._ready[consumer] = None
            if self._scheduled:
                return
            self._scheduled = True
        self._schedule(self._take)

    def _take(self) -> None:
        with self._lock:
            ring = deque(self._ready)
            self._ready.clear()
            self._scheduled = False
        rivals = Counter([consumer.queue for consumer in ring])
        served: dict[Sender, None] = {}
        left = _TURN
        while ring and left:
            consumer = ring.popleft()
            queue = consumer.queue
            delivered = self._serve(consumer, 1 if rivals[queue] > 1 else min(left, _RUN))
            if delivered:
                served[consumer.sender] = None
                ring.append(consumer)
                left -= delivered
            else:
                rivals[queue] -= 1
        for sender in served:
            sender.flush()
        for consumer in ring:
            self.notify(consumer)

    @staticmethod
    def _serve(consumer: SessionConsumer, most: int) -> int:
        try:
            return consumer.deliver(most)
        except Exception as error:  # noqa: BLE001  # a fault of ours costs one connection, not the thread
            consumer.sender.failed(error)
            return 0
