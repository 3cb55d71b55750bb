"""What a connection of the server consists of, how it writes, and how it ends.

State       All of a connection belongs to its I/O thread. Other threads come in through `io.post`, but for
            `post_committed`, whose list is guarded by `_commits_lock` (a leaf).
Ending      `fault` sends a close and ends the channels; what keeps the connection from reading no longer matters, for
            only the answer does. `_end` is the last thing: channels, then exclusive queues, then the server forgets;
            each of them even if another raises (`_session.ending`). Where much is unacked that takes many turns
            (`_session.piecework`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from ...broker import BrokerError
from .._session.ending import Step, end_each
from .._session.figures import ConnectionFigures
from .._session.piecework import Piecework
from .._wire.errors import AmqpError, ConnectionFault
from .._wire.fields import shortened
from .._wire.frames import MIN_FRAME_MAX, Frame, FrameSplitter
from .._wire.message import Digests
from .._wire.methods import commands, encode_method
from .access import Rights, User
from .connection_machine import ConnectionMachine, ConnectionState, HeartbeatMonitor

if TYPE_CHECKING:
    from ...broker import Publisher, VirtualHost
    from .._session.channel import ServerChannel
    from .._session.channel_base import ChannelBase
    from .io_thread import IoThread
    from .newcomers import Newcomer
    from .server import Server

_log = logging.getLogger("multiqueue.amqp")
_numbers = itertools.count(1)
_LARGE: Final = 16 * 1024  # bytes; a piece beyond that is written at once: nothing is won by collecting such
_READ_AHEAD: Final = 64 * 1024  # bytes; what a connection that is held softly may have waiting here
_REPLIES: Final = 4  # times the write buffer that replies may wait in before nothing further is read


class Owner:
    """Who owns a connection's exclusive queues, and published its messages. It outlives the connection cheaply."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<connection {self.name}>"


class ConnectionBase(asyncio.Protocol):
    """A connection without a way in: `connection_reading` has that, `connection` the rest."""

    # Set by the handshake, before any channel exists.
    user: User
    rights: Rights
    host: VirtualHost
    publisher: Publisher

    def __init__(self, server: Server, io: IoThread, newcomer: Newcomer | None = None) -> None:
        self.server = server
        self.settings = server.settings
        self.io = io
        self.machine = ConnectionMachine()
        self.frame_max = self.settings.frame_max
        self.channels: dict[int, ServerChannel] = {}
        self.confirming: dict[ChannelBase, None] = {}  # channels with confirms to be told
        self.digests = Digests()
        self.is_held_back = False  # the peer reads too slowly: its consumers want nothing
        self.client_properties: dict[str, object] = {}
        self._transport = cast(asyncio.Transport, None)  # until connection_made
        self._splitter = FrameSplitter(MIN_FRAME_MAX)
        self._beginning: bytes | None = b""  # of the protocol header; None once it has come
        self._tail = b""
        self._is_deaf = False  # what comes from now on cannot be read as frames
        self._out: list[bytes] = []
        self._pending: deque[Frame] = deque()
        self._pending_bytes = 0  # of `_pending`, about
        self._holds: dict[object, bool] = {}  # reasons to do nothing further; True: but to read on for a while
        self._is_reading = True
        self._unread_bytes = 0  # written since `is_held_back`: replies, for no consumer wants anything then
        self._set_aside: dict[ServerChannel, bytes] = {}  # methods that wait for commits
        self._has_published = False  # something that `publisher` may not have handed in yet
        self._commits_lock = threading.Lock()
        self._commits: list[tuple[Any, bool]] = []
        self._newcomer = newcomer  # until it has logged in
        self._login: Future[None] | None = None  # its password is being hashed
        self._is_aside = False  # something of this connection runs on another thread
        self._channel_aside: ServerChannel | None = None  # which is that thread's meanwhile
        self._put_off: tuple[AmqpError | BrokerError, bytes] | None = None  # a fault that waits for it
        self._is_lost = False
        self._piecework = Piecework(io.do_piece, self.flush)
        self._monitor = HeartbeatMonitor()
        self._heartbeat = 0
        self._timer: asyncio.TimerHandle | None = None
        self._channel_max = self.settings.channel_max
        self._offered: tuple[str, ...] = ()
        # For those who look from outside.
        self._peer: tuple[str, int] = ("", 0)
        self._here: tuple[str, int] = ("", 0)
        self._is_tls = False
        self._mechanism = ""
        self._connected_at = time.time()
        self._received_bytes = 0
        self._sent_bytes = 0
        self.name = f"#{next(_numbers)}"
        self.owner = Owner(self.name)

    def send(self, data: bytes) -> None:
        """Frames to be written when the present turn ends, or now if they are large."""
        self._out.append(data)
        if len(data) > _LARGE:
            self.flush()

    def flush(self) -> None:
        """Write what there is to write. Whoever begins a turn on the I/O thread ends it with this."""
        while self.confirming:
            channel, _ = self.confirming.popitem()
            if channel.confirms is not None:
                self._out.append(channel.confirms.frames(channel.number))
        if self._out and not self._is_lost:
            data = b"".join(self._out)
            self._out.clear()
            self._monitor.said = True
            self._sent_bytes += len(data)
            if self.is_held_back:
                self._count_unread(len(data))
            self._transport.write(data)

    def _count_unread(self, size: int) -> None:
        """Who asks and asks and does not read is not read from, until it does."""
        self._unread_bytes += size
        if self._unread_bytes > _REPLIES * self.settings.write_buffer_bytes:
            self._hold("replies")

    def _hold(self, reason: object, *, softly: bool = False) -> None:
        """Do nothing further while this reason stands. Read nothing either, unless it is a soft one."""
        self._holds[reason] = softly
        self._read_or_not()

    def _read_or_not(self) -> None:
        """Read while nothing holds us; while it only does so softly, until there is enough that waits."""
        reads = not self._holds or (self._is_held_softly and self._pending_bytes < _READ_AHEAD)
        if reads is not self._is_reading and not self._transport.is_closing():
            self._is_reading = reads
            (self._transport.resume_reading if reads else self._transport.pause_reading)()

    @property
    def _is_held_softly(self) -> bool:
        return all(self._holds.values())

    @property
    def is_open(self) -> bool:
        """True once the client has opened a virtual host."""
        return hasattr(self, "host")

    def figures(self) -> ConnectionFigures:
        """A connection that is open in figures. Any thread."""
        return ConnectionFigures(
            name=self.name,
            user=self.user.name,
            virtual_host=self.host.name,
            state=self.machine.state.value,
            peer_host=self._peer[0],
            peer_port=self._peer[1],
            host=self._here[0],
            port=self._here[1],
            tls=self._is_tls,
            mechanism=self._mechanism,
            client_properties=self.client_properties,
            connected_at=self._connected_at,
            heartbeat=self._heartbeat,
            frame_max=self.frame_max,
            channel_max=self._channel_max,
            received_bytes=self._received_bytes,
            sent_bytes=self._sent_bytes,
            channels=tuple(each.figures() for each in list(self.channels.values())),
        )

    def can(self, capability: str) -> bool:
        """Whether the client said that it knows an extension."""
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(capability) is True

    def _reply(self, method: Any, **fields: Any) -> None:
        self.send(encode_method(0, method, **fields))

    def failed(self, error: BaseException) -> None:
        """A fault of ours."""
        _log.error("%s: failed", self.name, exc_info=error)
        self.fault(ConnectionFault(541, "an internal error; see the broker's log"))
        self.flush()

    def fault(self, error: AmqpError | BrokerError, method: bytes = b"\0\0\0\0") -> None:
        """Close the connection for a fault of the client's, or of ours."""
        if self._is_lost or self.machine.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            return
        if self._is_aside:  # a commit is another thread's until it is back
            self._put_off = error, method
            return
        if self._newcomer is not None:
            self.server.strangers.warning("%s: closed before its login: %s", self.name, error)
        else:
            _log.log(logging.INFO if error.reply_code == 320 else logging.WARNING, "%s: closed: %s", self.name, error)
        self.machine.closed_by_server()
        self._piecework.add(self._end_channels(), partial(self._say_close, error, method))

    def _say_close(self, error: AmqpError | BrokerError, method: bytes, _: Exception | None) -> None:
        self._reply(
            commands.Connection.Close,
            reply_code=error.reply_code,
            reply_text=shortened(error.reply_text),
            class_id=int.from_bytes(method[:2]),
            method_id=int.from_bytes(method[2:4]),
        )
        # What keeps us from reading no longer matters: only the answer does.
        self._holds.clear()
        self._pending.clear()
        self._pending_bytes = 0
        if not self._is_lost:
            self._set_timer(self.settings.handshake_timeout, self._transport.abort)
            self._read_or_not()

    def _set_timer(self, seconds: float, action: Callable[[], object]) -> None:
        self._cancel_timer()
        self._timer = self.io.loop.call_later(seconds, action)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_transport(self) -> None:
        self.flush()
        self._transport.close()
        if not self._is_lost:
            # A peer that does not read would keep what is left to be written, and us, for ever.
            self._set_timer(self.settings.handshake_timeout, self._transport.abort)

    def _want_or_not(self) -> None:
        """Have consumers served, but not while the peer reads slowly, or something is done in pieces."""
        desired = not (self.is_held_back or self._piecework.is_under_way)
        for channel in list(self.channels.values()):
            for consumer in list(channel.consumers.values()):
                consumer.want(desired)

    def _end_channels(self) -> Iterator[None]:
        """Deliver nothing further; what is returned ends the channels, a piece at each step.

        But for one that is another thread's: it ends later.
        """
        channels, self.channels = self.channels, {}
        aside = self._channel_aside
        endings: list[Iterator[None]] = []
        steps: list[Step] = []
        for channel in channels.values():
            if channel is not aside:
                endings.append(channel.end())
                continue
            self.channels[channel.number] = channel
            for consumer in channel.consumers.values():
                steps.append((f"stop {consumer!r}", partial(consumer.want, False)))
        end_each(self, steps)
        return itertools.chain.from_iterable(endings)

    def __repr__(self) -> str:
        return f"<connection {self.name}>"
