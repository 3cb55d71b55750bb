"""Consumers of a channel, single gets, and the settling of what came by either.

Promise     A consumer is registered before its first delivery can come. Settling waits for nothing, and a message is
            settled once: what it means is `delivery_tags`'.
State       Of `base`. `_lock` is held while a settlement is appended to the link, so none overtakes another.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from pamqp import commands

from ...amqp.wire import GetOk
from .._base.errors import UnknownDelivery
from .._base.message import Message
from .._base.states import ENDING, State
from .._link.link import Link
from .call import Call
from .calls import ChannelCalls
from .consumers import Consumer, ConsumerRequest, Inbox, MessageCallback


class ChannelConsuming(ChannelCalls):
    """Consumes, gets and settles."""

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
        if not callable(callback):
            raise TypeError(f"callback is {callback!r}, which cannot be called; consume() needs none")
        request = self._request(queue, consumer_tag, auto_ack, exclusive, no_local, arguments)
        self._start_consumer(Consumer(self, request, callback, on_ended))  # type: ignore[arg-type] # a Channel
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
        inbox = Inbox(self, self._request(queue, consumer_tag, auto_ack, exclusive, no_local, arguments))  # type: ignore[arg-type] # a Channel
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
            self._ask_for(None, consumer.request)
        except BaseException:
            with self._lock:
                self._consumers.pop(tag, None)
            raise

    def _ask_for(self, link: Link | None, request: ConsumerRequest) -> None:
        fields = {
            "queue": self._current(request.queue),
            "consumer_tag": request.tag,
            "no_local": request.no_local,
            "no_ack": request.auto_ack,
            "exclusive": request.exclusive,
            "arguments": dict(request.arguments),
        }
        self._call_on(link, Call(commands.Basic.ConsumeOk), commands.Basic.Consume, None, fields)

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

    def resume_consumers(self, link: Link) -> None:
        """Start the consumers again on a new link."""
        with self._lock:
            consumers = list(self._consumers.values())
        for consumer in consumers:
            self._ask_for(link, consumer.request)

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
            if self._state in ENDING:
                raise self._refusal_locked()
            try:
                wire_tag = self._tags.settle(tag, multiple)
            except KeyError:
                complaint = f"{self!r} has no unsettled message {tag}: it was settled before, or never came"
                raise UnknownDelivery(complaint) from None
            if self._link is not None and wire_tag is not None:
                self._link.settle(self.number, verb, wire_tag, multiple, requeue)
