"""A queue reader: a connection that holds messages of several broker queues until they are taken and settled.

Promise     1. Messages are taken by the priority of their queue, equal ones in turns; each queue's in its order.
            2. Nothing is acknowledged but by `ack`. The others go back to their queues with the connection.
            3. After a loss of the connection nothing is handed out that the broker has taken back.
State       `_error` is why it ended, set before the multi-queue is shut down. The messages wait in the multi-queue, at
            most `prefetch` of each queue.
Who runs    Deliveries are put by the client's work pool; everything else runs on the source's one thread.
Waiting     `take` waits for a delivery; the end of a consumer shuts the multi-queue down, which ends the wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...core import LinkedBlockingMultiQueue, SubQueue
from ...errors import Empty, ShutDown
from .errors import SourceUnavailable
from .options import SourceOptions, load_client

if TYPE_CHECKING:
    from ...client import Channel, Connection, Message

_log = logging.getLogger("multiqueue.spark")

LINGER = 0.02  # seconds from an acknowledgement until the deliveries that it makes room for; a round trip and some
RETRY = 0.5  # seconds between two attempts to connect


class QueueReader:
    """One connection. `Supply` makes them.

    Raises:
        ClientError: there is no connection, or there is no such queue.
    """

    def __init__(self, options: SourceOptions, **settings: Any) -> None:
        self._error: Exception | None = None
        self._prefetch = options.prefetch
        self._messages: LinkedBlockingMultiQueue[Message] = LinkedBlockingMultiQueue()
        self._channels: dict[str, Channel] = {}
        self._connection: Connection = load_client().connect(options.url, name=options.name, recover=False, **settings)
        try:
            self._asking = self._connection.channel()
            for queue in options.queues:
                self._messages.add_subqueue(queue.name, queue.priority)
            self.ready()
        except BaseException:
            self.close()
            raise

    def ready(self) -> int:
        """How many messages wait in the queues for anybody. Those that are here already do not count."""
        names = self._messages.subqueues
        return sum(self._asking.queue_declare(str(name), passive=True).message_count for name in names)

    def consume(self) -> None:
        """Let messages come. Calling it again does nothing."""
        if self._channels:
            return
        for name, tail in self._messages.subqueues.items():
            channel = self._channels[str(name)] = self._channel_to_consume_on()
            channel.basic_qos(self._prefetch)
            channel.basic_consume(str(name), partial(_put, tail), on_ended=self._ended)

    def _channel_to_consume_on(self) -> Channel:
        return self._connection.channel()

    def _ended(self, error: Exception | None) -> None:
        """A consumer has ended, and with it the rest: what is here goes back. On the client's work pool."""
        self._error = self._error or error
        self._messages.shutdown(immediate=True)

    @property
    def waiting(self) -> int:
        """How many messages are here and were not taken."""
        return self._messages.qsize()

    @property
    def coming(self) -> int:
        """How many messages the client has and has not handed over yet. One that it is handing over counts."""
        channels = [channel.statistics() for channel in self._channels.values()]
        return sum(channel.queued + (channel.running_for is not None) for channel in channels)

    def take(self, messages: int, size_bytes: float, timeout: float) -> list[tuple[str, Message]]:
        """Up to so many messages with their queues, or until they have so many bytes; waits only for the first.

        Raises:
            ClientError: why there will be none.
        """
        taken: list[tuple[str, Message]] = []
        while len(taken) < messages and size_bytes > 0:
            try:
                queue, message = self._messages.take(timeout=0.0 if taken else timeout)
            except Empty:
                break
            except ShutDown:
                if taken:
                    break
                raise self._error or SourceUnavailable("the consumer was closed") from None
            taken.append((str(queue.key), message))
            size_bytes -= len(message.body)
        return taken

    def ack(self, taken: list[tuple[str, Message]]) -> None:
        """Acknowledge the taken messages: of each queue the last with all before it. Waits for nothing."""
        for message in dict(taken).values():
            message.ack(multiple=True)

    def close(self) -> None:
        """Give back what was not acknowledged. Does not raise."""
        self._messages.shutdown(immediate=True)
        self._connection.close()


def _put(tail: SubQueue[Message], message: Message) -> None:
    try:
        tail.put(message)
    except ShutDown:
        pass  # it goes back with the connection


ReaderT = TypeVar("ReaderT", bound=QueueReader)


class Supply(Generic[ReaderT]):
    """Readers, one after the other: a lost connection is made anew, for as long as the options allow.

    Every method may block for the attempt to connect, ten seconds for a host that does not answer.
    """

    def __init__(
        self,
        options: SourceOptions,
        make: Callable[[SourceOptions], ReaderT],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._make = make
        self._clock = clock
        self._reader: ReaderT | None = None
        self._lost_at: float | None = None  # None: never connected, or connected
        self._next_attempt = 0.0

    @property
    def is_away(self) -> bool:
        """Is the broker away, as far as the last attempt tells?"""
        return self._reader is None

    def reader(self) -> ReaderT | None:
        """The one that is open; None while the broker is away.

        Raises:
            SourceUnavailable: it was away too long, or was not there at the first attempt; or a queue is not there.
        """
        if self._reader is None and self._clock() >= self._next_attempt:
            self._next_attempt = self._clock() + RETRY
            try:
                self._reader = self._make(self._options)
            except load_client().ClientError as error:
                self._judge(error)
            else:
                self._lost_at = None
        return self._reader

    def take(self, messages: int, size_bytes: float, timeout: float) -> list[tuple[str, Message]]:
        """As `QueueReader.take`; nothing while the broker is away."""
        reader = self.reader()
        if reader is None:
            return []
        try:
            reader.consume()
            return reader.take(messages, size_bytes, timeout)
        except load_client().ClientError as error:
            self.lost(error)
            return []

    def ack(self, taken: list[tuple[str, Message]]) -> None:
        """As `QueueReader.ack`. What cannot be acknowledged any more comes again."""
        try:
            if self._reader is not None:
                self._reader.ack(taken)
        except load_client().ClientError as error:
            self.lost(error)

    def ready(self) -> int | None:
        """How many messages wait in the queues or here; None while the broker is away."""
        reader = self.reader()
        try:
            return None if reader is None else reader.ready() + reader.coming + reader.waiting  # in this order
        except load_client().ClientError as error:
            self.lost(error)
            return None

    def close(self) -> None:
        """Give back what was not acknowledged."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def lost(self, error: Exception) -> None:
        """The reader ended with this error. Raises as `reader`, unless there may be another one."""
        _log.warning("the source lost its queues and goes on trying for %g s: %s", self._options.reconnect, error)
        self.close()
        self._lost_at = self._clock()
        self._judge(error)

    def _judge(self, error: Exception) -> None:
        """Raise, unless the broker may come back in time."""
        if self._lost_at is not None and self._clock() - self._lost_at < self._options.reconnect:
            return
        names = ", ".join(queue.name for queue in self._options.queues)
        away = "" if self._lost_at is None else f" and was away for {self._clock() - self._lost_at:.0f} s"
        raise SourceUnavailable(f"the source cannot read {names}{away}: {error}") from error
