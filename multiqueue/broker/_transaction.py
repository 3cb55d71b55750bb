"""A transaction: publishes and settlements that are done together at commit, or not at all.

Promise     Before `commit` nothing of it is visible. `commit` first makes sure of every delivery it settles and,
            when one is not the caller's any more, raises with nothing changed and the transaction as it was.
            Then it publishes, then it settles: whoever dies in between leaves a message twice, not nowhere.
            `rollback` forgets it all; the deliveries are still the caller's to settle.
Limits      Routing is done when a message is published, with the bindings of that moment. A queue at its limit
            does not undo a commit: like a binding that does not match, it decides where a message goes. What was
            refused is told afterwards. Queues change one after the other, so another thread may see one of them
            changed and the next not yet.
State       One thread at a time uses a transaction; it has no lock. It can be used again after either end. What is
            to be settled in it is the transaction's from then on: to settle it otherwise while `commit` runs is a
            mistake that may be found when half is done.
Source      AMQP 0-9-1, class tx.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ._entry import Entry, IllegalStep
from ._errors import MessageRefused, Unroutable

if TYPE_CHECKING:
    from ._message import Message
    from ._queue import BrokerQueue
    from ._received import HeldDelivery, Received
    from ._virtual_host import VirtualHost


_Settle = Callable[..., None]  # a method of a Holder; equal for the same method of the same holder


class Transaction:
    """What one client does between two commits; made by `VirtualHost.transaction`.

    As a context manager it commits at the end of the block, and rolls back when an exception leaves it.
    """

    def __init__(self, host: VirtualHost) -> None:
        self._host = host
        self._published: list[tuple[Message, list[BrokerQueue]]] = []
        # Invariant: a delivery's entry is a key of one of the values at most.
        self._settled: dict[_Settle, dict[Entry, HeldDelivery]] = {}

    def publish(self, message: Message, *, mandatory: bool = False) -> int:
        """Route the message now, publish it at commit; returns to how many queues.

        Raises:
            NotFound, AccessRefused: as `VirtualHost.publish`.
            Unroutable: `mandatory`, and no queue is bound for it. The rest of the transaction stands.
        """
        queues = self._host.route(message)
        if mandatory and not queues:
            raise Unroutable(
                f"exchange '{message.exchange}' in vhost '{self._host.name}' leads"
                f" routing key '{message.routing_key}' to no queue",
                message=message,
            )
        self._published.append((message, queues))
        return len(queues)

    def accept(self, *received: Received) -> None:
        """Be done with these messages at commit.

        Raises:
            ValueError: one of them is settled in this transaction already; then none is added.
        """
        self._settle([(each.holder.accept, each.delivery) for each in received])

    def release(self, *received: Received) -> None:
        """Give these messages back to their queues at commit. Raises as `accept`."""
        self._settle([(each.holder.release, each.delivery) for each in received])

    def reject(self, *received: Received) -> None:
        """Dead-letter these messages at commit. Raises as `accept`."""
        self._settle([(each.holder.reject, each.delivery) for each in received])

    def commit(self) -> None:
        """Do everything, and begin anew.

        Raises:
            BrokerClosed: the virtual host was closed. Nothing was done.
            IllegalStep: a delivery was settled elsewhere. Nothing was done; the transaction is as it was.
            MessageRefused: everything was done, but queues at their limit refused a message. Several of these
                come as an ExceptionGroup.
        """
        self._host.check_open()
        self._make_sure_of_deliveries()
        published, settled = self._published, self._settled
        self._published, self._settled = [], {}
        refusals: list[MessageRefused] = []
        for message, queues in published:
            try:
                self._host.put_on(queues, message)
            except MessageRefused as refusal:
                refusals.append(refusal)
        for settle, deliveries in settled.items():
            settle(*deliveries.values())
        if len(refusals) > 1:
            raise ExceptionGroup("committed, but queues refused messages", refusals)
        if refusals:
            raise refusals[0]

    def rollback(self) -> None:
        """Forget everything, and begin anew."""
        self._published, self._settled = [], {}

    def __len__(self) -> int:
        """How many publishes and settlements wait for the commit."""
        return len(self._published) + sum(map(len, self._settled.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if type is None:
            self.commit()
        else:
            self.rollback()

    def _settle(self, settlements: list[tuple[_Settle, HeldDelivery]]) -> None:
        for entries in self._settled.values():
            for _, delivery in settlements:
                if delivery.entry in entries:
                    raise ValueError(f"{delivery.entry!r} is settled in this transaction already")
        for settle, delivery in settlements:
            self._settled.setdefault(settle, {})[delivery.entry] = delivery

    def _make_sure_of_deliveries(self) -> None:
        """Lock every entry, so that nobody can take one away before it is settled; all or none.

        A message whose queue is deleted may have left its holder with the queue. Then nothing is left to settle.
        """
        locked: list[HeldDelivery] = []
        try:
            for deliveries in self._settled.values():
                for delivery in list(deliveries.values()):
                    if self._lock(delivery):
                        locked.append(delivery)
                    elif delivery.entry.queue.is_deleted:
                        del deliveries[delivery.entry]
        except BaseException:
            for delivery in locked:
                delivery.entry.queue.unlock(delivery.entry, delivery.consumer)
            raise

    @staticmethod
    def _lock(delivery: HeldDelivery) -> bool:
        """False when it was taken away, or is gone with its queue."""
        queue = delivery.entry.queue
        try:
            return queue.lock(delivery.entry, delivery.consumer) > 0
        except IllegalStep:
            if queue.is_deleted:
                return False
            raise
