"""A channel in transaction mode: its publishes and settlements, put off until commit.

Promise     As the broker's `Transaction`, which does the work. What was settled and not committed is the channel's
            again after a rollback, under its old delivery tags. Where a queue refused a message at commit, everything
            else is done and the channel is closed, as RabbitMQ does it: 406, partial tx completion. A mandatory
            message that no queue has is returned at commit, before its answer, and never after a rollback.
Waiting     A commit may wait for a disk, so it runs on a thread of the server's; the connection reads nothing further
            until it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ...broker import MessageRefused, Received, Unroutable
from .piecework import PIECE

if TYPE_CHECKING:
    from ...broker import BrokerQueue, Entry, EntryQueue, Message
    from .channel import Held, ServerChannel, Settle


class _Delivery:
    """A held message as the broker's transaction wants it."""

    __slots__ = ("consumer", "delivery_count", "entry")

    def __init__(self, held: Held) -> None:
        self.entry: Entry = held.entry
        self.consumer = held.owner
        self.delivery_count = held.entry.delivery_count

    @property
    def message(self) -> Message:
        return self.entry.message


class _Holder:
    """Settles at commit, on whichever thread that runs: queues only. Windows are the channel's."""

    def accept(self, *deliveries: Any) -> None:
        self._each(deliveries, "accept")

    def release(self, *deliveries: Any, refused: bool = False) -> None:
        self._each(deliveries, "release")

    def reject(self, *deliveries: Any) -> None:
        self._each(deliveries, "reject")

    @staticmethod
    def _each(deliveries: tuple[_Delivery, ...], how: str) -> None:
        groups: dict[tuple[EntryQueue, object], list[Entry]] = {}
        for delivery in deliveries:
            groups.setdefault((delivery.entry.queue, delivery.consumer), []).append(delivery.entry)
        for (queue, owner), entries in groups.items():
            getattr(queue, how)(entries, owner)


class Committed(NamedTuple):
    """What became of a commit: the mandatory messages that no queue has, and whether no queue refused one."""

    returned: list[Message]
    is_complete: bool


class ChannelTransaction:
    """What a channel has done since its last commit or rollback."""

    def __init__(self, channel: ServerChannel) -> None:
        self._channel = channel
        self._transaction = channel.connection.host.transaction()
        self._holder = _Holder()
        self._settled: dict[int, Held] = {}
        self._committed: dict[int, Held] = {}  # by the last commit, until `committed` opens their windows

    def publish(self, message: Message, queues: list[BrokerQueue], *, mandatory: bool) -> None:
        """Publish at commit, to where the message leads now."""
        self._transaction.publish_on(queues, message, mandatory=mandatory)

    def settle(self, taken: dict[int, Held], how: Settle) -> None:
        """Settle at commit."""
        step: Callable[..., None] = getattr(self._transaction, how.__name__)
        step(*(Received(self._holder, _Delivery(held)) for held in taken.values()))
        self._settled.update(taken)

    def commit(self) -> Committed:
        """Do everything. May block.

        When it returns, nothing of it can be rolled back, whether or not somebody is there to be told.
        """
        returned: list[Message] = []
        is_complete = True
        try:
            self._transaction.commit()
        except* Unroutable as group:
            returned = [each.message for each in group.exceptions if isinstance(each, Unroutable)]
        except* MessageRefused:
            is_complete = False
        self._committed, self._settled = self._settled, {}
        return Committed(returned, is_complete)

    def committed(self) -> Iterator[None]:
        """After a commit, on the channel's thread: windows open, a piece at each step."""
        settled, self._committed = self._committed, {}
        while settled:
            for _ in range(min(PIECE, len(settled))):
                _, held = settled.popitem()
                if held.consumer is not None and held.consumer.settled(1):
                    self._channel.look_again(held.consumer)
            if settled:
                yield

    def roll_back(self) -> Iterator[None]:
        """Forget everything; what was settled is unacked again, in order of delivery. A piece at each step."""
        while self._transaction.forget_some(PIECE):
            yield
        settled, self._settled = self._settled, {}
        if not settled:
            return
        channel = self._channel
        unacked, channel.unacked = channel.unacked, {}
        tags = sorted((*settled, *unacked))
        for begin in range(0, len(tags), PIECE):
            if begin:
                yield
            for tag in tags[begin : begin + PIECE]:
                channel.unacked[tag] = settled.pop(tag) if tag in settled else unacked.pop(tag)
