"""An entry of a queue that a store keeps: it has a number in the virtual host's order, and perhaps a row there.

State       `number` and `level` are given before the entry joins its queue. `is_stored` is guarded by the queue's
            lock, as the rest of the entry: it says that whoever takes the entry out owes the store a delete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._entry import Entry

if TYPE_CHECKING:
    from ._message import Message
    from ._queue import BrokerQueue


class StoredEntry(Entry):
    """An entry of a durable queue. Entries of one queue join it in rising `number`."""

    __slots__ = ("is_buried", "is_stored", "level", "maybe_delivered", "number")

    def __init__(self, queue: BrokerQueue, message: Message, size: int) -> None:
        super().__init__(queue, message, size)
        self.number = 0  # the store's id, which is the order of arrival; 0 until it has one
        self.level = 0  # of a priority queue, 0 the highest: where the store pages it
        self.is_stored = False
        self.is_buried = False  # its dead letter and its delete are committed already, by a transaction
        self.maybe_delivered = False  # a process that crashed may have delivered it

    def take_after(self, other: Entry) -> None:
        """Take the place of another entry: its past and its times."""
        self.delivery_count, self.maybe_delivered = other.delivery_count, other.maybe_delivered
        self.refused_by, self.group = other.refused_by, other.group
        self.expires_at, self.held_until = other.expires_at, other.held_until

    def bury(self) -> None:
        self.is_buried = True
