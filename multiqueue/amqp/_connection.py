"""A connection of the server: bytes from a socket to channels, frames from channels to the socket.

Promise     Whatever a peer sends, or fails to send, ends at most its own connection, cleanly: everything it had goes
            back to its queues. A peer that reads slowly has a bounded amount waiting, one that publishes too fast
            is not read from.
State       All of it belongs to the connection's I/O thread. Other threads come in through `io.post`, but for
            `post_committed`, whose list is guarded by `_commits_lock` (a leaf).
Holding     `_holds` are the reasons for which nothing is read: something runs aside (a password, a commit), a queue has
            no room, an alarm, replies that are not fetched. While there is one, frames that came before wait in
            `_pending`. Whoever adds a reason takes it away: the thread that ran aside, the queue, the alarm's
            end, the transport.
Ending      `connection_lost` is the one way out. It ends the channels, then the exclusive queues. While something runs
            aside for a channel, that comes when it is done.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ..broker import BrokerError, BrokerQueue
from . import _consuming as _consuming  # for the methods that they register
from . import _declaring as _declaring
from ._channel import ServerChannel
from ._channel_machine import ChannelState
from ._connection_machine import ConnectionMachine, ConnectionState, HeartbeatMonitor, Tuning, tuned
from ._errors import AmqpError, ChannelFault, ConnectionFault, FrameError
from ._frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    HEARTBEAT,
    MIN_FRAME_MAX,
    PROTOCOL_HEADER,
    Frame,
    FrameSplitter,
)
from ._handshake import Claim, RefusedLogin, claim, common_name
from ._hot import PUBLISH
from ._message import Digests
from ._methods import commands, decode_method, encode_method
from ._security import Rights, User, is_loopback

if TYPE_CHECKING:
    from ..broker import VirtualHost
    from ._io import IoThread
    from ._server import Server

_log = logging.getLogger("multiqueue.amqp")
_numbers = itertools.count(1)
_Result = TypeVar("_Result")

_FLUSH_PIECES: Final = 64  # frames of replies before they are written, so that a slow reader is noticed
_REPLIES: Final = 4  # times the write buffer that replies may wait in before nothing further is read

_CLOSE_OK_FRAME: Final = encode_method(0, commands.Connection.CloseOk)


class Owner:
    """Who owns a connection's exclusive queues, and published its messages. It outlives the connection cheaply."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<connection {self.name}>"


class ServerConnection(asyncio.Protocol):
    """One client."""

    # Set by the handshake, before any channel exists.
    user: User
    rights: Rights
    host: VirtualHost

    def __init__(self, server: Server, io: IoThread) -> None:
        self.server = server
        self.settings = server.settings
        self.io = io
        self.machine = ConnectionMachine()
        self.frame_max = self.settings.frame_max
        self.channels: dict[int, ServerChannel] = {}
        self.confirming: dict[ServerChannel, None] = {}  # channels with confirms to be told
        self.digests = Digests()
        self.is_held_back = False  # the peer reads too slowly: its consumers want nothing
        self.has_published = False
        self.client_properties: dict[str, object] = {}
        self._transport = cast(asyncio.Transport, None)  # until connection_made
        self._splitter = FrameSplitter(MIN_FRAME_MAX)
        self._beginning: bytes | None = b""  # of the protocol header; None once it has come
        self._tail = b""
        self._is_deaf = False  # what comes from now on cannot be read as frames
        self._out: list[bytes] = []
        self._pending: deque[Frame] = deque()
        self._holds: set[object] = set()
        self._set_aside: dict[ServerChannel, bytes] = {}  # methods that wait for commits
        self._commits_lock = threading.Lock()
        self._commits: list[tuple[ServerChannel, int, bool]] = []
        self._is_aside = False
        self._is_lost = False
        self._monitor = HeartbeatMonitor()
        self._heartbeat = 0
        self._timer: asyncio.TimerHandle | None = None
        self._channel_max = self.settings.channel_max
        self._offered: tuple[str, ...] = ()
        self.name = f"#{next(_numbers)}"
        self.owner = Owner(self.name)

    # -- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer is there; it has some seconds to open the connection."""
        self._transport = cast(asyncio.Transport, transport)
        peer, here = (transport.get_extra_info(key) or ("", 0) for key in ("peername", "sockname"))
        self._address = str(peer[0])
        self.name = self.owner.name = f"{peer[0]}:{peer[1]} -> {here[0]}:{here[1]}"
        high = self.settings.write_buffer_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 4)
        if not self.server.admit(self):
            _log.warning("%s: refused, there are %d connections", self.name, self.settings.max_connections)
            self._transport.abort()
            return
        self._set_timer(self.settings.handshake_timeout, self._too_slow)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._monitor.heard = True
        if self._is_deaf:
            self._listen_for_close_ok(data)
            return
        if self._beginning is not None:
            rest = self._receive_beginning(data)
            if rest is None:
                return
            data = rest
        try:
            frames = self._splitter.feed(data)
        except FrameError as error:
            self._process(error.frames)
            self._is_deaf = True
            self.fault(error)
        else:
            self._process(frames)
        self.flush()

    def eof_received(self) -> None:
        """The peer sends nothing further; that is its end."""

    def connection_lost(self, exc: BaseException | None) -> None:
        """The socket is closed."""
        self._is_lost = True
        self._cancel_timer()
        self._pending.clear()
        self._out.clear()
        if not self._is_aside:
            self._end()

    def pause_writing(self) -> None:
        """The peer reads slowly: its consumers want nothing for now."""
        self.is_held_back = True
        self._want(False)

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.is_held_back = False
        self._want(True)
        self._let_go("replies")

    def _want(self, desired: bool) -> None:
        for channel in list(self.channels.values()):
            for consumer in list(channel.consumers.values()):
                consumer.want(desired)

    # -- writing

    def send(self, data: bytes) -> None:
        """Frames to be written when the present turn ends."""
        self._out.append(data)

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
            self._transport.write(data)

    def failed(self, error: Exception) -> None:
        """A fault of ours."""
        _log.error("%s: failed", self.name, exc_info=error)
        self.fault(ConnectionFault(541, "an internal error; see the broker's log"))
        self.flush()

    # -- frames

    def _receive_beginning(self, data: bytes) -> bytes | None:
        """What follows the protocol header once it is whole; None while it is not, or when it is wrong."""
        self._beginning = begun = cast(bytes, self._beginning) + data
        if not PROTOCOL_HEADER.startswith(begun[:8]):
            self._is_deaf = True
            self._transport.write(PROTOCOL_HEADER)  # the version that is spoken here
            self._close_transport()
            return None
        if len(begun) < 8:
            return None
        self._beginning = None
        self._start()
        return begun[8:]

    def _listen_for_close_ok(self, data: bytes) -> None:
        """The stream is out of step, but the answer to our close may be in it: then all has been said."""
        self._tail = (self._tail + data)[-2 * len(_CLOSE_OK_FRAME) :] if len(data) < 64 else data
        if _CLOSE_OK_FRAME in self._tail:
            self._close_transport()

    def _process(self, frames: list[Frame]) -> None:
        if self._pending:
            self._pending.extend(frames)
            return
        if self._holds:
            self._pending.extend(frames)
            return
        for at, (kind, number, payload) in enumerate(frames):
            self._receive(kind, number, payload)
            if len(self._out) > _FLUSH_PIECES:
                self._write_replies()
            if self._holds:
                self._pending.extend(frames[at + 1 :])
                return

    def _write_replies(self) -> None:
        self.flush()
        if self.is_held_back:
            waiting = self._transport.get_write_buffer_size()
            if waiting > _REPLIES * self.settings.write_buffer_bytes:
                self._hold("replies")

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        channel: ServerChannel | None = None
        try:
            if number and kind <= FRAME_BODY:
                if self.machine.state is not ConnectionState.RUNNING and not self.machine.check_channel_frame():
                    return
                channel = self.channels.get(number)
                if channel is None:
                    channel = self._new_channel(number)
                    channel.receive(kind, payload)
                    if channel.machine.state is ChannelState.OPEN:
                        self.channels[number] = channel
                else:
                    channel.receive(kind, payload)
            elif kind == FRAME_METHOD:
                if self.machine.receive(payload[:4]):
                    self._call(payload)
            elif kind in (FRAME_HEADER, FRAME_BODY):
                raise ConnectionFault(505, "a content frame on channel 0")
        except Exception as error:  # noqa: BLE001  # every one ends a channel or a connection
            self._fail(channel, error, payload[:4] if kind == FRAME_METHOD else PUBLISH)

    def _new_channel(self, number: int) -> ServerChannel:
        most = self._channel_max
        if len(self.channels) >= most:
            opened = len(self.channels)
            text = f"number of channels opened ({opened}) has reached the negotiated channel_max ({most})"
            raise ConnectionFault(530, text)
        if number > most:
            raise ConnectionFault(504, f"channel {number} is beyond the negotiated channel_max ({most})")
        return ServerChannel(self, number)

    def _fail(self, channel: ServerChannel | None, error: BaseException, method: bytes) -> None:
        """Close what an error costs: the channel, or the connection."""
        if isinstance(error, BrokerError):
            if error.closes == "channel" and channel is not None:
                channel.fault(error.reply_code, error.reply_text, method)
            else:
                self.fault(error, method)
        elif isinstance(error, ChannelFault) and channel is not None:
            channel.fault(error.reply_code, error.reply_text, method)
        elif isinstance(error, AmqpError):
            self.fault(error, method)
        elif isinstance(error, Exception):
            self.failed(error)
        else:
            raise error

    def forget_channel(self, channel: ServerChannel) -> None:
        """A channel is closed on both sides."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]

    # -- methods of channel 0

    def _start(self) -> None:
        self.machine.started()
        certificate = self._transport.get_extra_info("peercert")
        self._offered = ("PLAIN", "AMQPLAIN", "EXTERNAL") if certificate else ("PLAIN", "AMQPLAIN")
        self._reply(
            commands.Connection.Start,
            version_major=0,
            version_minor=9,
            server_properties=self.server.properties,
            mechanisms=" ".join(self._offered),
            locales="en_US",
        )
        self.flush()

    def _reply(self, method: Any, **fields: Any) -> None:
        self.send(encode_method(0, method, **fields))

    def _call(self, payload: bytes) -> None:
        method: Any = decode_method(payload)
        if isinstance(method, commands.Connection.StartOk):
            self._log_in(method)
        elif isinstance(method, commands.Connection.TuneOk):
            self._tune(method)
        elif isinstance(method, commands.Connection.Open):
            self._open(method)
        elif isinstance(method, commands.Connection.Close):
            self._closed_by_client()
        elif isinstance(method, commands.Connection.CloseOk):
            self._close_transport()
        elif isinstance(method, commands.Connection.UpdateSecret):
            self._reply(commands.Connection.UpdateSecretOk)

    def _log_in(self, method: Any) -> None:
        self.client_properties = method.client_properties
        try:
            certificate = self._transport.get_extra_info("peercert")
            who = claim(method.mechanism, method.response, self._offered, common_name(certificate))
        except RefusedLogin as refused:
            self._refuse(refused)
            return
        password = who.password
        if password is None or self.server.access.remembered(who.user, password):
            self._logged_in(who, method.mechanism, True)
            return
        verified = lambda known: self._logged_in(who, method.mechanism, known)  # noqa: E731
        self.run_aside(lambda: self.server.access.verify(who.user, password), verified)

    def _logged_in(self, who: Claim, mechanism: str, verified: bool) -> None:
        user = self.server.access.user(who.user)
        if user is None or not verified:
            self._refuse(RefusedLogin(mechanism, f"user '{who.user}': invalid credentials"))
        elif user.loopback_only and not is_loopback(self._address):
            self._refuse(RefusedLogin(mechanism, f"user '{who.user}' can only connect via localhost"))
        else:
            self.user = user
            offer = self.settings
            self._reply(
                commands.Connection.Tune,
                channel_max=offer.channel_max,
                frame_max=offer.frame_max,
                heartbeat=offer.heartbeat,
            )

    def _refuse(self, refused: RefusedLogin) -> None:
        _log.warning(
            "%s: %s login refused: %s", self.name, refused.detail.split(" mechanism ")[-1].split(".")[0], refused.reason
        )
        if self.can("authentication_failure_close"):
            self.fault(refused)
            return
        self._is_deaf = True
        self._close_transport()

    def _tune(self, method: Any) -> None:
        offer = Tuning(self.settings.channel_max, self.settings.frame_max, self.settings.heartbeat)
        both = tuned(offer, Tuning(method.channel_max, method.frame_max, method.heartbeat), MIN_FRAME_MAX)
        self._channel_max = both.channel_max or self.settings.channel_max
        self.frame_max = both.frame_max or self.settings.frame_max
        self._splitter.frame_max = self.frame_max
        self._heartbeat = both.heartbeat

    def _open(self, method: Any) -> None:
        name = method.virtual_host
        self.host = self.server.virtual_host(name)
        self.rights = Rights(self.user, name)
        self._reply(commands.Connection.OpenOk)
        self._cancel_timer()
        if self._heartbeat:
            self._set_timer(self._heartbeat / 2, self._tick)
        _log.info("%s: user '%s' opened vhost '%s'", self.name, self.user.name, name)

    def can(self, capability: str) -> bool:
        """Whether the client said that it knows an extension."""
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(capability) is True

    # -- holding

    def run_aside(
        self, work: Callable[[], _Result], then: Callable[[_Result], object], channel: ServerChannel | None = None
    ) -> None:
        """Run `work` on a thread of the server's, then `then` here; nothing is read meanwhile."""
        self._is_aside = True
        self._hold("aside")

        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001  # belongs to the connection
                self.io.post(self._came_back, then, None, error, channel)
            else:
                self.io.post(self._came_back, then, result, None, channel)

        self.server.run_aside(run)

    def _came_back(
        self, then: Callable[[Any], object], result: object, error: BaseException | None, channel: ServerChannel | None
    ) -> None:
        self._is_aside = False
        if self._is_lost:
            self._end()
            return
        try:
            if error is not None:
                raise error
            then(result)
        except Exception as failure:  # noqa: BLE001  # as in _receive
            self._fail(channel, failure, b"\0\0\0\0")
        self._let_go("aside")
        self.flush()

    def set_aside(self, channel: ServerChannel, payload: bytes) -> None:
        """A method of the channel has to wait for `go_on`; nothing is read meanwhile."""
        self._set_aside[channel] = payload
        self._hold(channel)

    def go_on(self, channel: ServerChannel) -> None:
        """Call what was set aside."""
        payload = self._set_aside.pop(channel, None)
        if payload is None or self._is_lost:
            return
        try:
            channel.resume(payload)
        except Exception as error:  # noqa: BLE001  # as in _receive
            self._fail(channel, error, payload[:4])
        self._let_go(channel)
        self.flush()

    def throttle(self, queues: tuple[BrokerQueue, ...]) -> None:
        """Queues ask their producers to wait for room. Nothing is read until they have it.

        But a connection that consumes from such a queue goes on: the room may be for its own acks to make.
        """
        consumed = {consumer.queue for channel in self.channels.values() for consumer in channel.consumers.values()}
        for queue in queues:
            if queue in consumed or queue in self._holds:
                continue
            if queue.when_room(lambda queue=queue: self.io.post(self._let_go, queue)):  # type: ignore[misc]
                self._hold(queue)

    def publishes(self) -> None:
        """The client has published; from now on alarms concern it."""
        if not self.has_published:
            self.has_published = True
            self.alarm_changed()

    def alarm_changed(self) -> None:
        """An alarm has begun or ended."""
        alarms = self.server.alarms
        if self._is_lost or not self.has_published:
            return
        if alarms and "alarm" not in self._holds:
            self._hold("alarm")
            if self.can("connection.blocked"):
                self._reply(commands.Connection.Blocked, reason=f"low on {' & '.join(sorted(alarms))}")
        elif not alarms and "alarm" in self._holds:
            if self.can("connection.blocked"):
                self._reply(commands.Connection.Unblocked)
            self._let_go("alarm")
        self.flush()

    def _hold(self, reason: object) -> None:
        if not self._holds and not self._transport.is_closing():
            self._transport.pause_reading()
        self._holds.add(reason)

    def _let_go(self, reason: object) -> None:
        if reason not in self._holds:
            return
        self._holds.discard(reason)
        if self._holds or self._is_lost:
            return
        frames, self._pending = list(self._pending), deque()
        self._process(frames)
        if not self._holds and not self._transport.is_closing():
            self._transport.resume_reading()
        self.flush()

    def post_committed(self, channel: ServerChannel, number: int, refused: bool) -> None:
        """A publish was committed, or not. Any thread; must not block."""
        with self._commits_lock:
            self._commits.append((channel, number, refused))
            if len(self._commits) > 1:
                return  # whoever put the first one in has posted
        self.io.post(self._take_commits)

    def _take_commits(self) -> None:
        with self._commits_lock:
            commits, self._commits = self._commits, []
        for channel, number, refused in commits:
            channel.confirmed(number, refused=refused)
        self.flush()

    # -- time

    def _set_timer(self, seconds: float, action: Callable[[], object]) -> None:
        self._cancel_timer()
        self._timer = self.io.loop.call_later(seconds, action)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        _log.warning("%s: not open after %g s, cut", self.name, self.settings.handshake_timeout)
        self._transport.abort()

    def _tick(self) -> None:
        self._set_timer(self._heartbeat / 2, self._tick)
        send, is_gone = self._monitor.tick(listening=not self._holds)
        if is_gone:
            _log.warning("%s: missed heartbeats, timeout: %d s", self.name, self._heartbeat)
            self._transport.abort()
        elif send:
            self.send(HEARTBEAT)
            self.flush()

    # -- the end

    def fault(self, error: AmqpError | BrokerError, method: bytes = b"\0\0\0\0") -> None:
        """Close the connection for a fault of the client's, or of ours."""
        if self.machine.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            return
        _log.log(logging.INFO if error.reply_code == 320 else logging.WARNING, "%s: closed: %s", self.name, error)
        self._end_channels()
        self.machine.closed_by_server()
        self._reply(
            commands.Connection.Close,
            reply_code=error.reply_code,
            reply_text=error.reply_text.encode()[:255].decode(errors="ignore"),
            class_id=int.from_bytes(method[:2]),
            method_id=int.from_bytes(method[2:4]),
        )
        self._set_timer(self.settings.handshake_timeout, self._transport.abort)
        # What keeps us from reading no longer matters: only the answer does.
        self._holds.clear()
        self._pending.clear()
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def shut_down(self) -> None:
        """The server goes."""
        if self.machine.state is ConnectionState.RUNNING:
            self.fault(ConnectionFault(320, "broker shut down"))
            self.flush()
        else:
            self._close_transport()

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def _closed_by_client(self) -> None:
        self._end_channels()
        self._reply(commands.Connection.CloseOk)
        self.flush()
        self._is_deaf = True
        self._close_transport()

    def _close_transport(self) -> None:
        self.flush()
        self._transport.close()
        if not self._is_lost:
            # A peer that does not read would keep what is left to be written, and us, for ever.
            self._set_timer(self.settings.handshake_timeout, self._transport.abort)

    def _end_channels(self) -> None:
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.end()

    def _end(self) -> None:
        self._end_channels()
        if hasattr(self, "host"):
            self.host.release_owner(self.owner)
        self.server.forget(self)

    def __repr__(self) -> str:
        return f"<connection {self.name}>"
