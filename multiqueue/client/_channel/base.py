"""What every part of a channel stands on: its state, its lane in the work pool, its figures.

State       `_lock` guards all fields but `_turn`. `_turn` is held by the thread whose call is under way.
Lock order  `_turn` -> `_lock` -> outbox lock, or the locks of the work pool's multi-queue. `_lock` is held while frames
            are appended, so that what is counted under it (confirms, calls) has the order of the wire, and while
            deliveries are handed on, so that what ends a consumer comes behind them; neither waits for anything.
Waiting     `_ended` is set by `finish`. `_changed` is notified when the last unconfirmed message is answered for, when
            the server lets the flow go on, and when the channel is interrupted or ends.
Who runs    `flush` on the reader thread; `begin` and `run_callback` on the work pool; the rest on any thread.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import ShutDown
from .._base.closing import Closing
from .._base.errors import ChannelClosed, Closed, ConnectionClosed, ConnectionInterrupted
from .._base.failures import CallbackFailure
from .._base.message import Message, Returned
from .._base.states import State
from .._base.statistics import ChannelStatistics
from .._link.link import Link
from .call import Call
from .consumers import Consumer, Inbox
from .delivery_tags import DeliveryTags
from .unconfirmed import Unconfirmed

if TYPE_CHECKING:
    from .._connection.connection import Connection

_log = logging.getLogger("multiqueue.client")

CONFIRM, TX = "confirm", "tx"
BATCH = 16  # deliveries of one channel before others have their turn; a hand-over costs about two of them


class ChannelBase(Closing):
    """What `Channel` stands on."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self._settings = connection.settings
        self._lane = connection.callbacks.add_lane(self)
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ended = threading.Event()
        self._state = State.OPENING
        # Invariant: not None while the state is OPEN; None while INTERRUPTED, until recovery has reopened the channel.
        self._link: Link | None = None
        self._call: Call | None = None
        self._error: Exception | None = None
        self._consumers: dict[str, Consumer | Inbox] = {}
        self._tags = DeliveryTags()
        self._ledger: Unconfirmed | None = None
        self._mode: str | None = None  # CONFIRM or TX, to be asked for again after a recovery; the same for _qos
        self._qos: dict[bool, int] = {}  # the prefetch count, by whether it holds for the channel as a whole
        self._is_flowing = True
        self._stopped_at: float | None = None  # when the server stopped the flow
        self._queued = 0
        # Deliveries that the lane does not have yet; in `connection.to_flush` if there are any.
        self._batch: list[tuple[Consumer, Message]] = []
        self._running_since: float | None = None
        self.on_returned: Callable[[Returned], object] | None = None
        self.on_closed: Callable[[Exception | None], object] | None = None

    # ---- what it can do now -----------------------------------------------------------------------------------------

    def _open_link_locked(self) -> Link:
        if self._state is not State.OPEN or self._link is None:
            raise self._refusal_locked()
        return self._link

    def _refusal_locked(self) -> Exception:
        """Why nothing can be sent now."""
        if self._state is State.INTERRUPTED:
            return ConnectionInterrupted(
                f"{self!r}: the connection was lost and is being recovered; try again", reply_code=320
            )
        if self._error is not None:
            return copy.copy(self._error)
        return ChannelClosed(f"{self!r} is {self._state.value}; open another one")

    def _lost(self) -> ConnectionClosed:
        """What was to be sent met a link that had ended."""
        kind = ConnectionInterrupted if self._settings.recover else ConnectionClosed
        return kind(f"{self!r}: the connection was lost; nothing was sent", reply_code=320)

    def _current(self, queue: str) -> str:
        """The name that a queue has now: the server may have given it another one after a recovery."""
        return self.connection.topology.current_name(queue)

    # ---- callbacks --------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Hand what was delivered on to the work pool, to be announced later. The reader, when it has read."""
        with self._lock:
            self._flush_locked()

    def _flush_locked(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
            self._lane.put((_run_batch, batch))

    def queue_work(self, function: Callable[[Any], object], argument: Any) -> None:
        """Put a job into the channel's lane, behind what was delivered, to be announced later."""
        try:
            with self._lock:
                self._flush_locked()
                self._lane.put((function, argument))
        except ShutDown:
            _log.debug("%r has ended; %r is dropped", self, argument)

    def dispatch(self, callback: Callable[[Any], object], argument: Any) -> None:
        """Have a callback of the user's run in the channel's lane."""
        self.queue_work(lambda given: self.run_callback(callback, given), argument)
        self.connection.callbacks.announce()

    def begin(self, message: Message) -> bool:
        """A delivery leaves its queue in the client; False when it came over a connection that is gone."""
        with self._lock:
            self._queued -= 1
            is_stale = not message.auto_ack and self._tags.is_stale(message.delivery_tag)
        self.connection.receive_buffer.release(len(message.body))
        return not is_stale

    def drop(self, message: Message) -> None:
        """Give back a delivery that nobody took."""
        if self.begin(message) and not message.auto_ack:
            try:
                message.nack(requeue=True)
            except (Closed, ValueError):
                pass  # it has gone back already

    def run_callback(self, callback: Callable[[Any], object], argument: Any) -> None:
        """Call it; what it raises goes to the handler."""
        self._running_since = time.monotonic()
        try:
            callback(argument)
        except Exception as error:  # noqa: BLE001  # goes to the handler
            failure = CallbackFailure(error, callback, argument, self)  # type: ignore[arg-type] # a Channel
            self.connection.callbacks.handle_failure(failure)
        finally:
            self._running_since = None

    def holds(self, delivery_tag: int) -> bool:
        """Is a message with this tag unsettled?"""
        return delivery_tag in self._tags

    # ---- figures ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Where it is between opening and its end."""
        return self._state

    @property
    def is_open(self) -> bool:
        """False before the server has agreed, while the connection is being recovered, and from `close` on."""
        return self._state is State.OPEN

    def statistics(self) -> ChannelStatistics:
        """A snapshot in figures."""
        now = time.monotonic()
        with self._lock:
            since, stopped_at = self._running_since, self._stopped_at or self.connection.blocked_at
            return ChannelStatistics(
                number=self.number,
                state=self._state.value,
                consumers=len(self._consumers),
                queued=self._queued,
                running_for=None if since is None else now - since,
                unacked=len(self._tags),
                unconfirmed=0 if self._ledger is None else len(self._ledger),
                blocked_for=None if stopped_at is None else now - stopped_at,
            )

    def check_invariants(self) -> None:
        """Raise AssertionError when the channel contradicts itself. For tests."""
        with self._lock:
            assert self._state is not State.OPEN or self._link is not None
            assert self._state is not State.CLOSED or not (self._consumers or self._tags or self._call)
            self._tags.check_invariants()
            assert self._queued >= 0, self._queued
            if self._ledger is not None:
                self._ledger.check_invariants()

    def __repr__(self) -> str:
        return f"<channel {self.number} of {self.connection.name!r}>"


def _run_batch(batch: list[tuple[Consumer, Message]]) -> None:
    """A job of the work pool: deliveries that were read together."""
    for consumer, message in batch:
        try:
            consumer.run(message)
        except BaseException as error:  # noqa: BLE001  # SystemExit of a callback must not cost the others
            _log.critical("a callback of %r raised %r", consumer.channel, error, exc_info=error)
