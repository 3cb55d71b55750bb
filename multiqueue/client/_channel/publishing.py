"""Publishing on a channel, and the server's answers for what was published.

Promise     A message that is refused here was not sent. One that was sent is either on its way or, with confirms, in
            the ledger until the server has answered for it; the order of the ledger is the order of the wire.
State       Of `base`. `_lock` is held while a message gets its number and is appended to the link.
Waiting     A publisher waits for the flow, which `_changed` tells, then for room in the link; both within one deadline.
            Who waits for confirms is woken by the last answer and by the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Unpack

from pamqp import commands

from ...amqp.wire import NO_PROPERTIES, Properties, encode_properties
from .._base.errors import ConfirmTimeout, PublishTimeout
from .._base.states import State
from .._link.link import Link
from .base import CONFIRM
from .calls import ChannelCalls
from .unconfirmed import Confirm, Publication, Unconfirmed


class ChannelPublishing(ChannelCalls):
    """Publishes. Messages of one thread arrive in order."""

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
        self._publish(Publication(exchange, routing_key, mandatory, block, body, None), timeout)

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
        if self._mode != CONFIRM:
            self.confirm_select()
        block = _encode(properties) if properties else NO_PROPERTIES
        confirm = Confirm(self.connection.callbacks.dispatch, self.connection.receive_buffer.answer_wanted)
        self._publish(Publication(exchange, routing_key, mandatory, block, body, confirm), timeout)
        return confirm

    def _publish(self, message: Publication, timeout: float | None) -> None:
        if type(message.body) is not bytes:
            message = message._replace(body=_copied(message.body))
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
            is_on = self._mode == CONFIRM
        if is_on:
            return
        self.call(commands.Confirm.Select, commands.Confirm.SelectOk)
        with self._lock:
            if self._ledger is None:  # another thread may have been as fast
                self._mode = CONFIRM
                self._ledger = Unconfirmed()

    def wait_for_confirms(self, timeout: float | None = None) -> bool:
        """Block until the server has answered for all that was published; False if it could not take one of them.

        What counts are the answers since the last call.

        Raises:
            ConfirmTimeout: `timeout` seconds passed first.
            ChannelClosed, ConnectionClosed: it ended first; what it had not answered for may be lost.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.connection.receive_buffer.answer_wanted(), self._lock:
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


def _copied(body: object) -> bytes:
    """A body that nobody changes while it may have to be published again."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a message's body is bytes, not {type(body).__name__}: {str(body)[:40]!r}; encode it")


def _encode(properties: Mapping[str, Any]) -> bytes:
    try:
        return _encode_often(tuple(properties.items()))
    except TypeError:  # headers: a table is not hashable
        return encode_properties(properties)


@lru_cache(maxsize=256)
def _encode_often(properties: tuple[tuple[str, Any], ...]) -> bytes:
    """Most programs publish with a handful of combinations."""
    return encode_properties(dict(properties))
