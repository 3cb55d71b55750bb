"""A channel: AMQP's vocabulary, for any thread.

Every call that the server answers blocks until the answer has come, one call at a time per channel, and can be called
from a callback. Publishing, acknowledging and rejecting wait for no answer, and not for another thread's call.

Parts       docs/design/client.md. Here stand the verbs, the table of the server's methods, and the end of all parts.
State       `_qos` is written after a call, and read by recovery. `on_returned` and `on_closed` are set before it opens.
Who runs    `arrived` on the reader thread, `interrupted` and `finish` mostly; `open_on` on the thread of recovery too;
            everything else on any.
"""

from __future__ import annotations

import copy
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from pamqp import commands

from ..._kinds import check_function
from ...amqp.wire import Ack, Deliver, GetOk, Nack, Properties, Reject, Return, Settlement, shortened
from .._base.errors import ChannelClosed, UnknownDelivery
from .._base.message import Message, Returned
from .._link.link import Event, Link
from .consumers import Consumer, ConsumerRequest, Consumers, DeliveryTags, Inbox, MessageCallback
from .lifecycle import ENDING, ChannelStatistics, Closing, Happening, Lifecycle, State
from .publishing import Confirm, Publication, Publishing, encoded
from .recorded_topology import plain

if TYPE_CHECKING:
    from .._connection.connection import Connection

_log = logging.getLogger("multiqueue.client")

Arguments = Mapping[str, Any] | None
OnEnded = Callable[[Exception | None], object]


class QueueDeclared(NamedTuple):
    """The server's answer on a queue. `message_count` counts those that are ready to be delivered."""

    queue: str
    message_count: int
    consumer_count: int


class Channel(Closing):
    """One channel of a connection; made by `Connection.channel`. Every method may be called from any thread.

    Every method raises `ChannelClosed` and `ConnectionClosed` with the server's code and text when it refuses,
    `ConnectionInterrupted` while the connection is being recovered, `CallTimeout` when it does not answer.
    """

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self._log = logging.LoggerAdapter(_log, {"connection": repr(connection)})
        settings, buffer = connection.settings, connection.receive_buffer
        self._current_name = name = connection.topology.current_name
        life = Lifecycle(repr(self), number, settings.recover, buffer, settings.call_timeout, self.abort)
        self.life: Lifecycle = life
        self._tags = tags = DeliveryTags()
        self.publishing: Publishing = Publishing(life, buffer, lambda: connection.blocked_reason)
        self.consumers: Consumers = Consumers(self, life, tags, connection.callbacks, buffer, connection.to_flush, name)
        self._qos: dict[bool, int] = {}  # the prefetch count, by whether it holds for the channel as a whole
        self.on_returned: Callable[[Returned], object] | None = None
        self.on_closed: OnEnded | None = None
        self._handlers: dict[type[Any], Callable[[Event], None]] = {
            Deliver: self.consumers.delivered,
            Ack: self.publishing.confirmed,
            Nack: self.publishing.confirmed,
            Return: self._returned,
            commands.Basic.CancelOk: self.consumers.cancel_answered,
            commands.Basic.Cancel: self.consumers.cancelled,
            commands.Channel.Flow: self.publishing.flow,
            commands.Channel.Close: self._closed_by_server,
            commands.Channel.CloseOk: self._close_answered,
        }

    def call(self, method: type[Any], *, timeout: float | None = None, **fields: Any) -> Any:
        """Send a method of `pamqp.commands` and block until it is answered; returns the method that answers.

        Raises:
            CallTimeout: no answer in `timeout` seconds; the channel is closed.
            ChannelClosed, ConnectionClosed: it is, or was closed before the answer; with the server's code and text.
        """
        return self.life.call(method, fields, timeout=timeout)

    # ---- exchanges, queues and bindings: made again after a recovery ------------------------------------------------

    def exchange_declare(
        self,
        exchange: str,
        exchange_type: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments = None,
    ) -> None:
        """Create an exchange, unless it exists with these settings; `passive` only checks."""
        self._declare(
            commands.Exchange.Declare,
            exchange=exchange,
            exchange_type=exchange_type,
            passive=passive,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )

    def exchange_delete(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings; it need not exist."""
        self._declare(commands.Exchange.Delete, exchange=exchange, if_unused=if_unused)

    def exchange_bind(self, destination: str, source: str, routing_key: str = "", arguments: Arguments = None) -> None:
        """Let messages of `source` that match reach `destination`."""
        names = {"destination": destination, "source": source, "routing_key": routing_key}
        self._declare(commands.Exchange.Bind, **names, arguments=arguments)

    def exchange_unbind(
        self, destination: str, source: str, routing_key: str = "", arguments: Arguments = None
    ) -> None:
        """Undo an `exchange_bind` of the same parts."""
        names = {"destination": destination, "source": source, "routing_key": routing_key}
        self._declare(commands.Exchange.Unbind, **names, arguments=arguments)

    def queue_declare(
        self,
        queue: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments = None,
    ) -> QueueDeclared:
        """Create a queue, unless it exists with these settings; `passive` only checks.

        Without a name the server chooses one.
        """
        answer = self._declare(
            commands.Queue.Declare,
            queue=queue,
            passive=passive,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=arguments,
        )
        return QueueDeclared(answer.queue, answer.message_count, answer.consumer_count)

    def queue_delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue, which need not exist; returns how many messages it had."""
        fields = {"queue": self._current_name(queue), "if_unused": if_unused, "if_empty": if_empty}
        return int(self._declare(commands.Queue.Delete, **fields).message_count)

    def queue_purge(self, queue: str) -> int:
        """Drop the messages that are ready; returns how many there were."""
        return int(self.call(commands.Queue.Purge, queue=self._current_name(queue)).message_count)

    def queue_bind(self, queue: str, exchange: str, routing_key: str = "", arguments: Arguments = None) -> None:
        """Let messages of the exchange that match reach the queue."""
        names = {"queue": self._current_name(queue), "exchange": exchange, "routing_key": routing_key}
        self._declare(commands.Queue.Bind, **names, arguments=arguments)

    def queue_unbind(self, queue: str, exchange: str, routing_key: str = "", arguments: Arguments = None) -> None:
        """Undo a `queue_bind` of the same parts."""
        names = {"queue": self._current_name(queue), "exchange": exchange, "routing_key": routing_key}
        self._declare(commands.Queue.Unbind, **names, arguments=arguments)

    def _declare(self, method: type[Any], **fields: Any) -> Any:
        fields = {name: plain(value) for name, value in fields.items()}
        if "arguments" in fields:
            fields["arguments"] = dict(fields["arguments"] or {})
        answer = self.call(method, **fields)
        if not fields.get("passive"):
            self.connection.topology.record(method, fields, getattr(answer, "queue", ""))
        return answer

    # ---- publishing -------------------------------------------------------------------------------------------------

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
        """Send a message. Blocks only while the server accepts nothing, `timeout` seconds at most.

        Messages of one thread on one channel arrive in order. After `confirm_select` the message is kept until the
        server has answered for it, and `wait_for_confirms` waits for that. A `mandatory` one comes back, to
        `on_returned`, if it reaches no queue. `delivery_mode=2` has a durable queue keep it on disk.

        Raises:
            PublishTimeout: the time was up; nothing was sent.
            ValueError, TypeError: a name or property does not fit; nothing was sent.
        """
        block = encoded(properties)
        self.publishing.publish(Publication(exchange, routing_key, mandatory, block, body, None), timeout)

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
        self.confirm_select()
        block = encoded(properties)
        confirm = Confirm(self.connection.callbacks.dispatch, self.connection.receive_buffer.answer_wanted)
        self.publishing.publish(Publication(exchange, routing_key, mandatory, block, body, confirm), timeout)
        return confirm

    def confirm_select(self) -> None:
        """From now on the server answers for every message that is published on this channel."""
        if not self.publishing.has_confirms:
            self.life.call(commands.Confirm.Select, {}, sent_locked=self.publishing.begin_confirms_locked)

    def wait_for_confirms(self, timeout: float | None = None) -> bool:
        """Block until the server has answered for all that was published; False if it could not take one of them.

        The answers since the last call count, and with `republish=False` the messages lost since then.

        Raises:
            ConfirmTimeout: `timeout` seconds passed first.
            ChannelClosed, ConnectionClosed: it ended first; messages without an answer may be lost.
        """
        return self.publishing.wait_for_confirms(timeout)

    # ---- consuming --------------------------------------------------------------------------------------------------

    def basic_qos(self, prefetch_count: int, *, global_: bool = False) -> None:
        """How many unsettled messages each consumer started from now on may have; with `global_` all together."""
        self.call(commands.Basic.Qos, prefetch_size=0, prefetch_count=prefetch_count, global_=global_)
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
        arguments: Arguments = None,
        on_ended: OnEnded | None = None,
    ) -> str:
        """Have messages of the queue go to `callback` on the work pool; returns the consumer's tag.

        Callbacks of a channel run one at a time, in the order of delivery. `on_ended(error)` comes after the last of
        them: None when the consumer was cancelled or the channel closed by us, otherwise why. `callback` can be
        the `put` of a sub-queue: that is how one thread blocks on queues of several connections.
        """
        if not callable(callback):
            raise TypeError(f"callback is {callback!r}, which cannot be called; consume() needs none")
        if on_ended is not None:
            check_function("on_ended", on_ended)
        tag = plain(consumer_tag) or f"mq.{secrets.token_hex(16)}"
        request = ConsumerRequest(plain(queue), tag, auto_ack, exclusive, no_local, dict(arguments or {}))
        self.consumers.start(Consumer(self.consumers, request, callback, on_ended))
        return tag

    def consume(
        self,
        queue: str,
        *,
        auto_ack: bool = False,
        consumer_tag: str = "",
        exclusive: bool = False,
        no_local: bool = False,
        arguments: Arguments = None,
    ) -> Inbox:
        """Messages of the queue, to iterate over or take from, for threads and coroutines alike."""
        tag = plain(consumer_tag) or f"mq.{secrets.token_hex(16)}"
        request = ConsumerRequest(plain(queue), tag, auto_ack, exclusive, no_local, dict(arguments or {}))
        inbox = Inbox(self.consumers, request)
        self.consumers.start(inbox)
        return inbox

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer. Its received messages stay unsettled; its waiting callbacks still run."""
        self.call(commands.Basic.Cancel, consumer_tag=consumer_tag)

    def basic_get(self, queue: str, *, auto_ack: bool = False) -> Message | None:
        """The first ready message of the queue, or None at once when the queue is empty."""
        fields = {"queue": self._current_name(queue), "no_ack": auto_ack}

        def got_locked(event: Event) -> Message | None:
            if not isinstance(method := event.method, GetOk):
                return None
            tag = self._tags.deliver(method.delivery_tag, not auto_ack)
            names = (method.exchange, method.routing_key)
            return Message(self, event.body, event.properties, *names, tag, "", method.redelivered, auto_ack)

        message: Message | None = self.life.call(commands.Basic.Get, fields, answered_locked=got_locked)
        return message

    def basic_recover(self) -> None:
        """Give back everything that is unsettled, to its place."""
        forget = self._tags.clear  # what follows is delivered anew
        self.life.call(commands.Basic.Recover, {"requeue": True}, answered_locked=lambda event: forget())

    # ---- settling ---------------------------------------------------------------------------------------------------

    def basic_ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        """Done with a message; with `multiple` with all up to it, of all consumers; tag 0 then means all there are."""
        self._settle(Ack(delivery_tag, multiple), multiple)

    def basic_nack(self, delivery_tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        """Give messages back to their places, or without `requeue` dead-letter or drop them."""
        self._settle(Nack(delivery_tag, multiple, requeue), multiple)

    def basic_reject(self, delivery_tag: int, *, requeue: bool = False) -> None:
        """Dead-letter or drop a message, or give it back."""
        self._settle(Reject(delivery_tag, requeue), False)

    def _settle(self, settled: Settlement, multiple: bool) -> None:
        """Append it to the link, under the lock: no settlement overtakes another that was entered before it."""
        life, tag = self.life, settled.delivery_tag
        with life.lock:
            if life.state in ENDING:
                raise life.refusal_locked()
            try:
                wire_tag = self._tags.settle(tag, multiple)
            except KeyError:
                complaint = f"{self!r} has no unsettled message {tag}: it was settled before, or never came"
                raise UnknownDelivery(complaint) from None
            if life.link is not None and wire_tag is not None:
                life.link.settle(self.number, settled if wire_tag == tag else settled._replace(delivery_tag=wire_tag))

    def holds(self, delivery_tag: int) -> bool:
        """Is a message with this tag unsettled?"""
        return delivery_tag in self._tags

    # ---- transactions -----------------------------------------------------------------------------------------------

    def tx_select(self) -> None:
        """From now on publishes and settlements on this channel wait for `tx_commit`."""
        self.life.call(commands.Tx.Select, {}, sent_locked=self._tags.begin_transactions)

    def tx_commit(self) -> None:
        """Apply everything that was published and settled since the last commit."""
        self._end_transaction(commands.Tx.Commit, is_done=True)

    def tx_rollback(self) -> None:
        """Discard it. Settled messages are unsettled again, under the same delivery tags."""
        self._end_transaction(commands.Tx.Rollback, is_done=False)

    def _end_transaction(self, method: type[Any], *, is_done: bool) -> None:
        def ended(event: Event) -> None:
            self._tags.transaction_ended(is_done=is_done)

        self.life.call(method, {}, sent_locked=self._tags.end_transaction, answered_locked=ended)

    # ---- the server's methods (on the reader thread) ----------------------------------------------------------------

    def arrived(self, event: Event) -> None:
        """A method of the server's, with its content."""
        self._handlers.get(type(event.method), self.life.answered)(event)

    def _returned(self, event: Event) -> None:
        method: Return = event.method
        names, code = (method.exchange, method.routing_key), method.reply_code
        returned = Returned(self, event.body, event.properties, *names, reply_code=code, reply_text=method.reply_text)
        if self.on_returned is None:
            self._log.warning("%r: %r came back: %s", self, returned, method.reply_text)
        else:
            self.consumers.dispatch(self.on_returned, returned)

    def _closed_by_server(self, event: Event) -> None:
        method = event.method
        with self.life.lock:
            self.life.send_locked(commands.Channel.CloseOk)
        text = f"{self!r} was closed by the server: {method.reply_text}"
        self.finish(ChannelClosed(text, reply_code=method.reply_code, reply_text=method.reply_text))

    def _close_answered(self, event: Event) -> None:
        if self.state is State.CLOSING:
            self.finish(None)

    # ---- opening, and opening again ---------------------------------------------------------------------------------

    def open_on(self, link: Link) -> None:
        """Open it on a link: at first, or on the next one with quality of service and mode as they were."""
        is_first = self.state is State.OPENING
        self.life.call(commands.Channel.Open, {}, link=link)
        for global_, count in self._qos.items():
            fields = {"prefetch_size": 0, "prefetch_count": count, "global_": global_}
            self.life.call(commands.Basic.Qos, fields, link=link)
        if self.publishing.has_confirms:
            self.life.call(commands.Confirm.Select, {}, link=link)
        elif self._tags.is_transacted:
            self.life.call(commands.Tx.Select, {}, link=link)
        if is_first and not self.life.opened(link):
            raise self.life.lost()  # after the answer, and before any caller had the channel

    # ---- the end ----------------------------------------------------------------------------------------------------

    def abort(self, reply_code: int = 200, reply_text: str = "closed by the application") -> None:
        """Ask for the end and do not wait for the answer. Harmless when it was asked for before."""
        life = self.life
        with life.lock:
            if life.state in ENDING:
                return
            life.step_locked(Happening.CLOSE)
            life.error = error = ChannelClosed(f"{self!r} was closed here: {reply_text}", reply_code=reply_code)
            call = life.take_call_locked()
            fields = {"reply_code": reply_code, "reply_text": shortened(reply_text), "class_id": 0, "method_id": 0}
            life.send_locked(commands.Channel.Close, **fields)
            has_link = life.link is not None
        if call is not None:
            call.end(error)
        if not has_link:
            self.finish(None)

    def close(self, reply_code: int = 200, reply_text: str = "closed by the application") -> None:
        """Close it and wait for the server's answer: unsettled messages are then back in their queues.

        Callbacks that wait still run; their settlements are refused. A callback may close its own channel. Closing
        twice, and from several threads, is harmless. After `close_timeout` seconds it is closed without an answer.
        """
        self.abort(reply_code, reply_text)
        with self.connection.receive_buffer.answer_wanted():
            if self.life.ended.wait(self.connection.settings.close_timeout):
                return
        self._log.warning("%r: the server did not answer channel.close; closed without", self)
        self.finish(None)

    def finish(self, error: Exception | None) -> None:
        """It has ended. `error` is why, None when it was asked for. Once; later calls do nothing."""
        life = self.life
        with life.lock:
            if life.state is State.CLOSED:
                return
            life.step_locked(Happening.ENDED)
            life.error = why = error or life.error or ChannelClosed(f"{self!r} was closed with its connection")
            life.link = None
            call = life.take_call_locked()
            consumers = self.consumers.take_locked()
            unconfirmed = self.publishing.unconfirmed.renew()
            self._tags.clear()
        self.connection.forget_channel(self)
        if call is not None:
            call.end(why)
        _fail(unconfirmed, why)
        for consumer in consumers:
            consumer.ended(error)
        if self.on_closed is not None:
            self.consumers.dispatch(self.on_closed, error)
        self.consumers.end()
        life.ended.set()

    def interrupted(self, link: Link, error: Exception, *, keep_unconfirmed: bool) -> None:
        """The link is lost and will be replaced. It may have been already, if this comes late."""
        life = self.life
        with life.lock:
            if life.link is not None and life.link is not link:
                return
            comes_back = life.state in (State.OPEN, State.INTERRUPTED)
            was_asked_for = life.state is State.CLOSING
            if comes_back:
                life.step_locked(Happening.LOST)
                self._tags.renew()
                self.publishing.renew_flow_locked()
            life.link = None
            call = life.take_call_locked()
            unconfirmed = [] if keep_unconfirmed else self.publishing.unconfirmed.renew()
            self.publishing.unconfirmed.has_nack |= bool(unconfirmed)  # as if the server had refused them
        if call is not None:
            call.end(error)
        _fail(unconfirmed, error)
        if not comes_back:  # it was not open yet, or not any more: `finish` takes the step
            self.finish(None if was_asked_for else error)

    # ---- figures ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Its state, between opening and closed."""
        return self.life.state

    @property
    def is_open(self) -> bool:
        """False before the server has agreed, while the connection is being recovered, and from `close` on."""
        return self.life.state is State.OPEN

    def statistics(self) -> ChannelStatistics:
        """A snapshot in figures."""
        now = time.monotonic()
        with self.life.lock:
            since, stopped_at = self.consumers.running_since, self.publishing.stopped_at or self.connection.blocked_at
            return ChannelStatistics(
                number=self.number,
                state=self.state.value,
                consumers=len(self.consumers),
                queued=self.consumers.queued,
                running_for=None if since is None else now - since,
                unacked=len(self._tags),
                unconfirmed=len(self.publishing.unconfirmed),
                blocked_for=None if stopped_at is None else now - stopped_at,
            )

    def check_invariants(self) -> None:
        """Raise AssertionError when the channel contradicts itself. For tests."""
        life = self.life
        with life.lock:
            assert life.state is not State.OPEN or life.link is not None
            assert life.state is not State.CLOSED or not (self.consumers or self._tags or life.is_calling)
            self._tags.check_invariants()
            assert self.consumers.queued >= 0, self.consumers.queued
            self.publishing.unconfirmed.check_invariants()

    def __repr__(self) -> str:
        return f"<channel {self.number} of {self.connection.name!r}>"


def _fail(messages: list[Publication], error: Exception) -> None:
    for message in messages:
        if message.confirm is not None:
            message.confirm.set_exception(copy.copy(error))
