"""A connection: from an address, or a broker of this process, over one link after the other, to its end.

State       `_lock` guards all fields that change. States are those of `lifecycle`.
Lock order  `_lock` -> the lock of the pool's multi-queue, when a channel is made. Otherwise not
            held while a channel, the link or the pool is called.
Waiting     `_ended` is set when the last link is gone for good; `_changed` is notified at every change of state.
Who runs    `arrived` and `lost` on the reader thread; `_recover`, `_restore` and their callees on the thread of
            recovery; everything else on any.
Membership  A channel leaves `_channels` when it has finished. Its number is used again, the lowest first.
Recovery    Promise 9 of docs/design/client.md has the order, and which messages are published again. What cannot be
            restored is logged and costs nothing else. A link that is lost meanwhile begins it anew.
At exit     A connection that is still open when the program ends is closed then, within its
            `close_timeout`: an empty outbox says that the socket has the bytes, not that the server has read them.
            `close_all` runs where `atexit` does: on the main thread, after threads that are no daemons have ended, and
            before the daemon threads of the connections are stopped. `_open_lock` guards `_open`; a leaf.
Source      AutorecoveringConnection of RabbitMQ's Java client, for recovery.
"""

from __future__ import annotations

import atexit
import heapq
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Self
from weakref import WeakKeyDictionary, WeakSet

from pamqp import commands

from ..._locks import Condition, Lock
from ...amqp.wire import encode_method, shortened
from .._base.errors import ClientError, ConnectionClosed, ConnectionInterrupted, TooManyChannels
from .._base.settings import Settings, parse_address, settings_for
from .._channel.channel import Channel
from .._channel.consumers import Consumers
from .._channel.lifecycle import ENDING, Closing, ConnectionStatistics, Happening, State, after, opened
from .._channel.recorded_topology import Declaration, RecordedTopology
from .._dispatch.buffers import ReceiveBuffer
from .._dispatch.work_pool import Callbacks
from .._link.link import Event, Link, Listener
from .._link.wire_link import open_wire
from .fair_inbox import FairInbox, finder

_log = logging.getLogger("multiqueue.client")

Connector = Callable[[Listener], Link]

# Reply codes after which another attempt can help: lost, forced by an operator, an internal error. The others say that
# the application did what is not allowed, and would do it again.
_RECOVERABLE = (0, 320, 541)


class Connection(Closing):
    """A connection to a broker; made by `connect`. Every method may be called from any thread."""

    def __init__(self, connector: Connector, settings: Settings, where: Any) -> None:
        self.settings = settings
        self._where = where  # an `Address`, or a virtual host of this process
        self.name: str = settings.name
        self._log = logging.LoggerAdapter(_log, {"connection": repr(self)})
        self.receive_buffer: ReceiveBuffer = ReceiveBuffer(settings.buffer_bytes, settings.name)
        self.topology: RecordedTopology = RecordedTopology()
        self._connector = connector
        self.callbacks: Callbacks = Callbacks(settings, self._executor_broke)
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._ended = threading.Event()
        self._state = State.OPENING
        # Invariant: None while INTERRUPTED and no new link has been found, and when CLOSED.
        self._link: Link | None = None
        self._error: Exception | None = None
        self._is_finished = False
        self._channels: dict[int, Channel] = {}
        self._inboxes: WeakSet[FairInbox] = WeakSet()
        self.to_flush: list[Consumers] = []  # the reader's: channels with deliveries that the pool does not have
        self._numbers: list[int] = []  # a heap of those below _next_number that are free
        self._next_number = 1
        self._blocked: tuple[str, float] | None = None  # why, and since when
        self._recoveries = 0

    def open(self) -> Self:
        """Connect, for the first time: tried once."""
        try:
            link = self._connector(self)
        except BaseException:
            self._finish(None)
            self.callbacks.leave()
            raise
        self._adopt(link)
        self._opened(link)
        return self

    # ---- channels -----------------------------------------------------------------------------------------------

    def channel(
        self,
        *,
        on_returned: Callable[[Any], object] | None = None,
        on_closed: Callable[[Exception | None], object] | None = None,
    ) -> Channel:
        """A new channel, open. `on_returned(message)` is called for mandatory messages that no queue took,
        `on_closed(error)` of its end: None when we asked for it. Both run on the work pool, in the channel's order.

        Raises:
            TooManyChannels: as many are open as the server allows.
            ConnectionClosed, ConnectionInterrupted: there is no connection now.
        """
        channel, link = self._new_channel()
        channel.on_returned = on_returned
        channel.on_closed = on_closed
        try:
            channel.open_on(link)
        except BaseException:
            channel.abort()  # its number is free when the server, which may have opened it, has answered
            raise
        return channel

    async def async_channel(self) -> Channel:
        """`channel()` for a coroutine; one that is cancelled leaves none open."""
        return await opened(self.channel)

    def inbox(
        self,
        pattern: str = "*",
        *,
        queues: Iterable[str] | None = None,
        api: str | None = None,
        prefetch: int = 10,
        weights: Mapping[str, float] | None = None,
        every: float = 5.0,
    ) -> FairInbox:
        """Messages of all queues that match, to take in turns: a queue with many delays none with few.

            with connection.inbox("jobs.*") as inbox:
                for message in inbox:
                    message.ack()

        `pattern` is as in a shell. Which queues there are is asked every `every` seconds of the HTTP API at the URL
        `api`; without it, of port 15672 of the server. `queues` names them instead. Each is consumed from on a separate
        channel, with this `prefetch`. `weights` are shares of queues beside others, 1 each.

        Raises:
            ConnectionFailed: nothing there lists the queues.
            TooManyChannels: there are more queues than the server allows channels.
        """
        inbox = FairInbox(self, finder(self._where, pattern, queues, api), prefetch, weights, every)
        with self._lock:
            self._open_link_locked()
            self._inboxes.add(inbox)
        return inbox.open()

    def _new_channel(self, link: Link | None = None) -> tuple[Channel, Link]:
        with self._lock:
            link = link or self._open_link_locked()
            if not self._numbers:
                if self._next_number > link.channel_max:
                    most = f"{link.channel_max} channels, as many as the server allows"
                    raise TooManyChannels(f"{self!r} has {most}; close one")
                self._next_number += 1
                self._numbers.append(self._next_number - 1)  # last: an interruption gives no number twice
            number = heapq.heappop(self._numbers)
            channel = self._channels[number] = Channel(self, number)
        return channel, link

    def forget_channel(self, channel: Channel) -> None:
        """It has finished; its number is free."""
        with self._lock:
            if self._channels.get(channel.number) is channel:
                del self._channels[channel.number]
                heapq.heappush(self._numbers, channel.number)

    def _open_link_locked(self) -> Link:
        if self._state is State.OPEN and self._link is not None:
            return self._link
        if self._state is State.INTERRUPTED:
            raise ConnectionInterrupted(f"{self!r} was lost and is being recovered; try again", reply_code=320)
        reason = f": {self._error}" if self._error is not None else ""
        raise ConnectionClosed(f"{self!r} is {self._state.value}{reason}; open another one")

    # ---- what arrives (on the reader thread) ----------------------------------------------------------------------

    def arrived(self, link: Link, events: list[Event]) -> None:
        """Methods of the server's, in order."""
        channels = self._channels
        for event in events:
            if event.number == 0:
                self._heard(link, event.method)
            elif (channel := channels.get(event.number)) is not None:
                channel.arrived(event)
            else:
                _log.debug("%r: %s for channel %d, which is closed", self, type(event.method).__name__, event.number)
        if self.to_flush:
            for each in self.to_flush:
                each.flush()
            self.to_flush.clear()
            self.callbacks.announce()

    def _heard(self, link: Link, method: Any) -> None:
        if isinstance(method, commands.Connection.Close):
            link.send(0, encode_method(0, commands.Connection.CloseOk))
            text = f"{self!r} was closed by the server: {method.reply_text}"
            error = ConnectionClosed(text, reply_code=method.reply_code or 0, reply_text=method.reply_text)
            link.end(error, linger=1.0)
        elif isinstance(method, commands.Connection.CloseOk):
            link.end(ConnectionClosed(f"{self!r} was closed here", reply_code=200))
        elif isinstance(method, commands.Connection.Blocked | commands.Connection.Unblocked):
            reason = getattr(method, "reason", None)
            self._blocked = None if reason is None else (reason, time.monotonic())
            self._tell(self.settings.on_blocked, reason)

    def lost(self, link: Link, error: ConnectionClosed) -> None:
        """The link has ended."""
        with self._lock:
            if link is not self._link:
                return
            self._link = None
            self._blocked = None
            goes_on = self.settings.recover and self._state in (State.OPEN, State.INTERRUPTED)
            goes_on = goes_on and error.reply_code in _RECOVERABLE
            begins = goes_on and self._state is State.OPEN
            self._state = after(self._state, Happening.LOST if goes_on else Happening.ENDED)
            channels = list(self._channels.values())
            self._changed.notify_all()
        if not goes_on:
            self._finish(None if error.reply_code == 200 else error)
            return
        interruption = ConnectionInterrupted(f"{error}; it is being recovered, try again", reply_code=320)
        for channel in channels:
            channel.interrupted(link, interruption, keep_unconfirmed=self.settings.republish)
        if begins:
            self._log.warning("%s; recovering", error)
            self._tell(self.settings.on_interrupted, error)
            threading.Thread(target=self._recover, name=f"{self.name}-recovery", daemon=True).start()

    # ---- recovery ---------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Try until the connection is as it was, or is closed."""
        while not self._wait_until_closing(self.settings.recovery_interval):
            try:
                link = self._connector(self)
            except ClientError as error:
                self._log.warning("%r: %s; trying again", self, error)
                continue
            except Exception as error:  # noqa: BLE001  # no error here gives the connection up
                self._log.error("%r: connecting failed; trying again", self, exc_info=error)
                continue
            if not self._adopt(link) or self._restore(link):
                return

    def _wait_until_closing(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._state in ENDING, timeout)

    def _adopt(self, link: Link) -> bool:
        """Make a link ours and start it; False when the connection was closed meanwhile."""
        with self._lock:
            wanted = self._state in (State.OPENING, State.INTERRUPTED)
            if wanted:
                self._link = link
        link.start()
        if not wanted:
            link.end(ConnectionClosed(f"{self!r} was closed here"))
        return wanted

    def _restore(self, link: Link) -> bool:
        """Whether recovery is over: everything is as it was, or the connection is closed."""
        with self._lock:
            channels = [channel for channel in self._channels.values() if channel.state is State.INTERRUPTED]
        try:
            for channel in channels:
                self._restore_channel(channel, lambda channel: channel.open_on(link))
            self._restore_topology(link)
            for channel in channels:
                self._restore_channel(channel, lambda channel: channel.consumers.resume(link))
            messages = sum(channel.publishing.republish(link) for channel in channels)
        except ConnectionClosed as error:
            self._log.warning("%s; beginning anew", error)
            link.end(error)  # or a live one would be forgotten, with what the server keeps for it
            return False
        except Exception as error:  # noqa: BLE001  # a defect of ours must not leave half a connection
            self._log.error("%r: recovery failed; starting again", self, exc_info=error)
            link.end(ConnectionClosed(f"recovery failed: {error!r}"))
            link.join(None)
            return False
        for channel in channels:
            channel.life.opened(link)  # first: who has waited for the connection uses them
        if not self._opened(link):
            return self.is_closed
        self._log.info("%r is recovered: %d channels, %d messages published again", self, len(channels), messages)
        if self.settings.on_recovered is not None:
            self.callbacks.dispatch(self.settings.on_recovered, self)
        return True

    def _restore_channel(self, channel: Channel, step: Callable[[Channel], object]) -> None:
        """A step for one channel. What the server refuses costs that channel alone."""
        if channel.state is not State.INTERRUPTED:
            return  # closed meanwhile, or by the step before
        try:
            step(channel)
        except ConnectionClosed:
            raise
        except ClientError as error:
            if getattr(error, "reply_code", 0) != 200:  # else it was closed by the application meanwhile
                self._log.error("%r could not be restored: %s", channel, error)

    def _restore_topology(self, link: Link) -> None:
        scratch: list[Channel] = []  # to declare on: the server closes one when it refuses a declaration

        def declare(declaration: Declaration) -> str:
            if not scratch or scratch[-1].state is not State.OPEN:
                scratch.append(self._new_channel(link)[0])
                scratch[-1].open_on(link)
            answer = scratch[-1].life.call(declaration.method, declaration.fields, link=link)
            return str(getattr(answer, "queue", ""))

        try:
            for declaration, error in self.topology.replay(declare):
                if isinstance(error, ConnectionClosed):
                    raise error
                self._log.error("%r: could not restore %s: %s", self, declaration, error)
            if scratch and scratch[-1].is_open:
                scratch[-1].close()
        finally:
            for channel in scratch:
                channel.abort()  # a call that was given up did so: its number is free when the server has answered

    def _opened(self, link: Link) -> bool:
        """The link is ready for everybody; False when it was lost, or the connection closed, meanwhile."""
        with self._lock:
            if self._link is not link or self._state in ENDING:
                return False
            self._recoveries += self._state is State.INTERRUPTED
            self._state = after(self._state, Happening.OPENED)
            self._changed.notify_all()
        return True

    def wait_until_open(self, timeout: float | None = None) -> bool:
        """Block until the connection is open, or open again; False after `timeout` seconds, or if it was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._state not in (State.OPENING, State.INTERRUPTED), timeout)
            return self._state is State.OPEN

    # ---- the end --------------------------------------------------------------------------------------------------

    def close(self, reply_text: str = "closed by the application") -> None:
        """Close channels and connection, and wait until the server agrees and callbacks have run, within limits.

        Unsettled messages are back in their queues then. Callbacks that wait still run; one that runs is waited for
        `close_timeout` seconds at most. A callback may close the connection: it waits for no callback. Closing twice,
        and from several threads, is harmless.
        """
        with self._lock:
            is_first = self._state not in ENDING
            self._state = after(self._state, Happening.CLOSE)
            link = self._link
            self._changed.notify_all()
        limit = self.settings.close_timeout
        if is_first and link is not None:
            fields = {"reply_code": 200, "reply_text": shortened(reply_text)}
            link.send(0, encode_method(0, commands.Connection.Close, **fields))
        if link is None:
            self._finish(None)
        with self.receive_buffer.answer_wanted():
            if not self._ended.wait(limit) and link is not None:
                link.end(ConnectionClosed(f"{self!r}: the server did not answer connection.close", reply_code=200))
                self._ended.wait(1.0)
        if link is not None:
            link.join(limit)
        self.callbacks.leave()

    def _finish(self, error: Exception | None) -> None:
        """There is no link, and there will be none. `error` is None when that was asked for."""
        with self._lock:
            if self._is_finished:
                return
            self._is_finished = True
            self._error = error
            self._state = after(self._state, Happening.ENDED)
            channels, inboxes = list(self._channels.values()), list(self._inboxes)
            self._changed.notify_all()
        for channel in channels:
            channel.finish(error)
        for inbox in inboxes:
            inbox.ended(error)
        self._tell(self.settings.on_closed, error)
        self.callbacks.end()
        self._ended.set()
        if error is not None:  # `close` need not be called now
            self.callbacks.let_go()

    def _tell(self, handler: Callable[[Connection, Any], object] | None, argument: Any) -> None:
        if handler is not None:
            self.callbacks.dispatch(lambda given: handler(self, given), argument)

    def _executor_broke(self, error: Exception) -> None:
        """The executor was shut down under us: no callback will run again."""
        link = self._link
        if link is not None:
            text = f"{self!r}: the executor takes no callbacks any more: {error}"
            link.end(ConnectionClosed(text, reply_code=200))

    # ---- figures --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Its state, between opening and closed."""
        return self._state

    @property
    def is_open(self) -> bool:
        """False while it is being recovered, and when it is closed."""
        return self._state is State.OPEN

    @property
    def is_closed(self) -> bool:
        """True when it is closed for good."""
        return self._state is State.CLOSED

    @property
    def server_properties(self) -> dict[str, Any]:
        """The server's properties, as it tells them."""
        link = self._link
        return {} if link is None else dict(link.server_properties)

    @property
    def blocked_reason(self) -> str | None:
        """Why the server accepts no messages now; None when it does."""
        blocked = self._blocked
        return None if blocked is None else blocked[0]

    @property
    def blocked_at(self) -> float | None:
        """When the server stopped to take messages, by the monotonic clock; None when it takes them."""
        blocked = self._blocked
        return None if blocked is None else blocked[1]

    def statistics(self) -> ConnectionStatistics:
        """A snapshot of the figures; each channel is read at a different moment."""
        with self._lock:
            channels = list(self._channels.values())
            state, recoveries = self._state.value, self._recoveries
        return ConnectionStatistics(
            name=self.name,
            state=state,
            channels=tuple(channel.statistics() for channel in channels),
            buffered_bytes=self.receive_buffer.held_bytes,
            is_reading=not self.receive_buffer.is_stopped,
            recoveries=recoveries,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when the connection contradicts itself. For tests."""
        self.receive_buffer.check_invariants()
        self.callbacks.check_invariants()
        with self._lock:
            channels = dict(self._channels)
            assert self._state is not State.OPEN or self._link is not None
            assert not set(self._numbers) & channels.keys()
            assert all(0 < number < self._next_number for number in (*self._numbers, *channels))
        for channel in channels.values():
            channel.check_invariants()

    def __repr__(self) -> str:
        return f"<connection {self.name!r}>"


def connect(target: str | Iterable[str] | Any, **options: Any) -> Connection:
    """A connection to a broker, open.

        with connect("amqp://guest:guest@localhost:5672/%2F") as connection, connection.channel() as channel:
            channel.publish(b"one tea", routing_key="orders")

    `target` is an address, a list of addresses of one cluster, or a `multiqueue.broker` broker or virtual host of this
    process. `options` are the fields of `Settings`. Blocks until a server agreed; each host is tried once. A connection
    that is open when the program ends is closed then.

    Raises:
        BadAddress: the address or an option does not fit.
        ConnectionFailed: no host agreed.
        TypeError: there is no such option.
    """
    if hasattr(target, "declare_queue"):
        settings = replace(settings_for(None, options), recover=False)  # a broker that was closed stays closed
        from .._link.direct_link import DirectLink  # here, because it loads the broker's side of a channel

        host: Any = target.virtual_host() if hasattr(target, "virtual_host") else target
        made = Connection(lambda listener: DirectLink(host, settings, listener), settings, host)
    else:
        address = parse_address(target)
        settings = settings_for(address, options)
        made = Connection(lambda listener: open_wire(address, settings, listener), settings, address)
    made.open()
    with _open_lock:
        _open[made] = os.getpid()
    return made


async def async_connect(target: str | Iterable[str] | Any, **options: Any) -> Connection:
    """`connect()` for a coroutine; one that is cancelled leaves no connection open. `async with` closes the connection;
    see `Channel` for what can be awaited."""
    return await opened(partial(connect, target, **options))


_open_lock = Lock()
_open: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()  # with the process that made it


def _mine() -> list[Connection]:
    with _open_lock:
        return [connection for connection, process in _open.items() if process == os.getpid()]


def close_all() -> None:
    for connection in _mine():
        connection.close("the program has ended")


def _end_waits() -> None:
    """Before the executors, which wait for all of their threads: those of a pool may be waiting for callbacks."""
    for connection in _mine():
        connection.callbacks.end_waits()


def _forked() -> None:
    """The lock may have been held by a thread that the child does not have."""
    global _open_lock
    _open_lock = Lock()


atexit.register(close_all)
try:
    threading._register_atexit(_end_waits)  # type: ignore[attr-defined]  # runs before that of the executors
except RuntimeError:  # the interpreter is past that point already
    pass
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
