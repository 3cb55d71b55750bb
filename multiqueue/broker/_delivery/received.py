"""A message in the application's hands, and its holder until it is settled.

State       `Holder._lock` guards its messages. It is a leaf: queues are called without it.
Membership  `Holder.close` takes all of them at once and gives them back to the queues; a caller that settles one of
            them at the same moment either was first or gets an error that it is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, Literal

from ..._kinds import check_kind
from ..._locks import Lock
from .._base.message import Message
from .._queue.entry import Entry, EntryQueue
from .._queue.queue import BrokerQueue

Disposition = Literal["accept", "release", "discard", "reject"]  # a method of a holder, and of a queue
_NONE: Final[Mapping[str, bool]] = {}


class Received:
    """A message that was consumed or got, to be settled once: accepted, released or rejected.

    `message` is the published one, with its headers and properties; it is not a copy: change nothing in it.
    `delivery_count` says how often it was delivered, this time included; `redelivered` is True when somebody had it
    before, or may have had it: in a process that crashed. `entry` is its place on its queue; `consumer` has it, a
    `QueueConsumer` or the owner of a get.

    Any thread may settle it. Settling it again, or after its subscription was closed, raises ValueError: it has
    gone back to its queue then, and somebody else may have it. When its queue was deleted, settling it is no
    error, and nothing is left to do.
    """

    __slots__ = ("consumer", "delivery_count", "entry", "holder", "message", "redelivered")

    def __init__(self, holder: Settler, consumer: Any, entry: Entry) -> None:
        self.holder: Settler = holder
        self.consumer: Any = consumer
        self.entry: Entry = entry
        self.message: Message = entry.message
        # As of this delivery; the entry itself goes on living.
        self.delivery_count: int = entry.delivery_count
        self.redelivered: bool = entry.delivery_count > 1 or entry.maybe_delivered

    def __repr__(self) -> str:
        return f"<{self.message!r} from queue {self.queue!r}>"

    @property
    def body(self) -> object:
        """The message's body: bytes, or the object that was published in this process."""
        return self.message.body

    @property
    def queue(self) -> str:
        """The name of the queue it came from."""
        return self.entry.queue.name

    def accept(self, *, wait: bool = False) -> None:
        """Done: the message leaves its queue.

        With `wait` it blocks until the store of a durable queue has deleted it, and the message never comes back.
        Without, one that was not deleted before a crash is delivered again, flagged.

        Raises:
            StoreFailed, StoreClosed, BrokerClosed: with `wait`, the store came to its end first; it may come back.
            StoreFull: with `wait`, the store has no room even to delete it; that is tried again, and it may come back.
            RuntimeError: with `wait`, on the store's own thread, in what follows a commit.
        """
        self._settle(self.holder.accept, wait)

    def release(self, *, refused: bool = False, failed: bool = False) -> None:
        """Give it back to its place in the queue; `refused`: not to this consumer again; `failed`: as by a reject."""
        self._settle(partial(self.holder.release, refused=refused, failed=failed))

    def reject(self, *, wait: bool = False) -> None:
        """Dead-letter it, or drop it when its queue has no dead-letter exchange. `wait` and its errors as `accept`."""
        self._settle(self.holder.reject, wait)

    def _settle(self, settle: Callable[[Received], None], wait: bool = False) -> None:
        queue = self.entry.queue
        try:
            settle(self)
        except ValueError:
            if not queue.is_deleted:  # or a subscription, which ends with its last queue, has let go of its messages
                raise
            if wait:
                queue.check_open()  # one that is closed has it again
        if wait:
            queue.wait_for_commits()


Delivery = Received  # as a `ConsumerTarget` calls it


class Settler:
    """Settles messages at their queues. It knows of none itself: that is for its caller to do. Any thread may call."""

    def accept(self, *received: Received) -> None:
        """Done with these messages: their entries are deleted and, in window mode, their credit is back.

        Raises:
            ValueError: one of them is not with this holder, or was settled before; then none was settled.
        """
        self._settle(received, "accept")

    def release(self, *received: Received, refused: bool = False, counted: bool = True, failed: bool = False) -> None:
        """Give messages back to their places; see `BrokerQueue.release`. Raises as `accept`."""
        self._settle(received, "release", {"refused": refused, "counted": counted, "failed": failed})

    def reject(self, *received: Received) -> None:
        """Send messages to the dead-letter callback of their queues. Raises as `accept`."""
        self._settle(received, "reject")

    def discard(self, *received: Received) -> None:
        """As `reject`, and no failure. Raises as `accept`."""
        self._settle(received, "discard")

    def _settle(self, received: Collection[Received], how: Disposition, options: Mapping[str, bool] = _NONE) -> None:
        """Those of each queue and consumer in one call; a browser has nothing to settle."""
        runs: dict[tuple[EntryQueue, Any], list[Entry]] = {}
        queue: EntryQueue | None = None
        consumer: Any = None
        entries: list[Entry] = []
        for each in received:
            if each.consumer is not consumer or each.entry.queue is not queue:  # mostly all are of one
                queue, consumer = each.entry.queue, each.consumer
                entries = runs.setdefault((queue, consumer), [])
            entries.append(each.entry)
        for (queue, consumer), entries in runs.items():
            if getattr(consumer, "acquires", True):
                getattr(queue, how)(entries, consumer, **options)


class Holder(Settler):
    """Has the messages that it gave out until they are settled: a `ConsumerTarget` or a `Getter`, `owner` in errors."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = Lock()
        self._messages: dict[Received, None] = {}  # those that are not settled, oldest first
        self._keeps_nothing = False

    def unsettled(self) -> list[Received]:
        """The messages that are not settled, in order of delivery."""
        with self._lock:
            return list(self._messages)

    def close(self) -> None:
        """Give back unsettled messages; nothing is given out from now on. A second call does nothing."""
        with self._lock:
            self._keeps_nothing = True
            messages, self._messages = self._messages, {}
        super()._settle(messages, "release")

    def keep(self, received: Iterable[Received]) -> bool:
        """Remember the messages given out; False once this is closed: it has to go back."""
        with self._lock:
            if self._keeps_nothing:
                return False
            for each in received:
                self._messages[each] = None
            return True

    def settled(self, count: int, size: int) -> None:
        """So many messages were settled, with bodies of `size` bytes together."""

    def _settle(self, received: Collection[Received], how: Disposition, options: Mapping[str, bool] = _NONE) -> None:
        """Have these settled by that method of their queues. Raises as `accept`."""
        for each in received:
            if type(each) is not Received:
                check_kind("a message to settle", each, Received, "what `get` or a subscription gave")
        distinct = received if len(received) == 1 else dict.fromkeys(received)
        with self._lock:
            messages = self._messages
            for each in distinct:
                if each not in messages:
                    raise ValueError(
                        f"{each.entry!r} is not with {self._owner}: it was settled before, or another consumer has it"
                    )
            for each in distinct:
                del messages[each]
        if len(distinct) == 1:
            (each,) = distinct
            if getattr(each.consumer, "acquires", True):  # a browser has nothing to settle
                getattr(each.entry.queue, how)(each.entry, each.consumer, **options)
            self.settled(1, each.entry.size)
        else:
            super()._settle(distinct, how, options)
            self.settled(len(distinct), sum([each.entry.size for each in distinct]))


class Getter(Holder):
    """Gets messages one by one, without a consumer, and has them until they are settled. Any thread may call."""

    def __init__(self) -> None:
        super().__init__("this getter")

    def get(self, queue: BrokerQueue, *, auto_accept: bool = False) -> Received | None:
        """The first ready message of the queue, or None. Does not block."""
        entry = queue.get(self, auto_accept=auto_accept)
        if entry is None:
            return None
        got = Received(self, self, entry)
        if not auto_accept and not self.keep((got,)):
            queue.release(entry, self, counted=False)
            return None
        return got
