"""A channel without its vocabulary: its state, its calls, what arrives on it, and how it ends.

Promise     1. One call at a time; acknowledgements and publishes do not wait for it.
            2. A call ends with an answer, or with an error as soon as channel or connection ends, or with its timeout.
            3. A call that was given up closes the channel: answers carry no number, a late one would be taken for the
               next call's.
            4. What a delivery tag means never changes: after a recovery, tags go on from the highest, and settling one
               of before does nothing, for that message is back in its queue.
State       `_lock` guards all fields but `_turn`. `_turn` is held by the thread whose call is under way.
Lock order  `_turn` -> `_lock` -> outbox lock, or the locks of the work pool's multi-queue. `_lock` is held while frames
            are appended, so that what is counted under it (confirms, calls) has the order of the wire, and while
            deliveries are handed on, so that what ends a consumer comes behind them; neither waits for anything.
Who runs    `arrived`, `interrupted` and `finish` on the reader thread mostly; `begin` and `run_callback` on the work
            pool; the rest on any thread.
Waiting     Calls: see `_call`. `_ended` is set by `finish`. `_changed` is notified when the last unconfirmed message is
            answered for, when the server lets the flow go on, and when the channel is interrupted or ends.
Membership  `finish` happens once: it empties the registries under the lock, and tells everybody after it.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from pamqp import commands

from ..amqp import Ack, Deliver, GetOk, Nack, Return
from ..errors import ShutDown
from ._call import Call
from ._closing import Closing
from ._confirms import Ledger, Unconfirmed
from ._consumers import Consumer, Inbox
from ._errors import (
    CallTimeout,
    ChannelClosed,
    Closed,
    ConnectionClosed,
    ConnectionInterrupted,
    ConsumerCancelled,
    Nacked,
)
from ._failures import CallbackFailure
from ._link import Event, Link
from ._message import Message, Returned
from ._states import Happening, State, after
from ._statistics import ChannelStatistics

if TYPE_CHECKING:
    from ._connection import Connection

_log = logging.getLogger("multiqueue.client")

CONFIRM, TX = "confirm", "tx"
BATCH = 16  # deliveries of one channel before others have their turn; a hand-over costs about two of them


class ChannelBase(Closing):
    """What `Channel` stands on."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self._settings = connection.settings
        self._lane = connection.pool.add_lane(self)
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
        self._tag_offset = 0
        self._highest_tag = 0
        # Invariant: in rising order, all above _tag_offset and not above _highest_tag.
        self._unsettled: dict[int, None] = {}
        self._ledger: Ledger | None = None
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

    # ---- calls ----------------------------------------------------------------------------------------------

    def call(self, method: type[Any], *expected: type[Any], timeout: float | None = None, **fields: Any) -> Any:
        """Send a method and block until one of `expected` answers it.

        Raises:
            CallTimeout: no answer in `timeout` seconds; the channel is closed.
            ChannelClosed, ConnectionClosed: it is, or was closed before the answer; with the server's code and text.
        """
        return self._call_on(None, Call(*expected), method, timeout, fields).answer

    def _call_on(
        self, link: Link | None, call: Call, method: type[Any], timeout: float | None, fields: dict[str, Any]
    ) -> Call:
        """As `call`, on a `link` that is being made or, when None, on that of an open channel."""
        limit = self._settings.call_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        if not self._turn.acquire(timeout=limit):
            raise CallTimeout(f"{self!r}: another thread's call has been under way for {limit:g} s; nothing was sent")
        try:
            with self._lock:
                to = link or self._open_link_locked()
                if not to.send(self.number, method, **fields):
                    raise self._lost()  # nobody will tell us: the link had ended before
                self._call = call  # the answer cannot overtake us: the reader needs the lock, and so does a loss
            self._wait_for(call, deadline, f"{method.name} was not answered within {limit:g} s")
        finally:
            self._turn.release()
        return call

    def _wait_for(self, call: Call, deadline: float, complaint: str) -> None:
        try:
            with self.connection.intake.answer_wanted():
                in_time = call.wait(deadline - time.monotonic())
        except BaseException:  # an interrupted call is as dangerous as one that timed out
            self._give_up(call, "a call was interrupted")
            raise
        if not in_time and self._give_up(call, complaint):
            raise CallTimeout(f"{self!r}: {complaint}; the channel was closed")
        if call.error is not None:
            raise copy.copy(call.error)

    def _give_up(self, call: Call, complaint: str) -> bool:
        """False when its answer or error came at the last moment."""
        with self._lock:
            if self._call is not call:
                return False
            self._call = None
        self.abort(541, complaint)
        return True

    def _open_link_locked(self) -> Link:
        if self._state is not State.OPEN or self._link is None:
            raise self._refusal_locked()
        return self._link

    def _lost(self) -> ConnectionClosed:
        kind = ConnectionInterrupted if self._settings.recover else ConnectionClosed
        return kind(f"{self!r}: the connection was lost; nothing was sent", reply_code=320)

    def _current(self, queue: str) -> str:
        return self.connection.topology.current_name(queue)

    def _refusal_locked(self) -> Exception:
        """Why nothing can be sent now."""
        if self._state is State.INTERRUPTED:
            return ConnectionInterrupted(
                f"{self!r}: the connection was lost and is being recovered; try again", reply_code=320
            )
        if self._error is not None:
            return copy.copy(self._error)
        return ChannelClosed(f"{self!r} is {self._state.value}; open another one")

    # ---- what arrives (on the reader thread) ------------------------------------------------------------------

    def arrived(self, event: Event) -> None:
        """A method of the server's, with its content."""
        handler = self._HANDLERS.get(type(event.method))
        if handler is None:
            self._answered(event)
        else:
            handler(self, event)

    def _answered(self, event: Event) -> None:
        method = event.method
        with self._lock:
            call = self._call
            if call is None or not isinstance(method, call.expected):
                call = None
            else:
                self._call = None
        if call is None:
            _log.warning("%r: %s answers nothing that was asked; ignored", self, type(method).__name__)
        else:
            call.give(method, event)

    def _delivered(self, event: Event) -> None:
        _, (consumer_tag, wire_tag, redelivered, exchange, routing_key), block, body = event
        inbox: Inbox | None = None
        with self._lock:
            consumer = self._consumers.get(consumer_tag)
            tag = self._highest_tag = wire_tag + self._tag_offset
            if consumer is None or self._state in _ENDING:
                message = None  # cancelled or closed meanwhile: the server takes it back with the channel
            else:
                auto_ack = consumer.request.auto_ack
                message = Message(self, body, block, exchange, routing_key, tag, consumer_tag, redelivered, auto_ack)  # type: ignore[arg-type]
                self._queued += 1
                if not auto_ack:
                    self._unsettled[tag] = None
                if isinstance(consumer, Inbox):
                    inbox = consumer
                else:
                    self._add_to_batch_locked(consumer, message)
        if message is None:
            _log.debug("%r: delivery %d for %r, which is no consumer any more", self, tag, consumer_tag)
            return
        self.connection.intake.hold(len(body))
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
            tag = self._highest_tag = method.delivery_tag + self._tag_offset
            auto_ack = getattr(call, "auto_ack", True)
            if not auto_ack:
                self._unsettled[tag] = None
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
            self._unsettled.clear()
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
        commands.Basic.CancelOk: _cancel_answered,
        commands.Basic.Cancel: _cancelled,
        commands.Channel.Flow: _flow,
        commands.Channel.Close: _closed_by_server,
        commands.Channel.CloseOk: _close_answered,
    }

    # ---- callbacks --------------------------------------------------------------------------------------------

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
        self.connection.pool.announce()

    def begin(self, message: Message) -> bool:
        """A delivery leaves its queue in the client; False when it came over a connection that is gone."""
        with self._lock:
            self._queued -= 1
            is_stale = not message.auto_ack and message.delivery_tag <= self._tag_offset
        self.connection.intake.release(len(message.body))
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
            self.connection.handle_failure(failure)
        finally:
            self._running_since = None

    def holds(self, delivery_tag: int) -> bool:
        """Is a message with this tag unsettled?"""
        return delivery_tag in self._unsettled

    # ---- the end ----------------------------------------------------------------------------------------------

    def abort(self, reply_code: int = 200, reply_text: str = "closed by the application") -> None:
        """Ask for the end and do not wait for the answer. Harmless when it was asked for before."""
        with self._lock:
            if self._state in _ENDING:
                return
            link = self._link
            self._state = after(self._state, Happening.CLOSE)
            self._error = ChannelClosed(f"{self!r} was closed here: {reply_text}", reply_code=reply_code)
            call, self._call = self._call, None
            if link is not None:
                fields = {"reply_code": reply_code, "reply_text": reply_text[:255]}
                link.send(self.number, commands.Channel.Close, **fields, class_id=0, method_id=0)
            self._changed.notify_all()
        if call is not None:
            call.fail(self._error)
        if link is None:
            self.finish(None)

    def close(self, reply_code: int = 200, reply_text: str = "closed by the application") -> None:
        """End it and wait until the server agrees: unsettled messages are back in their queues then.

        Callbacks that wait still run; what they settle is refused. A callback may close its own channel. Closing
        twice, and from several threads, is harmless. After `close_timeout` seconds it is closed without an answer.
        """
        self.abort(reply_code, reply_text)
        with self.connection.intake.answer_wanted():
            if self._ended.wait(self._settings.close_timeout):
                return
        _log.warning("%r: the server did not answer channel.close; closed without", self)
        self.finish(None)

    def finish(self, error: Exception | None) -> None:
        """It has ended. `error` is why, None when it was asked for. Once; later calls do nothing."""
        with self._lock:
            if self._state is State.CLOSED:
                return
            self._state = after(self._state, Happening.ENDED)
            self._error = error or self._error or ChannelClosed(f"{self!r} was closed with its connection")
            self._link = None
            call, self._call = self._call, None
            consumers, self._consumers = list(self._consumers.values()), {}
            unconfirmed = [] if self._ledger is None else self._ledger.renew()
            self._unsettled.clear()
            self._changed.notify_all()
        self.connection.forget_channel(self)  # type: ignore[arg-type] # a Channel
        if call is not None:
            call.fail(self._error)
        _fail(unconfirmed, self._error)
        for consumer in consumers:
            consumer.ended(error)
        if self.on_closed is not None:
            self.dispatch(self.on_closed, error)
        self.queue_work(lambda _: self._leave_pool(), None)
        self.connection.pool.announce()
        self._ended.set()

    def _leave_pool(self) -> None:
        """The last job of the lane."""
        self.connection.pool.remove_lane(self)
        self.connection.lane_left()

    # ---- loss and recovery --------------------------------------------------------------------------------------

    def interrupted(self, error: Exception, *, keep_unconfirmed: bool) -> None:
        """The link is lost and will be replaced."""
        with self._lock:
            if self._state in _ENDING:
                state = self._state
            else:
                state = self._state = after(self._state, Happening.LOST)
                self._tag_offset = self._highest_tag
                self._unsettled.clear()
                self._is_flowing, self._stopped_at = True, None
            self._link = None
            call, self._call = self._call, None
            unconfirmed = [] if self._ledger is None or keep_unconfirmed else self._ledger.renew()
            self._changed.notify_all()
        if call is not None:
            call.fail(error)
        _fail(unconfirmed, error)
        if state is not State.INTERRUPTED:
            self.finish(None if state is State.CLOSING else error)

    # ---- figures ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._state

    @property
    def is_open(self) -> bool:
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
                unacked=len(self._unsettled),
                unconfirmed=0 if self._ledger is None else len(self._ledger),
                blocked_for=None if stopped_at is None else now - stopped_at,
            )

    def check_invariants(self) -> None:
        """Raise AssertionError when the channel contradicts itself. For tests."""
        with self._lock:
            assert self._state is not State.OPEN or self._link is not None
            assert self._state is not State.CLOSED or not (self._consumers or self._unsettled or self._call)
            tags = list(self._unsettled)
            assert tags == sorted(tags), tags
            assert all(self._tag_offset < tag <= self._highest_tag for tag in tags), tags
            assert self._queued >= 0, self._queued
            if self._ledger is not None:
                self._ledger.check_invariants()

    def __repr__(self) -> str:
        return f"<channel {self.number} of {self.connection.name!r}>"


_ENDING = (State.CLOSING, State.CLOSED)


def _run_batch(batch: list[tuple[Consumer, Message]]) -> None:
    """A job of the work pool: deliveries that were read together."""
    for consumer, message in batch:
        try:
            consumer.run(message)
        except BaseException as error:  # noqa: BLE001  # SystemExit of a callback must not cost the others
            _log.critical("a callback of %r raised %r", consumer.channel, error, exc_info=error)


def _fail(messages: list[Unconfirmed], error: Exception) -> None:
    for message in messages:
        if message.confirm is not None:
            message.confirm.set_exception(copy.copy(error))


def _label(message: Unconfirmed) -> str:
    return f"the message of {len(message.body)} bytes to {message.exchange!r} {message.routing_key!r}"
