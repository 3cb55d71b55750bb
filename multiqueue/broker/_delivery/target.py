"""The consumer target: one consuming client over several broker queues, which a thread can block on.

Promise     `get` returns the next delivery of any of its consumers, round robin over those that have one. A consumer
            that is notified has a turn after that, which is one pull; its turns never overlap. Only a thread that waits
            is woken, never one that runs turns. What a `Holder` promises of unsettled messages.
State       `ReadyConsumers._lock`, a leaf, guards which consumers there are, and everything about their turns. A
            consumer is in `_turns` from `add` to `remove`:

                          notify       a thread takes it    the turn ends
                IDLE      READY
                READY                  RUNNING
                RUNNING   AGAIN                             READY if it goes on, else IDLE
                AGAIN                                       READY

Waiting     A queue's notification makes a consumer READY, and so does a pull that delivered: the queue notifies again
            only when a pull has found nothing. A thread finds no READY consumer and parks in one hold of the lock;
            READY and the choice of a parked thread are one hold too. A thread that is woken looks again: another one
            may have come first. One that gives up although it was chosen, by time or an exception, has another woken.
Membership  `close` ends all turns and tells blocked `get`s, removes the consumers, then gives back the unsettled
            messages, so that none returns to a closing target; a pull that is under way meanwhile gives its messages
            back.
Source      "Consumer-Queue Interactions".
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from enum import Enum
from threading import TIMEOUT_MAX
from time import monotonic
from typing import Any, Final

from multiqueue.errors import Empty, ShutDown

from ..._kinds import check_kind, check_seconds
from ..._locks import Lock
from .._base.credit import Credit
from .._queue.consumer import QueueConsumer
from .._queue.queue import BrokerQueue
from .received import Delivery, Holder

_RUN: Final = 512  # messages, half a millisecond in one hold of the queue's lock
_RUN_BYTES: Final = 1024 * 1024  # of bodies, with which a run ends: others on the queue are to have some too


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
        self.is_closed = False

    def add(self, consumer: QueueConsumer) -> bool:
        """Add a consumer; False once this is closed."""
        with self._lock:
            if not self.is_closed:
                self._turns[consumer] = Turn.IDLE
            return not self.is_closed

    def all(self) -> list[QueueConsumer]:
        with self._lock:
            return list(self._turns)

    def remove(self, consumer: QueueConsumer) -> None:
        """A consumer goes, wherever it is. If its turn runs, the turn ends without a message."""
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
            is_ready = turn is Turn.AGAIN or (goes_on and turn is not None)
            if is_ready:
                self._become_ready_locked(consumer)
            elif turn is not None:
                self._turns[consumer] = Turn.IDLE
            return is_ready

    def poll(self) -> QueueConsumer | None:
        """Begin a turn: of the first ready consumer, if there is one now."""
        with self._lock:
            return self._begin_locked()

    def take(self, deadline: float | None) -> QueueConsumer:
        """Begin a turn: of the first ready consumer; blocks until there is one. Raises as `ConsumerTarget.get`."""
        while True:
            with self._lock:
                if self.is_closed:
                    raise ShutDown(f"target {self._owner!r} was closed")
                consumer = self._begin_locked()
                if consumer is not None:
                    return consumer
                parked = allocate_lock()
                parked.acquire()
                self._parked.append(parked)
            chosen = False
            try:
                remaining = -1.0 if deadline is None else min(max(deadline - monotonic(), 0.0), TIMEOUT_MAX)
                chosen = parked.acquire(timeout=remaining)
            finally:
                if not chosen:
                    with self._lock:
                        if parked in self._parked:
                            self._parked.remove(parked)
                        elif self._ready and self._parked:
                            self._parked.popleft().release()
            if not chosen:
                raise Empty("no consumer is ready")

    def close(self) -> list[QueueConsumer]:
        """No consumer has another turn, and threads that wait get an error; returns the consumers there were."""
        with self._lock:
            self.is_closed = True
            consumers = list(self._turns)
            self._turns.clear()
            self._ready.clear()
            while self._parked:
                self._parked.popleft().release()
            return consumers

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


class ConsumerTarget(Holder):
    """Consumers of several queues that share one credit and one place to wait.

    `on_ready(target)` is called, on any thread and under no lock, whenever there may be something to pull: a
    scheduler's way to learn of it without blocking. Any thread may call every method.
    """

    def __init__(
        self,
        name: str = "",
        *,
        credit: Credit | None = None,
        on_ready: Callable[[ConsumerTarget], object] | None = None,
    ) -> None:
        super().__init__(f"target {name!r}")
        self.name = name
        self.credit: Credit = credit or Credit()
        self._on_ready = on_ready
        self._ready = ReadyConsumers(name)

    # -- consumers

    def consume(
        self, queue: BrokerQueue, *, on_cancelled: Callable[[QueueConsumer], object] | None = None, **options: Any
    ) -> QueueConsumer:
        """Begin to consume from a queue; `options` are those of `BrokerQueue.add_consumer`.

        `on_cancelled(consumer)` is called when the queue is deleted, or cannot be read from its store.

        Raises:
            ShutDown: the target is closed.
            NotFound, AccessRefused: as `BrokerQueue.add_consumer`.
        """

        def cancelled(consumer: QueueConsumer) -> None:
            self._ready.remove(consumer)
            if on_cancelled is not None:
                on_cancelled(consumer)

        consumer = queue.add_consumer(self._notified, credit=self.credit, on_cancelled=cancelled, **options)
        if not self._ready.add(consumer):
            queue.remove_consumer(consumer)
            raise ShutDown(f"target {self.name!r} is closed")
        queue.set_notify_work_desired(consumer, True)
        if consumer.is_closed:
            self._ready.remove(consumer)  # the queue was deleted before it was among the consumers
        return consumer

    def cancel(self, consumer: QueueConsumer) -> None:
        """End one consumer; its unsettled messages stay with the target. A second call does nothing."""
        consumer.queue.remove_consumer(consumer)
        self._ready.remove(consumer)

    def consumers(self) -> list[QueueConsumer]:
        """The consumers of this target."""
        return self._ready.all()

    # -- pulling

    def get(self, timeout: float | None = None) -> Delivery:
        """The next delivery; blocks until there is one.

        Raises:
            Empty: `timeout` seconds passed first.
            ShutDown: the target was closed.
        """
        return self.get_many(1, timeout)[0]

    def get_many(self, most: int, timeout: float | None = None) -> list[Delivery]:
        """The next deliveries of one of its consumers: those that are ready, up to `most`; blocks until there is one.

        Credit bounds them as it bounds single ones, and so do 512 messages and 1 MiB of bodies. Where a selector is
        asked there is one.

        Raises:
            ValueError: `most` is less than 1.
            Empty, ShutDown: as `get`.
        """
        check_kind("most", most, int, "a whole number")
        check_seconds("timeout", timeout)
        if most < 1:
            raise ValueError(f"most is {most}; ask for 1 delivery or more")
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            try:
                deliveries = self._pull_for(self._ready.take(deadline), most)
            except Empty:
                raise Empty(f"target {self.name!r}: nothing delivered after {timeout:g} s") from None
            if deliveries:
                return deliveries

    def pull(self) -> Delivery | None:
        """The next delivery if there is one now, else None. Does not block."""
        while (consumer := self._ready.poll()) is not None:
            deliveries = self._pull_for(consumer, 1)
            if deliveries:
                return deliveries[0]
        return None

    # -- flow

    def set_window(self, messages: int | None, size_bytes: int | None = None) -> None:
        """Change the prefetch; unsettled messages count."""
        self.credit.set_window(messages, size_bytes)
        self._credit_changed()

    def suspend(self) -> None:
        """Deliver nothing until `resume`; other consumers get the messages."""
        self.credit.suspend()
        self._credit_changed()

    def resume(self) -> None:
        """End a suspension."""
        if self.credit.resume():
            self._credit_changed()

    def close(self) -> None:
        """End all consumers, give back unsettled messages, let blocked `get`s raise. A second call does nothing."""
        for consumer in self._ready.close():
            consumer.queue.remove_consumer(consumer)
        super().close()

    @property
    def is_closed(self) -> bool:
        """True once it was closed."""
        return self._ready.is_closed

    def __repr__(self) -> str:
        return f"<consumer target {self.name!r}>"

    # -- details

    def _notified(self, consumer: QueueConsumer) -> None:
        if self._ready.notify(consumer) and self._on_ready is not None:
            self._on_ready(self)

    def _pull_for(self, consumer: QueueConsumer, most: int) -> list[Delivery]:
        """Pull once. The consumer's turn ends, after an error too; it is ready again if it has to go on.

        With `on_ready` the turn ends with the last message: a scheduler then has no empty turn to run. A thread that
        blocks or asks again finds out by itself, for less than another notification costs.
        """
        goes_on = True
        try:
            ends = self._on_ready is not None
            entries = consumer.queue.deliver_messages(consumer, min(most, _RUN), _RUN_BYTES, may_end=ends)
            goes_on = bool(entries) and consumer.is_willing and not consumer.at_end
        finally:
            if self._ready.end_turn(consumer, goes_on=goes_on) and self._on_ready is not None:
                self._on_ready(self)
        if not entries:
            return []
        deliveries = [Delivery(self, consumer, entry) for entry in entries]
        is_held = not (consumer.auto_accept and consumer.acquires)
        if is_held and not self.keep(deliveries):  # first of all: what follows calls other queues
            if consumer.acquires:
                consumer.queue.release(entries, consumer, counted=False)
            return []
        if not consumer.is_willing:
            self._credit_changed()  # used up; the other queues should know before they ask
        return deliveries

    def settled(self, count: int, size: int) -> None:
        if self.credit.settled(count, size):
            self._credit_changed()

    def _credit_changed(self) -> None:
        for consumer in self.consumers():
            consumer.queue.credit_changed(consumer)
