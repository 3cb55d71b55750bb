"""Why a connection is not read from, and how it goes on.

Holding     `_holds` are the reasons for which nothing is read: something runs aside (a password, a commit), a method
            waits for commits, a queue has no room, an alarm, replies that are not fetched. While there is one,
            frames that came before wait in `_pending`. Whoever adds a reason takes it away: the thread that ran
            aside, the store, the queue, the alarm's end, the transport.
Softly      Reasons that are about publishing (a queue without room, an alarm), and those before the login, let us read
            on until 64 KiB wait: so a peer that leaves is noticed, and a close or cancel among them is done, with what
            stands before it. What follows waits on.
Threads     `post_committed` is for the store's thread, and `when_room`'s callback may come on any; both only pass the
            word on to the I/O thread, where everything else runs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ...broker import BrokerQueue
from .._session.machine import CANCEL, CHANNEL_CLOSE, ChannelState
from .._wire.frames import FRAME_METHOD, FRAME_OVERHEAD, Frame
from .._wire.methods import commands
from .connection_base import ConnectionBase
from .connection_machine import CLOSE, ConnectionState

if TYPE_CHECKING:
    from .._session.channel import ServerChannel

_log = logging.getLogger("multiqueue.amqp")
_Result = TypeVar("_Result")


class ConnectionHolding(ConnectionBase):
    """The part of a connection that stops reading and goes on."""

    _is_passing = False  # the soft reasons do not hold what is dealt with now

    def _process(self, frames: list[Frame]) -> None:
        """Deal with frames in order; those behind a new reason to hold are kept."""
        raise NotImplementedError

    def _end(self) -> None:
        """Nothing is left to do but to let go."""
        raise NotImplementedError

    def _fail(self, channel: ServerChannel | None, error: BaseException, method: bytes) -> None:
        """Close what an error costs."""
        raise NotImplementedError

    # -- reasons

    def _let_go(self, reason: object) -> None:
        if reason not in self._holds:
            return
        del self._holds[reason]
        if self._is_lost:
            return
        if self._holds:
            self._let_close(0)
        else:
            frames, self._pending, self._pending_bytes = list(self._pending), deque(), 0
            self._process(frames)
        self._read_or_not()
        self.flush()

    def _let_close(self, start: int) -> None:
        """Do what waits up to the last end in it, where nothing but publishing is held. No end is before `start`.

        The publishes before it are done too, though there is no room: they are few, and those who close a channel
        or a connection have a right to know that they are done.
        """
        if not self._is_held_softly:
            return
        ends = [at for at in range(start, len(self._pending)) if self._ends_something(self._pending[at])]
        if ends:
            frames = [self._pending.popleft() for _ in range(ends[-1] + 1)]
            self._is_passing = True
            try:
                self._process(frames)
            finally:
                self._is_passing = False
            self._pending_bytes = sum(len(payload) + FRAME_OVERHEAD for _, _, payload in self._pending)

    def _ends_something(self, frame: Frame) -> bool:
        """Whether the client closes the connection or an open channel, or cancels a consumer that is there.

        What is ended cannot be begun anew while the connection is held, so nobody gets past an alarm by this.
        """
        kind, number, payload = frame
        if kind != FRAME_METHOD:
            return False
        if not number:
            return payload[:4] == CLOSE
        channel = self.channels.get(number)
        if channel is None:
            return False
        if payload[:4] == CANCEL:
            tag = payload[5 : 5 + payload[4]] if len(payload) > 4 else b""
            return any(each.encode() == tag for each in channel.consumers)
        return payload[:4] == CHANNEL_CLOSE

    # -- aside

    def run_aside(
        self, work: Callable[[], _Result], then: Callable[[_Result], object], channel: ServerChannel | None = None
    ) -> None:
        """Run `work` on a thread of the server's, then `then` here; nothing is read meanwhile.

        The channel is that thread's meanwhile. `then` is for a connection that still stands: it answers. A connection
        that has to end ends without it, so `work` leaves the channel fit to be ended.
        """

        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001  # belongs to the connection
                self.io.post(self._came_back, then, None, error, channel)
            else:
                self.io.post(self._came_back, then, result, None, channel)

        self.server.run_aside(run)  # raises when no thread can be had; then nothing is under way
        self._is_aside, self._channel_aside = True, channel
        self._hold("aside")

    def _came_back(
        self, then: Callable[[Any], object], result: object, error: BaseException | None, channel: ServerChannel | None
    ) -> None:
        self._is_aside, self._channel_aside = False, None
        if self._is_lost:
            if error is not None:
                _log.warning("%s: what it asked for last failed after its end: %s", self.name, error)
            self._end()
            return
        if self._put_off is not None:
            self.fault(*self._put_off)
            self.flush()
            return
        try:
            if error is not None:
                raise error
            then(result)
        except BaseException as failure:  # noqa: BLE001  # as in _receive
            self._fail(channel, failure, b"\0\0\0\0")
        self._let_go("aside")
        self.flush()

    def do_in_pieces(
        self,
        work: Iterator[object],
        channel: ServerChannel,
        method: bytes,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """Do what the channel's method asks for, a piece at each step of `work`, here; then call `then`.

        Other connections have their turns between the pieces. Nothing is read or delivered meanwhile, so that no
        consumer of this connection sees half of it. What raises costs what `method` would.
        """

        def done(error: Exception | None) -> None:
            try:
                if error is not None:
                    raise error
                then()
            except Exception as failure:  # noqa: BLE001  # as in _receive
                self._fail(channel, failure, method)
            if work in self._holds:
                self._want_or_not()
                self._let_go(work)

        self._piecework.add(work, done)
        if self._piecework.is_under_way:
            self._hold(work)
            self._want_or_not()

    def run_long(
        self, work: Callable[[], _Result], then: Callable[[_Result], object], channel: ServerChannel, method: bytes
    ) -> None:
        """Run `work`, which may take any time and touches nothing of the connection's, on a thread of the server's.

        Then run `then` here, to answer the method, if the channel is open still. Nothing is read meanwhile, and the
        connection may end: `work` goes on for itself.
        """
        reason = object()
        self._hold(reason)

        def run() -> None:
            try:
                answer: Callable[[], object] = partial(then, work())
            except BaseException as error:  # noqa: BLE001  # belongs to the channel
                answer = partial(_raise, error)
            self.io.post(self._ends_long, reason, answer, channel, method)

        self.server.run_long(run)

    def _ends_long(self, reason: object, answer: Callable[[], object], channel: ServerChannel, method: bytes) -> None:
        is_open = self.machine.state is ConnectionState.RUNNING and channel.machine.state is ChannelState.OPEN
        if is_open and not self._is_lost:
            try:
                answer()
            except BaseException as failure:  # noqa: BLE001  # as in _receive
                self._fail(channel, failure, method)
        self._let_go(reason)
        self.flush()

    def set_aside(self, channel: ServerChannel, payload: bytes) -> None:
        """A method of the channel has to wait for `go_on`; nothing is read meanwhile."""
        self._set_aside[channel] = payload
        self._hold(channel)

    def go_on(self, channel: ServerChannel) -> None:
        """Call what was set aside."""
        payload = self._set_aside.pop(channel, None)
        if payload is None or self._is_lost or self.machine.state is not ConnectionState.RUNNING:
            return
        try:
            channel.resume(payload)
        except Exception as error:  # noqa: BLE001  # as in _receive
            self._fail(channel, error, payload[:4])
        self._let_go(channel)
        self.flush()

    # -- publishers

    def throttle(self, queues: tuple[BrokerQueue, ...]) -> None:
        """Queues ask their producers to wait for room. Nothing is read until they have it.

        But a connection that consumes from such a queue goes on: the room may be for its own acks to make.
        """
        consumed = {consumer.queue for channel in self.channels.values() for consumer in channel.consumers.values()}
        for queue in queues:
            if queue in consumed or queue in self._holds:
                continue
            if queue.when_room(lambda queue=queue: self.io.post(self._let_go, queue)):  # type: ignore[misc]
                self._hold(queue, softly=True)

    def publishes(self) -> None:
        """The client publishes. While there is an alarm, this was the last that is read of it.

        A client that only consumes is never held: its acks are what makes room.
        """
        self._has_published = True
        alarms = self.server.alarms
        if not alarms or "alarm" in self._holds or self._is_lost:
            return
        self._hold("alarm", softly=True)
        if self.can("connection.blocked"):
            self._reply(commands.Connection.Blocked, reason=f"low on {' & '.join(sorted(alarms))}")
        self.flush()

    def alarm_changed(self) -> None:
        """An alarm has begun or ended. Where one begins, `publishes` looks."""
        if self._is_lost or self.server.alarms or "alarm" not in self._holds:
            return
        if self.can("connection.blocked"):
            self._reply(commands.Connection.Unblocked)
        self._let_go("alarm")
        self.flush()

    def post_committed(self, told: list[tuple[Any, bool]]) -> None:
        """Publishes, by channel and number, were committed, or refused. Any thread; must not block."""
        with self._commits_lock:
            is_first = not self._commits
            self._commits += told
        if is_first:  # else whoever was has posted
            self.io.post(self._take_commits)

    def _take_commits(self) -> None:
        with self._commits_lock:
            commits, self._commits = self._commits, []
        for (channel, number), refused in commits:
            channel.confirmed(number, refused=refused)
        self.flush()


def _raise(error: BaseException) -> None:
    raise error
