"""What the tests of the broker queue share: a clock that is moved by hand, a consumer that writes down its calls."""

from __future__ import annotations

from typing import Any

from multiqueue.broker import BrokerQueue, DeadLetterReason, Entry, Message, QueueConsumer, QueueSettings
from multiqueue.testing import FakeClock


class Bench:
    """A broker queue whose callbacks are written down."""

    def __init__(self, name: str = "q", **settings: Any) -> None:
        self.clock = FakeClock(1000.0)
        self.dead: list[tuple[Any, str]] = []
        self.deleted: list[BrokerQueue] = []
        self.errors: list[tuple[str, Exception]] = []
        self.alerts: list[Any] = []
        self.notified: list[QueueConsumer] = []
        self.cancelled: list[QueueConsumer] = []
        self.queue = BrokerQueue(
            name,
            settings=QueueSettings(**settings),
            clock=self.clock,
            dead_letter=self._dead_letter,
            on_deleted=self.deleted.append,
            on_alert=self.alerts.append,
            on_error=lambda queue, action, error: self.errors.append((action, error)),
        )

    def _dead_letter(self, queue: BrokerQueue, message: Message, reason: DeadLetterReason) -> None:
        self.dead.append((message.body, reason.value))

    def put(self, *bodies: Any, **properties: Any) -> None:
        """Put a message per body; each must be accepted."""
        for body in bodies:
            assert self.queue.put(Message(body, **properties)).accepted

    def consumer(self, *, wants: bool = True, **options: Any) -> QueueConsumer:
        """A consumer that wants work."""
        consumer = self.queue.add_consumer(self.notified.append, on_cancelled=self.cancelled.append, **options)
        if wants:
            self.queue.set_notify_work_desired(consumer, True)
        return consumer

    def pull(self, consumer: QueueConsumer) -> Entry | None:
        return self.queue.deliver_single_message(consumer)

    def pulled(self, consumer: QueueConsumer) -> Entry:
        """What there is for a consumer."""
        entry = self.pull(consumer)
        assert entry is not None
        return entry

    def got(self, owner: object) -> Entry:
        """What there is for an owner that is no consumer."""
        entry = self.queue.get(owner)
        assert entry is not None
        return entry

    def pull_bodies(self, consumer: QueueConsumer) -> list[Any]:
        """Pull until nothing comes; the bodies."""
        bodies = []
        while (entry := self.pull(consumer)) is not None:
            bodies.append(entry.message.body)
        return bodies

    def taken_notices(self) -> list[QueueConsumer]:
        """Who was notified since this was last asked."""
        notified, self.notified[:] = list(self.notified), []
        return notified

    def bodies(self) -> list[Any]:
        """What is ready, in order."""
        return [message.body for message in self.queue.browse()]
