"""A channel: AMQP's vocabulary, for any thread.

Everything that the server answers blocks until the answer is there, one call at a time per channel, and can be called
from a callback. Publishing, acknowledging and rejecting wait for no answer, and not for another thread's call.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from pamqp import commands

from ..amqp import NO_PROPERTIES, GetOk, Properties, encode_properties
from ._call import Call
from ._channel_base import ChannelBase
from ._confirms import Confirm, Ledger, Unconfirmed
from ._consumers import Consumer, ConsumerRequest, Inbox, MessageCallback
from ._errors import ConfirmTimeout, PublishTimeout, UnknownDelivery
from ._link import Link
from ._message import Message
from ._states import Happening, State, after

if TYPE_CHECKING:
    from ._connection import Connection

_CONFIRM, _TX = "confirm", "tx"


class QueueDeclared(NamedTuple):
    """What the server says of a queue. `message_count` counts those that are ready to be delivered."""

    queue: str
    message_count: int
    consumer_count: int


class Channel(ChannelBase):
    """One channel of a connection; made by `Connection.channel`. Every method may be called from any thread.

    Raises, whatever is called: `ChannelClosed` and `ConnectionClosed` with the server's code and text when it refuses,
    `ConnectionInterrupted` while the connection is being recovered, `CallTimeout` when it does not answer.
    """

    def __init__(self, connection: Connection, number: int) -> None:
        super().__init__(connection, number)
        self._mode: str | None = None
        self._qos: dict[bool, int] = {}  # by whether it holds for the channel as a whole

    # ---- exchanges, queues, bindings ----------------------------------------------------------------------------

    def exchange_declare(
        self,
        exchange: str,
        exchange_type: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Make an exchange, unless it is there as asked; `passive` only looks."""
        self._declare(
            commands.Exchange.Declare,
            commands.Exchange.DeclareOk,
            exchange=exchange,
            exchange_type=exchange_type,
            passive=passive,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=dict(arguments or {}),
        )

    def exchange_delete(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings; it need not be there."""
        self._declare(commands.Exchange.Delete, commands.Exchange.DeleteOk, exchange=exchange, if_unused=if_unused)

    def exchange_bind(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Let messages of `source` that match reach `destination`."""
        method, answer = commands.Exchange.Bind, commands.Exchange.BindOk
        self._bind_exchange(method, answer, destination, source, routing_key, arguments)

    def exchange_unbind(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Undo an `exchange_bind` of the same parts."""
        method, answer = commands.Exchange.Unbind, commands.Exchange.UnbindOk
        self._bind_exchange(method, answer, destination, source, routing_key, arguments)

    def queue_declare(
        self,
        queue: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> QueueDeclared:
        """Make a queue, unless it is there as asked; without a name the server gives it one. `passive` only looks."""
        answer = self._declare(
            commands.Queue.Declare,
            commands.Queue.DeclareOk,
            queue=queue,
            passive=passive,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=dict(arguments or {}),
        )
        return QueueDeclared(answer.queue, answer.message_count, answer.consumer_count)

    def queue_delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue, which need not be there; returns how many messages it had."""
        fields = {"queue": self._current(queue), "if_unused": if_unused, "if_empty": if_empty}
        return int(self._declare(commands.Queue.Delete, commands.Queue.DeleteOk, **fields).message_count)

    def queue_purge(self, queue: str) -> int:
        """Drop the messages that are ready; returns how many there were."""
        return int(self.call(commands.Queue.Purge, commands.Queue.PurgeOk, queue=self._current(queue)).message_count)

    def queue_bind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Let messages of the exchange that match reach the queue."""
        self._bind_queue(commands.Queue.Bind, commands.Queue.BindOk, queue, exchange, routing_key, arguments)

    def queue_unbind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Undo a `queue_bind` of the same parts."""
        self._bind_queue(commands.Queue.Unbind, commands.Queue.UnbindOk, queue, exchange, routing_key, arguments)

    def _bind_queue(
        self,
        method: type[Any],
        answer: type[Any],
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, Any] | None,
    ) -> None:
        names = {"queue": self._current(queue), "exchange": exchange, "routing_key": routing_key}
        self._declare(method, answer, **names, arguments=dict(arguments or {}))

    def _bind_exchange(
        self,
        method: type[Any],
        answer: type[Any],
        destination: str,
        source: str,
        routing_key: str,
        arguments: Mapping[str, Any] | None,
    ) -> None:
        names = {"destination": destination, "source": source, "routing_key": routing_key}
        self._declare(method, answer, **names, arguments=dict(arguments or {}))

    def _declare(self, method: type[Any], expected: type[Any], **fields: Any) -> Any:
        answer = self.call(method, expected, **fields)
        if not fields.get("passive"):
            self.connection.topology.record(method, fields, getattr(answer, "queue", ""))
        return answer

    def _current(self, queue: str) -> str:
        return self.connection.topology.current_name(queue)

    # ---- publishing ---------------------------------------------------------------------------------------------

    def publish(
        self,
        body: bytes,
        *,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        timeout: float | None = None,
        **properties: Unpack[Properties],
    ) -> None:
        """Send a message. Blocks only while the server takes nothing, `timeout` seconds at most.

        Messages of one thread on one channel arrive in order. After `confirm_select` the message is kept until the
        server has answered for it, and `wait_for_confirms` waits for that. A `mandatory` one comes back, to
        `on_returned`, if it reaches no queue. `delivery_mode=2` has a durable queue keep it on disk.

        Raises:
            PublishTimeout: the time was up; nothing was sent.
            ValueError, TypeError: a name or property does not fit; nothing was sent.
        """
        block = _encode(properties) if properties else NO_PROPERTIES
        self._publish(Unconfirmed(exchange, routing_key, mandatory, block, body, None), timeout)

    def publish_confirmed(
        self,
        body: bytes,
        *,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        timeout: float | None = None,
        **properties: Unpack[Properties],
    ) -> Confirm:
        """Send a message as `publish`, and return a future of the server's answer for it, which can be awaited.

        Turns confirms on at the first call, which blocks for that.
        """
        if self._mode != _CONFIRM:
            self.confirm_select()
        block = _encode(properties) if properties else NO_PROPERTIES
        confirm = Confirm(self.connection.dispatch, self.connection.intake.answer_wanted)
        self._publish(Unconfirmed(exchange, routing_key, mandatory, block, body, confirm), timeout)
        return confirm

    def _publish(self, message: Unconfirmed, timeout: float | None) -> None:
        link = self._link
        if link is None or link.is_full or not self._is_flowing:
            link = self._writable_link(timeout)
        exchange, routing_key, mandatory, properties, body, _ = message
        prepared = link.prepare(self.number, exchange, routing_key, mandatory, properties, body)
        with self._lock:
            if self._link is not link or self._state is not State.OPEN:
                raise self._refusal_locked()
            if self._ledger is not None:
                self._ledger.add(message)
            elif message.confirm is not None:
                raise ValueError(f"{self!r} was put into another mode; a message on it is not confirmed")
            is_sent = link.publish(prepared)
            is_kept = self._ledger is not None
        if not is_sent and not is_kept:
            raise self._lost()

    def _writable_link(self, timeout: float | None) -> Link:
        """The link, when it has room and the flow goes on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not self._is_flowing and self._state is State.OPEN:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    raise PublishTimeout(f"{self!r}: the server has stopped the flow for {timeout:g} s")
                self._changed.wait(remaining)
            link = self._open_link_locked()
        if not link.wait_for_room(None if deadline is None else max(deadline - time.monotonic(), 0.0)):
            why = self.connection.blocked_reason or "it reads too slowly, or not at all"
            raise PublishTimeout(f"{self!r}: the server took nothing for {timeout:g} s: {why}")
        return link

    def confirm_select(self) -> None:
        """From now on the server answers for every message that is published on this channel."""
        with self._lock:
            is_on = self._mode == _CONFIRM
        if is_on:
            return
        self.call(commands.Confirm.Select, commands.Confirm.SelectOk)
        with self._lock:
            if self._ledger is None:  # another thread may have been as fast
                self._mode = _CONFIRM
                self._ledger = Ledger()

    def wait_for_confirms(self, timeout: float | None = None) -> bool:
        """Block until the server has answered for all that was published; False if it could not take one of them.

        What counts are the answers since the last call.

        Raises:
            ConfirmTimeout: `timeout` seconds passed first.
            ChannelClosed, ConnectionClosed: it ended first; what it had not answered for may be lost.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.connection.intake.answer_wanted(), self._lock:
            while self._ledger is not None and len(self._ledger) and self._state is not State.CLOSED:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    left = len(self._ledger)
                    raise ConfirmTimeout(f"{self!r}: {left} messages were not confirmed within {timeout:g} s")
                self._changed.wait(remaining)
            if self._state is State.CLOSED:
                raise self._refusal_locked()
            if self._ledger is None:
                return True
            has_nack, self._ledger.has_nack = self._ledger.has_nack, False
            return not has_nack

    # ---- consuming ----------------------------------------------------------------------------------------------

    def basic_qos(self, prefetch_count: int, *, global_: bool = False) -> None:
        """How many unsettled messages each consumer started from now on may have; with `global_` all together."""
        self.call(
            commands.Basic.Qos, commands.Basic.QosOk, prefetch_size=0, prefetch_count=prefetch_count, global_=global_
        )
        self._qos[global_] = prefetch_count

    def basic_consume(
        self,
        queue: str,
        callback: MessageCallback,
        *,
        auto_ack: bool = False,
        consumer_tag: str = "",
        exclusive: bool = False,
        no_local: bool = False,
        arguments: Mapping[str, Any] | None = None,
        on_ended: Callable[[Exception | None], object] | None = None,
    ) -> str:
        """Have messages of the queue go to `callback` on the work pool; returns the consumer's tag.

        Callbacks of a channel run one at a time, in the order of delivery. `on_ended(error)` comes after the last of
        them: None when the consumer was cancelled or the channel closed by us, otherwise why. `callback` can be
        the `put` of a sub-queue: that is how one thread blocks on queues of several connections.
        """
        request = self._request(queue, consumer_tag, auto_ack, exclusive, no_local, arguments)
        self._start_consumer(Consumer(self, request, callback, on_ended))
        return request.tag

    def consume(
        self,
        queue: str,
        *,
        auto_ack: bool = False,
        consumer_tag: str = "",
        exclusive: bool = False,
        no_local: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> Inbox:
        """Messages of the queue, to iterate over or take from, for threads and coroutines alike."""
        inbox = Inbox(self, self._request(queue, consumer_tag, auto_ack, exclusive, no_local, arguments))
        self._start_consumer(inbox)
        return inbox

    def _request(
        self,
        queue: str,
        tag: str,
        auto_ack: bool,
        exclusive: bool,
        no_local: bool,
        arguments: Mapping[str, Any] | None,
    ) -> ConsumerRequest:
        tag = tag or f"mq.{secrets.token_hex(16)}"
        return ConsumerRequest(queue, tag, auto_ack, exclusive, no_local, arguments or {})

    def _start_consumer(self, consumer: Consumer | Inbox) -> None:
        """The consumer is registered before its first delivery can come: its tag is ours, not the server's."""
        tag = consumer.request.tag
        with self._lock:
            self._open_link_locked()
            if tag in self._consumers:
                raise ValueError(f"{self!r} has a consumer {tag!r} already; choose another tag")
            self._consumers[tag] = consumer
        try:
            self._call_on(None, _consume_call(), commands.Basic.Consume, None, self._consume_fields(consumer.request))
        except BaseException:
            with self._lock:
                self._consumers.pop(tag, None)
            raise

    def _consume_fields(self, request: ConsumerRequest) -> dict[str, Any]:
        return {
            "queue": self._current(request.queue),
            "consumer_tag": request.tag,
            "no_local": request.no_local,
            "no_ack": request.auto_ack,
            "exclusive": request.exclusive,
            "arguments": dict(request.arguments),
        }

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer. What it has received stays unsettled; its callbacks that wait still run."""
        self.call(commands.Basic.Cancel, commands.Basic.CancelOk, consumer_tag=consumer_tag)

    def end_inbox(self, inbox: Inbox) -> None:
        """Cancel an inbox, if it has not ended otherwise."""
        with self._lock:
            tag = inbox.request.tag
            is_here = self._consumers.get(tag) is inbox
            if is_here and self._state is not State.OPEN:
                del self._consumers[tag]  # recovery will not start it again
                is_here = False
        if is_here:
            self.basic_cancel(tag)

    def basic_get(self, queue: str, *, auto_ack: bool = False) -> Message | None:
        """The first message of the queue that nobody has, or None at once when there is none."""
        call = Call(GetOk, commands.Basic.GetEmpty)
        call.auto_ack = auto_ack
        fields = {"queue": self._current(queue), "no_ack": auto_ack}
        self._call_on(None, call, commands.Basic.Get, None, fields)
        return call.content if isinstance(call.content, Message) else None

    def basic_recover(self) -> None:
        """Give back everything that is unsettled, to its place."""
        self.call(commands.Basic.Recover, commands.Basic.RecoverOk, requeue=True)

    # ---- settling -----------------------------------------------------------------------------------------------

    def basic_ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        """Done with a message; with `multiple` with all up to it, of all consumers; tag 0 then means all there are."""
        self._settle("ack", delivery_tag, multiple, False)

    def basic_nack(self, delivery_tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        """Give messages back to their places, or without `requeue` dead-letter or drop them."""
        self._settle("nack", delivery_tag, multiple, requeue)

    def basic_reject(self, delivery_tag: int, *, requeue: bool = False) -> None:
        """Dead-letter or drop a message, or give it back."""
        self._settle("reject", delivery_tag, False, requeue)

    def _settle(self, verb: str, tag: int, multiple: bool, requeue: bool) -> None:
        with self._lock:
            unsettled = self._unsettled
            if self._state in (State.CLOSING, State.CLOSED):
                raise self._refusal_locked()
            if tag in unsettled and not multiple:
                del unsettled[tag]
            elif multiple and tag == 0:
                unsettled.clear()
            elif 0 < tag <= self._tag_offset:
                return  # it came over a connection that is gone, and is back in its queue
            elif multiple and unsettled and next(iter(unsettled)) <= tag <= self._highest_tag:
                for each in [each for each in unsettled if each <= tag]:
                    del unsettled[each]
            else:
                raise UnknownDelivery(f"{self!r} has no unsettled message {tag}: it was settled before, or never came")
            if self._link is not None:
                self._link.settle(self.number, verb, tag and tag - self._tag_offset, multiple, requeue)

    # ---- transactions -------------------------------------------------------------------------------------------

    def tx_select(self) -> None:
        """From now on publishes and settlements on this channel wait for `tx_commit`."""
        self.call(commands.Tx.Select, commands.Tx.SelectOk)
        self._mode = _TX

    def tx_commit(self) -> None:
        """Do what was published and settled since the last time, all of it."""
        self.call(commands.Tx.Commit, commands.Tx.CommitOk)

    def tx_rollback(self) -> None:
        """Do none of it. What was settled is unsettled again at the server, which gives it back with the channel."""
        self.call(commands.Tx.Rollback, commands.Tx.RollbackOk)

    # ---- opening, and opening again -----------------------------------------------------------------------------

    def open_on(self, link: Link) -> None:
        """Open it on a link: at first, or on the next one with quality of service and mode as they were."""
        with self._lock:
            is_first = self._state is State.OPENING
            self._link = link
        self._call_on(link, Call(commands.Channel.OpenOk), commands.Channel.Open, None, {})
        for global_, count in self._qos.items():
            fields = {"prefetch_size": 0, "prefetch_count": count, "global_": global_}
            self._call_on(link, Call(commands.Basic.QosOk), commands.Basic.Qos, None, fields)
        if self._mode == _CONFIRM:
            self._call_on(link, Call(commands.Confirm.SelectOk), commands.Confirm.Select, None, {})
        elif self._mode == _TX:
            self._call_on(link, Call(commands.Tx.SelectOk), commands.Tx.Select, None, {})
        if is_first:
            self.opened()

    def resume_consumers(self, link: Link) -> None:
        """Start the consumers again on a new link."""
        with self._lock:
            consumers = list(self._consumers.values())
        for consumer in consumers:
            self._call_on(link, _consume_call(), commands.Basic.Consume, None, self._consume_fields(consumer.request))

    def republish(self, link: Link) -> int:
        """Publish what the server did not answer for again, in order; returns how many messages."""
        with self._lock:
            unconfirmed = [] if self._ledger is None else self._ledger.renew()
        for message in unconfirmed:
            exchange, routing_key, mandatory, properties, body, _ = message
            prepared = link.prepare(self.number, exchange, routing_key, mandatory, properties, body)
            link.wait_for_room(None)
            with self._lock:
                assert self._ledger is not None
                self._ledger.add(message)
                link.publish(prepared)
        return len(unconfirmed)

    def opened(self) -> None:
        """Open for everybody."""
        with self._lock:
            if self._state not in (State.CLOSING, State.CLOSED):
                self._state = after(self._state, Happening.OPENED)
                self._changed.notify_all()


def _consume_call() -> Call:
    return Call(commands.Basic.ConsumeOk)


def _encode(properties: Mapping[str, Any]) -> bytes:
    try:
        return _encode_often(tuple(properties.items()))
    except TypeError:  # headers: a table is not hashable
        return encode_properties(properties)


@lru_cache(maxsize=256)
def _encode_often(properties: tuple[tuple[str, Any], ...]) -> bytes:
    """Most programs publish with a handful of combinations."""
    return encode_properties(dict(properties))
