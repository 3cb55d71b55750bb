"""What comes in on a channel: consumers, deliveries with their tags, and callbacks on their way to the work pool.

Promise     A consumer is registered before its first delivery can come: its tag is ours, not the server's. A delivery
            has its tag before any thread can settle it. `ended` is called once for each, after its last delivery.
State       The channel's lock guards the tags, `_consumers`, `queued` and `_batch`, what the lane does not have yet;
            the channel is in `to_flush` while there are any. The lane is put to with the lock held, so that the end of
            a consumer comes behind its deliveries. The thread that runs a callback writes `running_since`.
Who runs    `delivered`, `cancelled`, `cancel_answered`, `accept`, `ended` and `flush` on the reader thread, which never
            waits here; callbacks on the work pool, in the lane of the channel; `resume` on the thread of recovery; the
            rest, and what takes from an inbox, on any thread.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pamqp import commands

from ..._kinds import check_kind
from ...core import FairQueue, LinkedBlockingMultiQueue
from ...errors import ShutDown
from .._base.errors import Closed, ConsumerCancelled
from .._base.message import Message
from .._dispatch.buffers import ReceiveBuffer
from .._dispatch.work_pool import Callbacks
from .._link.link import Event, Link
from .lifecycle import ENDING, Closing, Lifecycle, State

if TYPE_CHECKING:
    from .channel import Channel

_log = logging.getLogger("multiqueue.client")

BATCH = 16  # deliveries of one channel before others have their turn; a hand-over costs about two of them

MessageCallback = Callable[[Message], object]


class DeliveryTags:
    """Which messages of a channel are unsettled, over all connections that it has had.

    A message is settled once. What a tag means never changes: each connection numbers the deliveries on a channel from
    1, and after a recovery our tags go on from the highest.
    """

    def __init__(self) -> None:
        self._offset = 0  # the highest tag of the connections before this one
        self._highest = 0
        # Invariant: in rising order, all above _offset and not above _highest.
        self._unsettled: dict[int, None] = {}
        # Settled in the transaction that is open, and in the one whose end the server was asked for.
        self.is_transacted: bool = False
        self._pending: dict[int, None] = {}
        self._ending: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._unsettled)

    def __contains__(self, tag: int) -> bool:
        return tag in self._unsettled

    def deliver(self, wire_tag: int, is_unsettled: bool) -> int:
        """Our tag for a message that the server delivered under `wire_tag`."""
        tag = self._highest = wire_tag + self._offset
        if is_unsettled:
            self._unsettled[tag] = None
        return tag

    def is_stale(self, tag: int) -> bool:
        return tag <= self._offset

    def settle(self, tag: int, multiple: bool) -> int | None:
        """The server's tag to settle, 0 for all that there are; None when the message is back in its queue. With
        `multiple`, `tag` and all below it are meant, or all when it is 0. Raises KeyError: there is no such unsettled
        message."""
        if type(tag) is not int:
            check_kind("delivery_tag", tag, int, "the number of a delivery")
        unsettled = self._unsettled
        if multiple and tag == 0:
            self._take(list(unsettled))
            return 0
        if 0 < tag <= self._offset:
            return None
        if tag not in unsettled:
            raise KeyError(tag)
        self._take([each for each in unsettled if each <= tag] if multiple else [tag])
        return tag - self._offset

    def _take(self, tags: list[int]) -> None:
        for each in tags:
            del self._unsettled[each]
        if self.is_transacted:
            self._pending.update(dict.fromkeys(tags))

    def begin_transactions(self) -> None:
        self.is_transacted = True

    def end_transaction(self) -> None:
        self._ending, self._pending = self._pending, {}

    def transaction_ended(self, *, is_done: bool) -> None:
        """The server has answered: settlements are done, or undone."""
        if not is_done:
            self._unsettled = dict.fromkeys(sorted(self._ending | self._unsettled))
        self._ending = {}

    def clear(self) -> None:
        self._unsettled.clear()

    def renew(self) -> None:
        """The connection is gone, and unsettled messages have gone back: the next connection numbers from 1."""
        self._offset = self._highest
        for tags in (self._unsettled, self._pending, self._ending):
            tags.clear()

    def check_invariants(self) -> None:
        """Raise AssertionError when the tags contradict themselves. For tests, with the channel's lock held."""
        tags = list(self._unsettled)
        assert tags == sorted(tags), tags
        known = [*tags, *self._pending, *self._ending]
        assert len(known) == len(set(known)), known
        assert all(self._offset < tag <= self._highest for tag in known), known


class ConsumerRequest(NamedTuple):
    """The fields of basic.consume, to be sent again after a recovery."""

    queue: str
    consumer_tag: str
    no_ack: bool
    exclusive: bool
    no_local: bool
    arguments: dict[str, Any]


@dataclass(eq=False, repr=False)
class Consumer:
    _consumers: Consumers
    request: ConsumerRequest
    callback: MessageCallback
    _on_ended: Callable[[Exception | None], object] | None

    def ended(self, error: Exception | None) -> None:
        """No delivery will follow: `error` says why, None when it was asked for."""
        if self._on_ended is not None:
            self._consumers.dispatch(self._on_ended, error)


class Accepting(Protocol):
    """A consumer whose messages wait in the client until somebody takes them, as `Inbox` is. The reader calls it."""

    request: ConsumerRequest

    def accept(self, message: Message) -> None: ...

    def ended(self, error: Exception | None) -> None: ...


class Inbox(Closing):
    """A consumer without a callback: messages wait in it until you take them.

        with channel.consume("orders") as inbox:
            for message in inbox:
                message.ack()

    Threads and coroutines may take from it at the same time. Iteration ends when the consumer is closed, and raises
    why when it was ended by the server or with the connection. Messages that wait at the end go back to the queue.
    """

    def __init__(self, consumers: Consumers, request: ConsumerRequest) -> None:
        self.request = request
        self._consumers = consumers
        self._messages: LinkedBlockingMultiQueue[Message] | FairQueue[Message] = LinkedBlockingMultiQueue()
        self._tail = self._messages.add_subqueue(request.consumer_tag)
        self._error: Exception | None = None

    def accept(self, message: Message) -> None:
        """Put a delivery in. Called by the reader."""
        try:
            self._tail.put_nowait(message)
        except ShutDown:
            self._consumers.drop(message)

    def ended(self, error: Exception | None) -> None:
        """Nothing will follow. Called by the reader."""
        self._error = error
        self._messages.shutdown()

    def get(self, timeout: float | None = None) -> Message:
        """The next message; blocks until there is one.

        Raises:
            Empty: `timeout` seconds passed first.
            ShutDown: the consumer was closed and nothing is left.
            ConsumerCancelled, ChannelClosed, ConnectionClosed: what ended it, once nothing is left.
        """
        while True:
            try:
                message = self._messages.get(timeout=timeout)
            except ShutDown:
                raise self._end() from None
            if self._begin(message):
                return message

    async def async_get(self) -> Message:
        """`get()` for a coroutine; one that is cancelled has taken nothing."""
        while True:
            try:
                message = await self._messages.async_get()
            except ShutDown:
                raise self._end() from None
            if self._begin(message):
                return message

    def qsize(self) -> int:
        """How many messages wait in it."""
        return self._messages.qsize()

    def close(self) -> None:
        """Cancel the consumer and give back the messages that wait. Closing twice does nothing."""
        self._consumers.cancel_inbox(self)
        self.ended(None)
        while (message := self._messages.poll()) is not None:
            self._consumers.drop(message)

    def _begin(self, message: Message) -> bool:
        return self._consumers.begin(message)

    def _end(self) -> Exception:
        return copy.copy(self._error) or ShutDown(f"consumer {self.request.consumer_tag!r} is closed")

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                message = self.get()
            except ShutDown:
                return
            yield message

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            try:
                message = await self.async_get()
            except ShutDown:
                return
            yield message


@dataclass(eq=False, repr=False)
class Consumers:
    """The consumers of `channel`, its deliveries and its callbacks.

    `to_flush` has the channels with deliveries that the lane does not have; `current_name(queue)` is the name that a
    queue has now, after recoveries.
    """

    _channel: Channel
    _life: Lifecycle
    _tags: DeliveryTags
    _callbacks: Callbacks
    _receive_buffer: ReceiveBuffer
    _to_flush: list[Consumers]
    _current_name: Callable[[str], str]
    _consumers: dict[str, Consumer | Accepting] = field(default_factory=dict)
    queued: int = 0  # deliveries that no callback has begun with
    running_since: float | None = None

    def __post_init__(self) -> None:
        self._lane = self._callbacks.add_lane(self)
        self._batch: list[tuple[MessageCallback, Message]] = []

    def __len__(self) -> int:
        return len(self._consumers)

    # ---- who consumes

    def start(self, consumer: Consumer | Accepting) -> None:
        """Register a consumer and ask the server to serve it. Raises ValueError: the channel has one with that tag. As
        a call."""
        life, tag = self._life, consumer.request.consumer_tag
        with life.lock:
            life.link_locked()
            if tag in self._consumers:
                raise ValueError(f"{life.label} has a consumer {tag!r} already; choose another tag")
            self._consumers[tag] = consumer
        try:
            self._ask_for(consumer.request)
        except BaseException:
            with life.lock:
                self._consumers.pop(tag, None)
            raise

    def resume(self, link: Link) -> None:
        """Start the consumers again on a new link."""
        with self._life.lock:
            consumers = list(self._consumers.values())
        for consumer in consumers:
            self._ask_for(consumer.request, link)

    def _ask_for(self, request: ConsumerRequest, link: Link | None = None) -> None:
        request = request._replace(queue=self._current_name(request.queue))
        self._life.call(commands.Basic.Consume, request._asdict(), link=link)

    def cancel_inbox(self, inbox: Inbox) -> None:
        life, tag = self._life, inbox.request.consumer_tag
        with life.lock:
            life.wait_for_recovery_locked()  # it may be about to start this one again
            is_here = self._consumers.get(tag) is inbox
            if is_here and life.state is not State.OPEN:
                del self._consumers[tag]  # recovery will not start it again
                is_here = False
        if is_here:
            life.call(commands.Basic.Cancel, {"consumer_tag": tag})

    def take_locked(self) -> list[Consumer | Accepting]:
        consumers, self._consumers = list(self._consumers.values()), {}
        return consumers

    # ---- what arrives (on the reader thread)

    def delivered(self, event: Event) -> None:
        _, (consumer_tag, wire_tag, redelivered, exchange, routing_key), block, body = event
        with self._life.lock:
            consumer = self._consumers.get(consumer_tag)
            if consumer is None or self._life.state in ENDING:
                consumer = None
                tag = self._tags.deliver(wire_tag, False)
            else:
                no_ack = consumer.request.no_ack
                tag = self._tags.deliver(wire_tag, not no_ack)
                names = (exchange, routing_key)
                message = Message(self._channel, body, block, *names, tag, consumer_tag, redelivered, no_ack)
                self.queued += 1
                if isinstance(consumer, Consumer):
                    self._batch.append((consumer.callback, message))
                    if len(self._batch) == 1:
                        self._to_flush.append(self)
                    elif len(self._batch) >= BATCH:
                        self._flush_locked()
        if consumer is None:  # cancelled or closed meanwhile: the server takes it back with the channel
            _log.debug("%s: delivery %d for %r, which is no longer a consumer", self._life.label, tag, consumer_tag)
            return
        self._receive_buffer.hold(len(body))
        if not isinstance(consumer, Consumer):
            consumer.accept(message)

    def cancel_answered(self, event: Event) -> None:
        self._end(event.method.consumer_tag, None)
        self._life.answered(event)

    def cancelled(self, event: Event) -> None:
        tag = event.method.consumer_tag
        self._end(tag, ConsumerCancelled(f"{self._life.label}: the server ended consumer {tag!r}"))

    def _end(self, tag: str, error: Exception | None) -> None:
        with self._life.lock:
            consumer = self._consumers.pop(tag, None)
        if consumer is not None:
            consumer.ended(error)

    # ---- on the way to the work pool

    def flush(self) -> None:
        """Hand deliveries on to the work pool, to be announced later. The reader, when it has read."""
        with self._life.lock:
            self._flush_locked()

    def _flush_locked(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
            self._lane.put((self._run_batch, batch))

    def dispatch(self, callback: Callable[[Any], object], argument: Any) -> None:
        """Have a callback of the user's run in the lane, behind the deliveries before it."""
        self._put(partial(self._run_callback, callback), argument)

    def end(self) -> None:
        """Remove the lane behind all that is in it."""
        self._put(self._callbacks.remove_lane, self)

    def _put(self, function: Callable[[Any], object], argument: Any) -> None:
        try:
            with self._life.lock:
                self._flush_locked()
                self._lane.put((function, argument))
        except ShutDown:
            _log.debug("%r has ended; %r is dropped", self._channel, argument)
        self._callbacks.announce()

    def _run_batch(self, batch: list[tuple[MessageCallback, Message]]) -> None:
        for callback, message in batch:
            try:
                if self.begin(message):
                    self._run_callback(callback, message)
            except BaseException as error:  # noqa: BLE001  # SystemExit of a callback must not cost the others
                extra = {"connection": repr(self._channel)}
                _log.critical("a callback of %r raised %r", self._channel, error, exc_info=error, extra=extra)

    def begin(self, message: Message) -> bool:
        """A delivery leaves its queue in the client; False when it came over a connection that is gone."""
        with self._life.lock:
            self.queued -= 1
            is_stale = not message.auto_ack and self._tags.is_stale(message.delivery_tag)
        self._receive_buffer.release(len(message.body))
        return not is_stale

    def drop(self, message: Message) -> None:
        if self.begin(message) and not message.auto_ack:
            try:
                message.nack(requeue=True)
            except (Closed, ValueError):
                pass  # it has gone back already

    def _run_callback(self, callback: Callable[[Any], object], argument: Any) -> None:
        self.running_since = time.monotonic()
        try:
            self._callbacks.run(callback, argument, self._channel)
        finally:
            self.running_since = None
