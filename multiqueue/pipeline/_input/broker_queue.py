"""A queue of an AMQP broker, as a run takes from it.

Taking      While following, a consumer's inbox is emptied without waiting. Otherwise messages are fetched one by one:
            only the answer to that says for certain that a queue has nothing more.
Threads     The runner's.
Membership  A connection that is lost comes back by itself. Messages of the old one are delivered again;
            settling it on the old one is refused, which changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import Empty, MultiQueueError
from .._base.errors import PipelineError, Unprepared
from .._config.source import split_source

if TYPE_CHECKING:
    from ...client import Message

MOST = 256
"""Messages of one step, as many as a slice of a scan: a few milliseconds of recording."""


Settle = Callable[[bool], None]
"""Called once: whether the message was taken in. Otherwise it is none that can be, and is rejected."""


class BrokerQueue:
    """A queue that a lane takes from. Its connection ends with the stack."""

    has_lost = False
    """A broker drops nothing."""

    def __init__(
        self,
        lane: str,
        url: str,
        prefetch: int,
        stack: contextlib.ExitStack,
        connect: Callable[[str], Any] | None = None,
        *,
        follow: bool,
    ) -> None:
        """Raises Unprepared where the broker or the queue is not there, or the client's extra is missing."""
        self._lane = lane
        self.is_drained = False
        """The queue had nothing more when last asked for a message; never while following."""
        address, self._name = split_source(url)
        connect = connect or _client()
        try:
            self._channel = stack.enter_context(connect(address)).channel()
            self._channel.queue_declare(self._name, passive=True)
            self._channel.basic_qos(prefetch)
            self._inbox = self._channel.consume(self._name) if follow else None
        except MultiQueueError as error:
            raise Unprepared(f"lane {lane!r}: {error}") from error

    @property
    def has_more(self) -> bool:
        """Whether messages are known to have come."""
        return self._inbox is not None and self._inbox.qsize() > 0

    def take(self, room: int) -> list[Message]:
        """The messages that there are, at most so many.

        Raises:
            PipelineError: nothing will come any more.
        """
        messages: list[Message] = []
        room = min(room, MOST)
        try:
            while len(messages) < room:
                if self._inbox is not None:
                    messages.append(self._inbox.get(timeout=0))
                elif (message := self._channel.basic_get(self._name)) is not None:
                    messages.append(message)
                else:
                    break
            self.is_drained = self._inbox is None and len(messages) < room
        except Empty:
            pass  # for now
        except MultiQueueError as error:
            from ...client import ConnectionInterrupted

            if isinstance(error, ConnectionInterrupted):
                self.is_drained = False  # the connection is on its way back
            elif not messages:
                why = f"queue {self._name!r}: {error}"
                raise PipelineError(f"lane {self._lane!r}: {why}; run again to go on") from error
        return messages

    def events(self, room: int) -> list[tuple[bytes, Settle]]:
        """As `take`, for a lane that needs the bodies alone."""
        return [(bytes(message.body), partial(settle, message)) for message in self.take(room)]


def waiting(url: str) -> int:
    """How many messages wait in the queue of this URL.

    Raises:
        MultiQueueError: the broker does not say.
    """
    address, name = split_source(url)
    with _client()(address) as connection:
        return int(connection.channel().queue_declare(name, passive=True).message_count)


def settle(message: Message, accept: bool) -> None:
    """Acknowledge or reject it. One that went back to its queue comes again and is known then."""
    with contextlib.suppress(MultiQueueError):
        if accept:
            message.ack()
        else:
            message.reject(requeue=False)


def _client() -> Callable[[str], Any]:
    try:
        from ...client import connect
    except ImportError as error:
        raise Unprepared(
            f"the lane's queue needs the client ({error}): pip install 'blocking-multiqueue[amqp]'"
        ) from error
    return connect
