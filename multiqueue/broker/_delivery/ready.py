"""Which consumers of a target have work, and the threads that wait for one of them.

Promise     A consumer that is notified has a turn after that. Its turns never overlap. Consumers take turns in order
            of readiness. Only a thread that waits is woken, never one that runs turns.
State       `_lock`, a leaf, guards everything. A consumer is in `_turns` from `add` to `remove`:

                          notify       a thread takes it    the turn ends
                IDLE      READY
                READY                  RUNNING
                RUNNING   AGAIN                             READY if it goes on, else IDLE
                AGAIN                                       READY

Waiting     A thread finds no READY consumer and parks in one hold of the lock; READY and the choice of a parked thread
            are one hold too. A thread that is woken looks again: another one may have come first. One that gives up
            although it was chosen, by time or by an exception, has another one woken.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from threading import TIMEOUT_MAX, Lock  # by name, so that tests can put others in their place
from time import monotonic

from multiqueue.errors import Empty, ShutDown

from .._queue.consumer import QueueConsumer


class Turn(Enum):
    """Where a consumer is between two turns, or in one."""

    IDLE = 0
    READY = 1
    RUNNING = 2
    AGAIN = 3  # running, and notified since the turn began


class ReadyConsumers:
    """The consumers of one target, in turns. Any thread may call every method."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = Lock()
        self._turns: dict[QueueConsumer, Turn] = {}
        self._ready: deque[QueueConsumer] = deque()  # Invariant: those that are READY
        self._parked: deque[Lock] = deque()  # Invariant: held, one for each thread that waits and was not chosen
        self._closed = False

    def add(self, consumer: QueueConsumer) -> None:
        with self._lock:
            self._turns[consumer] = Turn.IDLE

    def remove(self, consumer: QueueConsumer) -> None:
        """A consumer goes, wherever it is. A turn of it that runs ends in nothing."""
        with self._lock:
            if self._turns.pop(consumer, None) is Turn.READY:
                self._ready.remove(consumer)

    def notify(self, consumer: QueueConsumer) -> bool:
        """There may be work for a consumer; True when it is ready for that reason. One that is gone has none."""
        with self._lock:
            turn = self._turns.get(consumer)
            if turn is Turn.RUNNING:
                self._turns[consumer] = Turn.AGAIN
            elif turn is Turn.IDLE:
                self._become_ready_locked(consumer)
                return True
            return False

    def end_turn(self, consumer: QueueConsumer, *, goes_on: bool) -> bool:
        """The turn of a consumer ends; True when it is ready for another one."""
        with self._lock:
            turn = self._turns.get(consumer)
            if turn is None:
                return False
            if goes_on or turn is Turn.AGAIN:
                self._become_ready_locked(consumer)
                return True
            self._turns[consumer] = Turn.IDLE
            return False

    def poll(self) -> QueueConsumer | None:
        """Begin a turn: of the first ready consumer, if there is one now."""
        with self._lock:
            return self._begin_locked()

    def take(self, deadline: float | None) -> QueueConsumer:
        """Begin a turn: of the first ready consumer; blocks until there is one. Raises as `ConsumerTarget.get`."""
        while True:
            with self._lock:
                if self._closed:
                    raise ShutDown(f"target {self._owner!r} was closed")
                consumer = self._begin_locked()
                if consumer is not None:
                    return consumer
                parked = Lock()
                parked.acquire()
                self._parked.append(parked)
            self._wait(parked, deadline)

    def close(self) -> None:
        """No consumer has another turn; threads that wait are told."""
        with self._lock:
            self._closed = True
            self._turns.clear()
            self._ready.clear()
            while self._parked:
                self._parked.popleft().release()

    def _begin_locked(self) -> QueueConsumer | None:
        if not self._ready:
            return None
        consumer = self._ready.popleft()
        self._turns[consumer] = Turn.RUNNING
        return consumer

    def _become_ready_locked(self, consumer: QueueConsumer) -> None:
        self._turns[consumer] = Turn.READY
        self._ready.append(consumer)
        if self._parked:
            self._parked.popleft().release()

    def _wait(self, parked: Lock, deadline: float | None) -> None:
        """Wait to be chosen. Raises Empty: the deadline came first."""
        chosen = False
        try:
            remaining = -1.0 if deadline is None else min(max(deadline - monotonic(), 0.0), TIMEOUT_MAX)
            chosen = parked.acquire(timeout=remaining)
        finally:
            if not chosen:
                self._give_up(parked)
        if not chosen:
            raise Empty("no consumer is ready")

    def _give_up(self, parked: Lock) -> None:
        with self._lock:
            if parked in self._parked:
                self._parked.remove(parked)
            elif self._ready and self._parked:
                self._parked.popleft().release()
