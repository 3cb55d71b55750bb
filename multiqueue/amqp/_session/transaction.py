"""A session in transaction mode: its publishes and settlements, put off until commit.

Promise     As the broker's `Transaction`, which does the work. Where a queue refused a message at commit, everything
            else is done and the channel is closed, as RabbitMQ does it: 406, partial tx completion. A mandatory message
            that no queue has is returned at commit, before its answer, and never after a rollback.
Waiting     A commit may wait for a disk: a server runs it on a separate thread, and reads nothing of the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from ...broker import BrokerQueue, Message, MessageRefused, NotFound, Received, Settler, Unroutable, VirtualHost
from .._wire.errors import ConnectionFault
from .consumer import Held
from .effects import PIECE

Settle = Literal["accept", "release", "fail", "discard", "reject"]
"""The settlement of messages: the verb of their queue."""


class Committed(NamedTuple):
    """The result of a commit: the mandatory messages that no queue has, whether every queue took its messages, and the
    settlements, by delivery tag: windows are to open.
    """

    returned: list[Message]
    is_complete: bool
    settled: dict[int, Held]


class SessionTransaction:
    """The publishes and settlements of a session since its last commit or rollback."""

    def __init__(self, host: VirtualHost) -> None:
        self._transaction = host.transaction()
        self._finds_again = host.compat.says("a commit fails where a queue of its messages is gone")
        self._settler = Settler()  # on whichever thread commits; windows are the session's
        self._settled: dict[int, Held] = {}

    def sizes(self) -> tuple[int, int]:
        """How many publishes and settlements wait for the commit. Any thread may ask."""
        return self._transaction.publishes, len(self._settled)

    def publish(self, message: Message, queues: list[BrokerQueue], *, mandatory: bool) -> None:
        self._transaction.publish_on(queues, message, mandatory=mandatory)

    def settle(self, taken: dict[int, Held], how: Settle) -> None:
        step: Callable[..., None] = getattr(self._transaction, "release" if how == "fail" else how)
        step(*(Received(self._settler, held.owner, held.entry) for held in taken.values() if held.owner is not None))
        self._settled.update(taken)

    def commit(self) -> Committed:
        """Do everything. May block. When it returns, nothing of it can be rolled back, though the client may be
        gone. Raises ConnectionFault: a queue is gone; nothing was done.
        """
        returned: list[Message] = []
        is_complete = True
        try:
            if self._finds_again:
                self._transaction.find_again()
        except NotFound as error:
            raise ConnectionFault(506, f"failed to deliver message: {error.detail}") from None
        try:
            self._transaction.commit()
        except* Unroutable as group:
            returned = [each.message for each in group.exceptions if isinstance(each, Unroutable)]
        except* MessageRefused:
            is_complete = False
        return Committed(returned, is_complete, self.take_settled())

    def forgetting(self) -> Iterator[None]:
        """Forget everything, a piece at each step. `take_settled` has the settlements."""
        while self._transaction.forget_some(PIECE):
            yield

    def take_settled(self) -> dict[int, Held]:
        """The messages whose settlement is done or forgotten, by delivery tag."""
        settled, self._settled = self._settled, {}
        return settled
