"""The consumer target: one consuming client over several broker queues, which a thread can block on.

Promise     `get` returns the next delivery of any of its consumers, round robin over those that have one. A
            delivery is settled once; what is not settled when the target closes goes back to its place.
State       `_lock` guards the list of consumers and `_closed`, and is held for nothing else. Which consumers have work
            is in `ready`, what is unsettled in `received`.
Waiting     `get` blocks until a consumer is ready, which a queue's notification makes it, and so does a pull that
            delivered: the queue notifies again only when a pull has found nothing. A turn is one pull: see `ready`.
Membership  `close` first removes the consumers, then gives back what is unsettled, so that nothing returns to a
            closing target; a pull that is under way meanwhile gives back what it got. Blocked `get`s are told.
Lock order  `_lock` -> that of `ready`; queues are called without it.
Source      "Consumer-Queue Interactions".
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock  # by name, so that tests can put another one in its place
from time import monotonic
from typing import Any, Final

from multiqueue.errors import Empty, ShutDown

from .._base.credit import Credit
from .._queue.consumer import QueueConsumer
from .._queue.queue import BrokerQueue
from .ready import ReadyConsumers
from .received import Delivery, Disposition, Unsettled

_RUN: Final = 512  # messages, half a millisecond in one hold of the queue's lock
_RUN_BYTES: Final = 1024 * 1024  # of bodies, with which a run ends: others on the queue are to have some too


class ConsumerTarget:
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
        self.name = name
        self.credit: Credit = credit or Credit()
        self._on_ready = on_ready
        self._ready = ReadyConsumers(name)
        self._lock = Lock()
        self._consumers: list[QueueConsumer] = []
        self._unsettled = Unsettled(f"target {name!r}")
        self._closed = False

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
            self._forget(consumer)
            if on_cancelled is not None:
                on_cancelled(consumer)

        consumer = queue.add_consumer(self._notified, credit=self.credit, on_cancelled=cancelled, **options)
        with self._lock:
            closed = self._closed
            if not closed:
                self._consumers.append(consumer)
                self._ready.add(consumer)
        if closed:
            queue.remove_consumer(consumer)
            raise ShutDown(f"target {self.name!r} is closed")
        queue.set_notify_work_desired(consumer, True)
        if consumer.is_closed:
            self._forget(consumer)  # the queue was deleted before it was among the consumers
        return consumer

    def cancel(self, consumer: QueueConsumer) -> None:
        """End one consumer; what it has not settled stays with the target. Twice is harmless."""
        consumer.queue.remove_consumer(consumer)
        self._forget(consumer)

    def consumers(self) -> list[QueueConsumer]:
        """The consumers of this target."""
        with self._lock:
            return list(self._consumers)

    # -- pulling

    def get(self, timeout: float | None = None) -> Delivery:
        """The next delivery; blocks until there is one.

        Raises:
            Empty: `timeout` seconds passed first.
            ShutDown: the target was closed.
        """
        return self.get_many(1, timeout)[0]

    def get_many(self, most: int, timeout: float | None = None) -> list[Delivery]:
        """The next deliveries of one of its consumers: what is there now, up to `most`; blocks until there is one.

        Credit bounds them as it bounds single ones, and so do 512 messages and 1 MiB of bodies. Where a selector is
        asked there is one.

        Raises:
            ValueError: `most` is less than 1.
            Empty, ShutDown: as `get`.
        """
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
            if self._closed:
                # What was pulled went back. Until `close` has removed the consumer it would come again, and again.
                raise ShutDown(f"target {self.name!r} was closed")

    def pull(self) -> Delivery | None:
        """The next delivery if there is one now, else None. Does not block."""
        while not self._closed:
            consumer = self._ready.poll()
            if consumer is None:
                return None
            deliveries = self._pull_for(consumer, 1)
            if deliveries:
                return deliveries[0]
        return None

    # -- settling

    def accept(self, *deliveries: Delivery) -> None:
        """Done with these messages: their entries are deleted and, in window mode, their credit is back.

        Raises:
            ValueError: one of them is not this target's, or was settled before; then nothing was settled.
        """
        self._settle(deliveries, "accept")

    def release(self, *deliveries: Delivery, refused: bool = False, counted: bool = True) -> None:
        """Give messages back to their places; see `BrokerQueue.release`. Raises as `accept`."""
        self._settle(deliveries, "release", refused=refused, counted=counted)

    def reject(self, *deliveries: Delivery) -> None:
        """Send messages to the dead-letter callback of their queues. Raises as `accept`."""
        self._settle(deliveries, "reject")

    def unsettled(self) -> list[Delivery]:
        """The deliveries that are not settled, in order of delivery."""
        return self._unsettled.all()

    # -- flow

    def set_window(self, messages: int | None, size_bytes: int | None = None) -> None:
        """Change the prefetch; what is unsettled counts."""
        self.credit.set_window(messages, size_bytes)
        self._credit_changed()

    def suspend(self) -> None:
        """Deliver nothing until `resume`; other consumers get what this target would have got."""
        self.credit.suspend()
        self._credit_changed()

    def resume(self) -> None:
        """End a suspension."""
        if self.credit.resume():
            self._credit_changed()

    def close(self) -> None:
        """End all consumers, give back what is unsettled, let blocked `get`s raise. Twice is harmless."""
        with self._lock:
            self._closed = True
            consumers, self._consumers = self._consumers, []
        for consumer in consumers:
            consumer.queue.remove_consumer(consumer)
        self._unsettled.close()
        self._ready.close()

    @property
    def is_closed(self) -> bool:
        """True once it was closed."""
        return self._closed

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
        if is_held and not self._unsettled.keep(deliveries):  # first of all: what follows calls other queues
            if consumer.acquires:
                consumer.queue.release(entries, consumer, counted=False)
            return []
        if not consumer.is_willing:
            self._credit_changed()  # used up; the other queues should know before they ask
        return deliveries

    def _settle(self, deliveries: tuple[Delivery, ...], how: Disposition, **options: bool) -> None:
        count, size = self._unsettled.settle(deliveries, how, options)
        if self.credit.settled(count, size):
            self._credit_changed()

    def _credit_changed(self) -> None:
        for consumer in self.consumers():
            consumer.queue.credit_changed(consumer)

    def _forget(self, consumer: QueueConsumer) -> None:
        with self._lock:
            if consumer not in self._consumers:
                return
            self._consumers.remove(consumer)
        self._ready.remove(consumer)
