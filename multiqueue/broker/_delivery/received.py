"""A message in the application's hands, and who keeps the books on it until it is settled.

State       A `Getter`'s `_lock` guards its set of unsettled messages. It is a leaf: queues are called without it.
Membership  `Getter.close` takes the whole set at once and gives it back to the queues; a caller that settles one of
            them at the same moment either was first or is told that it is not unsettled any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .._base.message import Message
    from .._queue.entry import Entry, EntryQueue
    from .._queue.queue import BrokerQueue


class Delivery:
    """A message in the hands of `consumer`, which is a `QueueConsumer` or the owner of a get, until it is settled."""

    __slots__ = ("consumer", "delivery_count", "entry", "message", "redelivered")

    def __init__(self, consumer: Any, entry: Entry) -> None:
        self.consumer: Any = consumer
        self.entry: Entry = entry
        self.message: Message = entry.message
        # As of this delivery; the entry itself goes on living.
        self.delivery_count: int = entry.delivery_count
        self.redelivered: bool = entry.delivery_count > 1 or entry.maybe_delivered

    @property
    def queue(self) -> EntryQueue:
        """Where it came from."""
        return self.entry.queue

    def __repr__(self) -> str:
        return f"<delivery {self.delivery_count} of {self.entry!r} to {self.consumer!r}>"


class Holder(Protocol):
    """The settler of deliveries: a `ConsumerTarget` or a `Getter`."""

    def accept(self, *deliveries: Any) -> None: ...
    def release(self, *deliveries: Any, refused: bool = False) -> None: ...
    def reject(self, *deliveries: Any) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class Received:
    """A message that was consumed or got, to be settled once: accepted, released or rejected.

    Any thread may settle it. Settling it again, or after its subscription was closed, raises ValueError: it has
    gone back to its queue then, and somebody else may have it. When its queue was deleted, settling it is no
    error, and nothing is left to do.
    """

    holder: Holder
    delivery: Delivery

    def __repr__(self) -> str:
        return f"<{self.message!r} from queue {self.queue!r}>"

    @property
    def message(self) -> Message:
        """The message as it was published, with its headers and properties. It is not a copy: change nothing in it."""
        return self.delivery.message

    @property
    def body(self) -> object:
        """The message's body: bytes, or the object that was published in this process."""
        return self.delivery.message.body

    @property
    def queue(self) -> str:
        """The name of the queue it came from."""
        return self.delivery.entry.queue.name

    @property
    def delivery_count(self) -> int:
        """How often it was delivered, this time included."""
        return self.delivery.delivery_count

    @property
    def redelivered(self) -> bool:
        """True when somebody had it before, or may have had it: in a process that crashed."""
        return self.delivery.redelivered

    def accept(self, *, wait: bool = False) -> None:
        """Done: the message leaves its queue.

        With `wait` it blocks until the store of a durable queue has deleted it, and the message never comes back.
        Without, one that was not deleted before a crash is delivered again, flagged.

        Raises:
            StoreFailed, StoreClosed: with `wait`, the store came to its end first; it may come back.
            RuntimeError: with `wait`, on the store's own thread, in what follows a commit.
        """
        self._settle(self.holder.accept, wait)

    def release(self, *, refused: bool = False) -> None:
        """Give it back to its place in the queue; `refused`: not to this consumer again."""
        self._settle(partial(self.holder.release, refused=refused))

    def reject(self, *, wait: bool = False) -> None:
        """Dead-letter it, or drop it when its queue has no dead-letter exchange. `wait` and its errors as `accept`."""
        self._settle(self.holder.reject, wait)

    def _settle(self, settle: Callable[[Delivery], None], wait: bool = False) -> None:
        queue = self.delivery.entry.queue
        try:
            settle(self.delivery)
        except ValueError:
            if not queue.is_deleted:  # or a subscription, which ends with its last queue, has let go of its messages
                raise
        if wait:
            queue.wait_for_commits()


class Getter:
    """Gets messages one by one, without a consumer, and has them until they are settled. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unsettled: dict[Delivery, None] = {}
        self._closed = False

    def get(self, queue: BrokerQueue, *, auto_accept: bool = False) -> Received | None:
        """The first ready message of the queue, or None. Does not block."""
        entry = queue.get(self, auto_accept=auto_accept)
        if entry is None:
            return None
        got = Delivery(self, entry)
        if not auto_accept:
            with self._lock:
                closed = self._closed
                if not closed:
                    self._unsettled[got] = None
            if closed:
                queue.release(entry, self, counted=False)
                return None
        return Received(self, got)

    def accept(self, *deliveries: Delivery) -> None:
        """Done with these messages.

        Raises:
            ValueError: one of them is not unsettled; then none was settled.
        """
        self._settle(deliveries, "accept")

    def release(self, *deliveries: Delivery, refused: bool = False) -> None:
        """Give these messages back. A get has no consumer, so `refused` asks nothing. Raises as `accept`."""
        self._settle(deliveries, "release")

    def reject(self, *deliveries: Delivery) -> None:
        """Dead-letter these messages. Raises as `accept`."""
        self._settle(deliveries, "reject")

    def close(self) -> None:
        """Give back what is unsettled; nothing is got from now on."""
        with self._lock:
            self._closed = True
            unsettled, self._unsettled = self._unsettled, {}
        for got in unsettled:
            got.entry.queue.release(got.entry, self)

    def _settle(self, deliveries: tuple[Delivery, ...], how: str) -> None:
        """Settle by the queue's method of this name."""
        settled = dict.fromkeys(deliveries)
        with self._lock:
            for got in settled:
                if got not in self._unsettled:
                    raise ValueError(f"{got.entry!r} was settled before, or went back when its getter was closed")
            for got in settled:
                del self._unsettled[got]
        for got in settled:
            getattr(got.entry.queue, how)(got.entry, self)
