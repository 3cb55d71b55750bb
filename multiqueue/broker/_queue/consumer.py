"""The queue's side of a consumer: what it wants, where it stands in the lists, how far it has read.

State       Guarded by the lock of the consumer's queue, but for what never changes: the first block of fields.
Waiting     A consumer never waits. Its queue calls `notify_work` without any lock when there may be work, and
            the consumer's target must then call `BrokerQueue.deliver_messages` until that returns
            nothing: being NOTIFIED is an obligation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

from .cursor import Reader
from .entry import Entry, EntryQueue

if TYPE_CHECKING:
    from .._base.credit import Credit
    from .._base.message import Message

Predicate = Callable[["Message"], bool]


class ConsumerState(IntEnum):
    """In which of the manager's lists a consumer is, besides the list of all."""

    REMOVED = 0
    NOT_INTERESTED = 1
    NON_ACQUIRING = 2
    INTERESTED = 3
    NOTIFIED = 4


class Interest(IntEnum):
    """What can move a consumer from list to list."""

    ADD = 0
    WANT = 1
    UNWANT = 2
    NOTIFY = 3
    UNNOTIFY = 4
    REMOVE = 5


_C = ConsumerState
Moves = dict[Interest, dict[ConsumerState, ConsumerState]]

# Who may move where. A move that is not here does not happen, and its caller is told so.
ACQUIRING_MOVES: Final[Moves] = {
    Interest.ADD: {_C.REMOVED: _C.NOT_INTERESTED},
    Interest.WANT: {_C.NOT_INTERESTED: _C.INTERESTED},
    Interest.UNWANT: {_C.INTERESTED: _C.NOT_INTERESTED, _C.NOTIFIED: _C.NOT_INTERESTED},
    Interest.NOTIFY: {_C.INTERESTED: _C.NOTIFIED},
    Interest.UNNOTIFY: {_C.NOTIFIED: _C.INTERESTED},
    Interest.REMOVE: dict.fromkeys((_C.NOT_INTERESTED, _C.INTERESTED, _C.NOTIFIED), _C.REMOVED),
}
BROWSER_MOVES: Final[Moves] = {
    Interest.ADD: {_C.REMOVED: _C.NOT_INTERESTED},
    Interest.WANT: {_C.NOT_INTERESTED: _C.NON_ACQUIRING},
    Interest.UNWANT: {_C.NON_ACQUIRING: _C.NOT_INTERESTED},
    Interest.NOTIFY: {},
    Interest.UNNOTIFY: {},
    Interest.REMOVE: dict.fromkeys((_C.NOT_INTERESTED, _C.NON_ACQUIRING), _C.REMOVED),
}


class ConsumerQueue(EntryQueue, Protocol):
    """What a consumer's owner asks of its queue: see `BrokerQueue`."""

    def deliver_messages(
        self, consumer: QueueConsumer, most: int, most_bytes: int = ..., *, may_end: bool = False
    ) -> list[Entry]: ...

    def set_notify_work_desired(self, consumer: QueueConsumer, desired: bool) -> None: ...

    def credit_changed(self, consumer: QueueConsumer) -> None: ...

    def remove_consumer(self, consumer: QueueConsumer) -> None: ...


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class QueueConsumer(Reader):
    """One consumer of one broker queue; made by `BrokerQueue.add_consumer`."""

    queue: ConsumerQueue
    tag: str
    on_work: Callable[[QueueConsumer], object]
    on_cancelled: Callable[[QueueConsumer], object] | None
    credit: Credit | None
    selector: Predicate | None
    priority: int
    auto_accept: bool
    exclusive: bool
    lock_deliveries: bool

    state: ConsumerState = ConsumerState.REMOVED
    is_willing: bool = False  # Invariant: True in the lists of those that may be given entries.
    lists: PriorityLists | None = None  # Invariant: None if and only if state is REMOVED.
    desired: bool = False  # what the target last said
    active: bool = True  # False while it waits behind the limit of active consumers
    pulling: bool = False  # a thread asks selectors to find its next entry
    at_end: bool = False  # its last pull found nothing for it, or took the last

    def notify_work(self) -> None:
        """There may be something to take. Called by the queue, on any thread, under no lock."""
        self.on_work(self)

    def cancelled(self) -> None:
        """The queue was deleted and the consumer with it. Called on any thread, under no lock."""
        if self.on_cancelled is not None:
            self.on_cancelled(self)

    @property
    def wants_work(self) -> bool:
        """True when it desires work, is active and has credit. Reads the credit's leaf lock at most."""
        credit = self.credit
        return self.desired and self.active and (credit is None or credit.is_open)

    @property
    def is_closed(self) -> bool:
        """True once it was removed from its queue."""
        return self.state is ConsumerState.REMOVED

    def __repr__(self) -> str:
        return f"<consumer {self.tag!r} of queue {self.queue.name!r}, {self.state.name}>"


ConsumerList = OrderedDict[QueueConsumer, None]


class PriorityLists:
    """The consumers of one priority: all of them, the interested and the notified."""

    __slots__ = ("all", "by_state", "interested", "notified", "priority")

    def __init__(self, priority: int, not_interested: ConsumerList, non_acquiring: ConsumerList) -> None:
        self.priority: int = priority
        self.all: ConsumerList = OrderedDict()
        self.interested: ConsumerList = OrderedDict()
        self.notified: ConsumerList = OrderedDict()
        # By ConsumerState: where a consumer of this priority is. The two lists given are those of all priorities.
        self.by_state: tuple[ConsumerList | None, ...] = (
            None,
            not_interested,
            non_acquiring,
            self.interested,
            self.notified,
        )
