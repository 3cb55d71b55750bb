"""The lane of a channel: deliveries and callbacks on their way from the reader to the work pool.

State       The channel's lock guards `queued` and `_batch`, deliveries that the lane does not have yet; the channel is
            in `to_flush` while there are any. The lane is put to with the lock held, so that the end of a consumer
            comes behind its deliveries. The thread that runs a callback writes `running_since`.
Who runs    `flush` on the reader thread; `begin` and `run_callback` on the work pool; the rest on any thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import ShutDown
from .._base.errors import CallbackFailure, Closed
from .._base.message import Message
from .._base.ports import MessageChannel
from .._dispatch.callbacks import Callbacks
from .._dispatch.receive_buffer import ReceiveBuffer
from .lifecycle import Lifecycle
from .settlements import DeliveryTags

_log = logging.getLogger("multiqueue.client")

BATCH = 16  # deliveries of one channel before others have their turn; a hand-over costs about two of them


MessageCallback = Callable[[Message], object]


@dataclass(eq=False, repr=False)
class Inbound:
    """The deliveries and callbacks of `channel`. `to_flush` has those with deliveries that the lane does not have."""

    channel: MessageChannel
    _life: Lifecycle
    _tags: DeliveryTags
    _callbacks: Callbacks
    _receive_buffer: ReceiveBuffer
    _to_flush: list[Inbound]
    queued: int = 0  # deliveries that no callback has begun with
    running_since: float | None = None

    def __post_init__(self) -> None:
        self._lane = self._callbacks.add_lane(self)
        self._batch: list[tuple[MessageCallback, Message]] = []

    def add_locked(self, callback: MessageCallback, message: Message) -> None:
        self._batch.append((callback, message))
        if len(self._batch) == 1:
            self._to_flush.append(self)
        elif len(self._batch) >= BATCH:
            self._flush_locked()

    def flush(self) -> None:
        """Hand what was delivered on to the work pool, to be announced later. The reader, when it has read."""
        with self._life.lock:
            self._flush_locked()

    def _flush_locked(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
            self._lane.put((self._run_batch, batch))

    def dispatch(self, callback: Callable[[Any], object], argument: Any) -> None:
        """Have a callback of the user's run in the lane, behind what was delivered."""
        self._put(lambda given: self.run_callback(callback, given), argument)

    def end(self) -> None:
        """Remove the lane behind all that is in it."""
        self._put(self._callbacks.remove_lane, self)

    def _put(self, function: Callable[[Any], object], argument: Any) -> None:
        try:
            with self._life.lock:
                self._flush_locked()
                self._lane.put((function, argument))
        except ShutDown:
            _log.debug("%r has ended; %r is dropped", self.channel, argument)
        self._callbacks.announce()

    def _run_batch(self, batch: list[tuple[MessageCallback, Message]]) -> None:
        for callback, message in batch:
            try:
                if self.begin(message):
                    self.run_callback(callback, message)
            except BaseException as error:  # noqa: BLE001  # SystemExit of a callback must not cost the others
                extra = {"connection": repr(self.channel)}
                _log.critical("a callback of %r raised %r", self.channel, error, exc_info=error, extra=extra)

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

    def run_callback(self, callback: Callable[[Any], object], argument: Any) -> None:
        self.running_since = time.monotonic()
        try:
            callback(argument)
        except Exception as error:  # noqa: BLE001  # goes to the handler
            self._callbacks.handle_failure(CallbackFailure(error, callback, argument, self.channel))
        finally:
            self.running_since = None
