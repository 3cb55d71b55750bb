"""What the server sends on a channel: deliveries, answers, confirms, returns, and what it ends.

Promise     Nothing here waits or runs user code: deliveries and callbacks go to the channel's lane.
State       Of `base`. A delivery gets its tag, and a got message too, before anybody can settle it.
Who runs    The link's reader thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, ClassVar

from pamqp import commands

from ...amqp.wire import Ack, Deliver, GetOk, Nack, Return
from .._base.errors import ChannelClosed, ConsumerCancelled, Nacked
from .._base.message import Message, Returned
from .._base.states import ENDING, State
from .._link.link import Event
from .base import BATCH
from .calls import ChannelCalls
from .consumers import Consumer, Inbox
from .unconfirmed import Publication

_log = logging.getLogger("multiqueue.client")


class ChannelArrivals(ChannelCalls):
    """Does what each of the server's methods asks for."""

    def arrived(self, event: Event) -> None:
        """A method of the server's, with its content."""
        handler = self._HANDLERS.get(type(event.method))
        if handler is None:
            self._answered(event)
        else:
            handler(self, event)

    def _delivered(self, event: Event) -> None:
        _, (consumer_tag, wire_tag, redelivered, exchange, routing_key), block, body = event
        inbox: Inbox | None = None
        with self._lock:
            consumer = self._consumers.get(consumer_tag)
            if consumer is None or self._state in ENDING:
                tag = self._tags.deliver(wire_tag, False)
                message = None  # cancelled or closed meanwhile: the server takes it back with the channel
            else:
                auto_ack = consumer.request.auto_ack
                tag = self._tags.deliver(wire_tag, not auto_ack)
                message = Message(self, body, block, exchange, routing_key, tag, consumer_tag, redelivered, auto_ack)  # type: ignore[arg-type]
                self._queued += 1
                if isinstance(consumer, Inbox):
                    inbox = consumer
                else:
                    self._add_to_batch_locked(consumer, message)
        if message is None:
            _log.debug("%r: delivery %d for %r, which is no consumer any more", self, tag, consumer_tag)
            return
        self.connection.receive_buffer.hold(len(body))
        if inbox is not None:
            inbox.accept(message)

    def _add_to_batch_locked(self, consumer: Consumer, message: Message) -> None:
        self._batch.append((consumer, message))
        if len(self._batch) == 1:
            self.connection.to_flush.append(self)
        elif len(self._batch) >= BATCH:
            self._flush_locked()

    def _got(self, event: Event) -> None:
        """A message that was asked for; its tag is ours before the asker wakes."""
        method: GetOk = event.method
        with self._lock:
            call, self._call = self._call, None
            auto_ack = getattr(call, "auto_ack", True)
            tag = self._tags.deliver(method.delivery_tag, not auto_ack)
        if call is not None:
            names = (method.exchange, method.routing_key)
            message = Message(self, event.body, event.properties, *names, tag, "", method.redelivered, auto_ack)  # type: ignore[arg-type]
            call.give(method, message)

    def _confirmed(self, event: Event) -> None:
        """basic.ack or basic.nack from the server: it answers for published messages."""
        is_ack = isinstance(event.method, Ack)
        with self._lock:
            ledger = self._ledger
            settled = [] if ledger is None else ledger.settle(event.method.delivery_tag, event.method.multiple)
            if ledger is not None:
                ledger.has_nack |= not is_ack
                if not len(ledger):
                    self._changed.notify_all()
        for message in settled:
            if message.confirm is not None and is_ack:
                message.confirm.set_result(None)
            elif message.confirm is not None:
                message.confirm.set_exception(Nacked(f"{self!r}: the server could not take {_label(message)}"))

    def _returned(self, event: Event) -> None:
        method: Return = event.method
        returned = Returned(
            self,  # type: ignore[arg-type] # a Channel
            event.body,
            event.properties,
            method.exchange,
            method.routing_key,
            method.reply_code,
            method.reply_text,
        )
        if self.on_returned is None:
            _log.warning("%r: %r came back: %s", self, returned, method.reply_text)
        else:
            self.dispatch(self.on_returned, returned)

    def _recovered(self, event: Event) -> None:
        """What was delivered until now has gone back; what follows is delivered anew."""
        with self._lock:
            self._tags.clear()
        self._answered(event)

    def _transaction_ended(self, event: Event) -> None:
        with self._lock:
            self._tags.transaction_ended(is_done=isinstance(event.method, commands.Tx.CommitOk))
        self._answered(event)

    def _cancel_answered(self, event: Event) -> None:
        self._forget_consumer(event.method.consumer_tag, None)
        self._answered(event)

    def _cancelled(self, event: Event) -> None:
        tag = event.method.consumer_tag
        self._forget_consumer(tag, ConsumerCancelled(f"{self!r}: the server ended consumer {tag!r}"))

    def _forget_consumer(self, tag: str, error: Exception | None) -> None:
        with self._lock:
            consumer = self._consumers.pop(tag, None)
        if consumer is not None:
            consumer.ended(error)

    def _flow(self, event: Event) -> None:
        with self._lock:
            self._is_flowing = event.method.active
            self._stopped_at = None if self._is_flowing else time.monotonic()
            if self._link is not None:
                self._link.send(self.number, commands.Channel.FlowOk, active=self._is_flowing)
            self._changed.notify_all()

    def _closed_by_server(self, event: Event) -> None:
        method = event.method
        with self._lock:
            if self._link is not None:
                self._link.send(self.number, commands.Channel.CloseOk)
        text = f"{self!r} was closed by the server: {method.reply_text}"
        self.finish(ChannelClosed(text, reply_code=method.reply_code, reply_text=method.reply_text))

    def _close_answered(self, event: Event) -> None:
        if self._state is State.CLOSING:
            self.finish(None)

    _HANDLERS: ClassVar[dict[type[Any], Callable[[Any, Event], None]]] = {
        Deliver: _delivered,
        GetOk: _got,
        Ack: _confirmed,
        Nack: _confirmed,
        Return: _returned,
        commands.Basic.RecoverOk: _recovered,
        commands.Tx.CommitOk: _transaction_ended,
        commands.Tx.RollbackOk: _transaction_ended,
        commands.Basic.CancelOk: _cancel_answered,
        commands.Basic.Cancel: _cancelled,
        commands.Channel.Flow: _flow,
        commands.Channel.Close: _closed_by_server,
        commands.Channel.CloseOk: _close_answered,
    }


def _label(message: Publication) -> str:
    return f"the message of {len(message.body)} bytes to {message.exchange!r} {message.routing_key!r}"
