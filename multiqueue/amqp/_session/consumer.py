"""A consumer of a session: what stands between a broker queue and the deliveries of a client.

`on_work` and `on_cancelled` are called by the queue, on any thread; all else runs on the thread of its session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from .._wire.hot import deliver_prefix
from .effects import Effects, Sender
from .figures import ConsumerFigures
from .replies import close_reply_queue
from .window import Window

if TYPE_CHECKING:
    from ...broker import BrokerQueue, Entry, QueueConsumer, VirtualHost

_RUN_BYTES: Final = 32 * 1024  # of messages in one pull: a slow reader is noticed before the next

Deliver = Callable[["SessionConsumer", Sequence["Entry"]], None]


class SessionConsumer:
    """One `basic.consume`."""

    __slots__ = (
        "_cancelled",
        "_deliver",
        "_effects",
        "consumer",
        "is_reply",
        "no_ack",
        "prefix",
        "pull",
        "queue",
        "sender",
        "tag",
        "window",
    )

    # Set once the queue has it; until then the queue calls nothing.
    consumer: QueueConsumer

    def __init__(
        self,
        tag: str,
        queue: BrokerQueue,
        effects: Effects,
        deliver: Deliver,
        cancelled: Callable[[SessionConsumer], None],
        *,
        no_ack: bool,
        window: Window | None,
        is_reply: bool = False,
    ) -> None:
        self.tag: str = tag
        self.queue: BrokerQueue = queue
        self.sender: Sender = effects
        self._effects = effects
        self._deliver = deliver
        self._cancelled = cancelled
        self.no_ack: bool = no_ack
        self.window: Window | None = window  # None: no limit, without acks there is nothing to count
        self.prefix: bytes = deliver_prefix(tag)
        self.pull: Callable[[QueueConsumer, int, int], list[Entry]] = queue.deliver_messages
        self.is_reply: bool = is_reply  # of direct reply-to: its queue is its own, and goes with it

    def deliver(self, most: int) -> int:
        """Pull up to `most` messages and deliver them; returns how many, 0 when there is none for it now."""
        entries = self.pull(self.consumer, most, _RUN_BYTES)
        if entries:
            self._deliver(self, entries)
        return len(entries)

    def on_work(self, consumer: QueueConsumer) -> None:
        """The queue may have something. Any thread, under no lock."""
        self._effects.notify(self)

    def on_cancelled(self, consumer: QueueConsumer) -> None:
        """The queue was deleted. Any thread, under no lock."""
        self._effects.post(self._cancelled, self)

    def want(self, desired: bool) -> None:
        self.queue.set_notify_work_desired(self.consumer, desired)

    def settled(self, count: int) -> bool:
        """Acks came in; True when the window of the channel may have been what stopped others too."""
        if self.window is None or not self.window.settled(count, 0):
            return False
        if not self.consumer.is_closed:
            self.queue.credit_changed(self.consumer)
        return True

    def stop(self, host: VirtualHost) -> None:
        try:
            self.queue.remove_consumer(self.consumer)
        finally:
            if self.is_reply:
                close_reply_queue(host, self.queue)

    def figures(self) -> ConsumerFigures:
        window, mine = self.window, self.consumer
        return ConsumerFigures(
            tag=self.tag,
            queue=self.queue.name,
            ack_required=not self.no_ack,
            exclusive=mine.exclusive,
            prefetch=0 if window is None else window.limit or 0,
            priority=mine.priority,
            active=mine.active,
            unacked=0 if window is None else window.taken,
        )

    def __repr__(self) -> str:
        return f"<consumer {self.tag!r} of {self._effects!r}>"


class Held(NamedTuple):
    """A message in a client's hands: its entry, its owner by the queue's books, and the consumer if there is one."""

    entry: Entry
    owner: object
    consumer: SessionConsumer | None
